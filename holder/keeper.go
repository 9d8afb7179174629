package holder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
	"berth/terminal"
)

// keeper is the running holder. One goroutine, the loop, owns all of it, and
// waits in one epoll: nothing is locked, nothing can be in the middle of
// something, and an idle holder is one sleeping thread. Two others only wake
// it: the signal relay, and the log's writer, which is apart because a disk may
// hang and input and signals must not.
type keeper struct {
	spec   Spec
	dir    string
	socket string
	record Running

	lock      *os.File // holds the lock; never read
	foreign   bool     // the directory has records of another program
	wrote     bool     // running.json is ours
	sockDev   uint64
	sockIno   uint64
	pty       *terminal.PTY
	log       *terminal.Log
	cgroup    process.Cgroup
	signals   chan os.Signal
	terminate atomic.Bool // a SIGTERM came; set by the signal relay
	fds       fds

	leader   int       // PID of the program; 0 before the start and after it was reaped
	leaderAt time.Time // when its end was seen; zero while it runs
	drained  bool      // the terminal has nothing more to give
	quietAt  time.Time // when the output counts as drained
	exit     *berth.Exit
	leave    bool // a SIGTERM came: end with the program
	quit     bool

	masterOn   uint32    // what the loop waits for on the master
	flushAt    time.Time // when waiting output is handed to the log's writer; zero = none waits
	input      []byte    // for the program, not yet taken by the terminal
	inputFull  bool      // too much of it waits: connections are not read for more
	conns      map[int]*link
	streams    []*link // those of conns that follow the output
	killing    ladder
	snap       *Snapshot // newest deposit; Screen is nil when it is on disk
	scratch    []byte    // for output from disk, while a reader lags; nil = not needed yet
	readBuf    [16 << 10]byte
	endBy      time.Time // after the end: when the last reader must have what it gets
	unyielded  int       // bytes read since the log's writer was let run
	busy       bool      // output came since the last wait
	acceptOff  bool      // as many connections as there may be
	gather     gather
	header     [frameHeader + outputExtra]byte
	unrecorded bool // the exit record could not be written
}

// fds are the descriptors of the loop; -1 = none.
type fds struct{ epoll, wake, listener, pidfd int }

// Times of the loop.
const (
	flushAfter  = 20 * time.Millisecond // output waits so long for more before it goes to disk
	drainMax    = 2 * time.Second       // a program that floods the terminal from the background
	settleMax   = 2 * time.Second       // for the disk, before the exit record
	tellMax     = 5 * time.Second       // for readers, after the exit record
	requestMax  = 10 * time.Second      // a connection that asks nothing is closed
	maxLinks    = 128                   // connections at a time; more wait in the backlog
	maxMaster   = 16                    // reads of the master before others get their turn
	inputHigh   = 64 << 10              // input that waits: above, readers of input pause
	inputLow    = 16 << 10              // below, they go on
	maxUnsent   = 1 << 20               // answers that wait on one connection, before its requests do
	eventsAtOne = 32
	busyWait    = 2 // milliseconds
	yieldAfter  = 64 << 10
)

func (k *keeper) openLoop() error {
	var err error
	if k.fds.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("make the holder's loop: %w", err)
	}
	if k.fds.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make the holder's loop: %w", err)
	}
	k.conns = map[int]*link{}
	return k.watchFD(k.fds.wake, unix.EPOLLIN)
}

// notify wakes the loop; from any goroutine.
func (k *keeper) notify() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(k.fds.wake, one[:]) // full = it is awake already
}

func (k *keeper) watchFD(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(k.fds.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch a file: %w", err)
	}
	return nil
}

func (k *keeper) rewatch(fd int, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if unix.EpollCtl(k.fds.epoll, unix.EPOLL_CTL_MOD, fd, &ev) != nil {
		_ = unix.EpollCtl(k.fds.epoll, unix.EPOLL_CTL_ADD, fd, &ev) // it was taken out
	}
}

func (k *keeper) unwatch(fd int) {
	_ = unix.EpollCtl(k.fds.epoll, unix.EPOLL_CTL_DEL, fd, nil) // not in it is as well
}

// watchMaster sets what is waited for on the master; 0 takes it out, since an
// end (EPOLLHUP) is reported whether asked for or not.
func (k *keeper) watchMaster(events uint32) {
	if events == k.masterOn || k.drained && events != 0 {
		return
	}
	k.masterOn = events
	if events == 0 {
		k.unwatch(k.pty.Master)
		return
	}
	k.rewatch(k.pty.Master, events)
}

