package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"berth"
)

// newerGroups names the groups that this login has and the daemon lacks: a
// process keeps the groups of the login that started it, so after a person was
// added to group docker and logged in again, a daemon from before cannot use
// it. Nil = none, or it cannot be told.
func newerGroups(pid int) []string {
	mine, err := os.Getgroups()
	if err != nil {
		return nil
	}
	theirs, err := groupsOf(pid)
	if err != nil {
		return nil
	}
	var names []string
	for _, gid := range mine {
		if slices.Contains(theirs, gid) {
			continue
		}
		name := strconv.Itoa(gid)
		if g, err := user.LookupGroupId(name); err == nil {
			name = g.Name
		}
		names = append(names, name)
	}
	return names
}

// groupsOf reads the groups of a process of this user, its own group first.
func groupsOf(pid int) ([]int, error) {
	data, err := berth.ReadFile(fmt.Sprintf("/proc/%d/status", pid), 64<<10)
	if err != nil {
		return nil, err
	}
	var groups []int
	for line := range strings.Lines(string(data)) {
		key, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		switch key {
		case "Uid":
			if len(fields) < 2 || fields[1] != strconv.Itoa(os.Geteuid()) {
				return nil, errors.New("a process of another user")
			}
		case "Gid":
			fields = fields[:min(len(fields), 2)]
			fallthrough
		case "Groups":
			for _, f := range fields {
				gid, err := strconv.Atoi(f)
				if err != nil {
					return nil, fmt.Errorf("read the groups of process %d: %w", pid, err)
				}
				groups = append(groups, gid)
			}
		}
	}
	return groups, nil
}

// restartForLogin puts a daemon and a guest of this login in place of those of
// an older one. Sessions and operations go on.
func (a *app) restartForLogin(ctx context.Context, api API, d berth.Daemon, groups []string) (berth.Status, error) {
	a.note("the daemon is from before this login was in %s; starting it again, what it runs goes on", oneLine(strings.Join(groups, ", "), 200))
	if err := askToStop(ctx, api); err != nil {
		return berth.Status{}, err
	}
	if err := awaitGone(ctx, d); err != nil {
		return berth.Status{}, err
	}
	status, _, err := a.ensureDaemon(ctx, api)
	return status, err
}
