package durable

import (
	"context"
	"sync"

	"berth"
)

// lane is one record inside a runner: what is decided of it is decided one after
// the other, and so are its effects performed.
type lane[S any] struct {
	id string
	// turn has one token. Who has it reads the record, decides and commits.
	turn chan struct{}

	// Guarded by Runner.mu:
	refs    int
	live    bool // not terminal when it was last seen
	adopted bool // nothing of a dead process is pending any more
	working bool // its goroutine runs
	kicked  bool // that goroutine has something to look at
	reading bool // a goroutine answers its messages
	running *performance
	redo    string // id of a started effect of which nothing was found: do it again
	// recovering is not nil while a recovery is due or runs; closed at its end.
	recovering chan struct{}

	// show orders what OnChange gets; last is what it got.
	show sync.Mutex
	last Snapshot[S]
}

func (l *lane[S]) take(ctx context.Context) error {
	select {
	case <-l.turn:
		return nil
	case <-ctx.Done():
		return berth.AsError(ctx.Err())
	}
}

func (l *lane[S]) give() { l.turn <- struct{}{} }

// lane finds or makes the lane of a record; release gives it back.
func (r *Runner[S, E]) lane(id string) *lane[S] {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[id]
	if l == nil {
		l = &lane[S]{id: id, turn: make(chan struct{}, 1)}
		l.turn <- struct{}{}
		r.lanes[id] = l
	}
	l.refs++
	return l
}

func (r *Runner[S, E]) release(l *lane[S]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.refs--
	r.forget(l)
}

// forget drops a lane that nobody needs; it needs the lock.
func (r *Runner[S, E]) forget(l *lane[S]) {
	if l.refs == 0 && !l.working && !l.live && l.recovering == nil {
		delete(r.lanes, l.id)
	}
}

// kick makes the lane's goroutine look; it needs the lock.
func (r *Runner[S, E]) kick(l *lane[S]) {
	l.kicked = true
	if l.working || r.closing {
		return
	}
	l.working = true
	r.busy++
	go r.work(l)
}

// committed follows each commit of this runner: what it superseded is cancelled,
// what it planned is started, and the listener is told. The caller has the turn.
func (r *Runner[S, E]) committed(l *lane[S], s Snapshot[S]) {
	r.mu.Lock()
	l.live, l.adopted = !s.Record.Terminal, true
	if l.running != nil && !l.running.among(s.Pending) {
		l.running.cancel()
	}
	if len(s.Pending) > 0 {
		r.kick(l)
	}
	r.mu.Unlock()
	l.show.Lock()
	defer l.show.Unlock()
	l.last = s
	r.cfg.OnChange(s) // under the lock: the listener gets them in their order
}

// seen remembers a record that was read, so that progress can be shown of it.
func (l *lane[S]) seen(s Snapshot[S]) {
	l.show.Lock()
	defer l.show.Unlock()
	if l.last.Record.ID == "" || l.last.Record.Revision < s.Record.Revision {
		l.last = s
	}
}

// work is the lane's goroutine. It ends when nothing is left to do.
func (r *Runner[S, E]) work(l *lane[S]) {
	defer r.leave()
	for {
		r.mu.Lock()
		if !l.kicked || r.closing {
			l.working = false
			r.forget(l)
			r.mu.Unlock()
			return
		}
		l.kicked = false
		due := l.recovering != nil
		r.mu.Unlock()
		if due && !r.recover(l) {
			continue
		}
		for r.step(l) {
		}
	}
}

// step performs the record's next effect; false = there is none for now.
func (r *Runner[S, E]) step(l *lane[S]) bool {
	if r.effects.Err() != nil {
		return false
	}
	rec, pending, err := r.load(r.base, l.id)
	if err != nil {
		r.cfg.Log.Error("a record cannot be read", "kind", r.cfg.Machine.Kind, "id", l.id, "error", err)
		return false
	}
	r.mu.Lock()
	l.live = !rec.Terminal
	redo, adopted := l.redo, l.adopted
	r.mu.Unlock()
	if rec.Owner != r.self || !adopted || len(pending) == 0 {
		return false
	}
	// A started one is a dead process's, and is looked at before anything else;
	// an unknown one waits for a look or a person.
	e := pending[0]
	if e.Status != EffectPlanned && (e.Status != EffectStarted || e.ID != redo) {
		return false
	}
	s, err := r.snapshot(rec, pending)
	if err != nil {
		r.cfg.Log.Error("an effect cannot be performed", "kind", rec.Kind, "id", rec.ID, "error", err)
		return false
	}
	l.seen(s)
	return r.perform(l, s, e)
}