// loop runs until the program has ended and its end has been told.
func (k *keeper) loop() error {
	relay := make(chan struct{})
	defer close(relay)
	go k.relaySignals(relay)
	k.watchMaster(unix.EPOLLIN)
	var events [eventsAtOne]unix.EpollEvent
	for !k.done() {
		n, err := k.wait(events[:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait in the holder's loop: %w", err)
		}
		now := time.Now()
		for _, ev := range events[:max(n, 0)] {
			k.handle(int(ev.Fd), ev.Events, now)
		}
		k.tick(now)
		k.serve(now)
	}
	k.close()
	return nil
}

// wait waits for events. While output comes in, it waits at first without
// telling the scheduler: at 30,000 waits a second, handing the processor over
// and back costs more than the reading. The garbage collector cannot stop the
// loop meanwhile, so that lasts busyWait at most.
func (k *keeper) wait(events []unix.EpollEvent) (int, error) {
	timeout := k.timeout(time.Now())
	if k.busy {
		k.busy = false
		short := busyWait
		if timeout >= 0 {
			short = min(short, timeout)
		}
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(k.fds.epoll),
			uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(short), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		if n > 0 || short == timeout {
			return int(n), nil
		}
		if timeout > 0 {
			timeout -= short
		}
	}
	return unix.EpollWait(k.fds.epoll, events, timeout)
}

func (k *keeper) handle(fd int, events uint32, now time.Time) {
	switch fd {
	case k.fds.wake:
		k.woken(now)
	case k.fds.listener:
		k.accept(now)
	case k.fds.pidfd:
		k.leaderEnded(now)
	case k.pty.Master:
		k.master(events, now)
	default:
		if l := k.conns[fd]; l != nil {
			l.event(k, events, now)
		}
	}
}

// woken: a signal came, or the log's writer has made room.
func (k *keeper) woken(now time.Time) {
	var b [8]byte
	_, _ = unix.Read(k.fds.wake, b[:]) // it only counts wakes
	if k.terminate.Swap(false) {
		// Somebody ends this very process, or the service manager its scope. The
		// program would go with the terminal anyway; this way it is asked first,
		// and how it ended is on record. Then not even a holder without a log stays.
		k.leave = true
		k.startKill(now)
		if k.exit != nil {
			k.retire(now)
		}
	}
	k.reapOthers()
	if k.masterOn&unix.EPOLLIN == 0 {
		k.watchMaster(k.masterOn | unix.EPOLLIN)
	}
}

// master reads output and writes input that waits.
func (k *keeper) master(events uint32, now time.Time) {
	if events&unix.EPOLLOUT != 0 {
		k.writeInput()
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		k.readOutput(now)
	}
}

func (k *keeper) readOutput(now time.Time) {
	for range maxMaster {
		b := k.log.Buffer()
		if len(b) == 0 { // the disk is behind: the program waits, we do not
			k.watchMaster(k.masterOn &^ unix.EPOLLIN)
			k.log.Flush()
			runtime.Gosched()
			return
		}
		n, err := k.pty.Read(b)
		pending := k.log.Commit(n)
		if err != nil {
			k.outputEnded(err)
			return
		}
		if n == 0 {
			return
		}
		k.busy = true
		if k.unyielded += n; k.unyielded >= yieldAfter {
			k.unyielded = 0
			runtime.Gosched() // the log's writer has its turn; there is one processor
		}
		if pending && k.flushAt.IsZero() {
			k.flushAt = now.Add(flushAfter)
		}
		if !k.leaderAt.IsZero() {
			k.quietAt = now.Add(k.spec.DrainQuiet)
		}
	}
}

// outputEnded: no process has the terminal open. That is only possible after
// the leader's end, since the holder has it open until then.
func (k *keeper) outputEnded(err error) {
	if !ended(err) {
		fmt.Fprintln(os.Stderr, "read the terminal:", err)
	}
	k.drained = true
	k.watchMaster(0)
}

// writeInput gives the terminal what it takes.
func (k *keeper) writeInput() {
	for len(k.input) > 0 && !k.drained {
		n, err := k.pty.Write(k.input)
		if err != nil {
			k.input = nil // nobody will read it
			break
		}
		if n == 0 {
			break
		}
		k.input = k.input[:copy(k.input, k.input[n:])]
	}
	if len(k.input) == 0 {
		k.input = nil
		k.watchMaster(k.masterOn &^ unix.EPOLLOUT)
	} else {
		k.watchMaster(k.masterOn | unix.EPOLLOUT)
	}
	if k.inputFull && len(k.input) <= inputLow {
		k.inputFull = false
		for _, l := range k.conns {
			l.rearm(k)
		}
	}
}

// addInput takes input of a viewer. Several viewers' input is not mixed within
// a frame: it is one queue.
func (k *keeper) addInput(p []byte) {
	if k.drained || k.exit != nil {
		return
	}
	if len(k.input) == 0 {
		n, err := k.pty.Write(p)
		if err != nil {
			return
		}
		p = p[n:]
	}
	if len(p) == 0 {
		return
	}
	k.input = append(k.input, p...)
	k.watchMaster(k.masterOn | unix.EPOLLOUT)
	if len(k.input) > inputHigh && !k.inputFull {
		k.inputFull = true
		for _, l := range k.conns {
			l.rearm(k)
		}
	}
}
