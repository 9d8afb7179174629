package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
)

// The role in which this test's binary is the helper in a chroot of its own
// mount, process and network namespaces.
const roleEnv = "BERTH_HOSTSTEP_TEST_CHROOT"

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
	for _, err := range []error{
		syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
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
	r.ID = "test-r1"
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

// chroot is a Debian of its own, with repositories that the test built and signed.
type chroot struct {
	t      *testing.T
	root   string
	helper string
	pinned string
}

const ada = 1234

// labParts are made once for all tests of this file.
var labParts = sync.OnceValues(func() (lab struct{ tar, helper string }, err error) {
	dir, err := filepath.Abs("../.lab/hoststep")
	if err != nil {
		return lab, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return lab, err
	}
	lab.tar = filepath.Join(dir, "bookworm-"+debArch()+".tar")
	if _, err := os.Stat(lab.tar); errors.Is(err, fs.ErrNotExist) {
		if err := bootstrap(lab.tar); err != nil {
			return lab, err
		}
	}
	lab.helper = helperPath()
	build := exec.Command("go", "test", "-c", "-o", lab.helper, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return lab, fmt.Errorf("build the helper: %w: %s", err, out)
	}
	return lab, nil
})

var errNoMirror = errors.New("apt knows no Debian mirror")

func debArch() string {
	out, _ := exec.Command("dpkg", "--print-architecture").Output()
	return strings.TrimSpace(string(out))
}

// bootstrap makes the tree from the mirror that this machine's apt uses.
func bootstrap(tar string) error {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").Output()
	if err != nil {
		return err
	}
	sites := strings.Fields(string(out))
	i := slices.IndexFunc(sites, func(s string) bool { return strings.HasSuffix(strings.TrimSuffix(s, "/"), "/debian") })
	if i < 0 {
		return errNoMirror
	}
	tree, err := os.MkdirTemp(filepath.Dir(tar), "tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree) //nolint:errcheck // litter below .lab
	if out, err := exec.Command("debootstrap", "--variant=minbase", "bookworm", tree, sites[i]).CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap: %w: %s", err, plainTail(string(out), 2000))
	}
	for _, waste := range []string{"usr/share/doc", "usr/share/locale", "usr/share/man", "usr/share/info", "var/cache/apt/archives"} {
		_ = os.RemoveAll(filepath.Join(tree, waste))
		_ = os.MkdirAll(filepath.Join(tree, waste), 0o755)
	}
	part := tar + ".part-" + random()
	if out, err := exec.Command("tar", "-C", tree, "-cf", part, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return os.Rename(part, tar)
}

func newChroot(t *testing.T) *chroot {
	t.Helper()
	if testing.Short() {
		t.Skip("a chroot of Debian is for long tests")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a chroot with namespaces of its own")
	}
	for _, program := range []string{"debootstrap", "gpg", "dpkg-deb", "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: make packages installs it", program)
		}
	}
	lab, err := labParts()
	if errors.Is(err, errNoMirror) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &chroot{t: t, root: t.TempDir(), helper: lab.helper}
	c.host("tar", "-C", c.root, "-xf", lab.tar)
	c.file("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n", 0o644)
	c.file("/etc/dpkg/dpkg.cfg.d/fast", "force-unsafe-io\n", 0o644)
	for path, script := range standIns {
		c.file(path, script, 0o755)
	}
	c.chrooted("useradd", "--uid", strconv.Itoa(ada), "--create-home", "ada")
	c.repositories()
	return c
}

func (c *chroot) host(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (c *chroot) chrooted(args ...string) string {
	c.t.Helper()
	return c.host("chroot", append([]string{c.root}, args...)...)
}

func (c *chroot) file(path, content string, mode fs.FileMode) {
	c.t.Helper()
	path = filepath.Join(c.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	_ = os.Remove(path) // os-release is a link
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		c.t.Fatal(err)
	}
}

func (c *chroot) read(path string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.root, path))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(data)
}

func (c *chroot) exists(path string) bool {
	_, err := os.Lstat(filepath.Join(c.root, path))
	return err == nil
}

