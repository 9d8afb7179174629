package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/internal/daemon"
	"berth/internal/lab"
)

// labBinaries builds the programs with a daemon whose machine a test makes.
var labBinaries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(binaries, "lab")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs
		return "", err
	}
	for _, name := range []string{"berth", "berth-guest", "berth-holder", "berth-hoststep"} {
		if err := os.Link(filepath.Join(binaries, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	cmd := exec.Command("go", "build", "-tags", "failpoints", "-o", filepath.Join(dir, "berth-daemon"), "../internal/lab/testdata/labdaemon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the lab's daemon: %w\n%s", err, out)
	}
	return dir, nil
})

// labHouse is a berth on a machine with cards that are not there, and a Docker
// that is.
type labHouse struct {
	*house
	docker   *lab.Daemon
	machine  *lab.Machine
	registry *lab.Registry
	known    map[string]bool // operations that were there at the end of the last `through`
}

func newLabHouse(t *testing.T, g lab.Generation, o lab.MachineOptions) *labHouse {
	t.Helper()
	bin, err := labBinaries()
	if err != nil {
		t.Fatal(err)
	}
	l := &labHouse{house: bareHouse(t), docker: lab.Docker(t, g), registry: lab.NewRegistry(t)}
	l.bin = bin
	if o.GPUs == nil {
		o.GPUs = l.docker.GPUs
	}
	if o.Docker == "" {
		o.Docker = "docker-ce 5:28.5.0-1"
	}
	l.machine = lab.NewMachine(t, o)
	l.machine.Link(t, l.docker.Dir)
	l.stand(daemon.Standin{})
	return l
}

// stand says what machine the daemon is on.
func (l *labHouse) stand(s daemon.Standin) {
	l.t.Helper()
	s.Root, s.Watch = l.machine.Root, 100*time.Millisecond
	s.Socket = l.docker.Socket
	l.standIn(s)
}

// standIn is stand with nothing but what s says.
func (l *labHouse) standIn(s daemon.Standin) {
	l.t.Helper()
	s.Path = []string{l.machine.Programs, "/usr/bin", "/bin"}
	if s.Helper == nil {
		s.Helper = []string{"/bin/false"} // never the real one: this is not its machine
	}
	text, err := json.Marshal(s)
	if err != nil {
		l.t.Fatal(err)
	}
	l.env = append(l.env, "BERTH_MACHINE_DIR="+filepath.Join(l.dir, "m"), "BERTH_LAB_MACHINE="+string(text))
}

// addRelease makes an engine of the lab known.
func (l *labHouse) addRelease(gpu bool) berth.Release {
	l.t.Helper()
	r := berth.Release{
		V: 1, ID: "labengine-1-r1", Engine: "labengine", Version: "1", Port: 8000, Health: "/health", Source: "the lab",
		Images: map[string]berth.Image{"linux/amd64": l.registry.Push(l.t, "lab/engine", lab.EngineImage(l.t))},
	}
	if gpu {
		r.MinComputeCapability = "8.0"
		r.CheckImages = map[string]berth.Image{"linux/amd64": l.registry.Push(l.t, "lab/check", lab.CheckImage(l.t))}
	}
	l.add(r)
	return r
}

func (l *labHouse) add(r berth.Release) {
	l.t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		l.t.Fatal(err)
	}
	path := filepath.Join(l.dir, "release.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.must("engine", "releases", "add", path)
}

// timeOut bounds the wait for something that takes a fraction of it.
const timeOut = 20 * time.Second

func (l *labHouse) op(args ...string) berth.Operation {
	l.t.Helper()
	var op berth.Operation
	l.decode(l.must(append(args, "--json")...), &op)
	return op
}

func TestSetupAdoptsAndRemoves(t *testing.T) {
	for _, g := range lab.Generations() {
		t.Run(string(g), func(t *testing.T) {
			l := newLabHouse(t, g, lab.MachineOptions{Toolkit: "1.18.0"})
			l.must("up")
			l.addRelease(true)
			// Nothing has to be done, so nobody has to agree.
			if op := l.op("setup", "--environment"); op.Phase != berth.PhaseReady {
				t.Fatalf("%+v", op)
			}
			op := l.op("setup", "labengine", "--yes")
			if op.Phase != berth.PhaseReady {
				t.Fatalf("%+v", op)
			}
			op = l.op("remove", "labengine", "--yes")
			if op.Phase != berth.PhaseRemoved {
				t.Fatalf("%+v", op)
			}
		})
	}
}

// TestDockerElsewhere: a Docker that listens at another socket than the usual
// one is used when the settings say so, and the usual one is not looked for.
func TestDockerElsewhere(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.standIn(daemon.Standin{Root: l.machine.Root, Watch: 100 * time.Millisecond}) // without a socket
	l.must("up")
	var plan berth.Plan
	out, _, code := l.run("probe", "--json")
	l.decode(out, &plan)
	if code != berth.ExitNeedsPerson || plan.Facts.Docker.Reachable {
		t.Fatalf("exit %d: %+v", code, plan.Facts.Docker)
	}
	l.must("down")
	if err := os.WriteFile(filepath.Join(l.dir, "config.toml"), fmt.Appendf(nil, "[docker]\nsocket = %q\n", l.docker.Socket), 0o600); err != nil {
		t.Fatal(err)
	}
	l.must("up")
	r := l.addRelease(true)
	if op := l.op("setup", r.Engine, "--yes"); op.Phase != berth.PhaseReady {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	l.op("remove", r.Engine, "--yes")
}
