package durable_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

// call is a performer at work, until the test lets it return. It does not look
// at its context: so each superseded one answers late.
type call struct {
	effect durable.Effect
	reply  chan callReply
}

type callReply struct {
	event toyEvent
	err   error
}

// puppet performs what the test says.
type puppet struct {
	calls []*call // in the order of their beginning; those that returned are out
	enter chan *call
}

func (p *puppet) wait(e durable.Effect) (toyEvent, error) {
	c := &call{effect: e, reply: make(chan callReply)}
	p.enter <- c
	r := <-c.reply
	return r.event, r.err
}

func (p *puppet) Perform(_ context.Context, act durable.Act[toyState]) (toyEvent, error) {
	return p.wait(act.Effect)
}

func (p *puppet) Inspect(context.Context, durable.Act[toyState]) (durable.Finding, error) {
	return durable.Finding{Verdict: durable.VerdictAbsent}, nil
}

func (p *puppet) Reconcile(_ context.Context, act durable.Act[toyState], _ *durable.Finding) (toyEvent, error) {
	if act.Effect.Kind == durable.EffectReconcile && act.Effect.Status == durable.EffectStarted {
		return p.wait(act.Effect)
	}
	return toyEvent{Kind: "reconciled", N: act.State.Step}, nil
}

// model is what must be true of the one record: a fold of the reducer over what
// was accepted, and nothing else.
type model struct {
	t        *rapid.T
	store    *durabletest.Fault
	r        *toyRunner
	hand     *puppet
	dropped  counter
	pid      int
	state    toyState
	pending  []durable.Effect // ID, Kind and Revision count
	revision int64
	wrong    bool // the running effect was answered by another's event and waits for ever
	drops    int64
}

