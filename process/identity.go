package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth"
)

// Verdict is what a look at the machine says of a process.
type Verdict string

// The verdicts. Only Dead permits anybody to take a process's place; Unknown is
// never read as Dead.
const (
	Alive   Verdict = "alive"
	Dead    Verdict = "dead"
	Unknown Verdict = "unknown"
)

// Valid reports whether the verdict is one of the above.
func (v Verdict) Valid() bool { return v == Alive || v == Dead || v == Unknown }

// pidfsMagic is the type of the file system that pidfds live in since Linux
// 6.9. Before that all pidfds share one anonymous inode, whose number says nothing.
const pidfsMagic = 0x50494446

// BootID names the current boot of this machine.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}

// Self gives the identity of this process.
func Self() (berth.Identity, error) { return Of(os.Getpid()) }

// Of gives the identity of the process that has the PID now. A zombie has one
// too. An error satisfies errors.Is(err, os.ErrProcessDone) when there is none.
func Of(pid int) (berth.Identity, error) {
	boot, err := BootID()
	if err != nil {
		return berth.Identity{}, err
	}
	st, err := readStat(pid)
	if err != nil {
		return berth.Identity{}, err
	}
	id := berth.Identity{BootID: boot, PID: pid, StartTime: st.start}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		inode := pidfdInode(fd)
		_ = unix.Close(fd) // it was only looked at
		// The number may have been reused between the two looks.
		if again, err := readStat(pid); err == nil && again.start == st.start {
			id.PidfdInode = inode
		}
	}
	return id, nil
}

// Look says whether the process that id names still runs. A zombie is Dead: it
// runs nothing and holds nothing any more, only its number waits for its
// parent. A process of another boot is Dead. One that may not be looked at
// (another user's, under hidepid) is Alive: something has its number, and
// nobody may take its place on a guess.
func Look(id berth.Identity) Verdict {
	if id.PID <= 0 || id.BootID == "" {
		return Unknown
	}
	boot, err := BootID()
	if err != nil {
		return Unknown
	}
	if boot != id.BootID {
		return Dead
	}
	st, err := readStat(id.PID)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return lookBySignal(id.PID)
	case errors.Is(err, fs.ErrPermission):
		return Alive
	case err != nil:
		return Unknown
	case st.start != id.StartTime || st.state == 'Z' || st.state == 'X':
		return Dead
	case id.PidfdInode == 0:
		return Alive
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return Dead
	}
	if err != nil {
		return Alive // the start time agreed; the inode is a second witness only
	}
	defer unix.Close(fd) //nolint:errcheck // it was only looked at
	if inode := pidfdInode(fd); inode != 0 && inode != id.PidfdInode {
		return Dead
	}
	return Alive
}

// lookBySignal settles what a missing /proc/PID means: with hidepid it is
// missing for the living processes of other users too.
func lookBySignal(pid int) Verdict {
	switch err := unix.Kill(pid, 0); {
	case errors.Is(err, unix.ESRCH):
		return Dead
	case errors.Is(err, unix.EPERM):
		return Alive
	default:
		return Unknown // it came between the two looks
	}
}

func pidfdInode(fd int) uint64 {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(fd, &sfs) != nil || sfs.Type != pidfsMagic || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// stat is what /proc/PID/stat says.
type stat struct {
	state   byte
	ppid    int
	pgrp    int
	session int
	start   uint64 // clock ticks since boot
}

// readStat reads /proc/PID/stat; os.ErrProcessDone when there is no such process.
func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return stat{}, fmt.Errorf("process %d: %w", pid, err)
	}
	st, ok := parseStat(b)
	if !ok {
		return stat{}, fmt.Errorf("process %d: its stat line is not understood", pid)
	}
	return st, nil
}

// parseStat reads a stat line. The command in its second field may contain
// spaces, parentheses and newlines, so the fields are counted from the last ")".
func parseStat(b []byte) (stat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, false
	}
	f := bytes.Fields(b[i+1:])
	const fields = 20 // fields 3 to 22 of the line
	if len(f) < fields || len(f[0]) != 1 {
		return stat{}, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	pgrp, err2 := strconv.Atoi(string(f[2]))
	session, err3 := strconv.Atoi(string(f[3]))
	start, err4 := strconv.ParseUint(string(f[19]), 10, 64)
	if errors.Join(err1, err2, err3, err4) != nil {
		return stat{}, false
	}
	return stat{state: f[0][0], ppid: ppid, pgrp: pgrp, session: session, start: start}, true
}
