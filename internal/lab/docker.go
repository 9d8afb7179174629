package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Generation is a version of Docker that the lab has.
type Generation string

// The generations: what machines in use have, and what is new.
const (
	Docker20 Generation = "20" // 20.10, API 1.41: Debian 12
	Docker26 Generation = "26" // 26.1, API 1.45: Debian 13; CDI by a switch
	Docker28 Generation = "28" // 28.5 or newer, API 1.51: Debian's next; CDI from the start, lists its devices
)

// Generations lists them, the oldest first.
func Generations() []Generation { return []Generation{Docker20, Docker26, Docker28} }

// The cards that a Daemon can give to containers where Options name no others.
const (
	GPU0 = "GPU-11111111-aaaa-4000-8000-000000000001"
	GPU1 = "GPU-22222222-bbbb-4000-8000-000000000002"
)

// Options describe a daemon of one test.
type Options struct {
	// GPUs are the UUIDs of stand-in cards. 20 gives them by request ("--gpus")
	// and by its runtime "nvidia", 26 and 28 by CDI.
	GPUs []string
	// DiskBytes puts the images on a disk of that size; 0 = the machine's own.
	DiskBytes int64
	// ContainerdStore keeps images in containerd (28).
	ContainerdStore bool
	// LiveRestore lets containers run on without the daemon.
	LiveRestore bool
	// NoCDI leaves CDI off where it could be on.
	NoCDI bool
	// CDIDirs are where CDI specifications lie; nil = Dir/cdi, with one of GPUs.
	CDIDirs []string
	// NoRuntime leaves the runtime "nvidia" out where it could be known (20): its
	// program is there. StartWith makes it known.
	NoRuntime bool
}

// Daemon is a dockerd of the lab.
type Daemon struct {
	Generation Generation
	Socket     string   // path
	Dir        string   // all that it has
	GPUs       []string // UUIDs
	hold       *os.File // its holder ends when this is closed
	cmd        *exec.Cmd
}

var shared struct {
	sync.Mutex
	daemons map[Generation]*Daemon
}

// Docker gives the daemon of that generation that all tests of this process
// share, with GPU0 and GPU1. It ends with the process.
func Docker(t testing.TB, g Generation) *Daemon {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if d := shared.daemons[g]; d != nil {
		return d
	}
	d := start(t, g, Options{GPUs: []string{GPU0, GPU1}})
	if shared.daemons == nil {
		shared.daemons = map[Generation]*Daemon{}
	}
	shared.daemons[g] = d
	return d
}

// PrivateDocker gives a daemon that nobody else uses; it ends with the test.
func PrivateDocker(t testing.TB, g Generation, opts Options) *Daemon {
	t.Helper()
	d := start(t, g, opts)
	t.Cleanup(func() {
		_ = d.hold.Close() // tells the holder to end
		_ = d.cmd.Wait()   // its status says nothing
		if _, err := os.Stat(d.Dir); err == nil {
			t.Errorf("lab: %s is still there; see %s.hold.log", d.Dir, d.Dir)
		}
	})
	return d
}

var counter struct {
	sync.Mutex
	n int
}

func start(t testing.TB, g Generation, opts Options) *Daemon {
	t.Helper()
	if os.Getuid() != 0 {
		need(t, "a dockerd needs root")
	}
	script := filepath.Join(Root(t), "scripts", "lab")
	if out, err := exec.CommandContext(t.Context(), script, "prepare", string(g)).CombinedOutput(); err != nil {
		need(t, "Docker %s cannot be prepared: %v: %s", g, err, out)
	}
	counter.Lock()
	counter.n++
	name := fmt.Sprintf("%s-%d-%d", g, os.Getpid(), counter.n)
	counter.Unlock()
	d := &Daemon{Generation: g, Dir: filepath.Join(Dir(t), "run", name), GPUs: opts.GPUs}
	d.Socket = filepath.Join(d.Dir, "sock")
	if longest := d.Dir + "/exec/containerd/containerd.sock.ttrpc"; len(longest) > 107 {
		need(t, "the path of the repository is too long for sockets below it: %s", longest)
	}
	if err := d.configure(t, opts); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(d.Dir + ".hold.log")
	if err != nil {
		t.Fatal(err)
	}
	// Not tied to any context: it ends when the pipe does, also when this
	// process is killed.
	cmd := exec.Command(script, "hold", string(g), d.Dir) //nolint:noctx // see above
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to the tests' group leaves it to clean up
	err = cmd.Start()
	_ = r.Close()   // the holder has its own
	_ = log.Close() // so it has of this
	if err != nil {
		t.Fatal(err)
	}
	d.cmd, d.hold = cmd, w
	d.ready(t)
	_ = os.Remove(d.Dir + ".hold.log") // it is only of use when the start fails
	return d
}

