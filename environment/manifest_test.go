package environment

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"berth"
)

func TestManifests(t *testing.T) {
	all, err := EmbeddedManifests()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	var b strings.Builder
	for _, m := range all {
		digest, err := m.Digest()
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(m.ID + " " + digest + "\n")
	}
	// An id that was published never changes its content: add a line, never edit one.
	const file = "testdata/manifests.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile(file); err != nil || string(want) != b.String() {
		t.Errorf("the manifests are\n%s and %s says\n%s (%v)", b.String(), file, want, err)
	}
	changed := all[0]
	changed.MinDocker = "1.0"
	if err := all[0].Same(changed); err == nil || berth.AsError(err).Code != berth.CodeConflict {
		t.Errorf("another content under one id: %v", err)
	}
	if err := all[0].Same(all[0]); err != nil {
		t.Error(err)
	}
	if manifestNumber("linux-r10") < manifestNumber("linux-r9") {
		t.Error("r10 is older than r9")
	}
}

var badManifests = map[string]string{
	"empty":         ``,
	"unknown key":   `{"v":1,"id":"a","x":1}`,
	"twice":         `{"v":1,"v":1}`,
	"two documents": `{"v":1} {}`,
	"v":             `{"v":2,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["x86_64"]}]}`,
	"family":        `{"v":1,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"pip","architectures":["x86_64"]}]}`,
	"architecture":  `{"v":1,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["vax"]}]}`,
	"same distro":   `{"v":1,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["x86_64"]},{"id":"u","version":"1","family":"apt","architectures":["aarch64"]}]}`,
	"no distro":     `{"v":1,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[]}`,
	"id is a path":  `{"v":1,"id":"../a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["x86_64"]}]}`,
	"version":       `{"v":1,"id":"a","recipe":"r","min_docker":"new","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["x86_64"]}]}`,
	"arch twice":    `{"v":1,"id":"a","recipe":"r","min_docker":"1","min_toolkit_cdi":"1","distributions":[{"id":"u","version":"1","family":"apt","architectures":["x86_64","x86_64"]}]}`,
}

func TestParseManifestRefuses(t *testing.T) {
	for name, text := range badManifests {
		if _, err := ParseManifest([]byte(text)); err == nil || berth.AsError(err).Code != berth.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseManifest(make([]byte, MaxManifest+1)); err == nil {
		t.Error("a manifest that is too large was read")
	}
}

func FuzzParseManifest(f *testing.F) {
	for _, text := range badManifests {
		f.Add([]byte(text))
	}
	if data, err := os.ReadFile("manifests/linux-r2.json"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		n, err := ParseManifest(again)
		if err != nil || m.Same(n) != nil {
			t.Errorf("it does not survive a round trip: %v", err)
		}
	})
}
