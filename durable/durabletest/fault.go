// Package durabletest holds what every durable.Store is tested with, and a store
// in memory that fails on demand, for the tests of what stands on a store.
package durabletest

import (
	"context"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/durable"
)

// Effect says what a failing write did.
type Effect int

const (
	// NotWritten fails the write before it took effect.
	NotWritten Effect = iota
	// Written fails it after: the caller cannot know, the next opening shows it.
	Written
)

// FaultConfig is what a Fault is made with. The zero value is usable.
type FaultConfig struct {
	Owner    berth.Identity       // zero = an invented one
	Now      func() time.Time     // nil = time.Now
	Boottime func() time.Duration // nil = the time since the making
	// EventsKept and EventsKeptFor bound the events at a Prune; 0 =
	// berth.EventsKept and berth.EventsKeptFor.
	EventsKept    int64
	EventsKeptFor time.Duration
	// Yield comes before each call that reads or writes; a simulation decides
	// in it who goes on. nil = nothing.
	Yield func()
}

// Fault is a durable.Store in memory that fails when it is told to. A failure is
// as final as that of a disk; Reopen is the restart after it, Join another
// process beside it.
type Fault struct {
	cfg    FaultConfig
	failed chan struct{}
	c      *content

	// Guarded by c.mu:
	closed   bool
	nudge    bool // the write that runs wakes the watchers without an event
	writes   int  // begun on this opening, the failing one included
	failAt   int  // the write that fails; 0 = none
	effect   Effect
	cause    error // why it failed; nil = it did not
	watchers []watcher
}

// watcher is a channel of Watch and what ends the wait for its context.
type watcher struct {
	c    chan struct{}
	stop func() bool
}

var _ durable.Store = (*Fault)(nil)

// content is what outlives an opening.
type content struct {
	mu   sync.Mutex
	open []*Fault

	records []*durable.Record // by their beginning; a removed one is nil
	events  []berth.Event
	last    int64
	holds   map[string]durable.Hold
	floor   int64 // highest epoch of a forgotten name

	ledger   map[key][]durable.Effect
	owned    map[key][]string
	messages []*durable.Message // by number; a forgotten one is nil
	archives []archived
}

// NewFault makes an empty store.
func NewFault(cfg FaultConfig) *Fault {
	if cfg.Owner == (berth.Identity{}) {
		cfg.Owner = berth.Identity{BootID: "4d3c2b1a-0000-4000-8000-000000000000", PID: 1, StartTime: 1}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Boottime == nil {
		made := time.Now()
		cfg.Boottime = func() time.Duration { return time.Since(made) }
	}
	if cfg.EventsKept == 0 {
		cfg.EventsKept = berth.EventsKept
	}
	if cfg.EventsKeptFor == 0 {
		cfg.EventsKeptFor = berth.EventsKeptFor
	}
	return open(cfg, &content{
		holds:  map[string]durable.Hold{},
		ledger: map[key][]durable.Effect{}, owned: map[key][]string{},
	})
}

func open(cfg FaultConfig, c *content) *Fault {
	f := &Fault{cfg: cfg, c: c, failed: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, f)
	return f
}

// Reopen closes f and opens what it held, as another process would. The new
// store fails only when it is told to anew. An owner with another boot id is a
// restart of the machine.
func (f *Fault) Reopen(owner berth.Identity) *Fault {
	_ = f.Close() // in memory it cannot fail
	return f.Join(owner)
}

// Join opens what f holds a second time, as another process does that shares the
// file. Each opening fails for itself.
func (f *Fault) Join(owner berth.Identity) *Fault {
	cfg := f.cfg
	cfg.Owner = owner
	return open(cfg, f.c)
}

// Owner is the identity that is stamped on every write.
func (f *Fault) Owner() berth.Identity { return f.cfg.Owner }

// FailWrite makes the n-th write from now fail; 1 = the next. A call that is
// refused writes nothing and does not count. It replaces what was asked before.
func (f *Fault) FailWrite(n int, e Effect) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.failAt, f.effect = f.writes+n, e
}

// Writes counts the writes of this opening, so that a test can fail each in turn.
func (f *Fault) Writes() int {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	return f.writes
}

// Failed is closed after a failure.
func (f *Fault) Failed() <-chan struct{} { return f.failed }

// Close ends the store for its callers; Reopen gives the content back.
func (f *Fault) Close() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.closed = true
	f.c.open = slices.DeleteFunc(f.c.open, func(o *Fault) bool { return o == f })
	for _, w := range f.watchers {
		w.stop()
		close(w.c)
	}
	f.watchers = nil
	return nil
}

// usable needs the lock.
func (f *Fault) usable(ctx context.Context) error {
	switch {
	case f.cause != nil:
		return berth.Errorf(berth.CodeStoreFailed, "the store failed before: %w", f.cause)
	case f.closed:
		return &berth.Error{Code: berth.CodeDaemonStopping, Detail: "the store is closed"}
	case ctx.Err() != nil:
		return interrupted(ctx.Err())
	}
	return nil
}

func interrupted(cause error) error {
	if cause == context.DeadlineExceeded { //nolint:errorlint // it is what a context gives, unwrapped
		return berth.Errorf(berth.CodeTimeout, "the store was not asked in time: %w", cause)
	}
	return berth.Errorf(berth.CodeInterrupted, "the store was not asked: %w", cause)
}

func (f *Fault) yield() {
	if f.cfg.Yield != nil {
		f.cfg.Yield()
	}
}

// view runs a read.
func (f *Fault) view(ctx context.Context, fn func(durable.Moment) error) error {
	f.yield()
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if err := f.usable(ctx); err != nil {
		return err
	}
	return fn(f.now())
}

// update runs a write: decide refuses it or gives what it does and the events
// that go with it. Nothing is changed before all is decided.
func (f *Fault) update(ctx context.Context, decide func(durable.Moment) (act func(), events []durable.EventDraft, err error)) error {
	f.yield()
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if err := f.usable(ctx); err != nil {
		return err
	}
	now := f.now()
	f.nudge = false
	act, events, err := decide(now)
	if err != nil || act == nil {
		return err
	}
	f.writes++
	fails := f.writes == f.failAt
	if !fails || f.effect == Written {
		act()
		f.publish(events, now)
	}
	if fails {
		f.cause = berth.Errorf(berth.CodeStoreFailed, "write %d fails as the test asked", f.writes)
		close(f.failed)
		return f.cause
	}
	if len(events) > 0 || f.nudge {
		f.wake()
	}
	return nil
}

func (f *Fault) publish(events []durable.EventDraft, now durable.Moment) {
	for _, e := range events {
		f.c.last++
		f.c.events = append(f.c.events, berth.Event{Seq: f.c.last, Kind: e.Kind, Subject: e.Subject, Revision: e.Revision, At: now.Wall})
	}
}

func (f *Fault) wake() {
	for _, o := range f.c.open { // in their order: a simulation replays
		for _, w := range o.watchers {
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}
}

func (f *Fault) now() durable.Moment {
	return durable.Moment{Wall: f.cfg.Now().Round(0).UTC(), BootID: f.cfg.Owner.BootID, Boot: f.cfg.Boottime()}
}