// standIns are the parts of a machine that a chroot cannot have: systemd.
var standIns = map[string]string{
	"/usr/bin/systemctl": `#!/bin/sh
s=/var/stand-in; mkdir -p $s
start() {
	if [ -e $s/refuse ] && grep -qf $s/refuse /etc/docker/daemon.json 2>/dev/null; then
		rm -f $s/up; echo "Job for docker.service failed." >&2; exit 1
	fi
	cp /etc/docker/daemon.json $s/loaded 2>/dev/null || : >$s/loaded
	echo started >>$s/starts; : >$s/up
}
case "$*" in
"is-enabled "*) cat $s/enabled.$2 2>/dev/null || { echo disabled; exit 1; } ;;
"is-active docker.service") [ -e $s/up ] && echo active || { echo inactive; exit 3; } ;;
"enable --now docker.service") start; echo enabled >$s/enabled.$3 ;;
"enable --now "*) echo enabled >$s/enabled.$3 ;;
"disable "*) rm -f $s/enabled.$2 ;;
"restart docker.service") start ;;
"reset-failed docker.service docker.socket") echo forgiven >>$s/forgiven ;;
*) echo "systemctl: not expected: $*" >&2; exit 9 ;;
esac
`,
	"/usr/bin/journalctl": "#!/bin/sh\necho 'dockerd: the last words of the journal'\n",
}

// debs are what the vendors would serve: programs of the right names with the
// behaviour that the helper depends on, and a dependency that comes along.
var debs = []struct {
	repo, name, depends, postinst string
	files                         map[string]string
}{
	{"docker", "docker-ce", "docker-ce-cli, containerd.io, stand-in-iptables", "#!/bin/sh\ngroupadd --system --force docker\nsystemctl restart docker.service\n", map[string]string{
		"usr/bin/dockerd": "#!/bin/sh\ncase \"$2\" in --config-file=*) ! grep -q invalid \"${2#--config-file=}\" || { echo 'unable to configure the Docker daemon' >&2; exit 1; } ;; *) exit 9 ;; esac\n"}},
	{"docker", "docker-ce-cli", "", "", map[string]string{
		"usr/bin/docker": `#!/bin/sh
s=/var/stand-in
[ -e $s/up ] || { echo "Cannot connect" >&2; exit 1; }
grep -q nvidia $s/loaded && r='"nvidia":{},'
grep -q cdi $s/loaded && d='"/etc/cdi"'
n=0; [ -e $s/containers ] && n=2
echo "{\"ServerVersion\":\"28.0.0\",\"Runtimes\":{$r\"runc\":{}},\"CDISpecDirs\":[$d],\"ContainersRunning\":$n}"
`}},
	{"docker", "containerd.io", "", "", nil},
	{"docker", "stand-in-iptables", "", "", nil},
	{"nvidia", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "", nil},
	{"nvidia", "nvidia-container-toolkit-base", "", "", map[string]string{
		"usr/bin/nvidia-ctk": `#!/bin/sh
case "$*" in
"cdi list") [ ! -e /var/run/cdi/nvidia.yaml ] || echo nvidia.com/gpu=GPU-1 ;;
"cdi generate --output=/var/run/cdi/nvidia.yaml") mkdir -p /var/run/cdi; umask 077; echo kind: nvidia.com/gpu >/var/run/cdi/nvidia.yaml ;;
*) exit 9 ;;
esac
`}},
	{"other", "containerd", "", "", nil},
	{"other", "needs-containerd-io", "containerd.io", "", nil},
}

