package process

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Member is one process as a listing saw it.
type Member struct {
	PID, Parent, Group, Session int
	start                       uint64
}

// list gives all processes that are not zombies. Those that may not be looked
// at are missing.
func list() []Member {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close() //nolint:errcheck // it was only read
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var out []Member
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.state == 'Z' || st.state == 'X' {
			continue
		}
		out = append(out, Member{pid, st.ppid, st.pgrp, st.session, st.start})
	}
	return out
}

// InSession lists the processes whose session leader has the PID.
func InSession(leader int) []Member {
	var out []Member
	for _, m := range list() {
		if m.Session == leader {
			out = append(out, m)
		}
	}
	return out
}

// Descendants lists the children of a process, their children, and so on, in
// the order from the oldest generation to the youngest. Where the ancestor is a
// subreaper, that finds what daemonised itself too.
func Descendants(ancestor int) []Member {
	all := list()
	known := map[int]bool{ancestor: true}
	var out []Member
	for found := true; found; {
		found = false
		for _, m := range all {
			if known[m.Parent] && !known[m.PID] {
				known[m.PID] = true
				out = append(out, m)
				found = true
			}
		}
	}
	return out
}

// Signal signals the process that the listing saw, and no other that got its
// number since. That it ended meanwhile is no error.
func (m Member) Signal(sig unix.Signal) error {
	h, err := openPID(m.PID)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer h.Close() //nolint:errcheck // the process is not touched
	st, err := readStat(m.PID)
	if err != nil || st.start != m.start || h.exited() {
		return nil
	}
	if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Members looks at the processes with the PIDs; those that ended are left out.
func Members(pids []int) []Member {
	var out []Member
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil && st.state != 'Z' && st.state != 'X' {
			out = append(out, Member{pid, st.ppid, st.pgrp, st.session, st.start})
		}
	}
	return out
}
