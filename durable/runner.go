package durable

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth"
)

// Liveness is what is known of the process that owns a record.
type Liveness string

// The answers. Another boot id is Dead; a process that may not be signalled is
// Alive.
const (
	OwnerAlive   Liveness = "alive"
	OwnerDead    Liveness = "dead"
	OwnerUnknown Liveness = "unknown"
)

const (
	// persistEvery is how soon a write is tried again after another process kept
	// the store locked for as long as a write waits.
	persistEvery = 100 * time.Millisecond
	// changeTries bounds how often an event that expects no revision is decided
	// anew because the record changed meanwhile.
	changeTries = 8
)

// Counter counts; a Prometheus counter is one.
type Counter interface{ Inc() }

// Config is what a Runner is made with.
type Config[S, E any] struct {
	Store     Store // Store.Owner is the process that this runner is
	Machine   Machine[S, E]
	Performer Performer[S, E]
	// Liveness looks at the owner of a record. Only OwnerDead permits to take
	// over; it is never asked about Store.Owner.
	Liveness func(berth.Identity) Liveness
	Now      func() time.Time // of Input.At; nil = time.Now
	Log      *slog.Logger     // nil = none
	// Dropped counts answers that no effect waited for; nil = nobody counts.
	Dropped Counter
	// OnChange gets each commit of this runner, one record's in their order, and
	// in between the progress, at the same revision. Those of several records may
	// come at once. It may call Get and List only, and it should return soon.
	// nil = nobody listens.
	OnChange func(Snapshot[S])
}

func (c Config[S, E]) withDefaults() (Config[S, E], error) {
	for _, need := range []struct {
		what    string
		missing bool
	}{
		{"store", c.Store == nil}, {"performer", c.Performer == nil}, {"look at owners", c.Liveness == nil},
		{"kind", c.Machine.Kind == ""}, {"reducer", c.Machine.Reduce == nil},
		{"table of answers", c.Machine.Answers == nil}, {"event of a failure", c.Machine.Failed == nil},
	} {
		if need.missing {
			return c, berth.Errorf(berth.CodeInvalidArgument, "the runner has no %s", need.what)
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func(Snapshot[S]) {}
	}
	return c, nil
}

// Snapshot is a record as a reader sees it.
type Snapshot[S any] struct {
	Record Record
	State  S // of Record.State; to be read only
	// Pending are the effects that wait or run, in order, with the live progress
	// of the one that this process performs.
	Pending []Effect
}

// BeginRequest is a record to be.
type BeginRequest[S any] struct {
	ID             string
	State          S
	Plan           []EffectPlan
	IdempotencyKey string // "" = none
	Fingerprint    string // see Fingerprint; needed with a key
	BusyKey        string // "" = none
	Events         []EventDraft
}

// Runner drives the records of one machine: it commits what the reducer decides,
// performs effects, and feeds their answers back. Its goroutines end with
// Shutdown.
type Runner[S, E any] struct {
	cfg  Config[S, E]
	self berth.Identity
	// effects is over when the runner shuts down; base never is.
	effects context.Context
	stop    context.CancelFunc
	base    context.Context
	nudge   chan struct{} // one: look at the inbox again

	mu      sync.Mutex
	lanes   map[string]*lane[S]
	busy    int // calls and goroutines at work
	closing bool
	idle    chan struct{} // closed when closing and nothing is at work
}

// New makes a runner and begins to read the inbox. It touches no record before
// it is told to: see Recover.
func New[S, E any](cfg Config[S, E]) (*Runner[S, E], error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Runner[S, E]{
		cfg: cfg, self: cfg.Store.Owner(), base: context.Background(),
		nudge: make(chan struct{}, 1), lanes: map[string]*lane[S]{}, idle: make(chan struct{}),
	}
	r.effects, r.stop = context.WithCancel(r.base)
	r.busy++
	go r.readInbox()
	return r, nil
}

// enter begins a call.
func (r *Runner[S, E]) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return stopping()
	}
	r.busy++
	return nil
}

