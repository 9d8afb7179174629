package hoststep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dpkgInstalled asks dpkg. A package that is only half there is an error with
// its remedy: installing over it would not end well.
func (r *run) dpkgInstalled(ctx context.Context, name string) (string, error) {
	o, err := r.do(ctx, "dpkg-query", name)
	if err != nil {
		return "", err
	}
	if o.code == 1 && strings.TrimSpace(o.stderr) == "dpkg-query: no packages found matching "+name {
		return "", nil
	}
	if o.code != 0 {
		return "", failed("dpkg-query", o)
	}
	status, version, _ := strings.Cut(strings.TrimSpace(o.stdout), "\t")
	switch status {
	case "installed", "triggers-awaited", "triggers-pending":
		return version, nil
	case "not-installed", "config-files":
		return "", nil
	}
	return "", fmt.Errorf("package %s is %s: run dpkg --configure -a, then try again", name, plainTail(status, 40))
}

// aptRefresh reads only the vendor's own list: somebody else's broken
// repository is not our business, and theirs are not brought up to date unasked.
// Then it asks what apt would do to packages that are there: what the missing
// ones need in a newer version is not brought up to it behind a person's back.
func (r *run) aptRefresh(ctx context.Context, v vendor, missing []string) error {
	path, err := r.source(v)
	if err != nil {
		return err
	}
	if path == "" {
		return fmt.Errorf("no source names the repository of %s", v.Name)
	}
	if err := r.waitForLocks(ctx); err != nil {
		return err
	}
	if _, err = r.must(ctx, "apt-refresh", path); err != nil {
		return err
	}
	if err := r.waitForLocks(ctx); err != nil {
		return err
	}
	o, err := r.must(ctx, "apt-plan", missing...)
	if err != nil {
		return err
	}
	if touched := aptTouched(o.stdout); len(touched) > 0 {
		return untouchable(missing, touched, "sudo apt-get install --only-upgrade "+strings.Join(namesOf(touched), " "))
	}
	return nil
}

// touched is a package that is there and would not stay as it is.
type touched struct{ name, what string }

func namesOf(all []touched) (names []string) {
	for _, t := range all {
		names = append(names, t.name)
	}
	return names
}

// untouchable refuses an installation that would change what is installed.
func untouchable(missing []string, all []touched, remedy string) error {
	var list []string
	for _, t := range all {
		list = append(list, t.name+" "+t.what)
	}
	return fmt.Errorf("installing %s would change packages that are there, which is not done: %s. Do it yourself, then try again: %s",
		strings.Join(missing, " "), plainTail(strings.Join(list, ", "), 600), plainTail(remedy, 600))
}

// aptTouched reads a simulation: "Inst NAME [OLD] (NEW …)" is a package that is
// there in another version, "Remv NAME [OLD]" one that would go.
func aptTouched(stdout string) (all []touched) {
	for line := range strings.Lines(stdout) {
		cells := strings.Fields(line)
		if len(cells) < 3 || !strings.HasPrefix(cells[2], "[") {
			continue
		}
		old := strings.Trim(cells[2], "[]")
		switch {
		case cells[0] == "Remv":
			all = append(all, touched{cells[1], old + " would go"})
		case cells[0] == "Inst" && len(cells) > 3:
			all = append(all, touched{cells[1], "from " + old + " to " + strings.Trim(cells[3], "()")})
		}
	}
	return all
}

// Locks of dpkg and apt, by fcntl. They are waited for and never removed.
var aptLocks = []string{"/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock"}

func (r *run) waitForLocks(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	said := ""
	for {
		holder, err := r.lockHolder()
		if err != nil || holder == "" {
			return err
		}
		if holder != said {
			r.tell("waiting for %s, which uses the package database", holder)
			said = holder
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the package database was in use too long, by %s: %w", holder, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// lockHolder names who holds one of the locks; "" = nobody.
func (r *run) lockHolder() (string, error) {
	for _, path := range aptLocks {
		f, err := os.Open(r.sys.path(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		lock := syscall.Flock_t{Type: syscall.F_WRLCK}
		err = syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock)
		_ = f.Close()
		if err != nil {
			return "", fmt.Errorf("look at the lock %s: %w", path, err)
		}
		if lock.Type == syscall.F_UNLCK {
			continue
		}
		if lock.Pid <= 0 {
			return "a process of another container", nil
		}
		pid := strconv.Itoa(int(lock.Pid))
		name, err := os.ReadFile(r.sys.path(filepath.Join("/proc", pid, "comm")))
		if err != nil {
			return "process " + pid, nil // it ended meanwhile
		}
		return "process " + pid + " (" + plainTail(string(name), 32) + ")", nil
	}
	return "", nil
}

// simulated is which packages apt would take out.
func simulated(stdout string) []string {
	var names []string
	for line := range strings.Lines(stdout) {
		if cells := strings.Fields(line); len(cells) > 1 && cells[0] == "Remv" {
			names = append(names, cells[1])
		}
	}
	return names
}

// bare is a package's name without the architecture that dpkg adds.
func bare(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return name
}

func containsBare(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return bare(n) == bare(name) })
}
