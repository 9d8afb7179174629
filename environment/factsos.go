package environment

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/guestapi"
)

// readRelease finds out which distribution this is.
func (p *probe) readRelease(ctx context.Context) {
	data, _, err := p.file(ctx, "/etc/os-release", maxSmall)
	if absent(err) {
		data, _, err = p.file(ctx, "/usr/lib/os-release", maxSmall)
	}
	var r osRelease
	if err == nil {
		r, err = parseOSRelease(data)
	}
	if err != nil {
		p.miss(FactDistribution, err)
		return
	}
	o := &p.facts.OS
	o.ID, o.IDLike, o.Version, o.Codename, o.Name, o.Family = r.id, r.idLike, r.version, r.codename, clip(r.name), r.family()
}

// readMachine reads what the kernel says of itself and of the machine.
func (p *probe) readMachine(ctx context.Context) {
	o := &p.facts.OS
	all(
		func() { p.readArchitecture(ctx) },
		func() {
			var err error
			if o.Kernel, err = p.line(ctx, "/proc/sys/kernel/osrelease"); err != nil {
				p.miss(FactKernel, err)
			}
		},
		func() {
			var err error
			if p.facts.BootID, err = p.line(ctx, "/proc/sys/kernel/random/boot_id"); err != nil {
				p.miss(FactBootID, err)
			}
		},
		func() { p.readContainer(ctx) },
		func() { p.readSecureBoot(ctx) },
		func() { p.readSELinux(ctx) },
	)
}

func (p *probe) readArchitecture(ctx context.Context) {
	uname, err := p.find(ctx, "uname")
	if err == nil && uname == "" {
		err = berth.Errorf(berth.CodeCommandNotFound, "there is no uname")
	}
	var r guestapi.ExecResult
	if err == nil {
		r, err = p.exec(ctx, p.cfg.Timeouts.Program, uname, "-m")
	}
	machine := strings.TrimSpace(string(r.Stdout))
	if err == nil && (r.Code != 0 || machine == "" || len(machine) > 32) {
		err = invalidf("uname says %q", said(r))
	}
	if err != nil {
		p.miss(FactArchitecture, err)
		return
	}
	if machine == "arm64" {
		machine = "aarch64"
	}
	p.facts.OS.Architecture = machine
}

// readContainer finds out whether the host is itself a container, or WSL.
func (p *probe) readContainer(ctx context.Context) {
	o := &p.facts.OS
	version, err := p.line(ctx, "/proc/version")
	if err != nil {
		p.miss(FactContainer, err)
	}
	o.WSL = wslVersion(version)
	if name, err := p.line(ctx, "/run/systemd/container"); err == nil && name != "" && o.WSL == 0 {
		o.Container = clip(name)
		return
	}
	for _, mark := range []struct{ path, name string }{
		{"/.dockerenv", "docker"},
		{"/run/.containerenv", "podman"},
		{"/run/secrets/kubernetes.io", "kubernetes"},
	} {
		ok, err := p.there(ctx, mark.path)
		if err != nil {
			p.miss(FactContainer, err)
		}
		if ok {
			o.Container = mark.name
			return
		}
	}
}

// readSecureBoot reads the EFI variable: four bytes of attributes, then the value.
func (p *probe) readSecureBoot(ctx context.Context) {
	data, _, err := p.file(ctx, "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", maxSmall)
	switch {
	case absent(err): // no EFI, so nothing that could be switched on
	case err == nil && len(data) != 5:
		p.miss(FactSecureBoot, invalidf("the EFI variable SecureBoot has %d bytes", len(data)))
	case err != nil:
		p.miss(FactSecureBoot, err)
	default:
		p.facts.OS.SecureBoot = data[4] == 1
	}
}

func (p *probe) readSELinux(ctx context.Context) {
	mode, err := p.line(ctx, "/sys/fs/selinux/enforce")
	switch {
	case absent(err):
	case err != nil:
		p.miss(FactSELinux, err)
	case mode == "1":
		p.facts.OS.SELinux = "enforcing"
	default:
		p.facts.OS.SELinux = "permissive"
	}
}

// readInit finds out who starts services, and whether packages can be put in.
func (p *probe) readInit(ctx context.Context) {
	o := &p.facts.OS
	ok, err := p.there(ctx, "/run/systemd/system")
	if err != nil {
		p.miss(FactInit, err)
	}
	o.Systemd = ok
	if ok, err = p.there(ctx, "/run/ostree-booted"); err != nil {
		p.miss(FactImmutable, err)
	}
	o.Immutable = ok
	if ok {
		return
	}
	mounts, _, err := p.file(ctx, "/proc/mounts", maxTable)
	if err != nil && !absent(err) {
		p.miss(FactImmutable, err)
	}
	o.Immutable = readOnlyUsr(string(mounts))
}

