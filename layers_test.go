package berth_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// room is a package and what it may import of berth. The table is the plan of
// the house: floors from 0 (root) up, and a room knows only what lies below.
type room struct {
	path string   // below "berth/"; "" = the root package
	may  []string // all of berth that it may import; tests are not held to it
	why  string
}

var rooms = []room{
	// floor 0
	{"", nil, "the vocabulary stands on the standard library alone, so that every room can speak it"},
	// floor 1
	{"durable", []string{""}, "a store knows no noun but the root's events and leases"},
	{"durable/sqlite", []string{"", "durable"}, "one leaf for each backend; backends never meet"},
	{"durable/durabletest", []string{"", "durable"}, "the conformance suite judges the contract, not a backend"},
	{"guestapi", []string{""}, "what both ends of the guest protocol share must drag neither end along"},
	{"hoststep", nil, "what root runs is read in an hour: it imports nothing of berth"},
	{"client", []string{""}, "the public SDK is usable without anything of the daemon"},
	{"process", []string{""}, "who a process is, is needed by the smallest program"},
	{"process/scope", []string{""}, "only who talks to systemd links D-Bus"},
	{"terminal", []string{""}, "PTY and log are linked into the holder, of which each session has one"},
	{"terminal/screen", []string{""}, "the screen model is linked into the guest, never into a holder"},
	{"holder", []string{"", "process", "terminal"}, "the holder is the process that must never have a reason to be replaced"},
	{"guest", []string{"", "guestapi", "holder", "process", "terminal", "terminal/screen"}, "the guest links nothing of the daemon: it runs on machines that have none"},
	// floor 2
	{"host", []string{""}, "a driver opens a stream; all else goes through the guest"},
	{"host/local", []string{"", "host", "process", "process/scope"}, "one leaf for each driver"},
	{"session", []string{"", "durable", "guestapi", "terminal/screen"}, "the registry asks guests; it never touches a holder or a PTY"},
	{"environment", []string{"", "durable", "guestapi"}, "it sees a host only through the guest, and Docker, registries and the host step only through what it declares"},
	{"container", []string{"", "durable", "process"}, "it speaks to Docker through a dial function; whose host it is, it does not know"},
	{"engine", []string{""}, "a release is a document: who pulls and who judges come to it, never the other way"},
	// floor 3
	{"internal/server", []string{"", "guestapi", "durable", "terminal/screen"}, "a door declares what it needs; the daemon hands it in"},
	// floor 4
	{"internal/cli", []string{"", "client"}, "the command line does nothing that the API cannot do"},
	{"internal/daemon", []string{"*"}, "the one composition"},
	// real parts for the tests of all rooms; linked into none
	{"internal/lab", []string{""}, "a part of the lab must not lean on what it is there to test"},
	// drives the real binaries; all of it is tests
	{"e2e", nil, "it sees what a user sees; its tests may use the SDK"},
	// mains
	{"cmd/berth", []string{"", "internal/cli"}, "mains parse, build, run and exit"},
	{"cmd/berth-daemon", []string{"", "internal/daemon"}, "mains parse, build, run and exit"},
	{"cmd/berth-guest", []string{"", "guest", "process/scope"}, "mains parse, build, run and exit"},
	{"cmd/berth-hoststep", []string{"hoststep"}, "mains parse, build, run and exit"},
	{"cmd/berth-holder", []string{"", "holder"}, "mains parse, build, run and exit"},
}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func within(path string) (string, bool) {
	if path == "berth" {
		return "", true
	}
	return strings.CutPrefix(path, "berth/")
}

func TestLayers(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		name, _ := within(p.ImportPath)
		i := slices.IndexFunc(rooms, func(r room) bool { return r.path == name })
		if i < 0 {
			t.Errorf("package %s has no place in the plan: give it one in layers_test.go, with the reason", p.ImportPath)
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			below, ours := within(imp)
			if ours && !slices.Contains(rooms[i].may, below) && !slices.Contains(rooms[i].may, "*") {
				t.Errorf("%s imports %s: %s", p.ImportPath, imp, rooms[i].why)
			}
		}
	}
	for _, r := range rooms {
		if !seen[r.path] {
			t.Errorf("the plan lists %q, which is not there: take the row out", r.path)
		}
	}
}

// forbidden is what a binary must not link, directly or not.
var forbidden = []struct {
	binary, dep, why string
}{
	{"./cmd/berth-holder", "net/http", "a holder is one per session: each page counts"},
	{"./cmd/berth-holder", "berth/terminal/screen", "the screen model lives in the guest"},
	{"./cmd/berth-holder", "github.com/godbus/dbus/v5", "the guest speaks to systemd for it"},
	{"./cmd/berth", "modernc.org/sqlite", "each command would set it up before its first line"},
	{"./cmd/berth", "github.com/danielgtaylor/huma/v2", "each command would set it up before its first line"},
	{"./cmd/berth-guest", "modernc.org/sqlite", "a guest keeps no database"},
	{"./cmd/berth-guest", "berth/durable", "a guest keeps no database"},
	{"./cmd/berth-guest", "berth/internal/server", "a guest links nothing of the daemon"},
	{".", "net/http", "the root is the standard library's small part"},
}

func TestForbiddenDependencies(t *testing.T) {
	for _, f := range forbidden {
		for _, p := range list(t, f.binary) {
			if slices.Contains(p.Deps, f.dep) {
				t.Errorf("%s links %s: %s", f.binary, f.dep, f.why)
			}
		}
	}
	for _, p := range list(t, ".") {
		for _, d := range p.Imports {
			if strings.Contains(d, ".") {
				t.Errorf("the root imports %s: it stands on the standard library alone", d)
			}
		}
	}
}
