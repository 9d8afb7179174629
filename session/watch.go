package session

import (
	"context"
	"time"

	"berth"
)

// Paces of the look at an agent's screen.
const (
	screenPace    = time.Second     // at most one look a second, after output
	screenIdle    = 5 * time.Second // without news of output: guests do not tell of each byte
	screenTimeout = 2 * time.Second
)

// watchScreens looks at the screens of known agents on one host that say
// nothing about themselves. It sleeps while there is none.
func (r *Registry) watchScreens(ctx context.Context, h *hostState) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.look:
		case <-timer.C:
		}
		due, next := r.screensDue(h, time.Now())
		for _, e := range due {
			r.lookAt(ctx, h, e)
		}
		if len(due) > 0 {
			_, next = r.screensDue(h, time.Now())
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// screensDue gives the sessions to look at now and when the next look is due;
// zero = none is.
func (r *Registry) screensDue(h *hostState, now time.Time) (due []*entry, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.sessions {
		if e.host != h.link.Name || !r.shown(e) || !guessed(e) {
			continue
		}
		at := e.screenAt.Add(screenIdle)
		if e.seen.Offsets.End != e.screenRead {
			at = e.screenAt.Add(screenPace)
		}
		if !e.screenAgain.IsZero() && e.screenAgain.Before(at) {
			at = e.screenAgain
		}
		if !at.After(now) {
			due = append(due, e)
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return due, next
}

// guessed reports whether only the screen can tell of an agent. r.mu is held.
func guessed(e *entry) bool {
	return !e.removed && e.seen.State == berth.SessionRunning && e.seen.Agent == nil && e.hook == nil &&
		KnownAgent(e.seen.Argv) != ""
}

// lookAt asks for one screen and takes what the rules say of it.
func (r *Registry) lookAt(ctx context.Context, h *hostState, e *entry) {
	askCtx, cancel := context.WithTimeout(ctx, screenTimeout)
	defer cancel()
	screen, err := h.link.Guest.Screen(askCtx, e.id, false)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	e.screenAt, e.screenAgain = now, time.Time{}
	if err != nil {
		return // the next look is due in its time; the connection's end is follow's business
	}
	if e.seen == nil || !guessed(e) || screen.Generation != e.seen.Generation {
		return
	}
	e.screenRead = screen.Offset
	found := ScreenAgent(KnownAgent(e.seen.Argv), screen.Lines)
	e.screen, e.screenAgain = e.hold.See(found, now)
	r.judge(e)
	r.broadcast()
}
