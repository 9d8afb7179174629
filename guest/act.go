package guest

import (
	"context"
	"errors"
	"strconv"
	"time"

	"berth"
	"berth/process"
)

// signal signals the foreground process group.
func (s *session) signal(ctx context.Context, text string) error {
	n, err := process.ParseSignal(text)
	if err != nil {
		return err
	}
	if err := s.mustLive(); err != nil {
		return err
	}
	return s.holder.Signal(ctx, int(n))
}

func (s *session) mustLive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Live() {
		return s.endedError()
	}
	return nil
}

// kill ends the program and returns when it is gone and that is recorded here.
func (s *session) kill(ctx context.Context) (berth.KillResult, error) {
	if !s.isLive() {
		return s.killRemains()
	}
	r, err := s.holder.Kill(ctx)
	if err != nil {
		// It may have ended, and its holder with it, while we asked.
		if waitErr := s.waitEnded(ctx); waitErr != nil {
			return berth.KillResult{}, err
		}
		return s.killRemains()
	}
	out := berth.KillResult{Exit: r.Exit, Contained: r.Contained, Survivors: r.Survivors}
	if out.Survivors == nil {
		out.Survivors = []int{}
	}
	if r.Exit != nil {
		// Whoever asks for the session after kill must see that it ended.
		if err := s.waitEnded(ctx); err != nil {
			return out, err
		}
	}
	return out, nil
}

// waitEnded waits until the session is not live any more.
func (s *session) waitEnded(ctx context.Context) error {
	s.mu.Lock()
	for s.state.Live() {
		progress := s.nextProgress()
		s.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.g.stopping:
			return errStopping()
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	return nil
}

// killRemains is kill after the end: the program is gone, others may not be.
func (s *session) killRemains() (berth.KillResult, error) {
	s.mu.Lock()
	exit := *s.exit
	out := berth.KillResult{Exit: &exit, Contained: s.running.Cgroup != "", Survivors: []int{}}
	known := s.running.Program.PID != 0
	s.mu.Unlock()
	if !known || s.lingers() {
		return out, nil
	}
	r, err := s.g.holders.KillRemains(s.dir)
	if err != nil {
		return out, err
	}
	out.Contained = out.Contained && r.Contained
	out.Survivors = append(out.Survivors, r.Survivors...)
	return out, nil
}

// write is POST input.
func (s *session) write(ctx context.Context, in berth.InputRequest) error {
	if len(in.Data) > berth.MaxInput {
		return berth.Errorf(berth.CodeTooLarge, "%d bytes of input are more than %d", len(in.Data), berth.MaxInput)
	}
	if err := s.waitReady(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if !s.state.Live() {
		defer s.mu.Unlock()
		return s.endedError()
	}
	data := in.Data
	if in.Paste {
		data = pasted(data, s.scr != nil && s.scr.BracketedPaste())
	}
	s.mu.Unlock()
	// One at a time: the Enter of one must not end up in the text of another.
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.input.push(ctx, data, false); err != nil {
		return err
	}
	if in.Enter {
		return s.input.push(ctx, []byte("\r"), len(data) > 0)
	}
	return nil
}

// screenNow is GET screen.
func (s *session) screenNow(ctx context.Context, ansi bool) (berth.Screen, error) {
	if err := s.waitReady(ctx); err != nil {
		return berth.Screen{}, err
	}
	s.mu.Lock()
	scr, at := s.scr, s.standing()
	if scr == nil {
		at = s.end
		s.mu.Unlock()
		var err error
		if scr, err = s.lastScreen(ctx); err != nil {
			return berth.Screen{}, err
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	col, row, visible := scr.Cursor()
	out := berth.Screen{
		Generation: s.rec.Generation, Offset: at, Size: scr.Size(), Lines: orEmpty(scr.Lines()),
		Cursor: berth.Cursor{Col: col, Row: row, Visible: visible}, Alternate: scr.Alternate(), Title: scr.Title(),
	}
	if ansi {
		out.ANSI = scr.Repaint(nil)
	}
	return out, nil
}

// maxLogWait bounds how long GET log may wait.
const maxLogWait = time.Minute

// readOutput is GET log.
func (s *session) readOutput(ctx context.Context, r berth.LogRequest) (berth.LogChunk, error) {
	s.mu.Lock()
	generation := s.rec.Generation
	s.mu.Unlock()
	if r.Generation != 0 && r.Generation != generation {
		return berth.LogChunk{}, berth.Errorf(berth.CodeGenerationChanged, "the session is in generation %d, not %d", generation, r.Generation)
	}
	if s.isLive() {
		s.refresh(ctx)
	}
	c := s.logChunk(r)
	switch {
	case c.Offset < c.KeptFrom:
		return c, berth.Errorf(berth.CodeOffsetGone, "output is kept from offset %d on, not from %d", c.KeptFrom, c.Offset).
			WithFact("kept_from", strconv.FormatUint(c.KeptFrom, 10))
	case c.Offset > c.End:
		return c, invalidOffset(c.Offset, c.End)
	case c.Offset == c.End && !c.Ended && r.Wait > 0:
		if err := s.waitOutput(ctx, r, c.End); err != nil {
			return c, err
		}
		c = s.logChunk(berth.LogRequest{From: c.Offset})
	}
	limit := uint64(berth.MaxLogChunk)
	if r.Limit > 0 {
		limit = min(limit, uint64(r.Limit))
	}
	limit = min(limit, c.End-c.Offset)
	buf := make([]byte, limit)
	for uint64(len(c.Data)) < limit {
		n, err := s.readLog(ctx, c.Offset+uint64(len(c.Data)), buf[len(c.Data):])
		if err != nil && len(c.Data) == 0 {
			return c, err
		}
		if err != nil || n == 0 {
			break
		}
		c.Data = buf[:len(c.Data)+n]
	}
	return c, nil
}

// logChunk is the answer to r without its data.
func (s *session) logChunk(r berth.LogRequest) berth.LogChunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := berth.LogChunk{
		Generation: s.rec.Generation, Offset: r.From, KeptFrom: s.kept, End: s.end, Ended: s.exit != nil,
	}
	if r.FromStart {
		c.Offset = s.kept
	}
	return c
}

// waitOutput waits for output after end, or the end of the program.
func (s *session) waitOutput(ctx context.Context, r berth.LogRequest, end uint64) error {
	ctx, cancel := context.WithTimeout(ctx, min(r.Wait, maxLogWait))
	defer cancel()
	s.mu.Lock()
	for s.end <= end && s.exit == nil {
		progress := s.nextProgress()
		s.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil // nothing came, and that is an answer
			}
			return ctx.Err()
		case <-s.g.stopping:
			return errStopping()
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	return nil
}
