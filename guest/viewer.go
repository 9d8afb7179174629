package guest

import (
	"context"
	"time"

	"berth"
	"berth/terminal/screen"
)

// viewer is one attached client. session.mu guards it.
type viewer struct {
	id      string
	q       outQueue
	live    bool          // output is queued; false while it catches up from the log
	wakeup  chan struct{} // holds at most one wake-up of its writer
	refresh bool          // a repaint was asked for
	state   bool          // a state frame is due
	exited  bool          // the program has ended: drain, then the exit frame
	voter   sizeVoter
	sshSock string // path of the agent that it lends, or ""
	joined  uint64 // activity at which it attached: the newest lends its agent
	ignored int64  // frames that a read-only viewer sent in vain
}

func (v *viewer) wake() {
	select {
	case v.wakeup <- struct{}{}:
	default: // one is there already, and its writer looks at everything
	}
}

// fallBehind drops what waits for the viewer; from is the first offset lost
// where nothing waited.
func (v *viewer) fallBehind(from uint64) {
	if !v.live || v.q.behind {
		return
	}
	if !v.q.empty() {
		from = v.q.frames[v.q.head].from
	}
	v.q.drop(from)
	v.wake()
}

// join adds a viewer. mu is held.
func (s *session) join(v *viewer) {
	if s.live == nil {
		s.live = screen.NewFilter(false)
		s.liveAt = s.pos - uint64(len(s.tail))
		// The screen waits for the rest of these bytes, so the filter does too.
		if _, covers := s.live.Append(nil, s.tail); covers > 0 {
			s.liveAt += uint64(covers) //nolint:gosec // at most len(s.tail)
		}
	}
	s.activity++
	v.joined, v.voter.active = s.activity, s.activity
	v.state = true
	s.viewers[v] = struct{}{}
	s.latest.Store(v)
	s.rec.AttachedAt = s.g.now().UTC()
	s.stateChanged()
}

// leave removes a viewer and lets go of what only viewers needed.
func (s *session) leave(v *viewer) {
	s.mu.Lock()
	delete(s.viewers, v)
	v.q = outQueue{}
	s.latest.CompareAndSwap(v, nil)
	last := len(s.viewers) == 0
	if last {
		s.live = nil
	}
	live := s.state.Live()
	if !live && last {
		s.scr = nil
	}
	if live {
		s.reconsiderSize()
		s.stateChanged()
	}
	rec := s.rec
	s.mu.Unlock()
	s.changed(false)
	if live && last {
		s.g.spawn(func() { s.saveRecord(rec) }) // it has AttachedAt
	}
}

// saveRecord writes session.json again. Its failure costs what changed since.
func (s *session) saveRecord(rec record) {
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.removed {
		return // a file that is written now would outlive the session
	}
	if err := rec.write(s.dir); err != nil {
		s.log.Warn("the session's record could not be written again", "error", err)
	}
}

// broadcast gives p to every viewer. The frame is made once. mu is held.
func (s *session) broadcast(p []byte) {
	buf := make([]byte, berth.OutputHead, berth.OutputHead+s.live.Pending()+len(p))
	buf, covers := s.live.Append(buf, p)
	if covers <= 0 {
		return
	}
	f := frame{buf: buf, from: s.liveAt, to: s.liveAt + uint64(covers)}
	berth.SealOutput(f.buf, f.from, uint32(covers)) //nolint:gosec // maxPiece and what was held back
	s.liveAt = f.to
	for v := range s.viewers {
		if v.live {
			v.q.push(f)
			v.wake()
		}
	}
}

// standing is the offset at which a repaint taken now stands. mu is held.
func (s *session) standing() uint64 { return s.pos - uint64(len(s.tail)) }

// stateDelay and resizeDelay gather quick changes into one.
const (
	stateDelay  = 50 * time.Millisecond
	resizeDelay = 50 * time.Millisecond
)

// stateChanged sees that the viewers get a state frame soon. mu is held.
func (s *session) stateChanged() {
	if len(s.viewers) == 0 || s.stating != nil || !s.state.Live() {
		return
	}
	s.stating = time.AfterFunc(stateDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stating = nil
		for v := range s.viewers {
			v.state = true
			v.wake()
		}
	})
}

// viewerState is called with mu held.
func (s *session) viewerState() berth.ViewerState {
	return berth.ViewerState{Title: s.title, Agent: s.agent, Size: s.size, Viewers: len(s.viewers)}
}

// wantedSize is called with mu held.
func (s *session) wantedSize() berth.Size {
	voters := make([]sizeVoter, 0, len(s.viewers))
	for v := range s.viewers {
		voters = append(voters, v.voter)
	}
	return decideSize(s.rec.SizePolicy, s.size, voters)
}

// reconsiderSize sees that the size is decided again soon. mu is held.
func (s *session) reconsiderSize() {
	if s.resizing != nil || !s.state.Live() || s.wantedSize() == s.size {
		return
	}
	s.resizing = time.AfterFunc(resizeDelay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.resizing = nil
		if !s.state.Live() {
			return
		}
		if err := s.applySize(s.wantedSize()); err != nil {
			s.log.Warn("the size could not be changed", "error", err)
		}
	})
}

// resize is POST resize: somebody said a size.
func (s *session) resize(size berth.Size) error {
	if !size.Valid() {
		return berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", size, berth.MaxCols, berth.MaxRows)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Live() {
		return s.endedError()
	}
	return s.applySize(size)
}

// applySize changes the terminal and its model together: bytes that the program
// draws for the new size must not meet a model of the old one. mu is held.
func (s *session) applySize(size berth.Size) error {
	if size == s.size || s.scr == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.g.work, holderTimeout)
	defer cancel()
	if err := s.holder.Resize(ctx, size); err != nil {
		return err
	}
	s.scr.Resize(size)
	s.size = size
	s.stateChanged()
	s.dirty(0, true)
	s.g.hub.mark(s.id, false)
	return nil
}

// typed notes that the viewer decides the size from now on, as the policy
// "latest" has it. It takes the lock only when that is news.
func (s *session) typed(v *viewer) {
	if s.latest.Load() == v {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activity++
	v.voter.active = s.activity
	s.latest.Store(v)
	s.reconsiderSize()
}

// endedError says why nothing can be done with a session any more. mu is held.
func (s *session) endedError() error {
	if s.state == berth.SessionLost {
		detail := "its holder is gone"
		if s.exit != nil && s.exit.Detail != "" {
			detail = s.exit.Detail
		}
		return berth.Errorf(berth.CodeSessionLost, "session %s is lost: %s", s.rec.Name, detail)
	}
	return berth.Errorf(berth.CodeSessionEnded, "the program of session %s has ended", s.rec.Name)
}
