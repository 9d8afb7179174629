package environment

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gowebpki/jcs"

	"berth"
)

// Manifest says on which distributions a recipe of the host step installs, and
// from which versions on what is there already is used. It is immutable by ID:
// the same ID with another content is refused.
type Manifest struct {
	V      int    `json:"v"`  // 1
	ID     string `json:"id"` // "linux-r2"
	Recipe string `json:"recipe"`
	// MinDocker is the oldest Docker that is completed rather than refused.
	MinDocker string `json:"min_docker"`
	// MinToolkitCDI is the oldest NVIDIA container toolkit that writes CDI specs.
	MinToolkitCDI string         `json:"min_toolkit_cdi"`
	Distributions []Distribution `json:"distributions"`
}

// Distribution is one release of a distribution that the recipe was tried on.
type Distribution struct {
	ID            string   `json:"id"`                 // of /etc/os-release
	Version       string   `json:"version"`            // VERSION_ID of it
	Codename      string   `json:"codename,omitempty"` // by which a derivative is told; "" = it has none
	Family        string   `json:"family"`             // apt or dnf
	Architectures []string `json:"architectures"`      // as uname -m says them
}

// Bounds of a manifest.
const (
	MaxManifest      = 256 << 10 // bytes
	maxDistributions = 256
)

//go:embed manifests/*.json
var manifestFiles embed.FS

var (
	manifestID    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	dottedVersion = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,3}$`)
)

// ParseManifest reads one strictly: no key twice, none that is not known,
// nothing after it. CodeInvalidArgument.
func ParseManifest(data []byte) (Manifest, error) {
	var m Manifest
	if len(data) > MaxManifest {
		return m, berth.Errorf(berth.CodeInvalidArgument, "the manifest is larger than %d bytes", MaxManifest)
	}
	if _, err := jcs.Transform(data); err != nil { // also refuses a key that is there twice
		return m, berth.Errorf(berth.CodeInvalidArgument, "the manifest is not JSON: %.200s", err.Error())
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, berth.Errorf(berth.CodeInvalidArgument, "the manifest: %.200s", err.Error())
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, berth.Errorf(berth.CodeInvalidArgument, "something follows the manifest")
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Validate checks a manifest as a whole. CodeInvalidArgument with the field.
func (m Manifest) Validate() error {
	bad := func(format string, args ...any) error {
		return berth.Errorf(berth.CodeInvalidArgument, "manifest %.80q: "+format, append([]any{m.ID}, args...)...)
	}
	switch {
	case m.V != 1:
		return bad("v is %d; this berth reads 1", m.V)
	case !manifestID.MatchString(m.ID):
		return bad("id is not made of a-z, 0-9 and . _ - (64 at most)")
	case !manifestID.MatchString(m.Recipe):
		return bad("recipe %.80q is not a name", m.Recipe)
	case !dottedVersion.MatchString(m.MinDocker):
		return bad("min_docker %.20q is not a version", m.MinDocker)
	case !dottedVersion.MatchString(m.MinToolkitCDI):
		return bad("min_toolkit_cdi %.20q is not a version", m.MinToolkitCDI)
	case len(m.Distributions) == 0 || len(m.Distributions) > maxDistributions:
		return bad("it has %d distributions; 1 to %d are allowed", len(m.Distributions), maxDistributions)
	}
	seen := map[string]bool{}
	for i, d := range m.Distributions {
		key := d.ID + " " + d.Version
		switch {
		case !manifestID.MatchString(d.ID) || !dottedVersion.MatchString(d.Version):
			return bad("distribution %d is not named by id and version", i)
		case seen[key]:
			return bad("%s is there twice", key)
		case d.Codename != "" && !manifestID.MatchString(d.Codename):
			return bad("%s: the codename is not a name", key)
		case d.Family != "apt" && d.Family != "dnf":
			return bad("%s: family %.20q is neither apt nor dnf", key, d.Family)
		case len(d.Architectures) == 0 || len(d.Architectures) > len(platforms):
			return bad("%s: the architectures are missing or too many", key)
		}
		for n, a := range d.Architectures {
			if platforms[a] == "" || slices.Contains(d.Architectures[:n], a) {
				return bad("%s: architecture %.20q is not known, or there twice", key, a)
			}
		}
		seen[key] = true
	}
	return nil
}

// Digest is "sha256:…" over the RFC 8785 form of the manifest.
func (m Manifest) Digest() (string, error) { return digestOf(m) }

// Same is nil when got may stand for have: another ID, or the same content.
// CodeConflict when one ID has two contents.
func (m Manifest) Same(got Manifest) error {
	if m.ID != got.ID {
		return nil
	}
	a, err := m.Digest()
	if err != nil {
		return err
	}
	b, err := got.Digest()
	if err != nil {
		return err
	}
	if a != b {
		return berth.Errorf(berth.CodeConflict, "manifest %s has another content than the one that is kept: an id never changes its content", m.ID).
			WithFact("have", a).WithFact("got", b)
	}
	return nil
}

// Find looks up a distribution, as the recipe names it.
func (m Manifest) Find(id, version, arch string) (Distribution, bool) {
	for _, d := range m.Distributions {
		if d.ID == id && d.Version == version && slices.Contains(d.Architectures, arch) {
			return d, true
		}
	}
	return Distribution{}, false
}

// Base is the distribution that a derivative was made from, told by the code
// name that it carries of it.
func (m Manifest) Base(idLike []string, codename, arch string) (Distribution, bool) {
	for _, d := range m.Distributions {
		if codename != "" && d.Codename == codename && slices.Contains(idLike, d.ID) && slices.Contains(d.Architectures, arch) {
			return d, true
		}
	}
	return Distribution{}, false
}

// EmbeddedManifests are those that came with this program, the newest first.
func EmbeddedManifests() ([]Manifest, error) {
	entries, err := manifestFiles.ReadDir("manifests")
	if err != nil {
		return nil, fmt.Errorf("embedded manifests: %w", err)
	}
	var all []Manifest
	for _, e := range entries {
		data, err := manifestFiles.ReadFile(path.Join("manifests", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("embedded manifest %s: %w", e.Name(), err)
		}
		m, err := ParseManifest(data)
		if err != nil {
			return nil, fmt.Errorf("embedded manifest %s: %w", e.Name(), err)
		}
		if e.Name() != m.ID+".json" {
			return nil, fmt.Errorf("embedded manifest %s has the id %s", e.Name(), m.ID)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Manifest) int {
		if c := manifestNumber(b.ID) - manifestNumber(a.ID); c != 0 {
			return c
		}
		return strings.Compare(b.ID, a.ID)
	})
	return all, nil
}

// manifestNumber is the revision at the end of an id, so that r10 follows r9.
func manifestNumber(id string) int {
	i := strings.LastIndex(id, "-r")
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(id[i+2:])
	if err != nil {
		return 0
	}
	return n
}

// platforms by architecture, as uname -m says it. What is not here is not
// supported.
var platforms = map[string]string{"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

// digestOf is "sha256:…" over the RFC 8785 form of a value.
func digestOf(v any) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	canonical, err := jcs.Transform(plain)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
