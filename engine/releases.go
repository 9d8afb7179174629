package engine

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"berth"
)

//go:embed releases/*.json
var embedded embed.FS

// Config is what releases are made of.
type Config struct {
	// Dir keeps the releases that were added, one file an id: berth.DirReleases in
	// the machine directory. It is made when the first one is added, and is shared
	// with other daemons of this user.
	Dir string
	// Transport carries Fetch; nil = one that follows the proxy variables.
	Transport http.RoundTripper
	// Log is told of files in Dir that are not used.
	Log *slog.Logger
}

// Releases are the releases that this berth knows. It is safe for concurrent use.
type Releases struct {
	cfg   Config
	fixed map[string]berth.Release // by id; never changes
	mu    sync.Mutex               // one Add of this process at a time; the lock on Dir is for the others
}

// NewReleases reads the releases that are part of the program. The directory is
// read when it is asked for. The error is CodeInvalidArgument, or
// CodeReleaseInvalid for a program that was built with a bad document.
func NewReleases(cfg Config) (*Releases, error) {
	if !filepath.IsAbs(cfg.Dir) || cfg.Log == nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "releases need an absolute directory and a log")
	}
	s := &Releases{cfg: cfg, fixed: map[string]berth.Release{}}
	names, err := fs.Glob(embedded, "releases/*.json")
	if err != nil {
		return nil, fmt.Errorf("list the releases of the program: %w", err)
	}
	for _, name := range names {
		data, err := embedded.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %s of the program: %w", name, err)
		}
		r, err := Parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s of the program: %w", name, err)
		}
		s.fixed[r.ID] = r
	}
	return s, nil
}

// Get finds a release by id, in the program or in the directory; it never
// fetches. CodeReleaseNotFound; CodeRecordUnreadable where the file is damaged;
// CodeConflict where the directory has other content for an id of the program.
func (s *Releases) Get(id string) (berth.Release, error) {
	if !berth.ValidEngine(id) {
		return berth.Release{}, berth.Errorf(berth.CodeReleaseNotFound, "%.80q is not the id of a release", id)
	}
	fixed, isFixed := s.fixed[id]
	added, err := s.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist) && isFixed:
		return fixed, nil
	case errors.Is(err, fs.ErrNotExist):
		return berth.Release{}, berth.Errorf(berth.CodeReleaseNotFound, "there is no release %q", id)
	case err != nil:
		return berth.Release{}, err
	case isFixed && !same(fixed, added):
		// Work may have been consented to under either: nobody guesses which.
		return berth.Release{}, berth.Errorf(berth.CodeConflict, "%s has other content than the release %q of this program", s.path(id), id).
			WithHint("compare the two, then remove that file").WithFact("path", s.path(id))
	}
	return added, nil
}

// List gives every release, by engine, the newest first. A file that cannot be
// used is left out and logged; Get says what is wrong with it.
func (s *Releases) List() []berth.ReleaseView {
	views := make([]berth.ReleaseView, 0, len(s.fixed))
	for _, r := range s.fixed {
		views = append(views, berth.ReleaseView{Release: r, Embedded: true})
	}
	for _, id := range s.addedIDs() {
		r, err := s.Get(id)
		if err != nil {
			s.cfg.Log.Warn("a release is not used", "release", id, "error", err)
			continue
		}
		if _, ok := s.fixed[id]; !ok {
			views = append(views, berth.ReleaseView{Release: r})
		}
	}
	slices.SortFunc(views, func(a, b berth.ReleaseView) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), newer(a.Release, b.Release))
	})
	return views
}

// Engines lists the engines that have a release, in order.
func (s *Releases) Engines() []string {
	var names []string
	for _, v := range s.List() {
		if !slices.Contains(names, v.Engine) {
			names = append(names, v.Engine)
		}
	}
	return names
}

// Latest is the newest release of an engine that has an image for the platform
// ("linux/amd64"). Of one version with a release for GPUs and one for the CPU
// it is the former. CodeReleaseNotFound says whether the engine or the platform
// is missing.
func (s *Releases) Latest(engine, platform string) (berth.Release, error) {
	return s.latest(engine, platform, func(berth.Release) bool { return true })
}

// LatestForCPU is the newest one that needs no GPU: for a machine that has none,
// where nobody named another.
func (s *Releases) LatestForCPU(engine, platform string) (berth.Release, error) {
	return s.latest(engine, platform, func(r berth.Release) bool { return !r.NeedsGPU() })
}

