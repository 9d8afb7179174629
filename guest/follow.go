package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"berth"
	"berth/holder"
	"berth/terminal/screen"
)

const (
	// skimAbove is how far the screen model may lag behind the output before it
	// skims, and drawBelow how near it must be to draw again: the last 512 KiB
	// before the end of a flood are always drawn, many screens full.
	skimAbove = 8 << 20
	drawBelow = 512 << 10
	// reconnectMax bounds the pause between attempts to reach a holder that
	// lives and does not answer.
	reconnectMin = 20 * time.Millisecond
	reconnectMax = 2 * time.Second
)

// run keeps reading the holder until the session has ended or the guest stops.
// It is the one goroutine of a live session.
func (s *session) run(ctx context.Context) {
	pause := reconnectMin
	for ctx.Err() == nil {
		began := s.g.now()
		err := s.follow(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if s.settleEnd(err) {
			return
		}
		// The holder lives: it cut us, or is only just starting.
		s.log.Info("reading a session again", "reason", err)
		if s.g.now().Sub(began) > reconnectMax {
			pause = reconnectMin
		}
		if !s.g.pause(pause) {
			return
		}
		pause = min(2*pause, reconnectMax)
	}
}

// settleEnd looks what became of a holder whose stream broke. It reports
// whether the session has ended.
func (s *session) settleEnd(cause error) bool {
	alive, err := s.g.holders.Alive(s.dir)
	if err != nil {
		s.log.Error("whether the holder lives cannot be seen", "error", err)
		return false
	}
	if alive {
		return false
	}
	exit, err := s.g.holders.ReadExit(s.dir)
	switch {
	case err == nil:
		s.ended(berth.SessionExited, exit)
	case errors.Is(err, fs.ErrNotExist):
		s.log.Warn("the holder is gone without an exit record", "reason", cause)
		s.ended(berth.SessionLost, s.lostExit())
	default:
		s.log.Error("the exit record cannot be read", "error", err)
		s.ended(berth.SessionLost, berth.Exit{Reason: berth.ExitEnded, Detail: err.Error(), Offset: s.lastEnd(), At: s.lastSign()})
	}
	return true
}

func (s *session) lastEnd() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// follow connects to the holder, rebuilds the screen at the first connection,
// and reads until the end. nil = the program has ended and that is recorded.
func (s *session) follow(ctx context.Context) error {
	from, err := s.rebuild(ctx)
	if err != nil {
		return err
	}
	stream, err := s.holder.Stream(ctx, from)
	if err != nil {
		if from, err = s.skipLost(ctx, from, err); err != nil {
			return err
		}
		if stream, err = s.holder.Stream(ctx, from); err != nil {
			return err
		}
	}
	defer stream.Close() //nolint:errcheck // it is read to its end, or broken
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	s.connected()
	s.input.connect(stream.Input)
	defer s.input.connect(nil)
	for {
		item, err := stream.Next()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the holder ended the stream: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
		switch item.Kind {
		case holder.KindOutput:
			s.output(item)
		case holder.KindGap:
			s.gap(item.From, item.To)
		case holder.KindExit:
			s.ended(berth.SessionExited, item.Exit)
			return nil
		}
	}
}

// skipLost gives the first offset from which output can still be read, where
// the one that was asked for is gone. It passes any other error on.
func (s *session) skipLost(ctx context.Context, from uint64, cause error) (uint64, error) {
	if !errors.Is(cause, berth.CodeOffsetGone) {
		return 0, cause
	}
	info, err := s.holder.Info(ctx)
	if err != nil {
		return 0, err
	}
	s.gap(from, info.Start)
	return info.Start, nil
}

// rebuild makes the screen as it was at the newest deposit, at the first
// connection, and says from which offset to read on.
func (s *session) rebuild(ctx context.Context) (uint64, error) {
	info, err := s.holder.Info(ctx)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	built := s.scr != nil
	s.running = info.Running
	s.takeInfo(info)
	pos := s.pos
	s.mu.Unlock()
	if built {
		return pos, nil
	}
	var dep deposit
	snap, err := s.holder.Snapshot(ctx)
	switch {
	case err == nil:
		dep, err = decodeDeposit(snap, s.screenOptions())
		if err != nil {
			s.log.Error("the deposited screen cannot be read; drawing from the first byte kept", "error", err)
		}
	case !errors.Is(err, berth.CodeNotFound):
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if dep.screen == nil {
		dep = deposit{screen: screen.New(info.Size, s.screenOptions()), offset: info.Start}
	}
	s.scr, s.pos, s.tail = dep.screen, dep.offset, dep.meta.Tail
	s.agent, s.skipped = dep.meta.Agent, dep.meta.Skipped
	// The relay socket is open before there is a screen: a hook line that came
	// meanwhile is newer than the deposit, and no deposit has it yet.
	s.hookDrops += dep.meta.HooksDropped
	if s.hook == nil {
		s.hook = dep.meta.Hook
	} else {
		s.dirty(0, true)
	}
	s.size = info.Size
	if s.scr.Size() != info.Size && info.Size.Valid() {
		s.scr.Resize(info.Size)
	}
	if s.pos < info.Start {
		s.skipped += info.Start - s.pos
		s.pos, s.tail = info.Start, nil
	}
	// Whatever is there already was an earlier guest's to answer; of a session
	// that this guest starts itself, nothing was.
	if s.state != berth.SessionStarting {
		s.quietTill = info.End
	}
	s.noteScreen()
	return s.pos, nil
}

// connected publishes that the session runs. It can be attached to once the
// screen has read what was there already: a viewer must not watch the replay.
func (s *session) connected() {
	s.mu.Lock()
	first := s.state == berth.SessionStarting
	s.state = berth.SessionRunning
	s.noteCaughtUp()
	s.mu.Unlock()
	closeOnce(s.settled)
	if first {
		s.changed(true)
	}
}

// noteCaughtUp is called with mu held.
func (s *session) noteCaughtUp() {
	if s.pos >= s.quietTill && s.state == berth.SessionRunning {
		closeOnce(s.ready)
	}
}

// closeOnce closes a channel that only one goroutine at a time may close.
func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// output takes in what the program wrote: to the viewers first, for whom every
// microsecond is latency, then to the screen.
func (s *session) output(item holder.Item) {
	s.mu.Lock()
	data, at := item.Data, item.Offset
	if at < s.pos { // read twice after a reconnection
		n := min(s.pos-at, uint64(len(data)))
		data, at = data[n:], at+n
	}
	s.end = max(s.end, item.End, at+uint64(len(data)))
	var answer []byte
	for len(data) > 0 {
		n := min(len(data), maxPiece)
		piece := data[:n]
		data = data[n:]
		if s.live != nil {
			s.broadcast(piece)
		}
		answer = append(answer, s.draw(piece)...)
	}
	s.noteScreen()
	s.wakeWaiters()
	s.dirty(len(item.Data), len(answer) > 0)
	publish := s.publishDue()
	s.noteCaughtUp()
	s.mu.Unlock()
	if len(answer) > 0 && !s.input.reply(answer) {
		s.log.Warn("an answer to a terminal query was dropped: the program does not read its input", "bytes", len(answer))
	}
	if publish {
		s.changed(false)
	}
}

// maxPiece bounds one output frame.
const maxPiece = 256 << 10

// publishEvery bounds how often mere output is told to the readers of events.
const publishEvery = time.Second

// publishDue is called with mu held.
func (s *session) publishDue() bool {
	now := s.g.now()
	if now.Sub(s.published) < publishEvery {
		return false
	}
	s.published = now
	return true
}

// draw feeds the screen and gives the answers to the queries in p. mu is held.
func (s *session) draw(p []byte) []byte {
	quiet := 0
	if s.pos < s.quietTill {
		quiet = int(min(uint64(len(p)), s.quietTill-s.pos)) //nolint:gosec // at most len(p)
	}
	var answer []byte
	if quiet > 0 {
		answer = s.drawQuiet(p[:quiet])
	}
	if quiet < len(p) {
		s.advance(p[quiet:])
		answer = append(answer, s.scr.TakeReplies()...)
	}
	return answer
}

// advance moves the screen over p, drawing or skimming. mu is held.
func (s *session) advance(p []byte) {
	lag := s.end - min(s.end, s.pos+uint64(len(p)))
	switch {
	case !s.skimming && lag > skimAbove:
		s.skimming = true
		s.log.Info("the screen lags behind the output and skims", "lag_bytes", lag)
	case s.skimming && lag < drawBelow:
		s.skimming = false
	}
	if s.skimming {
		s.scr.Skim(p)
		s.skipped += uint64(len(p))
	} else {
		s.scr.Feed(p)
	}
	s.pos += uint64(len(p))
	s.keepTail(p)
}

// keepTail keeps the bytes of the sequence that is not complete yet: a viewer
// who comes now gets them after the repaint. mu is held.
func (s *session) keepTail(p []byte) {
	n := s.scr.Pending()
	switch {
	case n <= 0:
		s.tail = s.tail[:0]
	case n <= len(p):
		s.tail = append(s.tail[:0], p[len(p)-n:]...)
	default:
		s.tail = append(s.tail, p...)
		if extra := len(s.tail) - n; extra > 0 {
			s.tail = append(s.tail[:0], s.tail[extra:]...)
		}
	}
}

// noteScreen takes over what the program told the screen of itself. mu is held.
func (s *session) noteScreen() {
	title, cwd := s.scr.Title(), s.scr.Cwd()
	agentChanged := s.agent != s.statedAgent // onReport makes a new one each time
	if title == s.title && cwd == s.cwd && !agentChanged {
		return
	}
	s.title, s.cwd = title, cwd
	s.statedAgent = s.agent
	s.stateChanged()
	s.g.hub.mark(s.id, false)
}

// gap passes over output that cannot be read any more.
func (s *session) gap(from, to uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to <= s.pos {
		return
	}
	s.log.Warn("output was lost before the screen could read it", "from", max(from, s.pos), "to", to)
	s.skipped += to - max(from, s.pos)
	s.pos, s.tail = to, s.tail[:0]
	s.end = max(s.end, to)
	if s.live != nil {
		s.live = screen.NewFilter(false)
		for v := range s.viewers {
			v.fallBehind(s.liveAt)
		}
		s.liveAt = to
	}
	s.noteCaughtUp()
	s.wakeWaiters()
}

// trailingQueries finds the queries at the very end of what an earlier guest
// had to answer.
type trailingQueries struct {
	filter *screen.Filter
	answer []byte
}

// trailingWindow is how far back from the end they are looked for.
const trailingWindow = 4096

// drawQuiet draws output that was there before this guest. Its queries were
// answered by the guest that was there before, except where it died first.
//
// The deposit says how far that guest had answered: it deposits within
// depositSoon after each answer. Between the deposit and its death nobody
// knows. So a query there is answered only if nothing but queries follows it:
// then the program very likely still waits, and everything it printed after an
// answer would stand behind it. The price is an answer given twice when the
// guest died within depositSoon after answering and the program then printed
// nothing; the other choice would let a program wait for ever.
func (s *session) drawQuiet(p []byte) []byte {
	if far := s.quietTill - s.pos; far > trailingWindow {
		n := min(uint64(len(p)), far-trailingWindow)
		s.advance(p[:n])
		s.scr.TakeReplies()
		p = p[n:]
	}
	if len(p) > 0 && s.trailing.filter == nil {
		s.trailing.filter = screen.NewFilter(false)
	}
	var scratch [64]byte
	for i := range p {
		s.advance(p[i : i+1])
		if out, _ := s.trailing.filter.Append(scratch[:0], p[i:i+1]); len(out) > 0 {
			s.trailing.answer = nil // something else than a query followed
		}
		s.trailing.answer = append(s.trailing.answer, s.scr.TakeReplies()...)
	}
	if s.pos < s.quietTill {
		return nil
	}
	answer := s.trailing.answer
	s.trailing = trailingQueries{}
	return answer
}
