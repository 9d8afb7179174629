package guest

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
	"berth/process"
)

const (
	// killAfter is how long a program has between TERM and KILL.
	killAfter = 2 * time.Second
	// killMax bounds the wait after KILL, which takes effect at once unless the
	// kernel itself hangs.
	killMax = 5 * time.Second
	// drainMax is how long output is awaited once the program has ended and
	// something else still has its pipe open.
	drainMax = 100 * time.Millisecond
)

// program is a program of an exec while it runs. It leads a session and a
// process group of its own, and has no terminal.
type program struct {
	pid    int
	stdin  *os.File // nil = it has none
	stdout reader
	stderr reader
	copies sync.WaitGroup // the goroutines of the three
	cut    bool           // it was ended before it ended by itself
}

// reader is one pipe from the program.
type reader struct {
	file *os.File
	kept kept // of its goroutine alone until copies are done
}

// startProgram starts it. Nothing of the guest's is open in it.
func startProgram(path string, in guestapi.Exec) (*program, error) {
	p := &program{}
	p.stdout.kept.max, p.stderr.kept.max = in.MaxOutput, in.MaxOutput
	var theirs [3]int // descriptors of the program's ends
	opened := 0
	defer func() {
		for _, fd := range theirs[:opened] {
			_ = unix.Close(fd) // the program has its own
		}
	}()
	for i, ours := range []**os.File{&p.stdin, &p.stdout.file, &p.stderr.file} {
		var err error
		if i == 0 && len(in.Stdin) == 0 {
			theirs[i], err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		} else {
			theirs[i], *ours, err = pipe(i == 0)
		}
		if err != nil {
			p.closePipes()
			return nil, berth.Errorf(berth.CodeStartFailed, "start %s: %w", path, err)
		}
		opened++
	}
	// What the guest itself was started with open would keep somebody's pipe.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) // before Linux 5.11 only Go's own files are safe
	pid, err := syscall.ForkExec(path, in.Argv, &syscall.ProcAttr{
		Dir: in.Cwd, Env: in.Env, Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		p.closePipes()
		return nil, programError(path, errnoOf(err))
	}
	p.pid = pid
	p.copies.Go(p.stdout.run)
	p.copies.Go(p.stderr.run)
	if p.stdin != nil {
		p.copies.Go(func() {
			_, _ = p.stdin.Write(in.Stdin) // a program need not read what it is given
			_ = p.stdin.Close()            // its end of file
		})
	}
	return p, nil
}

// pipe makes a pipe of which the guest's end goes through the poller, so that
// closing it ends a read or a write of it. The program's end blocks, as programs
// expect. write = the guest writes.
func pipe(write bool) (theirs int, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	mine := 0
	if write {
		mine = 1
	}
	if err := unix.SetNonblock(fds[mine], true); err != nil {
		return -1, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return fds[1-mine], os.NewFile(uintptr(fds[mine]), "pipe"), nil
}

// run keeps what comes until the end.
func (r *reader) run() {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.file.Read(buf)
		r.kept.write(buf[:n])
		if err != nil {
			return
		}
	}
}

// restMax bounds what rest reads: a pipe of the largest size that a program may
// give it. Only somebody who still writes could give more.
const restMax = 1 << 20

// rest keeps what is in the pipe now, and waits for nothing. On a machine that is
// busy the goroutine may not have come to it in its time.
func (r *reader) rest() {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	_ = conn.Control(func(fd uintptr) { // of an open pipe it never fails
		for left := restMax; left > 0; {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			r.kept.write(buf[:n])
			left -= n
		}
	})
}

func (p *program) closePipes() {
	for _, f := range []*os.File{p.stdin, p.stdout.file, p.stderr.file} {
		if f != nil {
			_ = f.Close() // stdin may be closed already; nothing else can fail
		}
	}
}

// wait returns when the program has ended and its group with it: by itself, or
// because ctx ended. Then nothing reads or writes its pipes any more.
func (p *program) wait(ctx context.Context) (syscall.WaitStatus, error) {
	defer p.copies.Wait()
	defer p.closePipes()
	err := p.awaitEnd(ctx)
	copied := make(chan struct{})
	go func() { // ends with the pipes, at the latest when they are closed
		p.copies.Wait()
		close(copied)
	}()
	if err == nil {
		await(copied, drainMax)
	}
	// The program is not reaped yet, so that the number of its group is nobody
	// else's. Of a normal end this is what it left running.
	_ = unix.Kill(-p.pid, unix.SIGKILL) // nobody there is what is wanted
	if err != nil {
		if !errors.Is(err, berth.CodeKillIncomplete) { // else this would wait for ever
			_, _ = p.reap()
		}
		return 0, err
	}
	await(copied, drainMax) // what went out of the group keeps the pipe open, and is not waited for
	p.stopCopies()
	<-copied
	p.stdout.rest()
	p.stderr.rest()
	return p.reap()
}

// stopCopies lets the goroutines return; the pipes stay open.
func (p *program) stopCopies() {
	past := time.Unix(1, 0)
	_ = errors.Join(p.stdout.file.SetReadDeadline(past), p.stderr.file.SetReadDeadline(past)) // open pipes take it
	if p.stdin != nil {
		_ = p.stdin.Close() // by its goroutine already, as a rule
	}
}

func await(done <-chan struct{}, bound time.Duration) {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// awaitEnd waits until the program's own process has ended; when ctx ends it
// ends the program.
func (p *program) awaitEnd(ctx context.Context) error {
	err := p.watch(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	p.cut = true
	p.signal(unix.SIGTERM)
	p.awaitSession(killAfter)
	p.signal(unix.SIGKILL)
	last, cancel := context.WithTimeout(context.Background(), killMax)
	defer cancel()
	if err := p.watch(last); err != nil {
		return berth.Errorf(berth.CodeKillIncomplete, "process %d is still there after SIGKILL", p.pid)
	}
	return nil
}

// watch waits until the program's own process has ended; it is not reaped. A
// handle is good for one wait that is given up, so each has its own.
func (p *program) watch(ctx context.Context) error {
	id, err := process.Of(p.pid) // only we reap it: the number is still its own
	if err != nil {
		return berth.Errorf(berth.CodeStartFailed, "watch process %d: %w", p.pid, err)
	}
	h, err := process.Open(id)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return nil
	case err != nil:
		return berth.Errorf(berth.CodeStartFailed, "watch process %d: %w", p.pid, err)
	}
	defer h.Close() //nolint:errcheck // the process is not touched
	return h.Wait(ctx)
}

// signal reaches the group at once, and then what went to another group of the
// session, as a shell's jobs and the children of timeout(1) do.
func (p *program) signal(sig unix.Signal) {
	_ = unix.Kill(-p.pid, sig) // nobody there is what is wanted
	for _, m := range process.InSession(p.pid) {
		if m.Group != p.pid {
			_ = m.Signal(sig) // what may not be signalled runs as somebody else
		}
	}
}

// awaitSession waits until nothing of the session runs, and no longer than bound.
func (p *program) awaitSession(bound time.Duration) {
	late := time.NewTimer(bound)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(process.InSession(p.pid)) > 0 {
		select {
		case <-tick.C:
		case <-late.C:
			return
		}
	}
}

func (p *program) reap() (syscall.WaitStatus, error) {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.pid, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, berth.Errorf(berth.CodeInternal, "reap process %d: %w", p.pid, err)
		default:
			return status, nil
		}
	}
}

// kept is the beginning and the end of what was written to it, together at most
// max bytes: the command that failed says so in its first lines or its last.
type kept struct {
	max     int
	head    []byte
	tail    []byte // a ring once it is full
	at      int    // where the oldest byte of a full ring is
	dropped bool
}

func (k *kept) write(p []byte) {
	headMax := k.max - k.max/2
	tailMax := k.max / 2
	n := min(len(p), headMax-len(k.head))
	k.head = append(k.head, p[:n]...)
	p = p[n:]
	if len(p) > tailMax { // none of what is in the ring will be left
		k.dropped = true
		k.tail, k.at = append(k.tail[:0], p[len(p)-tailMax:]...), 0
		return
	}
	n = min(len(p), tailMax-len(k.tail))
	k.tail = append(k.tail, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		k.dropped = true
		n = copy(k.tail[k.at:], p)
		k.at = (k.at + n) % tailMax
	}
}

// bytes is never nil.
func (k *kept) bytes() []byte {
	out := make([]byte, 0, len(k.head)+len(k.tail))
	out = append(out, k.head...)
	out = append(out, k.tail[k.at:]...)
	return append(out, k.tail[:k.at]...)
}