func (r *Runner[S, E]) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy--
	if r.closing && r.busy == 0 {
		close(r.idle)
	}
}

func stopping() error {
	return &berth.Error{Code: berth.CodeDaemonStopping, Detail: "the daemon is stopping; what was begun goes on with the next one"}
}

// Shutdown accepts nothing more, ends the contexts of the effects, and waits
// until all have returned or ctx is over, also when an effect ignores its
// context: CodeTimeout names its record then. What was not finished stays on the
// disk as it is, for the next runner. A second call waits likewise.
func (r *Runner[S, E]) Shutdown(ctx context.Context) error {
	r.mu.Lock()
	if !r.closing {
		r.closing = true
		if r.busy == 0 {
			close(r.idle)
		}
	}
	r.mu.Unlock()
	r.stop()
	select {
	case <-r.idle:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := berth.Errorf(berth.CodeTimeout, "effects did not end in time: %w", ctx.Err())
	for id, l := range r.lanes {
		if l.running != nil {
			e = e.WithFact("record", id).WithFact("effect", l.running.effect.Kind)
		}
	}
	return e
}

// Begin makes a record and starts its effects. The same idempotency key with the
// same fingerprint answers the record that there is, and created = false. A busy
// key that a live record holds is CodeConflict with its id as fact "holder"; when
// that record's owner is dead it is recovered first, and the begin tried once
// more.
func (r *Runner[S, E]) Begin(ctx context.Context, b BeginRequest[S]) (_ Snapshot[S], created bool, err error) {
	if err := r.enter(); err != nil {
		return Snapshot[S]{}, false, err
	}
	defer r.leave()
	state, err := json.Marshal(b.State)
	if err != nil {
		return Snapshot[S]{}, false, berth.Errorf(berth.CodeInvalidArgument, "the state of %s: %w", b.ID, err)
	}
	draft := Begin{
		Kind: r.cfg.Machine.Kind, ID: b.ID, Schema: r.cfg.Machine.Schema, State: state, Effects: b.Plan,
		IdempotencyKey: b.IdempotencyKey, Fingerprint: b.Fingerprint, BusyKey: b.BusyKey, Events: b.Events,
	}
	s, created, err := r.begin(ctx, draft)
	if holder := r.busyHolder(err); holder != "" {
		if recovered, recErr := r.reclaim(ctx, holder); recErr != nil {
			return Snapshot[S]{}, false, recErr
		} else if recovered {
			s, created, err = r.begin(ctx, draft)
		}
	}
	if err == nil && !created {
		_, err = r.claim(ctx, s.Record) // who asks again may be the first to see that its owner died
	}
	return s, created, err
}

func (r *Runner[S, E]) begin(ctx context.Context, b Begin) (Snapshot[S], bool, error) {
	l := r.lane(b.ID)
	defer r.release(l)
	if err := l.take(ctx); err != nil {
		return Snapshot[S]{}, false, err
	}
	defer l.give()
	Failpoint("before_begin")
	rec, created, err := r.cfg.Store.Begin(ctx, b)
	if err != nil {
		return Snapshot[S]{}, false, err
	}
	if !created {
		s, err := r.Get(ctx, rec.ID)
		return s, false, err
	}
	Failpoint("after_begin")
	s, err := r.snapshot(rec, Planned(b.Effects, 0))
	if err != nil {
		return s, true, err
	}
	r.committed(l, s)
	return s, true, nil
}

// busyHolder is the id of the record of this kind that holds a busy key; "" =
// err is another one.
func (r *Runner[S, E]) busyHolder(err error) string {
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeConflict || e.Facts["busy_key"] == "" || e.Facts["kind"] != r.cfg.Machine.Kind {
		return ""
	}
	return e.Facts["holder"]
}

// Get reads one record.
func (r *Runner[S, E]) Get(ctx context.Context, id string) (Snapshot[S], error) {
	rec, pending, err := r.load(ctx, id)
	if err != nil {
		return Snapshot[S]{}, err
	}
	return r.snapshot(rec, pending)
}

// List reads a page, the one begun last first. Records that cannot be read are
// left out, and the log says so. q.Kind is the machine's.
func (r *Runner[S, E]) List(ctx context.Context, q Query) (list []Snapshot[S], next string, err error) {
	q.Kind = r.cfg.Machine.Kind
	page, err := r.cfg.Store.List(ctx, q)
	if err != nil {
		return nil, "", err
	}
	for _, rec := range page.Records {
		var pending []Effect
		if !rec.Terminal { // an ended one has none
			if rec, pending, err = r.load(ctx, rec.ID); errors.Is(err, berth.CodeNotFound) || err == nil && rec.Terminal && q.Live {
				continue // it ended since
			} else if err != nil {
				return nil, "", err
			}
		}
		s, err := r.snapshot(rec, pending)
		if err != nil {
			r.cfg.Log.Error("a record is left out of the list", "kind", rec.Kind, "id", rec.ID, "error", err)
			continue
		}
		list = append(list, s)
	}
	return list, page.Next, nil
}

// Archive puts ended records away, see Store.Archive. a.Kind is the machine's.
func (r *Runner[S, E]) Archive(ctx context.Context, a ArchiveRequest) (Archive, error) {
	if err := r.enter(); err != nil {
		return Archive{}, err
	}
	defer r.leave()
	a.Kind = r.cfg.Machine.Kind
	Failpoint("before_archive")
	made, err := r.cfg.Store.Archive(ctx, a)
	if err == nil {
		Failpoint("after_archive")
	}
	return made, err
}

// load reads a record and its pending effects as they were at one revision.
func (r *Runner[S, E]) load(ctx context.Context, id string) (Record, []Effect, error) {
	rec, err := r.cfg.Store.Get(ctx, r.cfg.Machine.Kind, id)
	for err == nil && !rec.Terminal {
		var effects []Effect
		if effects, err = r.cfg.Store.Effects(ctx, rec.Kind, id); err != nil {
			break
		}
		var after Record
		if after, err = r.cfg.Store.Get(ctx, rec.Kind, id); err != nil {
			break
		}
		if after.Revision == rec.Revision && after.Epoch == rec.Epoch && after.Created.Equal(rec.Created) {
			return rec, slices.DeleteFunc(effects, func(e Effect) bool { return !e.Status.Pending() }), nil
		}
		rec = after
	}
	return rec, nil, err
}

func (r *Runner[S, E]) decode(rec Record) (s S, err error) {
	if rec.Schema != r.cfg.Machine.Schema {
		return s, berth.Errorf(berth.CodeRecordUnreadable, "%s %s has the schema %d, not %d", rec.Kind, rec.ID, rec.Schema, r.cfg.Machine.Schema)
	}
	if err := json.Unmarshal(rec.State, &s); err != nil {
		return s, berth.Errorf(berth.CodeRecordUnreadable, "the state of %s %s: %w", rec.Kind, rec.ID, err)
	}
	return s, nil
}

// snapshot merges what runs into what was read.
func (r *Runner[S, E]) snapshot(rec Record, pending []Effect) (Snapshot[S], error) {
	state, err := r.decode(rec)
	if err != nil {
		return Snapshot[S]{Record: rec}, err
	}
	s := Snapshot[S]{Record: rec, State: state, Pending: pending}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.lanes[rec.ID]; l != nil && l.running != nil {
		l.running.merge(s.Pending)
	}
	return s, nil
}

// persist does a write of the runner's own until it is done or refused: another
// process that keeps the store locked for a while must not lose an answer.
func (r *Runner[S, E]) persist(write func() error) error {
	for {
		err := write()
		if !errors.Is(err, berth.CodeTimeout) || errors.Is(err, errRefused) {
			return err
		}
		r.cfg.Log.Warn("a write is tried again", "kind", r.cfg.Machine.Kind, "error", err)
		again := time.NewTimer(persistEvery)
		select {
		case <-again.C:
		case <-r.effects.Done():
			again.Stop()
			return err
		}
	}
}