// repositories builds and signs what stands for the vendors' servers.
func (c *chroot) repositories() {
	c.t.Helper()
	home, err := os.MkdirTemp("", "gpg") // its agent's socket needs a short path
	if err != nil {
		c.t.Fatal(err)
	}
	gpg := func(args ...string) string {
		return c.host("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"}, args...)...)
	}
	defer func() {
		c.host("gpgconf", "--homedir", home, "--kill", "all")
		_ = os.RemoveAll(home)
	}()
	gpg("--quick-generate-key", "vendor@example.org", "rsa2048", "sign", "never")
	c.file("/repo/key.asc", gpg("--armor", "--export"), 0o644)
	for line := range strings.Lines(gpg("--with-colons", "--fingerprint")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" {
			c.pinned = f[9]
		}
	}
	c.file("/repo/pinned", c.pinned, 0o644)
	c.file("/repo/docker/Packages", "", 0o644)
	c.file("/repo/nvidia/Packages", "", 0o644)
	c.file("/repo/other/Packages", "", 0o644)
	index := map[string]string{}
	for _, d := range debs {
		tree := filepath.Join(c.t.TempDir(), d.name)
		control := "Package: " + d.name + "\nVersion: 1.0-1\nArchitecture: all\nMaintainer: test <test@example.org>\nDescription: stand-in\n"
		if d.depends != "" {
			control += "Depends: " + d.depends + "\n"
		}
		c.plant(tree, "DEBIAN/control", control, 0o644)
		if d.postinst != "" {
			c.plant(tree, "DEBIAN/postinst", d.postinst, 0o755)
		}
		for path, content := range d.files {
			c.plant(tree, path, content, 0o755)
		}
		deb := filepath.Join(c.root, "repo", d.repo, d.name+".deb")
		c.host("dpkg-deb", "--root-owner-group", "--build", tree, deb)
		data, err := os.ReadFile(deb)
		if err != nil {
			c.t.Fatal(err)
		}
		index[d.repo] += fmt.Sprintf("%sFilename: ./%s.deb\nSize: %d\nSHA256: %s\n\n", control, d.name, len(data), sha(data))
	}
	for _, repo := range []string{"docker", "nvidia"} {
		c.file("/repo/"+repo+"/Packages", index[repo], 0o644)
		release := fmt.Sprintf("Suite: ./\nDate: %s\nSHA256:\n %s %d Packages\n", time.Now().UTC().Format(time.RFC1123), sha([]byte(index[repo])), len(index[repo]))
		c.file("/repo/"+repo+"/Release", release, 0o644)
		_ = os.Remove(filepath.Join(c.root, "repo", repo, "InRelease"))
		gpg("--clearsign", "--output", filepath.Join(c.root, "repo", repo, "InRelease"), filepath.Join(c.root, "repo", repo, "Release"))
	}
}

func (c *chroot) plant(tree, path, content string, mode fs.FileMode) {
	c.t.Helper()
	path = filepath.Join(tree, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		c.t.Fatal(err)
	}
}

const inHome = "/home/ada/hoststeps"

// run runs the helper in the chroot, as ada's sudo would.
func (c *chroot) run(action Action, components ...Component) Result {
	c.t.Helper()
	return c.runTo(io.Discard, action, components...)
}

func (c *chroot) runTo(watch io.Writer, action Action, components ...Component) Result {
	c.t.Helper()
	arch := "x86_64"
	if debArch() == "arm64" {
		arch = "aarch64"
	}
	p := Parameters{User: "ada", Arch: arch, Family: "apt", Distro: "debian", Version: "12", Components: components}
	req := Request{Schema: 1, StepID: "step-" + random(), OperationID: "op-1", Action: action, Parameters: p, ParametersDigest: ParametersDigest(p),
		Recipe: Recipe{"test-r1", digestOf(variant(c.pinnedNow()))}, Nonce: random(), Revision: 3, RequestedAt: time.Now()}
	data, err := json.Marshal(req)
	if err != nil {
		c.t.Fatal(err)
	}
	dir := filepath.Join(c.root, inHome)
	_ = os.MkdirAll(dir, 0o700)
	c.file(inHome+"/"+req.StepID+RequestSuffix, string(data), 0o600)
	for _, path := range []string{dir, filepath.Join(dir, req.StepID+RequestSuffix)} {
		if err := os.Chown(path, ada, ada); err != nil {
			c.t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(c.t.Context(), c.helper, inHome+"/"+req.StepID+RequestSuffix)
	cmd.Env = []string{roleEnv + "=" + c.root, "SUDO_UID=" + strconv.Itoa(ada), "LD_PRELOAD=/nowhere", "APT_CONFIG=/nowhere"}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, watch), &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	err = cmd.Run()
	c.t.Logf("%s %v in %s\n%s%s", action, components, time.Since(began).Round(time.Millisecond), &out, &errs)
	if code := cmd.ProcessState.ExitCode(); code != ExitCompleted && code != ExitFailed {
		c.t.Fatalf("the helper ended with %v", err)
	}
	result, err := ParseResult([]byte(c.read(inHome + "/" + req.StepID + ResultSuffix)))
	if err != nil {
		c.t.Fatal(err)
	}
	if result.Nonce != req.Nonce || result.Revision != req.Revision || result.ParametersDigest != req.ParametersDigest {
		c.t.Errorf("the result does not answer the request: %+v", result)
	}
	return result
}

func (c *chroot) pinnedNow() string { return c.read("/repo/pinned") }

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
	c.file("/etc/docker/daemon.json", "{\n\t\"log-level\": \"warn\",\n\t\"features\": {\"buildkit\": true}\n}\n", 0o600)
	before := c.read("/etc/docker/daemon.json")
	// Somebody else's broken repository must not be in the way.
	c.file("/etc/apt/sources.list.d/broken.list", "deb http://192.0.2.1/none bookworm main\n", 0o644)

	first := c.run(Apply, everything...)
	c.want(first, Completed, append([]string{"package_conflicts satisfied"}, each("applied",
		"install_key.docker", "install_key.nvidia", "write_source.docker", "write_source.nvidia",
		"install_packages.docker", "install_packages.nvidia", "nvidia_runtime", "enable_cdi", "nvidia_cdi", "docker_restart", "docker_service", "docker_group")...)...)
	var merged struct {
		LogLevel string `json:"log-level"`
		Features map[string]bool
		Runtimes map[string]any
	}
	if err := json.Unmarshal([]byte(c.read("/etc/docker/daemon.json")), &merged); err != nil ||
		merged.LogLevel != "warn" || !merged.Features["buildkit"] || !merged.Features["cdi"] || merged.Runtimes["nvidia"] == nil {
		t.Errorf("daemon.json was not merged: %+v %v", merged, err)
	}
	if info, err := os.Stat(filepath.Join(c.root, "/run/cdi/nvidia.yaml")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the CDI specification: %v %v", info, err)
	}
	if !strings.Contains(c.chrooted("id", "-nG", "ada"), "docker") {
		t.Error("ada is not in group docker")
	}

	second := c.run(Apply, everything...)
	if second.Outcome != Completed || slices.ContainsFunc(second.Steps, func(s StepResult) bool { return s.Status != Satisfied }) {
		t.Errorf("the second run changed something: %+v", second.Steps)
	}
	changes, damaged, err := ParseChanges([]byte(c.read(ChangesPath)))
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
	if got := c.read("/etc/docker/daemon.json"); got != before {
		t.Errorf("daemon.json is not as it was: %s", got)
	}
	for _, path := range []string{"/etc/apt/keyrings/docker.asc", "/etc/apt/sources.list.d/docker.list", "/etc/apt/sources.list.d/nvidia-container-toolkit.list", "/usr/bin/docker", "/usr/bin/nvidia-ctk", "/run/cdi/nvidia.yaml"} {
		if c.exists(path) {
			t.Errorf("%s is still there", path)
		}
	}
	if strings.Contains(c.chrooted("id", "-nG", "ada"), "docker") {
		t.Error("ada is still in group docker")
	}
	c.want(c.run(Undo, everything...), Completed, each("satisfied", undoSteps...)...)
}

