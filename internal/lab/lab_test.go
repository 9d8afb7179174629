package lab

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestKilled is not a test by itself: TestNothingOutlivesTheTests starts it in a
// process of its own, and kills that.
func TestKilled(t *testing.T) {
	if os.Getenv("LAB_TEST_KILLED") == "" {
		return
	}
	d := Docker(t, Docker26)
	if _, err := os.Stdout.WriteString("ready " + d.Dir + "\n"); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // it is killed before
}

// A test process that is killed leaves no daemon, no mount, no bridge.
func TestNothingOutlivesTheTests(t *testing.T) {
	Docker(t, Docker26) // skips where there can be none
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "LAB_TEST_KILLED=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		dir, _ = strings.CutPrefix(lines.Text(), "ready ")
		if !filepath.IsAbs(dir) {
			dir = ""
		}
	}
	if dir == "" {
		t.Fatal("it said no directory")
	}
	d := &Daemon{Dir: dir, Socket: filepath.Join(dir, "sock")}
	pid := d.PID()
	bridge, err := os.ReadFile(filepath.Join(dir, "bridge"))
	if err != nil || pid == 0 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if !until(30*time.Second, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }) {
		t.Errorf("%s is still there", dir)
	}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil && strings.Contains(string(b), dir) {
		t.Errorf("dockerd %d runs still", pid)
	}
	if _, err := os.Stat("/sys/class/net/" + strings.TrimSpace(string(bridge))); err == nil {
		t.Errorf("bridge %s is still there", bridge)
	}
	if b, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(b), dir) {
		t.Errorf("something is still mounted below %s, or %v", dir, err)
	}
}

// What a holder that was killed itself left is swept by the next one.
func TestTheNextSweeps(t *testing.T) {
	d := start(t, Docker28, Options{DiskBytes: 32 << 20})
	pid := d.PID()
	_ = syscall.Kill(d.cmd.Process.Pid, syscall.SIGKILL)
	_ = d.cmd.Wait() // it was killed
	_ = d.hold.Close()
	if d.PID() != pid {
		t.Fatal("the daemon went with its holder: nothing is left to sweep")
	}
	PrivateDocker(t, Docker28, Options{})
	if _, err := os.Stat(d.Dir); err == nil {
		t.Errorf("%s is still there", d.Dir)
	}
	if !until(10*time.Second, func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return err != nil || len(b) == 0
	}) {
		t.Errorf("dockerd %d runs still", pid)
	}
}

// The registry's faults are what they say, so that a test of berth fails for
// berth's reasons.
func TestRegistryFaults(t *testing.T) {
	r := NewRegistry(t)
	random := RandomImage(t, 100_000)
	img := r.Push(t, "a/b", random)
	layer := ""
	for digest, b := range random.Blobs {
		if int64(len(b)) == random.Layers[0] {
			layer = digest
		}
	}
	if img.DownloadBytes < 100_000 || img.Digest != random.Digest {
		t.Fatalf("%+v", img)
	}
	get := func(path string) (int, []byte, error) {
		hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := hc.Get("http://" + r.Host + path)
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close() //nolint:errcheck // a test's
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, b, err
	}
	manifest := "/v2/a/b/manifests/" + img.Digest
	if status, b, err := get(manifest); err != nil || status != 200 || digestOf(b) != img.Digest {
		t.Fatalf("%d %s, %v", status, b, err)
	}
	r.Break("a/b", Fault{Status: 503, Times: 2})
	for i, want := range []int{503, 503, 200} {
		if status, _, err := get(manifest); err != nil || status != want {
			t.Errorf("%d: %d, %v", i, status, err)
		}
	}
	r.Break("a/b", Fault{LieManifest: true, Times: 1})
	if status, b, err := get(manifest); err != nil || status != 200 || digestOf(b) == img.Digest {
		t.Errorf("%d %s, %v", status, b, err)
	}
	blob := "/v2/a/b/blobs/" + layer
	if status, b, err := get(blob); err != nil || status != 200 || digestOf(b) != layer {
		t.Fatalf("%d, %d bytes, %v", status, len(b), err)
	}
	r.Break("a/b", Fault{Corrupt: true, AtByte: 10, Times: 1})
	if _, b, err := get(blob); err != nil || digestOf(b) == layer || int64(len(b)) != random.Layers[0] {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	r.Break("a/b", Fault{Cut: true, AtByte: 1000, Times: 1})
	if _, b, err := get(blob); err == nil || len(b) != 1000 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, b, err := get(blob); err != nil || digestOf(b) != layer {
		t.Errorf("it is not well again: %v", err)
	}
}
