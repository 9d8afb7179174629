package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"berth"
	"berth/internal/daemon"
	"berth/internal/lab"
)

// docker is a client of the lab's daemon that knows nothing of berth.
func (l *labHouse) dockerClient() *client.Client {
	l.t.Helper()
	c, err := client.New(client.WithHost("unix://" + l.docker.Socket))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// inventory is the whole machine as far as berth could change it: images,
// containers, and each file of the stand-in with its content.
func (l *labHouse) inventory() []string {
	l.t.Helper()
	c := l.dockerClient()
	var all []string
	images, err := c.ImageList(l.ctx, client.ImageListOptions{All: true})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, i := range images.Items {
		all = append(all, fmt.Sprint("image ", i.ID, i.RepoDigests, i.RepoTags))
	}
	containers, err := c.ContainerList(l.ctx, client.ContainerListOptions{All: true})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range containers.Items {
		all = append(all, fmt.Sprint("container ", c.ID, c.State))
	}
	err = filepath.WalkDir(l.machine.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		info, _ := d.Info()
		all = append(all, fmt.Sprint("file ", path, info.Mode(), string(text)))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func (l *labHouse) untouched(before []string) {
	l.t.Helper()
	after := l.inventory()
	for _, line := range before {
		if !slices.Contains(after, line) {
			l.t.Errorf("gone or changed: %.300s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			l.t.Errorf("left behind: %.300s", line)
		}
	}
}

// foreign makes a container that is not berth's; start = it runs.
func (l *labHouse) foreign(image berth.Image, name string) {
	l.t.Helper()
	c := l.dockerClient()
	pull, err := c.ImagePull(l.ctx, image.Reference(), client.ImagePullOptions{})
	if err == nil {
		err = pull.Wait(l.ctx)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	made, err := c.ContainerCreate(l.ctx, client.ContainerCreateOptions{Name: name, Config: &container.Config{Image: image.Reference()}})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_, _ = c.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		_, _ = c.ImageRemove(context.Background(), image.Reference(), client.ImageRemoveOptions{})
	})
}

// helper makes the stand-in of the privileged helper behave.
func (l *labHouse) helper(behaviour map[string]any) {
	l.t.Helper()
	text, err := json.Marshal(behaviour)
	if err != nil {
		l.t.Fatal(err)
	}
	l.env = append(l.env, "BERTH_LAB_HELPER="+string(text))
}

func (l *labHouse) standHelper() {
	l.t.Helper()
	path := filepath.Join(l.bin, "labhelper")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		cmd := exec.CommandContext(l.ctx, "go", "build", "-o", path, "../internal/lab/testdata/labhelper")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			l.t.Fatalf("%v\n%s", err, out)
		}
	}
	l.stand(daemon.Standin{Helper: []string{path}})
}

// TestSetupLeavesNothing: after a setup and a removal the machine is what it
// was, byte for byte, with foreign containers and images in it.
func TestSetupLeavesNothing(t *testing.T) {
	for _, g := range lab.Generations() {
		t.Run(string(g), func(t *testing.T) {
			l := newLabHouse(t, g, lab.MachineOptions{Toolkit: "1.18.0"})
			l.must("up")
			r := l.addRelease(true)
			other := l.registry.Push(t, "foreign/image", lab.RandomImage(t, 4000))
			l.foreign(other, "foreign-"+string(g))
			before := l.inventory()
			op := l.op("setup", r.Engine, "--yes")
			if op.Phase != berth.PhaseReady || op.Plan == nil || !op.Plan.AdoptsExisting {
				t.Fatalf("%+v", op)
			}
			if !strings.Contains(l.must("engine", "ls"), r.Engine) {
				t.Error("the engine is not listed")
			}
			op = l.op("remove", r.Engine, "--yes")
			if op.Phase != berth.PhaseRemoved {
				t.Fatalf("%+v", op)
			}
			l.untouched(before)
			// Setting it up again, and a container of somebody else on the same image: it stays.
			l.op("setup", r.Engine, "--yes")
			l.foreign(r.Images["linux/amd64"], "same-image-"+string(g))
			with := l.inventory()
			l.op("remove", r.Engine, "--yes")
			engine := r.Images["linux/amd64"].Digest
			after := strings.Join(l.inventory(), "\n")
			if !strings.Contains(after, engine) {
				t.Error("an image that a foreign container uses was removed")
			}
			for _, line := range with {
				if strings.HasPrefix(line, "container ") && !strings.Contains(after, line) {
					t.Errorf("gone: %s", line)
				}
			}
		})
	}
}

// TestSetupWithHostStep: what is missing is described, handed to the helper with
// consent, and looked for on the machine afterwards, whatever the helper says.
func TestSetupWithHostStep(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.docker = lab.PrivateDocker(t, lab.Docker28, lab.Options{GPUs: []string{lab.GPU0}})
	l.machine = lab.NewMachine(t, lab.MachineOptions{Toolkit: "1.18.0", GPUs: []string{lab.GPU0}, Docker: "docker-ce 5:28.5.0-1"})
	l.machine.Link(t, l.docker.Dir)
	spec, err := os.ReadFile(filepath.Join(l.docker.Dir, "cdi", "nvidia.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.docker.WriteCDI(); err != nil { // no card is described
		t.Fatal(err)
	}
	l.standHelper()
	l.helper(map[string]any{})
	l.must("up")
	r := l.addRelease(true)

	// Nobody is there to agree: the plan is shown, nothing is done.
	_, errs, code := l.run("setup", r.Engine)
	if code != berth.ExitNeedsPerson || !strings.Contains(errs, "sha256:") {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	op := l.operations()[0]
	if op.Phase != berth.PhaseAwaitingConsent || !op.Plan.Elevation || op.Plan.HostStep == nil {
		t.Fatalf("%s %+v", op.Phase, op.Plan)
	}
	// Another digest is another plan.
	_, errs, code = l.run("op", "resume", op.ID, "--approve", "sha256:"+strings.Repeat("0", 64))
	if code != berth.ExitNeedsPerson || !strings.Contains(errs, "plan") {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	// The helper says that it is done, and nothing changed: the machine counts.
	out, errs, code := l.run("op", "resume", op.ID, "--approve", op.PlanDigest, "--json")
	op = l.operations()[0]
	if code == 0 || op.Phase != berth.PhaseFailed || op.Error == nil {
		t.Fatalf("a lying helper was believed: exit %d, %s\n%s%s", code, op.Phase, out, errs)
	}
	// It refuses.
	l.helper(map[string]any{"Outcome": "none"})
	l.run("op", "resume", op.ID, "--json")
	op = l.approveAgain(op.ID)
	if op.Phase != berth.PhaseFailed || op.Error.Code != berth.CodeElevationDeclined {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	// A result for another step is no answer.
	l.helper(map[string]any{"Nonce": strings.Repeat("x", 32)})
	l.run("op", "resume", op.ID, "--json")
	op = l.approveAgain(op.ID)
	if op.Phase != berth.PhaseFailed {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	// It does what was agreed to.
	l.helper(map[string]any{"Copy": map[string]string{filepath.Join(l.docker.Dir, "cdi", "nvidia.json"): string(spec)}})
	l.run("op", "resume", op.ID, "--json")
	op = l.approveAgain(op.ID)
	if op.Phase != berth.PhaseReady {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
}

// approveAgain agrees to whatever an operation asks for now, and follows it.
func (l *labHouse) approveAgain(id string) berth.Operation {
	l.t.Helper()
	op := l.operation(id)
	if op.Phase == berth.PhaseAwaitingConsent {
		l.run("op", "resume", id, "--approve", op.PlanDigest, "--json")
		op = l.operation(id)
	}
	return op
}

func (l *labHouse) operation(id string) berth.Operation {
	l.t.Helper()
	var op berth.Operation
	l.decode(l.must("op", "show", id, "--json"), &op)
	return op
}

// TestTwoDaemons: two daemons with state directories of their own share one
// machine; each change has one winner and happens once.
func TestTwoDaemons(t *testing.T) {
	a := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	b := &labHouse{house: bareHouse(t), docker: a.docker, machine: a.machine, registry: a.registry}
	b.bin, b.env = a.bin, a.env
	a.must("up")
	b.must("up")
	r := a.addRelease(true)

	// Begun at one, it blocks the other, is shown there, and can be approved there.
	if _, errs, code := a.run("setup", r.Engine); code != berth.ExitNeedsPerson {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	op := a.operations()[0]
	if _, errs, code := b.run("remove", r.Engine, "--yes"); code != berth.ExitRefused {
		t.Fatalf("a second operation: exit %d\n%s", code, errs)
	}
	if got := b.operation(op.ID); got.Phase != berth.PhaseAwaitingConsent || got.Owner.PID != a.status().Daemon.PID {
		t.Fatalf("%+v", got)
	}
	out := b.must("op", "resume", op.ID, "--approve", op.PlanDigest, "--json")
	if !strings.Contains(out, `"phase":"ready"`) {
		t.Fatal(out)
	}
	if got := b.operation(op.ID); got.Owner.PID != a.status().Daemon.PID {
		t.Errorf("the owner is %d", got.Owner.PID)
	}
	// Cancelled at the other.
	if _, errs, code := a.run("remove", r.Engine); code != berth.ExitNeedsPerson {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	op = a.operations()[0]
	b.must("op", "cancel", op.ID)
	waitUntil(t, timeOut, "it is cancelled", func() bool { return a.operation(op.ID).Phase == berth.PhaseCancelled })
	// Its owner dies: the other takes it over, once.
	if _, errs, code := a.run("remove", r.Engine); code != berth.ExitNeedsPerson {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	op = a.operations()[0]
	a.killDaemon()
	out = b.must("op", "resume", op.ID, "--approve", op.PlanDigest, "--json")
	if !strings.Contains(out, `"phase":"removed"`) {
		t.Fatal(out)
	}
	if got := b.operation(op.ID); got.Epoch != 2 || got.Owner.PID != b.status().Daemon.PID {
		t.Errorf("epoch %d, owner %d", got.Epoch, got.Owner.PID)
	}
}

// TestPullFails: a registry that is away is named, and the setup goes on from
// there when it is back.
func TestPullFails(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.must("up")
	r := l.addRelease(true)
	l.registry.Break("lab/engine", lab.Fault{Status: 404})
	_, errs, code := l.run("setup", r.Engine, "--yes")
	op := l.operations()[0]
	if code != berth.ExitFailed || op.Phase != berth.PhaseFailed || op.Error.Code != berth.CodeImageNotFound {
		t.Fatalf("exit %d, %s %+v\n%s", code, op.Phase, op.Error, errs)
	}
	l.registry.Break("lab/engine", lab.Fault{})
	l.must("op", "resume", op.ID)
	if op = l.operation(op.ID); op.Phase != berth.PhaseReady {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	l.must("remove", r.Engine, "--yes")
	if out := l.must("op", "reset", "--json"); !strings.Contains(out, `"archived"`) {
		t.Error(out)
	}
	if list := l.operations(); len(list) != 0 {
		t.Errorf("%d operations after a reset", len(list))
	}
}

// TestUpdate: another release takes the place of the installed one, and after
// the removal nothing of either is left.
func TestUpdate(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.must("up")
	before := l.inventory()
	first := l.addRelease(true)
	l.op("setup", first.Engine, "--yes")
	second := first
	second.ID, second.Version = "labengine-2-r1", "2"
	second.Images = map[string]berth.Image{"linux/amd64": l.registry.Push(t, "lab/engine", lab.RandomImage(t, 3000))}
	l.add(second)
	// Setting up another release over it is refused: that is an update.
	if _, errs, code := l.run("setup", first.Engine, "--release", second.ID, "--yes"); code != berth.ExitRefused || !strings.Contains(errs, "berth update") {
		t.Errorf("exit %d\n%s", code, errs)
	}
	op := l.op("update", first.Engine, "--yes")
	if op.Phase != berth.PhaseReady || op.Plan.Release.ID != second.ID {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	if out := l.must("engine", "show", first.Engine, "--json"); !strings.Contains(out, second.ID) {
		t.Error(out)
	}
	l.op("remove", first.Engine, "--yes")
	l.untouched(before)
}
