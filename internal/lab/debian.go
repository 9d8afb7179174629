package lab

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Debian is a Debian 12 in a directory of its own, with package repositories that
// stand for the vendors', built and signed for it. What a chroot cannot have is a
// stand-in: systemd, the daemon and its CLI, the toolkit's program.
type Debian struct {
	t    testing.TB
	Root string
	// Pinned is the fingerprint of the key that signed the repositories, which is
	// /repo/key.asc. The file /repo/pinned says which one the helper accepts.
	Pinned string
}

// NewDebian unpacks one. It ends with the test.
func NewDebian(t testing.TB) *Debian {
	t.Helper()
	if os.Getuid() != 0 {
		need(t, "a chroot needs root")
	}
	for _, program := range []string{"gpg", "dpkg-deb", "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			need(t, "%s is missing: make packages installs it", program)
		}
	}
	if out, err := exec.CommandContext(t.Context(), filepath.Join(Root(t), "scripts", "lab"), "prepare", "debian").CombinedOutput(); err != nil {
		need(t, "a Debian cannot be prepared: %v: %s", err, out)
	}
	d := &Debian{t: t, Root: t.TempDir()}
	d.Host("tar", "-C", d.Root, "-xf", filepath.Join(Dir(t), "debian.tar"))
	d.File("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", 0o644)
	d.File("/etc/dpkg/dpkg.cfg.d/fast", "force-unsafe-io\n", 0o644)
	for path, script := range debianStandIns {
		d.File(path, script, 0o755)
	}
	d.Repositories()
	return d
}

// Arch of this machine, as uname -m says it.
func Arch() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}

// Host runs a program of this machine, which must end well, and gives its output.
func (d *Debian) Host(name string, args ...string) string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// Chrooted runs a program of the Debian.
func (d *Debian) Chrooted(args ...string) string {
	d.t.Helper()
	return d.Host("chroot", append([]string{d.Root}, args...)...)
}

// File makes a file anew, and the directories above it.
func (d *Debian) File(path, content string, mode fs.FileMode) {
	d.t.Helper()
	_ = os.Remove(filepath.Join(d.Root, path)) // it may be a link
	d.plant(d.Root, path, content, mode)
}

func (d *Debian) plant(tree, path, content string, mode fs.FileMode) {
	d.t.Helper()
	path = filepath.Join(tree, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the mask
		d.t.Fatal(err)
	}
}

// Read gives a file's content; it must be there.
func (d *Debian) Read(path string) string {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.Root, path))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(data)
}

// Exists reports whether something is there, a link included.
func (d *Debian) Exists(path string) bool {
	_, err := os.Lstat(filepath.Join(d.Root, path))
	return err == nil
}

// debianStandIns are the parts of a machine that a chroot cannot have: systemd.
// A start or a reload of Docker is told through the pipe /lab/start and awaited
// at /lab/started; a start puts the socket that /lab/socket names into its place.
var debianStandIns = map[string]string{
	"/usr/bin/systemctl": `#!/bin/sh
s=/var/stand-in; mkdir -p $s
tell() { [ ! -p /lab/start ] || { echo $1 >/lab/start; read ok </lab/started; }; }
start() {
	if [ -e $s/refuse ] && grep -qf $s/refuse /etc/docker/daemon.json 2>/dev/null; then
		rm -f $s/up; echo "Job for docker.service failed." >&2; exit 1
	fi
	cp /etc/docker/daemon.json $s/loaded 2>/dev/null || : >$s/loaded
	echo started >>$s/starts; : >$s/up
	tell start
	[ ! -e /lab/socket ] || ln -sfn "$(cat /lab/socket)" /run/docker.sock
}
active() { [ -e $s/up ] && echo active || { echo inactive; return 3; }; }
case "$*" in
"is-enabled "*) cat $s/enabled.$2 2>/dev/null || { echo disabled; exit 1; } ;;
"is-active docker.service") active ;;
"is-active docker.service docker.socket") active; echo inactive; exit 3 ;;
"enable --now docker.service") start; echo enabled >$s/enabled.$3 ;;
"enable --now "*) echo enabled >$s/enabled.$3 ;;
"disable "*) rm -f $s/enabled.$2 ;;
"restart docker.service") start ;;
"reload docker.service") [ -e $s/deaf ] || cp /etc/docker/daemon.json $s/loaded; echo reloaded >>$s/reloads; tell reload ;;
"reset-failed docker.service docker.socket") echo forgiven >>$s/forgiven ;;
*) echo "systemctl: not expected: $*" >&2; exit 9 ;;
esac
`,
	"/usr/bin/journalctl": "#!/bin/sh\necho 'dockerd: the last words of the journal'\n",
}

