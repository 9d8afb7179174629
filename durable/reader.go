package durable

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"berth"
)

func itoa(n int) string { return strconv.Itoa(n) }

// readInbox answers messages of other processes until the runner shuts down.
func (r *Runner[S, E]) readInbox() {
	defer r.leave()
	wake := r.cfg.Store.Watch(r.effects)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		r.scanInbox()
		select {
		case _, ok := <-wake:
			if !ok { // the store was closed, or the runner shuts down
				return
			}
		case <-r.nudge:
		case <-look.C:
			r.checkOwned()
		case <-r.effects.Done():
			return
		}
	}
}

// scanInbox starts a goroutine for each record with messages that has none yet.
func (r *Runner[S, E]) scanInbox() {
	messages, err := r.cfg.Store.Inbox(r.effects, r.cfg.Machine.Kind)
	if err != nil {
		return // a store that fails says so itself
	}
	for _, m := range messages {
		l := r.lane(m.ID)
		r.mu.Lock()
		if !l.reading && !r.closing {
			l.reading = true
			l.refs++
			r.busy++
			go r.answerMessages(l)
		}
		r.mu.Unlock()
		r.release(l)
	}
}

// answerMessages settles the messages of one record, one after the other.
func (r *Runner[S, E]) answerMessages(l *lane[S]) {
	defer r.leave()
	defer r.release(l)
	messages, err := r.cfg.Store.Inbox(r.effects, r.cfg.Machine.Kind)
	settled := err == nil
	for _, m := range messages {
		if m.ID == l.id && !r.answerMessage(l, m) {
			settled = false
			break
		}
	}
	r.mu.Lock()
	l.reading = false
	r.mu.Unlock()
	if !settled {
		return // the next look tries again
	}
	select { // what came meanwhile found this goroutine at work
	case r.nudge <- struct{}{}:
	default:
	}
}

// answerMessage is false when the message was left as it is.
func (r *Runner[S, E]) answerMessage(l *lane[S], m Message) bool {
	var p proposal[E]
	err := json.Unmarshal(m.Event, &p.event)
	if err != nil {
		err = berth.Errorf(berth.CodeInvalidArgument, "the event of message %d: %w", m.Seq, err)
	} else {
		var rec Record
		if rec, err = r.cfg.Store.Get(r.effects, m.Kind, m.ID); err == nil {
			p.expected, p.message = m.Expected, m.Seq
			_, err = r.feedHere(r.effects, l, rec, p)
		}
	}
	switch {
	case err == nil:
		return true // the commit has settled it
	case r.effects.Err() != nil, errors.Is(err, errElsewhere), errors.Is(err, berth.CodeStoreFailed):
		return false // whoever owns the record next answers
	}
	Failpoint("before_settle")
	err = r.cfg.Store.Settle(r.base, m.Seq, OutcomeOf(err))
	if err == nil {
		Failpoint("after_settle")
	}
	return err == nil || errors.Is(err, berth.CodeConflict) // its sender gave up
}

// checkOwned cancels what runs for a record that another process took over: this
// one was thought dead, and must not go on beside it.
func (r *Runner[S, E]) checkOwned() {
	r.mu.Lock()
	var at []*lane[S]
	for _, l := range r.lanes {
		if l.running != nil {
			at = append(at, l)
		}
	}
	r.mu.Unlock()
	for _, l := range at {
		rec, err := r.cfg.Store.Get(r.effects, r.cfg.Machine.Kind, l.id)
		if err == nil && rec.Owner != r.self {
			r.lost(l, stale(berth.CodeFenced, rec, "%s %s is owned by process %d now", rec.Kind, rec.ID, rec.Owner.PID))
		}
	}
}
