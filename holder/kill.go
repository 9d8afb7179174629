package holder

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/process"
)

// ladder is a kill in progress: SIGHUP, then SIGTERM, then SIGKILL, with a
// grace between them, and earlier as soon as nothing is left.
type ladder struct {
	stage  stage
	next   time.Time // when the next stage begins
	pollAt time.Time // when it is looked again what is left
	poll   time.Duration
}

type stage int

const (
	stageNone stage = iota
	stageHangUp
	stageTerminate
	stageKill
)

func (l *ladder) running() bool { return l.stage != stageNone }

const (
	pollFirst = 5 * time.Millisecond
	pollMost  = 100 * time.Millisecond
	// giveUpAfter SIGKILL a process that is still there is in the kernel's hands
	// (a disk or a network file system that hangs): the caller is told.
	giveUpAfter = 5 * time.Second
)

// startKill begins a kill, or joins the one that runs.
func (k *keeper) startKill(now time.Time) {
	switch {
	case k.killing.running():
		return
	case k.exit != nil: // only what the program left may still be there
		k.killing = ladder{stage: stageKill, next: now.Add(giveUpAfter)}
	default:
		k.killing = ladder{stage: stageHangUp, next: now.Add(k.spec.KillGrace)}
	}
	k.signalAll()
	k.killing.poll = pollFirst
	k.killing.pollAt = now.Add(pollFirst)
}

// tickKill looks what is left, and takes the next step when it is time.
func (k *keeper) tickKill(now time.Time) {
	if !due(k.killing.pollAt, now) {
		return
	}
	k.reapOthers()
	left := k.targets()
	if len(left) == 0 && (k.exit != nil || !k.leaderAt.IsZero()) {
		k.killing = ladder{}
		if k.exit != nil {
			k.removeCgroup(removeNow)
			k.killed(now)
		}
		return // else finish tells, when the output is drained
	}
	switch {
	case k.killing.stage == stageKill && due(k.killing.next, now):
		k.killing = ladder{}
		if k.exit != nil || k.leaderAt.IsZero() {
			k.killed(now)
		}
		return
	case k.killing.stage == stageKill:
		k.signalAll() // what forked between the look and the signal
	case due(k.killing.next, now) || k.killing.stage == stageHangUp && k.onlyEscapees(left):
		k.killing.stage++
		k.killing.next = now.Add(k.spec.KillGrace)
		if k.killing.stage == stageKill {
			k.killing.next = now.Add(giveUpAfter)
		}
		k.killing.poll = pollFirst
		k.signalAll()
	}
	k.killing.pollAt = now.Add(k.killing.poll)
	k.killing.poll = min(2*k.killing.poll, pollMost)
}

// onlyEscapees reports whether the program's own session is gone: a process
// that left it is not told of a hang-up, so waiting for one is idle.
func (k *keeper) onlyEscapees(left []process.Member) bool {
	for _, m := range left {
		if m.Session == k.leader {
			return false
		}
	}
	return true
}

// targets lists everything of the program that runs: its session, the members
// of its cgroup, and what became a child of this process, the subreaper.
func (k *keeper) targets() []process.Member {
	all := process.Descendants(os.Getpid())
	known := make(map[int]bool, len(all))
	for _, m := range all {
		known[m.PID] = true
	}
	add := func(more []process.Member) {
		for _, m := range more {
			if !known[m.PID] {
				known[m.PID] = true
				all = append(all, m)
			}
		}
	}
	if k.leader > 0 {
		add(process.InSession(k.leader))
	}
	if k.cgroup.Dir() != "" {
		if pids, err := k.cgroup.Procs(); err == nil {
			add(process.Members(pids))
		}
	}
	return all
}

// signalAll sends the signal of the stage.
func (k *keeper) signalAll() {
	left := k.targets()
	switch k.killing.stage {
	case stageHangUp:
		k.signalSession(left, unix.SIGHUP)
	case stageTerminate:
		k.signalSession(left, unix.SIGTERM)
		for _, m := range left {
			if m.Session != k.leader {
				_ = m.Signal(unix.SIGTERM) // what cannot be signalled shows in what is left
			}
		}
	case stageKill:
		if k.leader > 0 {
			_ = unix.PidfdSendSignal(k.fds.pidfd, unix.SIGKILL, nil, 0) // it may be gone already
		}
		for _, m := range left {
			_ = m.Signal(unix.SIGKILL) // what cannot be signalled shows in what is left
		}
		if k.cgroup.Dir() != "" {
			_ = k.cgroup.Kill() // likewise
		}
	}
}

// signalSession signals the groups of the program's session, and wakes those
// that are stopped so that they can act on it. The program's own group is
// signalled as a whole: the program is not reaped, so the number is its own.
// The others, whose number could be anybody's a moment later, one by one
// through pidfds.
func (k *keeper) signalSession(left []process.Member, sig unix.Signal) {
	if k.leader == 0 {
		return
	}
	for _, s := range []unix.Signal{sig, unix.SIGCONT} {
		_ = unix.Kill(-k.leader, s) // an empty group is no failure
		for _, m := range left {
			if m.Session == k.leader && m.Group != k.leader {
				_ = m.Signal(s) // what cannot be signalled shows in what is left
			}
		}
	}
}

// killed answers everybody who waits for the kill.
func (k *keeper) killed(time.Time) {
	var waiting []*link
	for _, l := range k.conns {
		if l.waiting {
			waiting = append(waiting, l)
		}
	}
	if len(waiting) == 0 {
		return
	}
	res := KillResult{Exit: k.exit, Contained: k.cgroup.Dir() != ""}
	for _, m := range k.targets() {
		res.Survivors = append(res.Survivors, m.PID)
	}
	for _, l := range waiting {
		l.waiting = false
		l.reply(reOK, addKill(nil, res))
		l.flush(k)
		l.rearm(k)
	}
}