func (m *model) open(store *durabletest.Fault) {
	m.store, m.hand = store, &puppet{enter: make(chan *call, 100)}
	var err error
	m.r, err = durable.New(durable.Config[toyState, toyEvent]{
		Store: store, Machine: toyMachine(), Performer: m.hand, Dropped: &m.dropped,
		Liveness: func(p berth.Identity) durable.Liveness {
			if p.PID < m.pid {
				return durable.OwnerDead
			}
			return durable.OwnerAlive
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// accept folds one event that the reducer takes.
func (m *model) accept(e toyEvent, answered *durable.Effect) error {
	step, err := reduceToy(m.state, durable.Input[toyEvent]{Event: e, Effect: answered, Revision: m.revision})
	if err != nil {
		return err
	}
	var left []durable.Effect
	for _, p := range m.pending {
		if step.Keep && !step.Terminal && (answered == nil || p.ID != answered.ID) {
			left = append(left, p)
		}
	}
	m.revision++
	m.state, m.pending = step.State, append(left, durable.Planned(step.Plan, m.revision)...)
	if !step.Keep {
		m.wrong = false
	}
	return nil
}

func (m *model) outside(kind string) {
	_, err := m.r.Feed(context.Background(), "a", durable.AnyRevision, toyEvent{Kind: kind})
	if want := m.accept(toyEvent{Kind: kind}, nil); (err == nil) != (want == nil) {
		m.t.Fatalf("%s to %+v: %v, want %v", kind, m.state, err, want)
	}
}

// running gives the oldest call and whether its answer counts.
func (m *model) running() (c *call, counts bool) {
	if len(m.hand.calls) == 0 {
		m.t.Skip("nothing runs")
	}
	c = m.hand.calls[0]
	return c, len(m.pending) > 0 && m.pending[0].ID == c.effect.ID
}

func (m *model) answer(r callReply) {
	c, counts := m.running()
	m.hand.calls = m.hand.calls[1:]
	c.reply <- r
	switch {
	case counts && r.err != nil:
		r.event = toyEvent{Kind: "failed", Why: berth.AsError(r.err).Code}
		fallthrough
	case counts && (r.event.Kind == "failed" || toyMachine().Answers(c.effect.Kind, r.event)):
		if err := m.accept(r.event, &c.effect); err != nil {
			m.t.Fatal(err)
		}
	case counts:
		m.wrong = true
		m.drops++
	case r.err == nil:
		m.drops++
	}
}

func (m *model) rightAnswer() toyEvent {
	c, _ := m.running()
	switch c.effect.Kind {
	case "make":
		return toyEvent{Kind: "made", N: m.state.Step + 1}
	case "clean":
		return toyEvent{Kind: "cleaned"}
	}
	return toyEvent{Kind: "reconciled", N: m.state.Step}
}

// restart kills the process; the next one recovers.
func (m *model) restart() {
	m.store.Crash(errKilled)
	m.end()
	m.pid++
	m.dropped.n.Store(0)
	m.drops, m.wrong = 0, false
	m.open(m.store.Join(person(m.pid)))
	if err := m.r.Recover(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	live := m.state.Phase == "working" || m.state.Phase == "waiting" || m.state.Phase == "cleaning"
	if live && (len(m.pending) == 0 || m.pending[0].Kind != durable.EffectReconcile) {
		if err := m.accept(toyEvent{Kind: "reconciled", N: m.state.Step}, nil); err != nil {
			m.t.Fatal(err)
		}
	}
}

// end lets all calls return and waits for the runner.
func (m *model) end() {
	for _, c := range m.hand.calls {
		go func() { c.reply <- callReply{err: errKilled} }()
	}
	m.hand.calls = nil
	// A try that rapid ends in the middle has not looked who came in since.
	over, ended := make(chan struct{}), make(chan struct{})
	defer func() {
		close(over)
		<-ended
	}()
	enter := m.hand.enter
	go func() {
		defer close(ended)
		for {
			select {
			case c := <-enter:
				go func() { c.reply <- callReply{err: errKilled} }()
			case <-over:
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := m.r.Shutdown(ctx); err != nil {
		panic(err)
	}
}

// check holds the invariants once nothing moves any more.
func (m *model) check() {
	synctest.Wait()
	for more := true; more; {
		select {
		case c := <-m.hand.enter:
			m.hand.calls = append(m.hand.calls, c)
		default:
			more = false
		}
	}
	got, err := m.r.Get(context.Background(), "a")
	if err != nil {
		m.t.Fatal(err)
	}
	if got.Record.Revision != m.revision || !reflect.DeepEqual(got.State, m.state) || len(got.Pending) != len(m.pending) {
		m.t.Fatalf("the record is %+v at %d with %d pending, want %+v at %d with %d", got.State, got.Record.Revision, len(got.Pending), m.state, m.revision, len(m.pending))
	}
	for i, e := range m.pending {
		if got.Pending[i].ID != e.ID || got.Pending[i].Kind != e.Kind || got.Pending[i].Revision != e.Revision {
			m.t.Fatalf("pending is %+v, want %+v", got.Pending[i], e)
		}
	}
	if len(m.hand.calls) > 1 {
		m.t.Fatalf("%d effects of one record run at once", len(m.hand.calls))
	}
	if len(m.hand.calls) == 0 && len(m.pending) > 0 && !m.wrong {
		m.t.Fatalf("%+v waits and nobody performs it", m.pending[0])
	}
	if n := m.dropped.n.Load(); n != m.drops {
		m.t.Fatalf("%d answers were dropped, want %d", n, m.drops)
	}
}

func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var thrown any // rapid ends a try by a panic, which must come out of the bubble
		synctest.Test(t, func(*testing.T) {
			m := &model{t: r, pid: 1, state: toyState{Phase: "working", Steps: 3}, pending: durable.Planned(effect("make", 1), 0)}
			m.open(durabletest.NewFault(durabletest.FaultConfig{Owner: person(1)}))
			defer func() {
				thrown = recover()
				m.end()
			}()
			if _, _, err := m.r.Begin(context.Background(), request("a", 3)); err != nil {
				r.Fatal(err)
			}
			actions := map[string]func(*rapid.T){
				"": func(*rapid.T) { m.check() },
				// Of a superseded effect this is a late answer.
				"answer":            func(*rapid.T) { m.answer(callReply{event: m.rightAnswer()}) },
				"answer as another": func(*rapid.T) { m.answer(callReply{event: toyEvent{Kind: "nothing"}}) },
				"fail":              func(*rapid.T) { m.answer(callReply{err: errors.New("it broke")}) },
				"restart":           func(*rapid.T) { m.restart() },
			}
			for _, kind := range []string{"note", "hold", "go", "cancel", "resume"} {
				actions[kind] = func(*rapid.T) { m.outside(kind) }
			}
			actions["a stale feed"] = func(*rapid.T) {
				_, err := m.r.Feed(context.Background(), "a", m.revision+1, toyEvent{Kind: "note"})
				if !errors.Is(err, berth.CodeRevisionMismatch) {
					m.t.Fatalf("a feed at another revision: %v", err)
				}
			}
			r.Repeat(actions)
		})
		if thrown != nil {
			panic(thrown)
		}
	})
}
