package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"berth"
	"berth/internal/daemon"
	"berth/internal/lab"
)

// onDebian is a berth on a Debian whose helper is the real one in a chroot:
// package manager, signatures, groups and files are what they are. Docker is one
// of the lab, and answers as soon as the helper has "started" it; each start
// gives it the runtimes of the Debian's daemon.json.
func onDebian(t *testing.T, g lab.Generation) (*labHouse, *lab.Debian) {
	t.Helper()
	bin, err := labBinaries()
	if err != nil {
		t.Fatal(err)
	}
	d := lab.NewDebian(t)
	dirs := []string{filepath.Join(d.Root, "etc/cdi"), filepath.Join(d.Root, "run/cdi")}
	l := &labHouse{house: bareHouse(t), registry: lab.NewRegistry(t)}
	l.bin = bin
	l.docker = lab.PrivateDocker(t, g, lab.Options{GPUs: []string{lab.GPU0}, CDIDirs: dirs, NoRuntime: true})
	l.machine = lab.NewMachine(t, lab.MachineOptions{GPUs: l.docker.GPUs, Debian: d})
	for _, dir := range append(dirs, l.docker.Dir) {
		l.machine.Link(t, dir)
	}
	if g != lab.Docker20 {
		spec, err := os.ReadFile(filepath.Join(l.docker.Dir, "cdi", "nvidia.json"))
		if err != nil {
			t.Fatal(err)
		}
		d.File("/lab/cdi.json", string(spec), 0o644)
	}
	d.File("/lab/socket", l.docker.Socket, 0o644)
	docker := l.dockerClient()
	d.OnStart(func(word string) {
		conf := filepath.Join(d.Root, "etc/docker/daemon.json")
		if word == "start" {
			l.docker.StartWith(t, conf)
			return
		}
		l.docker.ReloadWith(t, conf)
		waitUntil(t, timeOut, "Docker has read its runtimes", func() bool {
			info, err := docker.Info(l.ctx, client.InfoOptions{})
			return err == nil && info.Info.Runtimes["nvidia"].Path != ""
		})
	})

	helper := filepath.Join(t.TempDir(), "hoststep")
	build := exec.CommandContext(l.ctx, "go", "test", "-c", "-o", helper, "../hoststep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the helper: %v\n%s", err, out)
	}
	l.env = append(l.env, "BERTH_HOSTSTEP_TEST_CHROOT="+d.Root, "BERTH_HOSTSTEP_TEST_BIND="+l.dir)
	argv := []string{"/usr/bin/unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", helper}
	ask := exec.CommandContext(l.ctx, argv[0], append(argv[1:], "--recipe")...)
	ask.Env = append(os.Environ(), "BERTH_HOSTSTEP_TEST_CHROOT="+d.Root)
	said, err := ask.Output()
	id, digest, ok := strings.Cut(strings.TrimSpace(string(said)), " ")
	if err != nil || !ok {
		t.Fatalf("the helper's recipe: %v %q", err, said)
	}
	l.standIn(daemon.Standin{
		Root: d.Root, Socket: filepath.Join(d.Root, "run/docker.sock"), Watch: 100 * time.Millisecond, // a link, once it is started
		Helper: argv, Recipe: berth.RecipeRef{ID: id, Digest: digest},
	})
	return l, d
}

// kept is what packages keep for themselves, and leave when they are removed:
// docker-ce makes group docker.
var kept = []string{
	"/var/lib/apt", "/var/lib/dpkg", "/var/cache", "/var/log", "/etc/group", "/etc/group-", "/etc/gshadow", "/etc/gshadow-",
	"/run/cdi",                                                // an empty directory, until the next boot
	"/var/lib/berth",                                          // the record of what was done and undone
	"/repo", "/lab", "/var/stand-in", "/proc", "/sys", "/tmp", // the stand-ins' own
}

// contents are the files of a Debian that its user could miss, with what is in
// them.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if slices.Contains(kept, name) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(data)
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// components of what the helper would do for an engine.
func (l *labHouse) components(engine string) (digest string, components []string) {
	l.t.Helper()
	var plan berth.Plan
	l.decode(l.must("probe", engine, "--json"), &plan)
	if plan.HostStep == nil || !plan.Elevation {
		l.t.Fatalf("%+v", plan)
	}
	return plan.Digest, plan.HostStep.Components
}