// configure writes what the daemon is started with.
func (d *Daemon) configure(t testing.TB, opts Options) error {
	for _, sub := range []string{"bin", "gpus", "cdi"} {
		if err := os.MkdirAll(filepath.Join(d.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	// Docker waits 5 s before a second attempt at a layer, and longer before each
	// further one.
	conf, features := map[string]any{"max-download-attempts": 2}, map[string]bool{}
	if opts.LiveRestore {
		conf["live-restore"] = true
	}
	if opts.ContainerdStore {
		features["containerd-snapshotter"] = true
		if err := os.WriteFile(filepath.Join(d.Dir, "driver"), []byte("overlayfs\n"), 0o600); err != nil {
			return err
		}
	}
	if d.Generation == Docker20 {
		if err := d.nvidiaRuntime(t); err != nil {
			return err
		}
		if len(d.GPUs) > 0 && !opts.NoRuntime {
			conf["runtimes"] = map[string]any{"nvidia": map[string]any{"path": filepath.Join(d.Dir, "bin", "nvidia-container-runtime")}}
		}
	} else {
		features["cdi"] = !opts.NoCDI
		conf["cdi-spec-dirs"] = opts.CDIDirs
		if opts.CDIDirs == nil {
			conf["cdi-spec-dirs"] = []string{filepath.Join(d.Dir, "cdi")}
		}
		if err := d.WriteCDI(d.GPUs...); err != nil {
			return err
		}
	}
	if len(features) > 0 {
		conf["features"] = features
	}
	if opts.DiskBytes > 0 {
		img := filepath.Join(d.Dir, "disk.img")
		if err := os.WriteFile(img, nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(img, opts.DiskBytes); err != nil {
			return err
		}
		if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-m", "0", img).CombinedOutput(); err != nil {
			need(t, "mkfs.ext4 (package e2fsprogs): %v: %s", err, out)
		}
	}
	b, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.Dir, "daemon.json"), b, 0o600)
}

// nvidiaRuntime puts the hook on the daemon's PATH, which makes it serve
// requests for GPUs, and the runtime beside it.
func (d *Daemon) nvidiaRuntime(t testing.TB) error {
	if len(d.GPUs) == 0 {
		return nil
	}
	for _, id := range d.GPUs {
		if err := os.WriteFile(filepath.Join(d.Dir, "gpus", id), nil, 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"nvidia-container-runtime-hook", "nvidia-container-runtime"} {
		if err := os.Link(Standin(t), filepath.Join(d.Dir, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// StartWith starts the daemon again with the runtimes of another daemon.json,
// which may not be there: what a restart of the service does that reads it.
func (d *Daemon) StartWith(t testing.TB, daemonJSON string) {
	t.Helper()
	d.takeRuntimes(t, daemonJSON)
	d.Stop(t)
	d.Start(t)
}

// ReloadWith has the daemon that runs read its settings again, with those
// runtimes: what a reload of the service does.
func (d *Daemon) ReloadWith(t testing.TB, daemonJSON string) {
	t.Helper()
	d.takeRuntimes(t, daemonJSON)
	if err := syscall.Kill(d.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

func (d *Daemon) takeRuntimes(t testing.TB, daemonJSON string) {
	t.Helper()
	own := filepath.Join(d.Dir, "daemon.json")
	conf, theirs := map[string]any{}, map[string]any{}
	b, err := os.ReadFile(own)
	if err == nil {
		err = json.Unmarshal(b, &conf)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(daemonJSON); err == nil {
		err = json.Unmarshal(b, &theirs)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	delete(conf, "runtimes")
	if r, ok := theirs["runtimes"]; ok {
		conf["runtimes"] = r
	}
	if b, err = json.Marshal(conf); err == nil {
		err = os.WriteFile(own, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// WriteCDI replaces the CDI specification by one with these cards; the daemon
// sees it at the next request. None = the file goes.
func (d *Daemon) WriteCDI(gpus ...string) error {
	path := filepath.Join(d.Dir, "cdi", "nvidia.json")
	if len(gpus) == 0 {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	var devices []any
	for _, id := range gpus {
		file := filepath.Join(d.Dir, "gpus", id)
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			return err
		}
		devices = append(devices, map[string]any{"name": id, "containerEdits": map[string]any{"mounts": []any{map[string]any{
			"hostPath": file, "containerPath": "/run/nvidia-lab/gpus/" + id, "options": []string{"ro", "nosuid", "nodev", "bind"}}}}})
	}
	b, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// Dial opens a connection to the daemon.
func (d *Daemon) Dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket)
}

// answers reports whether the daemon serves.
func (d *Daemon) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := d.Dial(ctx)
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // it was only asked
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("GET /_ping HTTP/1.0\r\n\r\n")); err != nil {
		return false
	}
	b := make([]byte, 12)
	n, _ := c.Read(b)
	return strings.HasSuffix(string(b[:n]), " 200")
}

func (d *Daemon) ready(t testing.TB) {
	t.Helper()
	if !until(30*time.Second, d.answers) {
		hold, _ := os.ReadFile(d.Dir + ".hold.log")
		t.Fatalf("lab: Docker %s does not answer\n%s\n%s", d.Generation, hold, d.Log())
	}
}

// until waits for a condition of another process.
func until(most time.Duration, ok func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(most); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return true
		}
	}
	return ok()
}

func (d *Daemon) tell(t testing.TB, word string) {
	t.Helper()
	if _, err := d.hold.WriteString(word + "\n"); err != nil {
		t.Fatalf("lab: the holder of Docker %s is gone: %v", d.Generation, err)
	}
}

// PID of the dockerd; 0 = it does not run.
func (d *Daemon) PID() int {
	b, err := os.ReadFile(filepath.Join(d.Dir, "pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

func (d *Daemon) down(t testing.TB) {
	t.Helper()
	if !until(30*time.Second, func() bool { return d.PID() == 0 }) {
		t.Fatalf("lab: Docker %s does not end\n%s", d.Generation, d.Log())
	}
}

// Stop ends the daemon as its service would.
func (d *Daemon) Stop(t testing.TB) { t.Helper(); d.tell(t, "stop"); d.down(t) }

// Kill ends it without warning.
func (d *Daemon) Kill(t testing.TB) { t.Helper(); d.tell(t, "kill"); d.down(t) }

// Start starts it again.
func (d *Daemon) Start(t testing.TB) { t.Helper(); d.tell(t, "start"); d.ready(t) }

// Log is the last part of what the daemon wrote.
func (d *Daemon) Log() string {
	b, err := os.ReadFile(filepath.Join(d.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}
