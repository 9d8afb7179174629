package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Machine is a directory that stands in for a whole machine with NVIDIA cards:
// the files that a probe reads, and the programs that it asks.
type Machine struct {
	Root     string // before each path of a system file
	Programs string // directory of programs; looked in before the system's own
	Dir      string // of both
}

// MachineOptions describe a stand-in machine. Its Docker is a Daemon.
type MachineOptions struct {
	GPUs   []string // UUIDs; none = there is no card
	Driver string   // "" = 580.95.05
	// Toolkit is the version of nvidia-ctk and its packages; "" = not installed.
	Toolkit string
	// Docker is the package and version that are installed: "docker-ce 5:28.5.0";
	// "" = none.
	Docker string
	// Debian is the machine's own distribution, with its package manager; nil = a
	// few files that say that it is Ubuntu. Toolkit and Docker are then its packages.
	Debian *Debian
}

// NewMachine makes a stand-in in a directory of its own.
func NewMachine(t testing.TB, o MachineOptions) *Machine {
	t.Helper()
	if o.Driver == "" {
		o.Driver = "580.95.05"
	}
	m := &Machine{}
	if d := o.Debian; d != nil {
		m.Dir, m.Root, m.Programs = d.Root, d.Root, d.OutsidePrograms()
		d.ShowOutside("dpkg-query", "systemctl", "uname")
	} else {
		m.Dir = t.TempDir()
		m.Root, m.Programs = filepath.Join(m.Dir, "root"), filepath.Join(m.Dir, "programs")
		m.ubuntu(t)
		m.packages(t, o)
	}
	m.Write(t, "proc/version", "Linux version 6.8.0-60-generic (lab)\n")
	m.Write(t, "proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
	m.Write(t, "proc/sys/kernel/arch", "x86_64\n")
	m.SetBootID(t, "11111111-1111-4111-8111-111111111111")
	m.Write(t, "proc/meminfo", "MemTotal:       65000000 kB\nMemAvailable:   60000000 kB\n")
	m.Write(t, "proc/net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	m.Write(t, "proc/locks", "")
	for _, d := range []string{"run/systemd/system", "sys/bus/pci/devices", "dev", "lib/modules/6.8.0-60-generic"} {
		m.mkdir(t, d)
	}
	m.cards(t, o)
	return m
}

// ubuntu is what a probe sees of the distribution.
func (m *Machine) ubuntu(t testing.TB) {
	t.Helper()
	m.Write(t, "etc/os-release", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\nPRETTY_NAME=\"Ubuntu 24.04 LTS\"\n")
	m.Write(t, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n")
	m.Write(t, "etc/group", "root:x:0:\ndocker:x:999:ada\n")
	for _, d := range []string{"var/lib/docker", "etc/cdi", "var/run/cdi"} {
		m.mkdir(t, d)
	}
	m.program(t, "systemctl", `case "$1 $2" in
"is-active docker"*) echo active;;
"is-enabled "*) echo enabled;;
*) echo inactive; exit 3;;
esac`)
	m.program(t, "uname", "echo x86_64")
}

// SetBootID makes the next look see another boot.
func (m *Machine) SetBootID(t testing.TB, id string) {
	t.Helper()
	m.Write(t, "proc/sys/kernel/random/boot_id", id+"\n")
}

func (m *Machine) cards(t testing.TB, o MachineOptions) {
	t.Helper()
	if len(o.GPUs) == 0 {
		return
	}
	for i := range o.GPUs {
		m.Write(t, fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/uevent", i+1), "DRIVER=nvidia\nPCI_CLASS=30000\nPCI_ID=10DE:2684\n")
		m.Write(t, fmt.Sprintf("dev/nvidia%d", i), "")
	}
	m.Write(t, "sys/module/nvidia/version", o.Driver+"\n")
	m.Write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+o.Driver+"  lab\n")
	lib := "usr/lib/x86_64-linux-gnu/libnvidia-ml.so."
	m.Write(t, lib+o.Driver, "")
	if err := os.Symlink(filepath.Base(lib)+o.Driver, filepath.Join(m.Root, lib+"1")); err != nil {
		t.Fatal(err)
	}
	var query, list strings.Builder
	for i, uuid := range o.GPUs {
		fmt.Fprintf(&query, "%s, NVIDIA Lab GPU, 8.9, 24564, 24000, %s, [N/A]\n", uuid, o.Driver)
		fmt.Fprintf(&list, "GPU %d: NVIDIA Lab GPU (UUID: %s)\n", i, uuid)
	}
	m.program(t, "nvidia-smi", "case \"$*\" in\n*--query-gpu=*) cat <<'X'\n"+query.String()+"X\n;;\n*--query-compute-apps*) ;;\n*-L*) cat <<'X'\n"+list.String()+
		"X\n;;\n*) echo '| NVIDIA-SMI "+o.Driver+"   Driver Version: "+o.Driver+"   CUDA Version: 13.0 |';;\nesac")
}

func (m *Machine) packages(t testing.TB, o MachineOptions) {
	t.Helper()
	var rows strings.Builder
	if name, version, ok := strings.Cut(o.Docker, " "); ok {
		fmt.Fprintf(&rows, "ii |%s|%s\n", name, version)
		m.program(t, "docker", "echo Docker version 28.5.0, build lab")
		m.Write(t, "usr/bin/docker", "")
	}
	if o.Toolkit != "" {
		for _, p := range []string{"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1", "libnvidia-container-tools"} {
			fmt.Fprintf(&rows, "ii |%s|%s-1\n", p, o.Toolkit)
		}
		m.program(t, "nvidia-ctk", "echo NVIDIA Container Toolkit CLI version "+o.Toolkit)
	}
	m.program(t, "dpkg-query", "cat <<'X'\n"+rows.String()+"X")
}

// Write makes a file of the stand-in, and the directories above it.
func (m *Machine) Write(t testing.TB, path, text string) {
	t.Helper()
	path = filepath.Join(m.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Link makes a directory of the real machine one of the stand-in, at the same
// path: that of its Docker, whose specifications lie there.
func (m *Machine) Link(t testing.TB, dir string) {
	t.Helper()
	at := filepath.Join(m.Root, dir)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, at); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(m.Root, path), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) program(t testing.TB, name, script string) {
	t.Helper()
	if err := os.MkdirAll(m.Programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.Programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}
