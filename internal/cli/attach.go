package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/client"
)

// noticeAfter is how long a connection may be away before the user is told. A
// daemon that restarts is back long before, and a notice costs a repaint.
const noticeAfter = 2 * time.Second

// attachOptions is what run and attach know about the viewer to be.
type attachOptions struct {
	name     string // for messages
	ref      string // what to attach to
	readOnly bool
	policy   berth.SizePolicy
	keys     detachKeys
	keyText  string // for the notice
	sshSock  string
}

// ending is why a viewer ended.
type ending struct {
	detached bool
	exit     *berth.Exit
	err      error
}

// attachment is one viewer on the user's terminal. Three goroutines work for it:
// one reads keys, one takes what the session sends, one (of the queue) writes
// to the terminal; so that none of them can stop another.
type attachment struct {
	opts   attachOptions
	term   *userTerminal
	viewer Viewer
	queue  *ttyQueue
	ended  chan ending // the first one counts; has room for all

	mu      sync.Mutex
	notice  *time.Timer // runs while disconnected
	noticed bool        // the notice stands on the screen
	painted bool        // the first repaint has begun
}

// attach shows a session on the user's terminal until it ends or the user
// leaves. The terminal is as it was when this returns, whatever happened.
func (a *app) attach(ctx context.Context, t *userTerminal, o attachOptions) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	if err := a.refuseSelf(ctx, api, o.ref); err != nil {
		return err
	}
	req := berth.AttachRequest{Size: t.size(), ReadOnly: o.readOnly, SizePolicy: o.policy, SSHAuthSock: o.sshSock}
	viewer, err := api.View(ctx, o.ref, req)
	if err != nil {
		return err
	}
	end, err := show(ctx, t, viewer, o)
	if err != nil {
		return err
	}
	return a.finish(o, end)
}

// refuseSelf refuses to show a session inside itself: what it shows would be its
// own output, and so without an end. Only inside a session is there a question.
func (a *app) refuseSelf(ctx context.Context, api API, ref string) error {
	inside := a.env.Getenv(envSession)
	if inside == "" {
		return nil
	}
	s, err := api.Session(ctx, ref)
	if err != nil {
		return err
	}
	if s.ID == inside {
		return berth.Errorf(berth.CodeConflict, "this terminal is the session %s itself", s.Name).
			WithHint("attach from outside of it")
	}
	return nil
}

// finish tells how it ended, on the terminal that is the user's again.
func (a *app) finish(o attachOptions, end ending) error {
	switch {
	case end.detached:
		a.note("[detached from %s]", oneLine(o.name, 0))
		return nil
	case end.exit == nil:
		return end.err
	case end.exit.Reason != berth.ExitExited:
		return berth.Errorf(berth.CodeSessionLost, "%s has no exit status: %s", o.name, exitText(end.exit))
	}
	a.note("[%s %s]", oneLine(o.name, 0), exitText(end.exit))
	return exitWith(end.exit.Code)
}

// show runs the viewer. Its error is one of the terminal.
func show(ctx context.Context, t *userTerminal, viewer Viewer, o attachOptions) (ending, error) {
	defer viewer.Close() //nolint:errcheck // it is over, and there is nothing to lose
	if err := t.raw(); err != nil {
		return ending{}, err
	}
	freshLine := true
	defer func() { t.restore(freshLine) }()
	v := &attachment{opts: o, term: t, viewer: viewer, queue: newTTYQueue(t), ended: make(chan ending, 4)}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)

	var running sync.WaitGroup
	for _, f := range []func(){v.keys, v.updates} {
		running.Go(func() {
			defer t.restoreOnPanic()
			f()
		})
	}
	end := v.loop(ctx, signals)
	if end.exit != nil {
		v.flush(ctx)
	}
	v.stopNotice()
	freshLine = !v.queue.close()
	t.wake()
	_ = viewer.Close() // lets the reader of the stream go
	awaitBounded(func() { running.Wait(); <-v.queue.done })
	return end, nil
}

