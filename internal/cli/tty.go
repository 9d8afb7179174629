package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"berth"
)

// restoreBound is how long a terminal may take to accept the sequences that put
// its modes back. One that takes nothing must not keep its user.
const restoreBound = 500 * time.Millisecond

// userTerminal is the terminal that a person looks at.
type userTerminal struct {
	in, out *os.File
	wakeR   *os.File // ends a read that waits
	wakeW   *os.File

	mu     sync.Mutex
	saved  *term.State // nil = it is as it was
	colour colourWatch
}

// openTerminal takes the terminal that standard input and output are.
func (a *app) openTerminal() (*userTerminal, error) {
	in, ok1 := a.env.Stdin.(*os.File)
	out, ok2 := a.env.Stdout.(*os.File)
	if !ok1 || !ok2 || !isTerminal(in) || !isTerminal(out) {
		return nil, berth.Errorf(berth.CodeNotATerminal, "standard input and output are not a terminal")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	return &userTerminal{in: in, out: out, wakeR: r, wakeW: w}, nil
}

// size is the size of the terminal; zero where it has none.
func (t *userTerminal) size() berth.Size {
	cols, rows, err := term.GetSize(fd(t.out))
	if err != nil || cols <= 0 || rows <= 0 {
		return berth.Size{}
	}
	return berth.Size{Cols: min(cols, berth.MaxCols), Rows: min(rows, berth.MaxRows)}
}

// raw lets every key through as it is. The second call, after the shell had the
// terminal in between, does it again and keeps what was saved first.
func (t *userTerminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	state, err := term.MakeRaw(fd(t.in))
	if err != nil {
		return berth.Errorf(berth.CodeNotATerminal, "set the terminal to raw mode: %w", err)
	}
	if t.saved == nil {
		t.saved = state
	}
	return nil
}

// restore puts the terminal back as it was: its modes first, since a terminal
// that takes nothing any more still takes those, then what programs changed.
// Only the first call does something. freshLine asks for a new line below.
func (t *userTerminal) restore(freshLine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	_ = term.Restore(fd(t.in), t.saved) // there is nothing else to try
	t.saved = nil
	text := resetTerminal + t.colour.reset() + giveBack
	if freshLine {
		text += leaveLine
	} else {
		text += clearBelow
	}
	written := make(chan struct{})
	go func() { // ends with the write, or with this process
		defer close(written)
		_, _ = io.WriteString(t.out, text) // the terminal may be gone
	}()
	timer := time.NewTimer(restoreBound)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
	}
}

// restoreOnPanic is deferred by every goroutine of a viewer, so that not even a
// fault of ours leaves the user without a terminal.
func (t *userTerminal) restoreOnPanic() {
	if r := recover(); r != nil {
		t.restore(true)
		panic(r)
	}
}

// Write writes to the terminal and notes which of its colours change.
func (t *userTerminal) Write(p []byte) (int, error) {
	t.colour.watch(p)
	return t.out.Write(p)
}

// read waits for keys. It returns io.EOF after wake, and when the terminal is gone.
func (t *userTerminal) read(p []byte) (int, error) {
	fds := []unix.PollFd{
		{Fd: int32(t.in.Fd()), Events: unix.POLLIN},    //nolint:gosec // a descriptor fits
		{Fd: int32(t.wakeR.Fd()), Events: unix.POLLIN}, //nolint:gosec // a descriptor fits
	}
	for {
		_, err := unix.Poll(fds, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for the terminal: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		n, err := unix.Read(fd(t.in), p)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			continue
		case err != nil:
			return 0, fmt.Errorf("read the terminal: %w", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// wake ends reading for good.
func (t *userTerminal) wake() { _ = t.wakeW.Close() }

func fd(f *os.File) int { return int(f.Fd()) } //nolint:gosec // a descriptor fits
