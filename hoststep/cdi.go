package hoststep

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// cdiThere is satisfied when the cards of this machine are listed, as those of
// the driver that runs, and the specification can be read by a daemon that is not
// root.
func (r *run) cdiThere(ctx context.Context) (bool, string, error) {
	listed, err := r.cards(ctx)
	if err != nil {
		return false, "", err
	}
	if len(listed) == 0 {
		return false, "no nvidia.com/gpu device is listed", nil
	}
	if !r.cdiDone {
		if why := r.misfit(listed); why != "" {
			return false, why, nil
		}
	}
	_, info, err := r.sys.read(cdiSpec)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // another file may list them
		return false, "", err
	}
	if err == nil && info.Mode().Perm()&0o444 != 0o444 {
		return false, cdiSpec + " cannot be read by everybody", nil
	}
	if !r.refreshDone {
		if off, err := r.refreshOff(ctx); err != nil || off {
			return false, "the specification is not written again at boot", err
		}
	}
	return true, "CDI lists nvidia.com/gpu devices", nil
}

const gpuKind = "nvidia.com/gpu="

// cards are the names of the cards that CDI lists: "GPU-…", "0", "all".
func (r *run) cards(ctx context.Context) (names []string, err error) {
	o, err := r.must(ctx, "cdi-list")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(o.stdout + "\n" + o.stderr) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), gpuKind); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

var (
	moduleVersion = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d{3,}(?:\.\d+){1,2})\s`)
	cardUUID      = regexp.MustCompile(`(?m)^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$`)
	specLibrary   = regexp.MustCompile(`/lib(?:cuda|nvidia-ml)\.so\.(\d{3,}(?:\.\d+){1,2})\b`)
)

// misfit says why what is listed is of no use: it lacks a card of the driver, or
// was written for another driver, as before an update; "" = it fits, or nobody
// can tell. A container that is given such a card does not start.
func (r *run) misfit(listed []string) string {
	// A card that is cut into instances is itself in no specification.
	if !slices.ContainsFunc(listed, func(n string) bool { return strings.HasPrefix(n, "MIG-") }) {
		for _, uuid := range r.cardsOfDriver() {
			if !slices.Contains(listed, uuid) {
				return "CDI does not list " + uuid
			}
		}
	}
	version, _, err := r.sys.read("/proc/driver/nvidia/version")
	running := moduleVersion.FindSubmatch(version)
	if err != nil || running == nil {
		return ""
	}
	for _, path := range r.specsInForce() {
		text, _, err := r.sys.read(path)
		if err != nil {
			continue
		}
		for _, found := range specLibrary.FindAllSubmatch(text, -1) {
			if string(found[1]) != string(running[1]) {
				return path + " is of driver " + string(found[1]) + ", and " + string(running[1]) + " runs"
			}
		}
	}
	return ""
}

// cardsOfDriver are the UUIDs of the cards that the driver runs. It knows some
// only once they were used; those are left out.
func (r *run) cardsOfDriver() (uuids []string) {
	const dir = "/proc/driver/nvidia/gpus"
	entries, err := os.ReadDir(r.sys.path(dir))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		text, _, err := r.sys.read(filepath.Join(dir, e.Name(), "information"))
		if m := cardUUID.FindSubmatch(text); err == nil && m != nil {
			uuids = append(uuids, string(m[1]))
		}
	}
	return uuids
}

// specsInForce is the file that the helper writes, which comes before all others;
// where it is not there, those of /etc/cdi.
func (r *run) specsInForce() []string {
	if _, err := os.Lstat(r.sys.path(cdiSpec)); err == nil {
		return []string{cdiSpec}
	}
	const dir = "/etc/cdi"
	entries, err := os.ReadDir(r.sys.path(dir))
	if err != nil {
		return nil
	}
	var paths []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".yaml" || ext == ".json" {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

// refreshOff reports whether the toolkit's own unit, which writes the
// specification at each boot, is there and not on. A masked one was turned off
// by somebody, and stays so.
func (r *run) refreshOff(ctx context.Context) (bool, error) {
	o, err := r.do(ctx, "refresh-enabled")
	if errors.Is(err, errAbsent) { // no systemd
		return false, nil
	}
	state := strings.TrimSpace(o.stdout)
	return state == "disabled" || state == "linked", err
}

func (r *run) makeCDI(ctx context.Context) error {
	listed, err := r.cards(ctx)
	if err != nil {
		return err
	}
	if len(listed) == 0 || r.misfit(listed) != "" {
		if err := r.generate(ctx); err != nil {
			return err
		}
	}
	r.cdiDone = true // what the toolkit wrote now is as good as it gets
	if _, info, err := r.sys.read(cdiSpec); err == nil && info.Mode().Perm()&0o444 != 0o444 {
		if err := r.publish(); err != nil {
			return err
		}
	}
	off, err := r.refreshOff(ctx)
	if err != nil {
		return err
	}
	r.refreshDone = true
	if off { // a help for the next boot; the step stands without it
		if _, err := r.record(Change{Kind: ChangeService, Name: refreshUnit, Before: "disabled", After: "enabled"}); err != nil {
			return err
		}
		if o, err := r.do(ctx, "refresh-on"); err != nil || o.code != 0 {
			r.tell("%s could not be turned on: the specification must be written again after a reboot", refreshUnit)
		}
	}
	return nil
}

const refreshUnit = "nvidia-cdi-refresh.path"

func (r *run) generate(ctx context.Context) error {
	before, err := r.sys.hash(cdiSpec)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "cdi-generate"); err != nil {
		return err
	}
	after, err := r.sys.hash(cdiSpec)
	if err != nil || after == "" {
		return errors.Join(err, errors.New("nvidia-ctk wrote no "+cdiSpec))
	}
	// What it will write is not known before; /run is gone at the next boot anyway.
	_, err = r.record(Change{Kind: ChangeFile, Path: cdiSpec, Before: before, After: after})
	return err
}

func (r *run) publish() error {
	f, err := os.OpenFile(r.sys.path(cdiSpec), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o644), f.Close())
}