// readReboot finds out whether the machine waits for a restart.
func (p *probe) readReboot(ctx context.Context) {
	for _, mark := range []string{"/run/reboot-required", "/var/run/reboot-required"} {
		ok, err := p.there(ctx, mark)
		if err != nil {
			p.miss(FactRebootDue, err)
		}
		if ok {
			p.facts.OS.RebootDue = true
			return
		}
	}
	kernel, err := p.line(ctx, "/proc/sys/kernel/osrelease")
	if err != nil {
		p.miss(FactRebootDue, err)
		return
	}
	installed, err := p.list(ctx, "/lib/modules")
	if err != nil {
		p.miss(FactRebootDue, err)
		return
	}
	p.facts.OS.RebootDue = newerKernel(kernel, installed) != ""
}

const maxHolders = 64 // processes with file locks that are looked at

// installers are the names, as /proc/PID/comm cuts them, of programs that hold
// a file lock only while they work on the package database.
var installers = []string{
	"apt", "apt-get", "aptitude", "aptd", "dpkg", "unattended-upgr", "synaptic",
	"dnf", "dnf5", "dnf-automatic", "yum", "rpm", "packagekitd", "zypper", "rpm-ostree", "microdnf",
}

// readLock finds out who works on the packages now. The lock files lie about
// when nobody does, so the kernel's table of locks is asked.
func (p *probe) readLock(ctx context.Context) {
	table, _, err := p.file(ctx, "/proc/locks", maxTable)
	if absent(err) {
		return
	}
	if err != nil {
		p.miss(FactPackageLock, err)
		return
	}
	holders := lockHolders(string(table))
	names := make([]string, len(holders))
	each(len(holders), func(i int) {
		// One that ended meanwhile holds nothing any more.
		names[i], _ = p.line(ctx, fmt.Sprintf("/proc/%d/comm", holders[i]))
	})
	for i, name := range names {
		if slices.Contains(installers, name) {
			p.facts.OS.PackageLock = fmt.Sprintf("%s (process %d)", name, holders[i])
			return
		}
	}
	if ok, _ := p.there(ctx, "/var/lib/pacman/db.lck"); ok {
		p.facts.OS.PackageLock = "pacman"
	}
}

// each runs f for 0…n-1 at the same time and waits; the probe's slots bound
// what reaches the guest.
func each(n int, f func(i int)) {
	parts := make([]func(), n)
	for i := range parts {
		parts[i] = func() { f(i) }
	}
	all(parts...)
}

// lockLine is a line of proc_locks(5) that holds, not one that waits ("->").
var lockLine = regexp.MustCompile(`^\d+: (?:POSIX|FLOCK|OFDLCK)\s+\S+\s+WRITE (\d+) `)

// lockHolders gives the processes that hold a write lock, in the table's order.
func lockHolders(table string) []int {
	var pids []int
	for line := range strings.Lines(table) {
		m := lockLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if pid, err := strconv.Atoi(m[1]); err == nil && pid > 0 && !slices.Contains(pids, pid) && len(pids) < maxHolders {
			pids = append(pids, pid)
		}
	}
	return pids
}

// readMemory reads /proc/meminfo.
func (p *probe) readMemory(ctx context.Context) {
	data, _, err := p.file(ctx, "/proc/meminfo", maxSmall)
	if err == nil {
		p.facts.Memory, err = parseMeminfo(string(data))
	}
	if err != nil {
		p.miss(FactMemory, err)
	}
}

func parseMeminfo(text string) (berth.MemoryFacts, error) {
	var m berth.MemoryFacts
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 53)
		if err != nil || n < 0 {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			m.TotalBytes = n * kib
		case "MemAvailable:":
			m.AvailableBytes = n * kib
		}
	}
	if m.TotalBytes == 0 {
		return berth.MemoryFacts{}, invalidf("/proc/meminfo shows no MemTotal")
	}
	return m, nil
}

// readRoutes reads the main IPv4 table.
func (p *probe) readRoutes(ctx context.Context) {
	data, _, err := p.file(ctx, "/proc/net/route", maxTable)
	if err == nil {
		p.facts.Routes, err = parseRoutes(data)
	}
	if err != nil {
		p.miss(FactRoutes, err)
	}
}
