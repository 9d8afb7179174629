package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"berth"
	"berth/terminal/screen"
)

// attachment is one attach stream while it lives: its handler's goroutine
// writes, one other reads.
type attachment struct {
	s     *session
	v     *viewer
	req   berth.AttachRequest
	out   io.Writer
	flush func() error
	buf   []byte // of one encoded frame that is not shared
	batch []frame
}

// Sizes of the catch-up from the log.
const (
	catchUpRead = 128 << 10
	// catchUpNear is how near to the live output a viewer must be to be queued
	// for: what comes meanwhile fits its queue.
	catchUpNear = 256 << 10
	// catchUpExtra is how much more than was missing at first a catch-up may
	// send. A viewer that output outruns for longer gets the screen instead.
	catchUpExtra = 8 << 20
	// repaintPiece is the body of one repaint frame; a large screen takes several.
	repaintPiece = 256 << 10
)

// start decides how the attach connects to what the client has, adds the viewer
// and takes its first picture under one lock: what comes after is queued for
// it, nothing before is. Its errors are answered before any frame.
func (a *attachment) start(ctx context.Context) (berth.AttachHello, picture, error) {
	s := a.s
	kind, gap, err := a.resume(ctx)
	if err != nil {
		return berth.AttachHello{}, picture{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Live() {
		return berth.AttachHello{}, picture{}, errEndedMeanwhile
	}
	s.join(a.v)
	if p := a.req.SizePolicy; p != "" && p != s.rec.SizePolicy && !a.req.ReadOnly {
		s.rec.SizePolicy = p
		rec := s.rec
		s.g.spawn(func() { s.saveRecord(rec) })
	}
	// The size is right before the first picture is made: no wait, since
	// attaching is one act and not a drag of a window's edge.
	if err := s.applySize(s.wantedSize()); err != nil {
		s.log.Warn("the size could not be changed", "error", err)
	}
	hello := s.hello(a.v.id)
	hello.Resume = kind
	if kind == berth.ResumeExact {
		if *a.req.Offset <= s.liveAt {
			hello.Offset = *a.req.Offset
			return hello, picture{}, nil
		}
		// The offset is inside a sequence: no frame begins there.
		hello.Resume, gap = berth.ResumeGap, &berth.OutputGap{From: *a.req.Offset}
	}
	p := a.takePicture()
	hello.Offset = p.at
	if gap != nil {
		gap.To = max(p.at, gap.From)
		hello.Gap = gap
	}
	return hello, p, nil
}

// errEndedMeanwhile makes the handler serve the session as an ended one.
var errEndedMeanwhile = errors.New("the session ended while a viewer attached")

// hello is called with mu held.
func (s *session) hello(viewer string) berth.AttachHello {
	h := berth.AttachHello{
		Session: s.id, Viewer: viewer, Generation: s.rec.Generation, BootID: s.rec.BootID,
		Offset: s.end, End: s.end, KeptFrom: s.kept, Cols: s.size.Cols, Rows: s.size.Rows,
		Resume: berth.ResumeFresh,
	}
	if s.running.Program.BootID != "" {
		h.BootID = s.running.Program.BootID
	}
	return h
}

// resume judges what the client says it has. The gap has no end yet.
func (a *attachment) resume(ctx context.Context) (berth.ResumeKind, *berth.OutputGap, error) {
	s, req := a.s, a.req
	if req.Generation == 0 || req.Offset == nil {
		return berth.ResumeFresh, nil, nil
	}
	s.mu.Lock()
	generation := s.rec.Generation
	s.mu.Unlock()
	if req.Generation != generation {
		return berth.ResumeGeneration, nil, nil
	}
	s.refresh(ctx) // the kept range of this moment
	s.mu.Lock()
	defer s.mu.Unlock()
	if *req.Offset > s.end {
		return "", nil, invalidOffset(*req.Offset, s.end)
	}
	if *req.Offset < s.kept {
		return berth.ResumeGap, &berth.OutputGap{From: *req.Offset}, nil
	}
	// An earlier guest may have shown what this one has not read yet.
	for s.pos < *req.Offset && s.state.Live() {
		progress := s.nextProgress()
		s.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
		case <-s.g.stopping:
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		if s.g.isStopping() {
			return "", nil, errStopping()
		}
	}
	return berth.ResumeExact, nil, nil
}

func invalidOffset(offset, end uint64) error {
	return berth.Errorf(berth.CodeInvalidOffset, "offset %d is past the end of the output at %d", offset, end).
		WithFact("end", fmt.Sprint(end))
}

// serve writes frames until the program has ended and everything is written,
// or the client is gone.
func (a *attachment) serve(ctx context.Context, hello berth.AttachHello, first picture) error {
	s, v := a.s, a.v
	if err := a.json(berth.FrameHello, hello); err != nil {
		return err
	}
	if hello.Resume == berth.ResumeExact {
		if err := a.catchUp(ctx, hello.Offset); err != nil {
			return err
		}
	} else if err := a.paint(ctx, first); err != nil {
		return err
	}
	for {
		todo := a.collect()
		if err := a.write(ctx, todo); err != nil {
			return err
		}
		if todo.exit != nil {
			return a.flush()
		}
		if !todo.idle {
			continue
		}
		if err := a.flush(); err != nil {
			return err
		}
		select {
		case <-v.wakeup:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.g.stopping:
			return errStopping()
		}
	}
}

// todo is what the writer does next, in this order.
type todo struct {
	batch   []frame
	gap     *berth.OutputGap
	picture *picture
	state   *berth.ViewerState
	exit    *berth.Exit
	idle    bool // nothing else waits: flush
}

func (a *attachment) collect() todo {
	s, v := a.s, a.v
	s.mu.Lock()
	defer s.mu.Unlock()
	var t todo
	if v.q.behind && s.scr != nil {
		t.gap = &berth.OutputGap{From: v.q.gapFrom}
		p := a.takePicture()
		t.gap.To = max(p.at, t.gap.From)
		t.picture = &p
		return t
	}
	clear(a.batch)
	a.batch = v.q.take(a.batch[:0])
	t.batch = a.batch
	if !v.q.empty() {
		return t
	}
	if v.refresh && s.scr != nil {
		v.refresh = false
		p := a.takePicture()
		t.picture = &p
		return t
	}
	if v.state {
		state := s.viewerState()
		t.state, v.state = &state, false
	}
	if v.exited {
		exit := *s.exit
		t.exit = &exit
	}
	t.idle = true
	return t
}

func (a *attachment) write(ctx context.Context, t todo) error {
	for _, f := range t.batch {
		if _, err := a.out.Write(f.buf); err != nil {
			return err
		}
	}
	if t.gap != nil {
		if err := a.json(berth.FrameGap, t.gap); err != nil {
			return err
		}
	}
	if t.picture != nil {
		if err := a.paint(ctx, *t.picture); err != nil {
			return err
		}
	}
	if t.state != nil {
		if err := a.json(berth.FrameState, t.state); err != nil {
			return err
		}
	}
	if t.exit != nil {
		return a.json(berth.FrameExit, t.exit)
	}
	return nil
}

// picture is the screen as it stood at an offset.
type picture struct {
	data []byte
	// at is where it stands. Where the filter holds back more than the screen
	// does, it is the filter's place: frames begin there.
	at uint64
	// liveAt is where the first frame begins that is queued after it.
	liveAt uint64
}

// takePicture takes the screen; from here on frames are queued. mu is held, the
// screen is there and nothing waits for the viewer.
func (a *attachment) takePicture() picture {
	a.v.q, a.v.live = outQueue{}, true
	return picture{data: a.s.scr.RepaintFor(nil, a.viewSize(a.s.scr.Size())), at: min(a.s.standing(), a.s.liveAt), liveAt: a.s.liveAt}
}

// viewSize is the size of the viewer's terminal, or that of the session where
// it has none.
func (a *attachment) viewSize(session berth.Size) berth.Size {
	if a.v.voter.size.Valid() {
		return a.v.voter.size
	}
	return session
}

// paint writes a picture.
func (a *attachment) paint(ctx context.Context, p picture) error {
	for len(p.data) > 0 {
		n := min(len(p.data), repaintPiece)
		if err := a.raw(berth.FrameRepaint, p.data[:n]); err != nil {
			return err
		}
		p.data = p.data[n:]
	}
	// Screen and filter agree on where sequences end. Should they ever not, the
	// bytes between come from the log rather than not at all.
	_, err := a.fromLog(ctx, screen.NewFilter(true), p.at, p.liveAt)
	return err
}

// catchUp sends output from at out of the log until the viewer is near enough
// to be queued for, and then what is between: no byte is missing and none comes
// twice. Where the log has lost it, or the program outruns the viewer for too
// long, the viewer is behind and gets the screen.
func (a *attachment) catchUp(ctx context.Context, at uint64) error {
	s, v := a.s, a.v
	filter := screen.NewFilter(true)
	var budget uint64
	for {
		s.mu.Lock()
		liveAt := s.liveAt
		if budget == 0 {
			budget = liveAt + catchUpExtra
		}
		near := liveAt-at <= catchUpNear
		if near || at > budget || s.scr == nil {
			v.live = true
		}
		if !near && at > budget {
			v.q.drop(at)
		}
		behind, live := v.q.behind, v.live
		s.mu.Unlock()
		if behind {
			return nil
		}
		sent, err := a.fromLog(ctx, filter, at, liveAt)
		if errors.Is(err, berth.CodeOffsetGone) {
			s.mu.Lock()
			v.live = true
			v.q.drop(sent)
			s.mu.Unlock()
			return nil
		}
		if err != nil || live {
			return err
		}
		at = liveAt
	}
}

// fromLog sends the output from at to end out of the log, as whole frames: at
// end nothing is held back. It says up to where it came.
func (a *attachment) fromLog(ctx context.Context, filter *screen.Filter, at, end uint64) (sent uint64, err error) {
	sent = at
	if at >= end {
		return sent, nil
	}
	raw := make([]byte, min(catchUpRead, end-at))
	for at < end {
		n, err := a.s.readLog(ctx, at, raw[:min(uint64(len(raw)), end-at)])
		if err != nil {
			return sent, err
		}
		if n == 0 {
			return sent, berth.Errorf(berth.CodeInternal, "the log of session %s ends at %d, before %d", a.s.id, at, end)
		}
		at += uint64(n) //nolint:gosec // n > 0
		a.buf = append(a.buf[:0], make([]byte, berth.OutputHead)...)
		var covers int
		a.buf, covers = filter.Append(a.buf, raw[:n])
		if at == end && filter.Pending() > 0 {
			// The client's offset was inside a sequence. Its rest is of no use
			// to a terminal that did not see the beginning.
			covers = int(at - sent) //nolint:gosec // at most what was read and held back
		}
		if covers == 0 {
			continue
		}
		berth.SealOutput(a.buf, sent, uint32(covers)) //nolint:gosec // at most what was read and held back
		if _, err := a.out.Write(a.buf); err != nil {
			return sent, err
		}
		sent += uint64(covers) //nolint:gosec // positive
	}
	return sent, nil
}

func (a *attachment) json(t berth.FrameType, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame %c: %w", t, err)
	}
	return a.raw(t, body)
}

func (a *attachment) raw(t berth.FrameType, body []byte) error {
	a.buf = berth.Frame{Type: t, Body: body}.AppendStream(a.buf[:0])
	_, err := a.out.Write(a.buf)
	return err
}

// run serves the stream both ways and returns when both directions are done.
func (a *attachment) run(ctx context.Context, body io.ReadCloser, hello berth.AttachHello, first picture) error {
	ctx, cancel := context.WithCancelCause(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := a.read(ctx, body); err != nil {
			cancel(err)
		}
	}()
	err := a.serve(ctx, hello, first)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	_ = body.Close() // lets the reader return; there is nothing to lose
	<-read
	return err
}
