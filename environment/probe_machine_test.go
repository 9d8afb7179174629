package environment

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/guest"
	"berth/guestapi"
)

// realGuest serves a real guest in this process, and gives its real client.
func realGuest(t *testing.T) *guestapi.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	run := filepath.Join(dir, "r")
	go func() {
		done <- guest.Run(ctx, guest.Config{
			Sessions: filepath.Join(dir, "s"), Runtime: run, Holder: filepath.Join(dir, "no-holder"), Log: slog.New(slog.DiscardHandler),
		})
	}()
	c := guestapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(run, berth.SocketGuest))
	})
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the guest ended with %v", err)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, err := c.Info(t.Context()); err == nil {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal("the guest does not answer")
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // nothing else shows that a socket answers
	}
}

// TestThisMachine looks at the machine that the test runs on through a real
// guest, and compares with what the machine says by other ways.
func TestThisMachine(t *testing.T) {
	cfg := ProbeConfig{Guest: realGuest(t), Models: t.TempDir()}
	began := time.Now()
	f, err := Probe(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 2*time.Second && f.GPU.SMI == "" && unknownOf(f, FactDockerDaemon) == "" {
		t.Errorf("it took %s", d)
	}
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	if want := cString(uts.Machine[:]); f.OS.Architecture != want {
		t.Errorf("architecture %q, want %q", f.OS.Architecture, want)
	}
	if want := cString(uts.Release[:]); f.OS.Kernel != want {
		t.Errorf("kernel %q, want %q", f.OS.Kernel, want)
	}
	if want := strings.TrimSpace(readText(t, "/proc/sys/kernel/random/boot_id")); f.BootID != want {
		t.Errorf("boot id %q, want %q", f.BootID, want)
	}
	if u, err := user.Current(); err == nil && (f.User.Name != u.Username || strconv.Itoa(f.User.UID) != u.Uid) {
		t.Errorf("user %+v, want %s", f.User, u.Username)
	}
	if !strings.Contains(readText(t, "/etc/os-release"), f.OS.ID) || f.OS.ID == "" {
		t.Errorf("distribution %q", f.OS.ID)
	}
	if f.Memory.TotalBytes < 1<<27 || f.Memory.AvailableBytes > f.Memory.TotalBytes {
		t.Errorf("memory %+v", f.Memory)
	}
	if lines := strings.Count(readText(t, "/proc/net/route"), "\n") - 1; len(f.Routes) > lines {
		t.Errorf("%d routes of %d", len(f.Routes), lines)
	}
	checkDevices(t, f)
	for _, u := range f.Unknown {
		t.Logf("unknown: %s: %s", u.Fact, u.Reason)
	}
	t.Logf("%d ms: %s %s, Docker CLI %q reachable %v (%s), %d cards, %d on the bus", f.ElapsedMS, f.OS.Name, runtime.GOARCH, f.Docker.CLI, f.Docker.Reachable, f.Docker.Error, len(f.GPU.Cards), f.GPU.OnBus)
}

// checkDevices holds what was found of GPU and Docker against the files.
func checkDevices(t *testing.T, f berth.Facts) {
	t.Helper()
	if _, err := os.Stat("/sys/module/nvidia"); os.IsNotExist(err) && (f.GPU.Module != "" || len(f.GPU.Cards) > 0) {
		t.Errorf("there is no NVIDIA driver here: %+v", f.GPU)
	}
	vendors, _ := filepath.Glob("/sys/bus/pci/devices/*/vendor")
	nvidia := 0
	for _, v := range vendors {
		if strings.TrimSpace(readText(t, v)) == "0x10de" {
			nvidia++
		}
	}
	if f.GPU.OnBus > nvidia {
		t.Errorf("%d cards on a bus with %d devices by NVIDIA", f.GPU.OnBus, nvidia)
	}
	if _, err := os.Stat(defaultSocket); os.IsNotExist(err) && (f.Docker.Socket != "" || f.Docker.Reachable) {
		t.Errorf("there is no Docker socket here: %+v", f.Docker)
	}
	if _, err := os.Stat("/etc/docker/daemon.json"); os.IsNotExist(err) && f.Docker.DaemonJSON != DaemonJSONAbsent {
		t.Errorf("there is no daemon.json here: %q", f.Docker.DaemonJSON)
	}
	if _, err := os.Stat("/run/systemd/system"); (err == nil) != f.OS.Systemd {
		t.Errorf("systemd: %v", f.OS.Systemd)
	}
	purposes := map[string]bool{}
	for _, d := range f.Disk {
		purposes[d.Purpose] = true
		if d.FreeBytes <= 0 {
			t.Errorf("%s: %d bytes free", d.Path, d.FreeBytes)
		}
	}
	if !purposes[DiskDockerRoot] || !purposes[DiskModels] {
		t.Errorf("disks %+v", f.Disk)
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func cString(b []int8) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