// The CDI route: the base package alone, no daemon.json, no restart.
func TestChrootCDIRoute(t *testing.T) {
	c := newChroot(t)
	c.want(c.run(Apply, NVIDIAToolkitBase, NVIDIACDI), Completed, each("applied", "install_key.nvidia", "write_source.nvidia", "install_packages.nvidia", "nvidia_cdi")...)
	if c.exists("/etc/docker/daemon.json") || c.exists("/var/stand-in/starts") {
		t.Error("the route without daemon.json and restart touched Docker")
	}
}

func TestChrootWrongKey(t *testing.T) {
	c := newChroot(t)
	c.file("/repo/pinned", strings.Repeat("A", 40), 0o644)
	r := c.run(Apply, DockerEngine, DockerGroup)
	c.want(r, OutcomeFailed, "package_conflicts satisfied", "install_key.docker failed", "write_source.docker not_run", "install_packages.docker not_run", "docker_group not_run")
	if !strings.Contains(r.Error, c.pinned) {
		t.Errorf("the refusal does not name the key that came: %s", r.Error)
	}
	if c.exists("/etc/apt/keyrings/docker.asc") {
		t.Error("a key that is not pinned was written")
	}
}

// A repository that was signed again with another key must not be installed from.
func TestChrootResignedRepository(t *testing.T) {
	c := newChroot(t)
	c.want(c.run(Apply, NVIDIAToolkitBase), Completed, each("applied", "install_key.nvidia", "write_source.nvidia", "install_packages.nvidia")...)
	key, pinned := c.read("/repo/key.asc"), c.pinned
	c.repositories()
	c.file("/repo/key.asc", key, 0o644)
	c.file("/repo/pinned", pinned, 0o644)
	r := c.run(Apply, DockerEngine)
	c.want(r, OutcomeFailed, "package_conflicts satisfied", "install_key.docker applied", "write_source.docker applied", "install_packages.docker failed")
	if c.exists("/usr/bin/dockerd") || r.Steps[3].ExitCode != 100 {
		t.Errorf("apt's refusal was not believed: %+v", r.Steps[3])
	}
}

