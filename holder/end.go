package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
)

// leaderEnded: the program's own process has ended. It is not reaped yet: as
// long as it is a zombie, its number names no other process and no other
// process group, so a kill in progress may go on using it.
func (k *keeper) leaderEnded(now time.Time) {
	if !k.leaderAt.IsZero() {
		return
	}
	k.unwatch(k.fds.pidfd)
	k.leaderAt = now
	k.quietAt = now.Add(k.spec.DrainQuiet)
	// From here on the kernel reports an end of the output when nobody else has
	// the terminal open.
	k.pty.CloseSlave()
	k.watchMaster(k.masterOn | unix.EPOLLIN)
	if k.killing.running() {
		k.killing.pollAt = now
	}
}

// tick does what is due.
func (k *keeper) tick(now time.Time) {
	if due(k.flushAt, now) {
		k.flushAt = time.Time{}
		k.log.Flush()
		runtime.Gosched() // see readOutput
	}
	if k.killing.running() {
		k.tickKill(now)
	}
	if !k.leaderAt.IsZero() && !k.drained && (due(k.quietAt, now) || now.Sub(k.leaderAt) >= drainMax) {
		// A background process keeps the terminal: it must not keep the session.
		k.drained = true
		k.watchMaster(0)
	}
	if k.exit == nil && k.drained && !k.killing.running() {
		k.finish(now)
	}
	for _, l := range k.conns {
		if due(l.askBy, now) {
			l.close(k)
		}
	}
}

// timeout says how long the loop may sleep, in milliseconds; -1 = until something comes.
func (k *keeper) timeout(now time.Time) int {
	next := k.flushAt
	if k.killing.running() {
		next = sooner(next, k.killing.pollAt)
	}
	if !k.leaderAt.IsZero() && !k.drained {
		next = sooner(next, k.quietAt)
		next = sooner(next, k.leaderAt.Add(drainMax))
	}
	next = sooner(next, k.endBy)
	for _, l := range k.conns {
		next = sooner(next, l.askBy)
		next = sooner(next, l.holdUntil)
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, (next.Sub(now)+time.Millisecond-1)/time.Millisecond))
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// sooner gives the earlier of two times; zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// finish makes the end known, in this order: the output is on disk, the exit
// record is on disk, everybody is told. Whoever is told, or misses it, finds
// the record.
func (k *keeper) finish(now time.Time) {
	k.log.Settle(settleMax)
	survivors := k.remaining()
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(k.leader, &ws, 0, nil)
		if err != unix.EINTR {
			break
		}
	}
	k.leader = 0 // from here on its number may be somebody else's
	exit := exitOf(sysStatus(ws))
	exit.At = time.Now().UTC()
	exit.Offset = k.log.End()
	exit.Survivors = len(survivors)
	if err := berth.WriteFile(filepath.Join(k.dir, berth.FileExit), appendExit(nil, exit), 0o600); err != nil {
		// It is told to all who listen, and said here for the others. A holder
		// that stayed for the disk's sake would stay for ever.
		fmt.Fprintln(os.Stderr, "the exit record could not be written:", err)
		k.unrecorded = true
	}
	k.exit = &exit
	k.pty.Close()
	k.reapOthers()
	if len(survivors) == 0 {
		k.removeCgroup(removeNow)
	}
	k.killed(now)
	if k.leave || k.spec.LogBytes > 0 && !k.unrecorded {
		k.retire(now)
	}
}

// These bound the removal of an empty cgroup, which the kernel may hold busy
// for a moment: while somebody waits for an answer, and when nobody does.
const (
	removeNow  = 20 * time.Millisecond
	removeLast = 2 * time.Second
)

// retire lets the holder end as soon as its readers have what they wait for.
// New ones find the records instead.
func (k *keeper) retire(now time.Time) {
	k.quit = true
	k.unbind()
	k.endBy = now.Add(tellMax)
}

// done reports whether the loop has nothing left to do.
func (k *keeper) done() bool {
	if k.exit == nil || !k.quit {
		return false
	}
	if due(k.endBy, time.Now()) {
		return true
	}
	for _, l := range k.conns {
		if l.owed(k) {
			return false
		}
	}
	return true
}

func (k *keeper) close() {
	for _, l := range k.conns {
		l.close(k)
	}
	k.unbind()
	_ = k.log.Close() // the bytes are on disk since finish
	if k.exit != nil && len(k.remaining()) == 0 {
		k.removeCgroup(removeLast) // it may have been busy still in finish
	}
}

// reapOthers reaps what the program left behind, but not the program itself: its
// number is needed until the end was settled.
func (k *keeper) reapOthers() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		pid := siginfoPID(&info)
		if err != nil || pid == 0 || pid == k.leader {
			return
		}
		var ws unix.WaitStatus
		_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil) // it was seen to have ended
	}
}

// remaining lists what the program left: the members of its cgroup, or else
// what became a child of this process, the subreaper.
func (k *keeper) remaining() []int {
	if k.cgroup.Dir() != "" {
		if pids, err := k.cgroup.Procs(); err == nil {
			return pids
		}
	}
	var pids []int
	for _, m := range process.Descendants(os.Getpid()) {
		pids = append(pids, m.PID)
	}
	return pids
}

func (k *keeper) removeCgroup(bound time.Duration) {
	if k.cgroup.Dir() == "" {
		return
	}
	ctx, cancel := contextFor(bound)
	defer cancel()
	_ = k.cgroup.Remove(ctx) // an empty directory that stays costs nothing and is removed with the session
}