// awaitBounded waits for goroutines that end at once, but for one that writes to
// a terminal which takes nothing: that one ends with the process.
func awaitBounded(wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	timer := time.NewTimer(restoreBound)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// loop waits for the end and follows the size of the terminal.
func (v *attachment) loop(ctx context.Context, signals <-chan os.Signal) ending {
	for {
		select {
		case end := <-v.ended:
			return end
		case <-ctx.Done():
			return ending{err: berth.Errorf(berth.CodeInterrupted, "interrupted: %w", ctx.Err())}
		case s := <-signals:
			if s == syscall.SIGCONT { // somebody else had the terminal
				_ = v.term.raw()                                     // it was one a moment ago
				_ = v.viewer.Focus(berth.ViewerFocus{Refresh: true}) // a break shows at the reader
			}
			if size := v.term.size(); size != (berth.Size{}) {
				_ = v.viewer.Resize(size) // kept for the next connection
			}
		}
	}
}

// flush lets the terminal take the last of the output. A user who does not want
// to wait for it still has the detach key.
func (v *attachment) flush(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		v.queue.flush(ctx)
	}()
	select {
	case <-flushed:
	case <-v.ended:
		cancel()
		<-flushed
	}
}

// end says why it is over. Whoever comes second is not heard.
func (v *attachment) end(e ending) {
	select {
	case v.ended <- e:
	default:
	}
}

// keyBuffer is how much is read from the terminal at once.
const keyBuffer = 16 << 10

// keys reads the keyboard.
func (v *attachment) keys() {
	scanner := keyScanner{keys: v.opts.keys}
	buf, out := make([]byte, keyBuffer), make([]byte, 0, keyBuffer)
	for {
		n, err := v.term.read(buf)
		if errors.Is(err, io.EOF) {
			v.end(ending{detached: true}) // woken, or the terminal is gone
			return
		}
		if err != nil {
			v.end(ending{err: err})
			return
		}
		var detach bool
		out, detach = scanner.scan(out[:0], buf[:n])
		if len(out) > 0 && !v.opts.readOnly {
			// While disconnected the keys are dropped: the notice says that nobody
			// hears them. A break shows at the reader of the stream.
			_ = v.viewer.Input(out)
		}
		if detach || v.opts.readOnly && strings.ContainsRune(string(out), ctrlC) {
			v.end(ending{detached: true})
			return
		}
	}
}

// ctrlC leaves a read-only viewer too: it could mean nothing else there.
const ctrlC = '\x03'

// updates takes what the session sends.
func (v *attachment) updates() {
	for {
		u, err := v.viewer.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				v.end(ending{err: err})
			}
			return
		}
		switch u.Kind {
		case client.UpdateOutput:
			err = v.queue.put(u.Data)
		case client.UpdateRepaint:
			err = v.repaint(u.Data)
		case client.UpdateDisconnected:
			v.startNotice()
		case client.UpdateHello:
			v.connected(u.Hello)
		case client.UpdateExit:
			v.end(ending{exit: &u.Exit})
			return
		}
		if err != nil { // the terminal is gone
			v.end(ending{detached: true, err: err})
			return
		}
	}
}

// repaint draws the screen. Before the first one, what stands on the terminal is
// moved up into its scrollback: the repaint clears, and it is not ours to lose.
func (v *attachment) repaint(p []byte) error {
	v.mu.Lock()
	first := !v.painted
	v.painted, v.noticed = true, false
	v.mu.Unlock()
	if first {
		p = append([]byte(saveTerminal+strings.Repeat("\n", v.term.size().Rows)), p...)
	}
	return v.queue.put(p)
}

// connected ends the notice. One that stands on the screen goes with a repaint,
// which an exact continuation brings only when asked.
func (v *attachment) connected(h berth.AttachHello) {
	v.stopNotice()
	v.mu.Lock()
	ask := v.noticed && h.Resume == berth.ResumeExact
	v.mu.Unlock()
	if ask {
		_ = v.viewer.Focus(berth.ViewerFocus{Refresh: true}) // a break shows at the next read
	}
}

func (v *attachment) startNotice() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.notice == nil {
		v.notice = time.AfterFunc(noticeAfter, v.showNotice)
	}
}

func (v *attachment) stopNotice() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.notice != nil {
		v.notice.Stop()
		v.notice = nil
	}
}

// showNotice draws a line over the last row. The cursor stays where it is.
func (v *attachment) showNotice() {
	v.mu.Lock()
	wanted := v.notice != nil
	v.noticed = v.noticed || wanted
	v.mu.Unlock()
	if !wanted {
		return
	}
	size := v.term.size()
	text := " berth is away; " + oneLine(v.opts.name, 0) + " goes on, and comes back by itself"
	if v.opts.keys.prefix.r != 0 {
		text += " (" + v.opts.keyText + " leaves)"
	}
	text = cut(text+" ", max(size.Cols-1, 1))
	_ = v.queue.put([]byte("\x1b7\x1b[" + itoa(max(size.Rows, 1)) + ";1H\x1b[0;7m" + text + "\x1b[0m\x1b[K\x1b8")) // a terminal that is gone shows at the next output
}