// deb is a package that a vendor would serve.
type deb struct {
	repo, name, depends string
	version             string            // "" = 1.0-1
	postinst, prerm     string            // scripts; "" = none
	files               map[string]string // by path: scripts
	outside             []string          // programs of it that a look from outside of the chroot finds in /lab/programs
}

// dockerCLI answers for the daemon that the stand-in of systemd has "started".
const dockerCLI = `#!/bin/sh
s=/var/stand-in
[ "$*" != --version ] || { echo "Docker version 28.5.0, build lab"; exit; }
[ -e $s/up ] || { echo "Cannot connect" >&2; exit 1; }
grep -q nvidia $s/loaded && r='"nvidia":{},'
grep -q cdi $s/loaded && d='"/etc/cdi"'
n=0; [ -e $s/containers ] && n=2
echo "{\"ServerVersion\":\"28.0.0\",\"Runtimes\":{$r\"runc\":{}},\"CDISpecDirs\":[$d],\"ContainersRunning\":$n}"
`

// debs have the right names, the behaviour that the helper depends on, and a
// dependency that comes along.
var debs = []deb{
	{repo: "docker", name: "docker-ce", depends: "docker-ce-cli, containerd.io, stand-in-iptables (>= 1.0)",
		postinst: "#!/bin/sh\ngroupadd --system --force docker\nsystemctl restart docker.service\n",
		prerm:    "#!/bin/sh\nrm -f /run/docker.sock /var/stand-in/up\n",
		files: map[string]string{
			"usr/bin/dockerd": "#!/bin/sh\ncase \"$2\" in --config-file=*) ! grep -q invalid \"${2#--config-file=}\" || { echo 'unable to configure the Docker daemon' >&2; exit 1; } ;; *) exit 9 ;; esac\n"}},
	{repo: "docker", name: "docker-ce-cli", outside: []string{"docker"}, files: map[string]string{
		"usr/bin/docker": dockerCLI}},
	{repo: "docker", name: "containerd.io"},
	{repo: "docker", name: "stand-in-iptables"},
	{repo: "nvidia", name: "nvidia-container-toolkit", depends: "nvidia-container-toolkit-base"},
	{repo: "nvidia", name: "nvidia-container-toolkit-base", outside: []string{"nvidia-ctk"}, files: map[string]string{
		// The specification is the one of /lab/cdi.json, where there is one.
		"usr/bin/nvidia-ctk": `#!/bin/sh
case "$*" in
--version) echo "NVIDIA Container Toolkit CLI version 1.18.0" ;;
"cdi list") [ ! -e /var/run/cdi/nvidia.yaml ] || echo nvidia.com/gpu=GPU-1 ;;
"cdi generate --output=/var/run/cdi/nvidia.yaml") mkdir -p /var/run/cdi; umask 077
	if [ -e /lab/cdi.json ]; then cp /lab/cdi.json /var/run/cdi/nvidia.yaml; else echo kind: nvidia.com/gpu >/var/run/cdi/nvidia.yaml; fi ;;
*) exit 9 ;;
esac
`}},
	{repo: "other", name: "docker.io", version: "20.10.24-1", outside: []string{"docker"},
		postinst: "#!/bin/sh\ngroupadd --system --force docker\n",
		files: map[string]string{
			"usr/bin/dockerd": "#!/bin/sh\necho 'unknown flag: --validate' >&2; exit 125\n", // that came with Docker 23
			"usr/bin/docker":  dockerCLI}},
	{repo: "other", name: "containerd"},
	{repo: "other", name: "needs-containerd-io", depends: "containerd.io"},
	{repo: "other", name: "stand-in-iptables", version: "0.9-1"}, // too old for docker-ce
}

// OutsidePrograms is where the Debian's own programs are looked for from outside
// of it: each is a script that enters the chroot.
func (d *Debian) OutsidePrograms() string { return filepath.Join(d.Root, "lab/programs") }

func (d *Debian) outside(name string) string {
	return "#!/bin/sh\nexec /usr/sbin/chroot '" + d.Root + "' " + name + " \"$@\"\n"
}

