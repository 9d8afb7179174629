package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/internal/lab"
)

// The role in which this test's binary is the helper in a chroot of its own
// mount, process and network namespaces. The tests of the whole flow use it too,
// with a directory of the machine that is seen in the chroot at the same path.
const (
	roleEnv = "BERTH_HOSTSTEP_TEST_CHROOT"
	bindEnv = "BERTH_HOSTSTEP_TEST_BIND" // "" = none
)

func TestMain(m *testing.M) {
	if root := os.Getenv(roleEnv); root != "" {
		os.Exit(inChroot(root)) //nolint:forbidigo // this is the helper's main
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.Remove(helperPath())
		os.Exit(code) //nolint:forbidigo // this is the test's main
	}))
}

func inChroot(root string) int {
	var bind error
	dir := os.Getenv(bindEnv)
	private := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if at := filepath.Join(root, dir); private == nil && dir != "" {
		if bind = os.MkdirAll(at, 0o755); bind == nil {
			bind = syscall.Mount(dir, at, "", syscall.MS_BIND, "")
		}
	}
	for _, err := range []error{
		private, bind,
		syscall.Chroot(root), os.Chdir("/"),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
	} {
		if err != nil {
			fmt.Fprintln(os.Stderr, "enter the chroot:", err)
			return 99
		}
	}
	fingerprint, err := os.ReadFile("/repo/pinned")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	syscall.Umask(0o022)
	m := machine{
		root: "/", recipe: variant(string(fingerprint)), exec: execute, now: time.Now, tick: 20 * time.Millisecond, wait: time.Minute,
		fetch: func(context.Context, string) ([]byte, error) { return os.ReadFile("/repo/key.asc") },
	}
	return m.main(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
}

// variant is the recipe with a repository in the chroot in both vendors' place.
func variant(fingerprint string) recipe {
	r := frozen()
	for i := range r.Distributions {
		d := &r.Distributions[i]
		d.Docker.Fingerprints, d.NVIDIA.Fingerprints = []string{fingerprint}, []string{fingerprint}
		d.Docker.SourceMark, d.NVIDIA.SourceMark = "file:/repo/docker", "file:/repo/nvidia"
		d.Docker.SourceText = "deb [signed-by=" + d.Docker.KeyPath + "] file:/repo/docker ./\n"
		d.NVIDIA.SourceText = "deb [signed-by=" + d.NVIDIA.KeyPath + "] file:/repo/nvidia ./\n"
	}
	return r
}

// helperPath is of this process: several may test at once.
func helperPath() string {
	path, _ := filepath.Abs(fmt.Sprintf("../.lab/hoststep/helper-%d", os.Getpid()))
	return path
}

// chroot is a Debian of the lab, with a user ada, and the helper that enters it.
type chroot struct {
	t *testing.T
	*lab.Debian
	helper string
}

const ada = 1234

// theHelper is this test's own binary with the tests left out: built once, for a
// chroot has no libraries of a race detector.
var theHelper = sync.OnceValues(func() (string, error) {
	path := helperPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the helper: %w: %s", err, out)
	}
	return path, nil
})

func newChroot(t *testing.T) *chroot {
	t.Helper()
	if testing.Short() {
		t.Skip("a chroot of Debian is for long tests")
	}
	c := &chroot{t: t, Debian: lab.NewDebian(t)}
	var err error
	if c.helper, err = theHelper(); err != nil {
		t.Fatal(err)
	}
	c.Chrooted("useradd", "--uid", strconv.Itoa(ada), "--create-home", "ada")
	return c
}

const inHome = "/home/ada/hoststeps"

// run runs the helper in the chroot, as ada's sudo would.
func (c *chroot) run(action Action, components ...Component) Result {
	c.t.Helper()
	return c.runTo(io.Discard, action, components...)
}

func (c *chroot) runTo(watch io.Writer, action Action, components ...Component) Result {
	c.t.Helper()
	req, code, _ := c.start(watch, action, components...)
	if code != ExitCompleted && code != ExitFailed {
		c.t.Fatalf("the helper ended with %d", code)
	}
	result, err := ParseResult([]byte(c.Read(inHome + "/" + req.StepID + ResultSuffix)))
	if err != nil {
		c.t.Fatal(err)
	}
	if result.Nonce != req.Nonce || result.Revision != req.Revision || result.ParametersDigest != req.ParametersDigest {
		c.t.Errorf("the result does not answer the request: %+v", result)
	}
	return result
}