// asBefore compares a Debian with what it was.
func asBefore(t *testing.T, d *lab.Debian, before map[string]string) {
	t.Helper()
	after := contents(t, d.Root)
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s is not what it was: %.200q, was %.200q", name, after[name], text)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s was left behind", name)
		}
	}
}

// TestSetupByTheRealHelper: from a machine without Docker to an engine that is
// ready, with packages that a real package manager installs from a signed
// repository; and back to the machine that it was.
func TestSetupByTheRealHelper(t *testing.T) {
	l, d := onDebian(t, lab.Docker28)
	l.must("up")
	r := l.addRelease(true)
	before, packages, groups := contents(t, d.Root), d.Chrooted("dpkg-query", "-W"), strings.Count(d.Read("/etc/group"), "\n")

	digest, components := l.components(r.Engine)
	if !slices.Equal(components, []string{"docker_engine", "nvidia_toolkit_base", "nvidia_cdi", "docker_service"}) {
		t.Fatalf("%q", components)
	}
	// The plan's digest is the consent, and nothing else is: --yes is not needed.
	if op := l.op("setup", r.Engine, "--approve", digest); op.Phase != berth.PhaseReady {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	installed := d.Chrooted("dpkg-query", "-W")
	for _, name := range []string{"docker-ce", "containerd.io", "nvidia-container-toolkit-base"} {
		if !strings.Contains(installed, name) {
			t.Errorf("%s is not installed", name)
		}
	}
	// The machine is ready: nothing is left to ask for.
	if op := l.op("setup", "--environment"); op.Phase != berth.PhaseReady || op.Plan.Elevation || !op.Plan.AdoptsExisting {
		t.Errorf("%s %+v", op.Phase, op.Plan)
	}
	if op := l.op("remove", r.Engine, "--yes"); op.Phase != berth.PhaseRemoved {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	if d.Chrooted("dpkg-query", "-W") != installed {
		t.Error("the removal of an engine touched packages")
	}
	if op := l.op("remove", "--environment", "--yes"); op.Phase != berth.PhaseRemoved {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	if now := d.Chrooted("dpkg-query", "-W"); now != packages {
		t.Errorf("packages before:\n%s\nafter:\n%s", packages, now)
	}
	asBefore(t, d, before)
	if group := d.Read("/etc/group"); strings.Count(group, "\n") != groups+1 || !strings.Contains(group, "\ndocker:x:") {
		t.Errorf("/etc/group: %s", group)
	}
}

// TestSetupCompletesAnOldDocker: a Docker 20.10 of the distribution is kept, and
// gets what it lacks: the toolkit, and a runtime in a daemon.json whose other
// keys stay. It reads that while it runs, and no container stops. Back again, the file is what it was, byte for byte.
func TestSetupCompletesAnOldDocker(t *testing.T) {
	l, d := onDebian(t, lab.Docker20)
	d.Chrooted("dpkg", "-i", "/repo/other/docker.io.deb")
	d.File("/etc/docker/daemon.json", "{\n\t\"log-level\": \"warn\"\n}\n", 0o600)
	d.Chrooted("systemctl", "enable", "--now", "docker.service")
	l.must("up")
	r := l.addRelease(true)
	before := contents(t, d.Root)

	if _, components := l.components(r.Engine); !slices.Equal(components, []string{"nvidia_toolkit", "nvidia_runtime"}) {
		t.Fatalf("%q", components)
	}
	dockerd := l.docker.PID()
	if op := l.op("setup", r.Engine, "--yes"); op.Phase != berth.PhaseReady {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	if pid := l.docker.PID(); pid != dockerd {
		t.Error("Docker was restarted, which stops the containers that run in it")
	}
	if got := d.Read("/etc/docker/daemon.json"); !strings.Contains(got, `"log-level": "warn"`) || !strings.Contains(got, `"nvidia-container-runtime"`) {
		t.Errorf("daemon.json: %s", got)
	}
	if have := d.Chrooted("dpkg-query", "-W"); strings.Contains(have, "docker-ce") || !strings.Contains(have, "docker.io\t20.10.24-1") {
		t.Errorf("the Docker of the distribution was not kept:\n%s", have)
	}
	l.op("remove", r.Engine, "--yes")
	if op := l.op("remove", "--environment", "--yes"); op.Phase != berth.PhaseRemoved {
		t.Fatalf("%s %+v", op.Phase, op.Error)
	}
	asBefore(t, d, before)
}