// ShowOutside makes programs of the Debian found in OutsidePrograms.
func (d *Debian) ShowOutside(names ...string) {
	d.t.Helper()
	for _, name := range names {
		d.File("/lab/programs/"+name, d.outside(name), 0o755)
	}
}

// OnStart has each start and each reload of Docker call f with that word, and
// wait for its end.
func (d *Debian) OnStart(f func(word string)) {
	d.t.Helper()
	var pipes []*os.File
	for _, name := range []string{"/lab/start", "/lab/started"} {
		path := filepath.Join(d.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			d.t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			d.t.Fatal(err)
		}
		p, err := os.OpenFile(path, os.O_RDWR, 0) // neither end waits for the other
		if err != nil {
			d.t.Fatal(err)
		}
		pipes = append(pipes, p)
	}
	over := make(chan struct{})
	go func() {
		defer func() { // also when f ended the test: who waits must not wait on
			_, _ = pipes[1].WriteString("over\n")
			close(over)
		}()
		for lines := bufio.NewScanner(pipes[0]); lines.Scan(); {
			f(lines.Text())
			if _, err := pipes[1].WriteString("ok\n"); err != nil {
				return
			}
		}
	}()
	d.t.Cleanup(func() {
		_ = pipes[0].Close() // ends the reading
		<-over
		_ = pipes[1].Close() // nobody waits any more
	})
}

// Repositories builds and signs what stands for the vendors' servers, with a new
// key.
func (d *Debian) Repositories() {
	d.t.Helper()
	home, err := os.MkdirTemp("", "gpg") // its agent's socket needs a short path
	if err != nil {
		d.t.Fatal(err)
	}
	gpg := func(args ...string) string {
		return d.Host("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"}, args...)...)
	}
	defer func() {
		d.Host("gpgconf", "--homedir", home, "--kill", "all")
		_ = os.RemoveAll(home)
	}()
	gpg("--quick-generate-key", "vendor@example.org", "rsa2048", "sign", "never")
	d.File("/repo/key.asc", gpg("--armor", "--export"), 0o644)
	for line := range strings.Lines(gpg("--with-colons", "--fingerprint")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" {
			d.Pinned = f[9]
		}
	}
	d.File("/repo/pinned", d.Pinned, 0o644)
	index := map[string]string{"docker": "", "nvidia": "", "other": ""}
	for _, p := range debs {
		index[p.repo] += d.build(p)
	}
	for repo, packages := range index {
		d.File("/repo/"+repo+"/Packages", packages, 0o644)
		if repo == "other" { // nobody serves it
			continue
		}
		d.File("/repo/"+repo+"/Release", fmt.Sprintf("Suite: ./\nDate: %s\nSHA256:\n %s %d Packages\n",
			time.Now().UTC().Format(time.RFC1123), hash([]byte(packages)), len(packages)), 0o644)
		in := filepath.Join(d.Root, "repo", repo)
		_ = os.Remove(filepath.Join(in, "InRelease"))
		gpg("--clearsign", "--output", filepath.Join(in, "InRelease"), filepath.Join(in, "Release"))
	}
}

// build makes a package and gives its entry in the index.
func (d *Debian) build(p deb) string {
	d.t.Helper()
	tree := filepath.Join(d.t.TempDir(), p.name)
	control := "Package: " + p.name + "\nVersion: " + cmp.Or(p.version, "1.0-1") + "\nArchitecture: all\nMaintainer: test <test@example.org>\nDescription: stand-in\n"
	if p.depends != "" {
		control += "Depends: " + p.depends + "\n"
	}
	d.plant(tree, "DEBIAN/control", control, 0o644)
	for name, script := range map[string]string{"postinst": p.postinst, "prerm": p.prerm} {
		if script != "" {
			d.plant(tree, "DEBIAN/"+name, script, 0o755)
		}
	}
	for path, content := range p.files {
		d.plant(tree, path, content, 0o755)
	}
	for _, name := range p.outside {
		d.plant(tree, "lab/programs/"+name, d.outside(name), 0o755)
	}
	file := filepath.Join(d.Root, "repo", p.repo, p.name+".deb")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		d.t.Fatal(err)
	}
	d.Host("dpkg-deb", "--root-owner-group", "--build", tree, file)
	data, err := os.ReadFile(file)
	if err != nil {
		d.t.Fatal(err)
	}
	return fmt.Sprintf("%sFilename: ./%s.deb\nSize: %d\nSHA256: %s\n\n", control, p.name, len(data), hash(data))
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
