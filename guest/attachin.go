package guest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"berth"
	"berth/terminal/screen"
)

// keyPause is after how much silence what looks like the beginning of a reply
// was a key after all.
const keyPause = 50 * time.Millisecond

// typist filters what one viewer types. Its mutex orders the frames with the
// timer that gives out what was held back.
type typist struct {
	a      *attachment
	mu     sync.Mutex
	filter *screen.InputFilter
	buf    []byte
	timer  *time.Timer // nil until something was held back
}

// take passes on what of p is input.
func (y *typist) take(ctx context.Context, p []byte) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.buf = y.filter.Append(y.buf[:0], p)
	if y.filter.Pending() > 0 {
		if y.timer == nil {
			y.timer = time.AfterFunc(keyPause, func() { y.a.s.g.spawn(func() { y.flush(ctx) }) })
		} else {
			y.timer.Reset(keyPause)
		}
	}
	return y.a.typed(ctx, y.buf)
}

func (y *typist) flush(ctx context.Context) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if ctx.Err() != nil || y.filter.Pending() == 0 {
		return
	}
	y.buf = y.filter.Flush(y.buf[:0])
	if err := y.a.typed(ctx, y.buf); err != nil {
		y.a.s.log.Debug("a held key was not written", "error", err)
	}
}

func (y *typist) stop() {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.timer != nil {
		y.timer.Stop()
	}
}

// read takes the client's frames until it sends no more. A stream that is not
// made of frames ends it.
func (a *attachment) read(ctx context.Context, in io.Reader) error {
	frames := berth.NewFrameReader(in)
	keys := &typist{a: a, filter: screen.NewInputFilter()}
	defer keys.stop()
	for {
		f, err := frames.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil // it only looks from now on
			}
			return err
		}
		if a.req.ReadOnly && f.Type != berth.FrameFocus {
			a.s.mu.Lock()
			a.v.ignored++
			a.s.mu.Unlock()
			continue
		}
		if f.Type == berth.FrameInput {
			err = keys.take(ctx, f.Body)
		} else {
			err = a.control(ctx, f)
		}
		if err != nil {
			return err
		}
	}
}

// typed passes input on. Input to a program that has ended is nobody's fault.
func (a *attachment) typed(ctx context.Context, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	a.s.typed(a.v)
	err := a.s.input.push(ctx, p, false)
	if errors.Is(err, berth.CodeSessionEnded) {
		return nil
	}
	return err
}

// control acts on a frame that is not input. What is malformed ends the stream;
// a type from a newer client is ignored.
func (a *attachment) control(ctx context.Context, f berth.Frame) error {
	s, v := a.s, a.v
	switch f.Type {
	case berth.FrameResize:
		var size berth.Size
		if err := f.Decode(&size); err != nil {
			return err
		}
		if !size.Valid() {
			return nil // a window of no height while it is being dragged
		}
		s.mu.Lock()
		v.voter.size = size
		s.reconsiderSize()
		s.mu.Unlock()
	case berth.FrameSignal:
		var sig berth.SignalRequest
		if err := f.Decode(&sig); err != nil {
			return err
		}
		if err := s.signal(ctx, sig.Signal); err != nil {
			s.log.Info("a viewer's signal was not sent", "signal", sig.Signal, "error", err)
		}
	case berth.FrameFocus:
		var focus berth.ViewerFocus
		if err := f.Decode(&focus); err != nil {
			return err
		}
		s.mu.Lock()
		if focus.Focused != nil {
			v.voter.hidden = !*focus.Focused
			s.reconsiderSize()
		}
		if focus.Refresh {
			v.refresh = true
			v.wake()
		}
		s.mu.Unlock()
	}
	return nil
}