func (s *Releases) latest(engine, platform string, fits func(berth.Release) bool) (berth.Release, error) {
	var others []string
	for _, v := range s.List() {
		if v.Engine != engine {
			continue
		}
		if _, ok := v.Images[platform]; ok && fits(v.Release) {
			return v.Release, nil
		}
		others = append(others, v.ID)
	}
	if len(others) > 0 {
		return berth.Release{}, berth.Errorf(berth.CodeReleaseNotFound, "no release of %s has an image for %.40q: not %s", engine, platform, strings.Join(others, ", "))
	}
	return berth.Release{}, s.Known(engine)
}

// Known is CodeReleaseNotFound for an engine that has no release.
func (s *Releases) Known(engine string) error {
	names := s.Engines()
	if slices.Contains(names, engine) {
		return nil
	}
	return berth.Errorf(berth.CodeReleaseNotFound, "there is no engine %.80q", engine).WithHint("there are: " + strings.Join(names, ", "))
}

// Add checks a document and keeps it. One that is there already with the same
// content is answered, with added = false. CodeReleaseInvalid; CodeConflict where
// the id is there with other content.
func (s *Releases) Add(data []byte) (view berth.ReleaseView, added bool, err error) {
	r, err := Parse(data)
	if err != nil {
		return view, false, err
	}
	view.Release = r
	if fixed, ok := s.fixed[r.ID]; ok {
		if !same(fixed, r) {
			return berth.ReleaseView{}, false, taken(r.ID)
		}
		view.Embedded = true
		return view, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	unlock, err := s.lock()
	if err != nil {
		return berth.ReleaseView{}, false, err
	}
	defer unlock()
	switch there, err := s.read(r.ID); {
	case err == nil && same(there, r):
		return view, false, nil
	case err == nil:
		return berth.ReleaseView{}, false, taken(r.ID)
	case !errors.Is(err, fs.ErrNotExist):
		return berth.ReleaseView{}, false, err
	}
	canonical, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return berth.ReleaseView{}, false, fmt.Errorf("encode release %s: %w", r.ID, err)
	}
	if err := berth.WriteFile(s.path(r.ID), append(canonical, '\n'), 0o600); err != nil {
		return berth.ReleaseView{}, false, err
	}
	return view, true, nil
}

func taken(id string) error {
	return berth.Errorf(berth.CodeConflict, "there is another release %q already, and a release never changes", id).
		WithHint("give the document a new id").WithFact("release", id)
}

// same compares content: spaces and the order of members do not matter.
func same(a, b berth.Release) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

const documentSuffix = ".json"

func (s *Releases) path(id string) string { return filepath.Join(s.cfg.Dir, id+documentSuffix) }

// read reads a file of the directory. fs.ErrNotExist, CodeRecordUnreadable.
func (s *Releases) read(id string) (berth.Release, error) {
	data, err := berth.ReadFile(s.path(id), MaxDocument)
	if errors.Is(err, fs.ErrNotExist) {
		return berth.Release{}, err
	}
	var r berth.Release
	if err == nil {
		r, err = Parse(data)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("it holds the release %q", r.ID)
	}
	if err != nil {
		return berth.Release{}, berth.Errorf(berth.CodeRecordUnreadable, "%s: %w", s.path(id), err).
			WithHint("remove that file, then add the release again").WithFact("path", s.path(id))
	}
	return r, nil
}

// addedIDs lists the ids that the directory has files for.
func (s *Releases) addedIDs() []string {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("the added releases cannot be listed", "dir", s.cfg.Dir, "error", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), documentSuffix); ok && berth.ValidEngine(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// lock keeps other daemons from adding meanwhile, and clears what one that was
// killed half way left behind.
func (s *Releases) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return nil, berth.Errorf(berth.CodeStateDir, "make the directory of the releases: %w", err)
	}
	dir, err := os.Open(s.cfg.Dir)
	if err != nil {
		return nil, berth.Errorf(berth.CodeStateDir, "open the directory of the releases: %w", err)
	}
	for {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX) //nolint:gosec // a descriptor fits
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = dir.Close()
		return nil, berth.Errorf(berth.CodeStateDir, "lock %s: %w", s.cfg.Dir, err)
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Dir, ".*"+documentSuffix+".tmp-*")); err == nil {
		for _, path := range left {
			_ = os.Remove(path) // it was never a release; the next Add tries again
		}
	}
	return func() { _ = dir.Close() }, nil // closing it ends the lock
}