// refused runs the helper where it leaves no result, and gives what it said.
func (c *chroot) refused(components ...Component) (said string, code int) {
	c.t.Helper()
	_, code, said = c.start(io.Discard, Apply, components...)
	return said, code
}

// start makes a request and runs the helper on it.
func (c *chroot) start(watch io.Writer, action Action, components ...Component) (req Request, code int, said string) {
	c.t.Helper()
	p := Parameters{User: "ada", Arch: lab.Arch(), Family: "apt", Distro: "debian", Version: "12", Components: components, Stops: -1, Changes: []int64{}}
	if action == Undo { // all that is in force
		changes, _, err := ParseChanges([]byte(c.Read(ChangesPath)))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, change := range changes {
			p.Changes = append(p.Changes, change.Seq)
		}
	}
	req = Request{Schema: 1, StepID: "step-" + random(), OperationID: "op-1", Action: action, Parameters: p, ParametersDigest: ParametersDigest(p),
		Recipe: Recipe{RecipeID, digestOf(variant(c.Read("/repo/pinned")))}, Nonce: random(), Revision: 3, RequestedAt: time.Now()}
	data, err := json.Marshal(req)
	if err != nil {
		c.t.Fatal(err)
	}
	dir := filepath.Join(c.Root, inHome)
	_ = os.MkdirAll(dir, 0o700)
	c.File(inHome+"/"+req.StepID+RequestSuffix, string(data), 0o600)
	for _, path := range []string{dir, filepath.Join(dir, req.StepID+RequestSuffix)} {
		if err := os.Chown(path, ada, ada); err != nil {
			c.t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(c.t.Context(), c.helper, inHome+"/"+req.StepID+RequestSuffix)
	cmd.Env = []string{roleEnv + "=" + c.Root, "SUDO_UID=" + strconv.Itoa(ada), "LD_PRELOAD=/nowhere", "APT_CONFIG=/nowhere"}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, watch), &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	_ = cmd.Run() // its status says the rest
	c.t.Logf("%s %v in %s\n%s%s", action, components, time.Since(began).Round(time.Millisecond), &out, &errs)
	return req, cmd.ProcessState.ExitCode(), out.String() + errs.String()
}

func (c *chroot) want(r Result, outcome Outcome, statuses ...string) {
	c.t.Helper()
	var got []string
	for _, s := range r.Steps {
		got = append(got, s.ID+" "+string(s.Status))
	}
	if r.Outcome != outcome || !slices.Equal(got, statuses) {
		c.t.Fatalf("got %s %q\nwant %s %q\n%s", r.Outcome, got, outcome, statuses, r.Error)
	}
}

var everything = []Component{DockerEngine, NVIDIAToolkit, NVIDIARuntime, EnableCDI, NVIDIACDI, DockerRestart, DockerService, DockerGroup}

func each(status string, ids ...string) (all []string) {
	for _, id := range ids {
		all = append(all, id+" "+status)
	}
	return all
}

var undoSteps = []string{"undo_group", "undo_service", "undo_json", "undo_package", "undo_file"}

// A whole life: from nothing to ready, again without a change, and back to nothing.
func TestChrootSetupTwiceAndUndo(t *testing.T) {
	c := newChroot(t)
	c.File("/etc/docker/daemon.json", "{\n\t\"log-level\": \"warn\",\n\t\"features\": {\"buildkit\": true}\n}\n", 0o600)
	before := c.Read("/etc/docker/daemon.json")
	// Somebody else's broken repository must not be in the way.
	c.File("/etc/apt/sources.list.d/broken.list", "deb http://192.0.2.1/none bookworm main\n", 0o644)

	first := c.run(Apply, everything...)
	c.want(first, Completed, slices.Concat([]string{"package_conflicts satisfied"}, each("applied",
		"install_key.docker", "install_key.nvidia", "write_source.docker", "write_source.nvidia",
		"install_packages.docker", "install_packages.nvidia", "nvidia_runtime", "enable_cdi", "nvidia_cdi"),
		each("satisfied", "docker_reload"), each("applied", "docker_restart", "docker_service", "docker_group"))...)
	var merged struct {
		LogLevel string `json:"log-level"`
		Features map[string]bool
		Runtimes map[string]any
	}
	if err := json.Unmarshal([]byte(c.Read("/etc/docker/daemon.json")), &merged); err != nil ||
		merged.LogLevel != "warn" || !merged.Features["buildkit"] || !merged.Features["cdi"] || merged.Runtimes["nvidia"] == nil {
		t.Errorf("daemon.json was not merged: %+v %v", merged, err)
	}
	if info, err := os.Stat(filepath.Join(c.Root, "/run/cdi/nvidia.yaml")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the CDI specification: %v %v", info, err)
	}
	if !strings.Contains(c.Chrooted("id", "-nG", "ada"), "docker") {
		t.Error("ada is not in group docker")
	}

	second := c.run(Apply, everything...)
	if second.Outcome != Completed || slices.ContainsFunc(second.Steps, func(s StepResult) bool { return s.Status != Satisfied }) {
		t.Errorf("the second run changed something: %+v", second.Steps)
	}
	changes, damaged, err := ParseChanges([]byte(c.Read(ChangesPath)))
	if err != nil || damaged != 0 {
		t.Fatal(damaged, err)
	}
	if !slices.ContainsFunc(changes, func(c Change) bool {
		return c.Kind == ChangePackage && c.Name == "stand-in-iptables" && c.After == "1.0-1"
	}) {
		t.Errorf("a dependency that came along was not recorded: %+v", changes)
	}

	undone := c.run(Undo, everything...)
	c.want(undone, Completed, each("applied", undoSteps...)...)
	if len(undone.Left) != 0 {
		t.Errorf("left alone: %+v", undone.Left)
	}
	if got := c.Read("/etc/docker/daemon.json"); got != before {
		t.Errorf("daemon.json is not as it was: %s", got)
	}
	for _, path := range []string{"/etc/apt/keyrings/docker.asc", "/etc/apt/sources.list.d/docker.list", "/etc/apt/sources.list.d/nvidia-container-toolkit.list", "/usr/bin/docker", "/usr/bin/nvidia-ctk", "/run/cdi/nvidia.yaml"} {
		if c.Exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	if strings.Contains(c.Chrooted("id", "-nG", "ada"), "docker") {
		t.Error("ada is still in group docker")
	}
	c.want(c.run(Undo, everything...), Completed, each("satisfied", undoSteps...)...)
}

// A distribution that gives each user a group lets it write in the user's home,
// which is as good as the user; a second member of it is not.
func TestChrootPrivateGroup(t *testing.T) {
	c := newChroot(t)
	c.Chrooted("chmod", "0775", "/home/ada")
	if r := c.run(Apply, NVIDIAToolkitBase); r.Outcome != Completed {
		t.Errorf("%+v", r)
	}
	c.Chrooted("useradd", "--groups", "ada", "eve")
	_ = os.RemoveAll(filepath.Join(c.Root, inHome))
	if out, code := c.refused(NVIDIAToolkitBase); code != ExitNoResult || !strings.Contains(out, `"/home/ada" can be written by others`) {
		t.Errorf("exit %d: %s", code, out)
	}
}

// The CDI route: the base package alone, no daemon.json, no restart.
func TestChrootCDIRoute(t *testing.T) {
	c := newChroot(t)
	c.want(c.run(Apply, NVIDIAToolkitBase, NVIDIACDI), Completed, each("applied", "install_key.nvidia", "write_source.nvidia", "install_packages.nvidia", "nvidia_cdi")...)
	if c.Exists("/etc/docker/daemon.json") || c.Exists("/var/stand-in/starts") {
		t.Error("the route without daemon.json and restart touched Docker")
	}
}

func TestChrootWrongKey(t *testing.T) {
	c := newChroot(t)
	c.File("/repo/pinned", strings.Repeat("A", 40), 0o644)
	r := c.run(Apply, DockerEngine, DockerGroup)
	c.want(r, OutcomeFailed, "package_conflicts satisfied", "install_key.docker failed", "write_source.docker not_run", "install_packages.docker not_run", "docker_group not_run")
	if !strings.Contains(r.Error, c.Pinned) {
		t.Errorf("the refusal does not name the key that came: %s", r.Error)
	}
	if c.Exists("/etc/apt/keyrings/docker.asc") {
		t.Error("a key that is not pinned was written")
	}
}

// A repository that was signed again with another key must not be installed from.
func TestChrootResignedRepository(t *testing.T) {
	c := newChroot(t)
	c.want(c.run(Apply, NVIDIAToolkitBase), Completed, each("applied", "install_key.nvidia", "write_source.nvidia", "install_packages.nvidia")...)
	key, pinned := c.Read("/repo/key.asc"), c.Pinned
	c.Repositories()
	c.File("/repo/key.asc", key, 0o644)
	c.File("/repo/pinned", pinned, 0o644)
	r := c.run(Apply, DockerEngine)
	c.want(r, OutcomeFailed, "package_conflicts satisfied", "install_key.docker applied", "write_source.docker applied", "install_packages.docker failed")
	if c.Exists("/usr/bin/dockerd") || r.Steps[3].ExitCode != 100 {
		t.Errorf("apt's refusal was not believed: %+v", r.Steps[3])
	}
}

func TestChrootConflictIsNamedAndKept(t *testing.T) {
	c := newChroot(t)
	c.Chrooted("dpkg", "-i", "/repo/other/containerd.deb")
	r := c.run(Apply, DockerEngine)
	c.want(r, OutcomeFailed, "package_conflicts failed", "install_key.docker not_run", "write_source.docker not_run", "install_packages.docker not_run")
	if !strings.Contains(r.Error, "containerd 1.0-1") {
		t.Errorf("the conflict is not named: %s", r.Error)
	}
	c.Chrooted("dpkg", "-s", "containerd")
	if c.Exists(ChangesPath) {
		t.Error("something was changed before the conflict was found")
	}
}

// What would have to be upgraded for Docker's packages is named, and nothing is
// installed: the plan said that nothing that is there changes.
func TestChrootNothingIsUpgraded(t *testing.T) {
	c := newChroot(t)
	c.Chrooted("dpkg", "-i", "/repo/other/stand-in-iptables.deb")
	r := c.run(Apply, DockerEngine)
	c.want(r, OutcomeFailed, "package_conflicts satisfied", "install_key.docker applied", "write_source.docker applied", "install_packages.docker failed")
	if !strings.Contains(r.Error, "stand-in-iptables from 0.9-1 to 1.0-1") || !strings.Contains(r.Error, "apt-get install --only-upgrade stand-in-iptables") {
		t.Errorf("what is in the way is not named: %s", r.Error)
	}
	if c.Exists("/usr/bin/dockerd") || !strings.Contains(c.Chrooted("dpkg-query", "-W", "stand-in-iptables"), "0.9-1") {
		t.Error("something was installed or upgraded")
	}
	// Once a person has done it, it goes on.
	c.Chrooted("dpkg", "-i", "/repo/docker/stand-in-iptables.deb")
	if r := c.run(Apply, DockerEngine); r.Outcome != Completed {
		t.Errorf("%+v", r)
	}
}

func TestChrootWaitsForThePackageLock(t *testing.T) {
	c := newChroot(t)
	lock, err := os.OpenFile(filepath.Join(c.Root, "/var/lib/dpkg/lock-frontend"), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() //nolint:errcheck // a second time, where the test went well
	if err := syscall.FcntlFlock(lock.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	waited := &until{text: "waiting for", then: func() { _ = lock.Close() }}
	r := c.runTo(waited, Apply, NVIDIAToolkitBase)
	c.want(r, Completed, each("applied", "install_key.nvidia", "write_source.nvidia", "install_packages.nvidia")...)
	if !waited.seen || !c.Exists("/var/lib/dpkg/lock-frontend") {
		t.Error("the lock was not waited for, or it was removed")
	}
}

type until struct {
	text string
	then func()
	seen bool
	all  bytes.Buffer
}

func (u *until) Write(p []byte) (int, error) {
	u.all.Write(p)
	if !u.seen && strings.Contains(u.all.String(), u.text) {
		u.seen = true
		u.then()
	}
	return len(p), nil
}

// Docker does not start with our settings: they go, and it runs as before.
func TestChrootFailedRestartIsRolledBack(t *testing.T) {
	c := newChroot(t)
	c.want(c.run(Apply, DockerEngine, DockerService), Completed, append([]string{"package_conflicts satisfied"},
		each("applied", "install_key.docker", "write_source.docker", "install_packages.docker", "docker_service")...)...)
	c.File("/etc/docker/daemon.json", `{"log-level":"warn"}`, 0o644)
	c.File("/var/stand-in/refuse", "nvidia\n", 0o644)
	r := c.run(Apply, NVIDIARuntime, DockerRestart, DockerGroup)
	c.want(r, OutcomeFailed, "nvidia_runtime applied", "docker_reload satisfied", "docker_restart failed", "docker_group not_run")
	if got := c.Read("/etc/docker/daemon.json"); got != `{"log-level":"warn"}` {
		t.Errorf("daemon.json was not put back: %s", got)
	}
	if !c.Exists("/var/stand-in/up") || !strings.Contains(r.Steps[2].Stderr, "the last words of the journal") {
		t.Errorf("Docker was left down, or its journal was not shown: %+v", r.Steps[2])
	}
	changes, _, err := ParseChanges([]byte(c.Read(ChangesPath)))
	if err != nil || slices.ContainsFunc(changes, func(c Change) bool { return c.Kind == ChangeJSON }) {
		t.Errorf("what was rolled back is still in force: %+v %v", changes, err)
	}
}

// Without consent a Docker that runs is not restarted.
func TestChrootNoRestartWithoutConsent(t *testing.T) {
	c := newChroot(t)
	c.run(Apply, DockerEngine, DockerService)
	starts := c.Read("/var/stand-in/starts")
	c.want(c.run(Apply, NVIDIARuntime), Completed, "nvidia_runtime applied", "docker_reload applied", "docker_restart satisfied")
	if c.Read("/var/stand-in/starts") != starts {
		t.Error("Docker was restarted without consent")
	}
	// dockerd's own judgement comes before the swap.
	c.File("/etc/docker/daemon.json", `{"invalid":1}`, 0o644)
	c.want(c.run(Apply, EnableCDI), OutcomeFailed, "enable_cdi failed", "docker_restart not_run")
	if got := c.Read("/etc/docker/daemon.json"); got != `{"invalid":1}` {
		t.Errorf("a file that dockerd refuses was put in place: %s", got)
	}
}

// A Docker that runs and does not take the runtime keeps its settings as they were.
func TestChrootRuntimeNotTakenIsPutBack(t *testing.T) {
	c := newChroot(t)
	c.run(Apply, DockerEngine, DockerService)
	c.File("/etc/docker/daemon.json", `{"log-level":"warn"}`, 0o644)
	c.File("/var/stand-in/deaf", "", 0o644)
	r := c.run(Apply, NVIDIARuntime, DockerGroup)
	c.want(r, OutcomeFailed, "nvidia_runtime applied", "docker_reload failed", "docker_restart not_run", "docker_group not_run")
	if got := c.Read("/etc/docker/daemon.json"); got != `{"log-level":"warn"}` {
		t.Errorf("daemon.json was not put back: %s", got)
	}
	if !strings.Contains(r.Error, "restart Docker yourself") {
		t.Errorf("what to do is not said: %s", r.Error)
	}
}

// What is not as we made it stays, and so does what something else needs.
func TestChrootUndoLeavesWhatIsNotOurs(t *testing.T) {
	c := newChroot(t)
	c.run(Apply, DockerEngine, EnableCDI, DockerRestart, DockerService)
	c.Chrooted("dpkg", "-i", "/repo/other/needs-containerd-io.deb")
	c.File("/etc/docker/daemon.json", `{"features":{"cdi":true,"mine":1},"debug":true}`, 0o644)
	c.File("/etc/apt/keyrings/docker.asc", "somebody else's", 0o644)
	c.File("/var/stand-in/containers", "", 0o644)

	held := c.run(Undo, DockerEngine)
	if held.Outcome != Completed || !c.Exists("/usr/bin/dockerd") {
		t.Fatalf("a Docker in which containers run was removed without consent: %+v", held)
	}
	r := c.run(Undo, DockerEngine, EnableCDI, DockerRestart, DockerService)
	if r.Outcome != Completed {
		t.Fatal(r.Error)
	}
	left := map[string]string{}
	for _, l := range r.Left {
		left[l.Path+l.Name] = l.Reason
	}
	if !strings.Contains(left["containerd.io"], "needs-containerd-io") || left["/etc/apt/keyrings/docker.asc"] == "" || left["/etc/apt/sources.list.d/docker.list"] == "" || len(left) != 3 {
		t.Errorf("left: %v", left)
	}
	if c.Exists("/usr/bin/dockerd") || !c.Exists("/etc/apt/sources.list.d/docker.list") {
		t.Error("dockerd stayed, or the source of what stays was removed")
	}
	if got := c.Read("/etc/docker/daemon.json"); got != "{\n  \"features\": {\n    \"mine\": 1\n  },\n  \"debug\": true\n}\n" {
		t.Errorf("daemon.json: %s", got)
	}
	c.Chrooted("dpkg", "-s", "needs-containerd-io")
}