func TestChrootConflictIsNamedAndKept(t *testing.T) {
	c := newChroot(t)
	c.chrooted("dpkg", "-i", "/repo/other/containerd.deb")
	r := c.run(Apply, DockerEngine)
	c.want(r, OutcomeFailed, "package_conflicts failed", "install_key.docker not_run", "write_source.docker not_run", "install_packages.docker not_run")
	if !strings.Contains(r.Error, "containerd 1.0-1") {
		t.Errorf("the conflict is not named: %s", r.Error)
	}
	c.chrooted("dpkg", "-s", "containerd")
	if c.exists(ChangesPath) {
		t.Error("something was changed before the conflict was found")
	}
}

func TestChrootWaitsForThePackageLock(t *testing.T) {
	c := newChroot(t)
	lock, err := os.OpenFile(filepath.Join(c.root, "/var/lib/dpkg/lock-frontend"), os.O_RDWR|os.O_CREATE, 0o640)
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
	if !waited.seen || !c.exists("/var/lib/dpkg/lock-frontend") {
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
	c.file("/etc/docker/daemon.json", `{"log-level":"warn"}`, 0o644)
	c.file("/var/stand-in/refuse", "nvidia\n", 0o644)
	r := c.run(Apply, NVIDIARuntime, DockerRestart, DockerGroup)
	c.want(r, OutcomeFailed, "nvidia_runtime applied", "docker_restart failed", "docker_group not_run")
	if got := c.read("/etc/docker/daemon.json"); got != `{"log-level":"warn"}` {
		t.Errorf("daemon.json was not put back: %s", got)
	}
	if !c.exists("/var/stand-in/up") || !strings.Contains(r.Steps[1].Stderr, "the last words of the journal") {
		t.Errorf("Docker was left down, or its journal was not shown: %+v", r.Steps[1])
	}
	changes, _, err := ParseChanges([]byte(c.read(ChangesPath)))
	if err != nil || slices.ContainsFunc(changes, func(c Change) bool { return c.Kind == ChangeJSON }) {
		t.Errorf("what was rolled back is still in force: %+v %v", changes, err)
	}
}

// Without consent a Docker that runs is not restarted.
func TestChrootNoRestartWithoutConsent(t *testing.T) {
	c := newChroot(t)
	c.run(Apply, DockerEngine, DockerService)
	starts := c.read("/var/stand-in/starts")
	c.want(c.run(Apply, NVIDIARuntime), Completed, "nvidia_runtime applied", "docker_restart satisfied")
	if c.read("/var/stand-in/starts") != starts {
		t.Error("Docker was restarted without consent")
	}
	// dockerd's own judgement comes before the swap.
	c.file("/etc/docker/daemon.json", `{"invalid":1}`, 0o644)
	c.want(c.run(Apply, EnableCDI), OutcomeFailed, "enable_cdi failed", "docker_restart not_run")
	if got := c.read("/etc/docker/daemon.json"); got != `{"invalid":1}` {
		t.Errorf("a file that dockerd refuses was put in place: %s", got)
	}
}

// What is not as we made it stays, and so does what something else needs.
func TestChrootUndoLeavesWhatIsNotOurs(t *testing.T) {
	c := newChroot(t)
	c.run(Apply, DockerEngine, EnableCDI, DockerRestart, DockerService)
	c.chrooted("dpkg", "-i", "/repo/other/needs-containerd-io.deb")
	c.file("/etc/docker/daemon.json", `{"features":{"cdi":true,"mine":1},"debug":true}`, 0o644)
	c.file("/etc/apt/keyrings/docker.asc", "somebody else's", 0o644)
	c.file("/var/stand-in/containers", "", 0o644)

	held := c.run(Undo, DockerEngine)
	if held.Outcome != Completed || !c.exists("/usr/bin/dockerd") {
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
	if c.exists("/usr/bin/dockerd") || !c.exists("/etc/apt/sources.list.d/docker.list") {
		t.Error("dockerd stayed, or the source of what stays was removed")
	}
	if got := c.read("/etc/docker/daemon.json"); got != "{\n  \"features\": {\n    \"mine\": 1\n  },\n  \"debug\": true\n}\n" {
		t.Errorf("daemon.json: %s", got)
	}
	c.chrooted("dpkg", "-s", "needs-containerd-io")
}
