package durable_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/durable"
)

// The toy makes Steps things, one after the other, and cleans them away when it
// is cancelled.
//
//	working ─► done;  working, waiting ─► cleaning ─► cancelled;  any ─► failed
//	working ◄─► waiting;  failed, cancelled ─► working (resume)
type toyState struct {
	Phase string
	Tag   string `json:",omitempty"` // in the names of its things
	Step  int    // made so far
	Steps int
	Notes int
	Why   berth.Code `json:",omitempty"` // of failed
}

type toyEvent struct {
	Kind string     // outside: note hold go cancel resume; answers: made cleaned reconciled failed
	N    int        `json:",omitempty"`
	Why  berth.Code `json:",omitempty"`
}

const toyKind = "toy"

func toyMachine() durable.Machine[toyState, toyEvent] {
	return durable.Machine[toyState, toyEvent]{
		Kind: toyKind, Schema: 1, Reduce: reduceToy,
		Answers: func(effect string, e toyEvent) bool {
			return effect == "make" && e.Kind == "made" || effect == "clean" && e.Kind == "cleaned" ||
				effect == durable.EffectReconcile && e.Kind == "reconciled"
		},
		Failed: func(_ string, err *berth.Error) toyEvent { return toyEvent{Kind: "failed", Why: err.Code} },
	}
}

func reduceToy(s toyState, in durable.Input[toyEvent]) (durable.Step[toyState], error) {
	refuse := func() (durable.Step[toyState], error) {
		return durable.Step[toyState]{}, berth.Errorf(berth.CodeConflict, "%s while %s", in.Event.Kind, s.Phase)
	}
	var plan []durable.EffectPlan
	keep := false
	live := s.Phase == "working" || s.Phase == "waiting" || s.Phase == "cleaning"
	switch in.Event.Kind {
	case "note":
		s.Notes++
		keep = true
	case "hold":
		if s.Phase != "working" {
			return refuse()
		}
		s.Phase = "waiting"
	case "go":
		if s.Phase != "waiting" {
			return refuse()
		}
		s.Phase, plan = "working", effect(durable.EffectReconcile, 0)
	case "cancel":
		if !live || s.Phase == "cleaning" {
			return refuse()
		}
		s.Phase, plan = "cleaning", effect("clean", 0)
	case "resume":
		if live || s.Phase == "done" {
			return refuse()
		}
		s.Phase, s.Why, plan = "working", "", effect(durable.EffectReconcile, 0)
	case "made":
		s.Step = in.Event.N
		s, plan = onward(s)
	case "cleaned":
		s.Phase, s.Step = "cancelled", 0
	case "reconciled":
		s.Step = in.Event.N
		switch s.Phase {
		case "working":
			s, plan = onward(s)
		case "cleaning":
			plan = effect("clean", 0)
		}
	case "failed":
		s.Phase, s.Why = "failed", in.Event.Why
	default:
		return refuse()
	}
	live = s.Phase == "working" || s.Phase == "waiting" || s.Phase == "cleaning"
	return durable.Step[toyState]{
		State: s, Plan: plan, Keep: keep, Terminal: !live, BusyKey: "bench",
		Events: []durable.EventDraft{{Kind: "toy.changed"}},
	}, nil
}

func onward(s toyState) (toyState, []durable.EffectPlan) {
	if s.Step >= s.Steps {
		s.Phase = "done"
		return s, nil
	}
	return s, effect("make", s.Step+1)
}

func effect(kind string, n int) []durable.EffectPlan {
	data, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	return []durable.EffectPlan{{Kind: kind, Data: data}}
}

func numberOf(e durable.Effect) (n int) {
	if err := json.Unmarshal(e.Data, &n); err != nil {
		panic(err)
	}
	return n
}

// world is the machine on which things are made. It outlives every process.
type world struct {
	mu     sync.Mutex
	made   map[string]int  // thing → how often it was made
	busy   map[string]bool // "RECORD@PID" of performers at work
	faults []string        // what must never happen and did
}

func newWorld() *world { return &world{made: map[string]int{}, busy: map[string]bool{}} }

func (w *world) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *world) things() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.made))
}

var errKilled = errors.New("the process was killed")

// hands are one process's performer.
type hands struct {
	w   *world
	pid int
	// pause stands at every boundary of an effect; what it says ends the effect.
	// nil = go on.
	pause func(ctx context.Context, at string, act durable.Act[toyState]) error
	// dead: a killed process does nothing to the world any more.
	dead func() bool
	// find overrides Inspect; reconcileErr fails Reconcile.
	find         func(durable.Act[toyState]) (durable.Finding, error)
	reconcileErr error
}

func (h *hands) at(ctx context.Context, at string, act durable.Act[toyState]) error {
	if h.pause == nil {
		return nil
	}
	return h.pause(ctx, at, act)
}

// touch does something to the world, if the process lives.
func (h *hands) touch(fn func()) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.dead != nil && h.dead() {
		return errKilled
	}
	fn()
	return nil
}

func (h *hands) work(record string, fn func() error) error {
	key := fmt.Sprintf("%s@%d", record, h.pid)
	if err := h.touch(func() {
		for other := range h.w.busy {
			if strings.HasPrefix(other, record+"@") {
				h.w.fault("two effects of %s at once", record)
			}
		}
		h.w.busy[key] = true
	}); err != nil {
		return err
	}
	err := fn()
	_ = h.touch(func() { delete(h.w.busy, key) }) // a kill has done it
	return err
}

func (h *hands) Perform(ctx context.Context, act durable.Act[toyState]) (e toyEvent, err error) {
	err = h.work(act.RecordID, func() error {
		if err := h.at(ctx, "begin", act); err != nil {
			return err
		}
		if act.Effect.Kind == "clean" {
			e, err = h.clean(ctx, act)
		} else {
			e, err = h.makeOne(ctx, act)
		}
		return err
	})
	return e, err
}

func (h *hands) makeOne(ctx context.Context, act durable.Act[toyState]) (toyEvent, error) {
	n := numberOf(act.Effect)
	thing := thingOf(act, n)
	if err := act.Own(ctx, thing); err != nil {
		return toyEvent{}, err
	}
	act.Report(berth.Progress{Stage: "make", Done: int64(n), Total: int64(act.State.Steps)})
	if err := h.at(ctx, "owned", act); err != nil {
		return toyEvent{}, err
	}
	err := h.touch(func() {
		if h.w.made[thing]++; h.w.made[thing] > 1 {
			h.w.fault("%s was made twice", thing)
		}
	})
	if err != nil {
		return toyEvent{}, err
	}
	return toyEvent{Kind: "made", N: n}, h.at(ctx, "made", act)
}

func thingOf(act durable.Act[toyState], n int) string {
	return fmt.Sprintf("%s/%s%d", act.RecordID, act.State.Tag, n)
}

func (h *hands) clean(ctx context.Context, act durable.Act[toyState]) (toyEvent, error) {
	for _, thing := range slices.Backward(act.Owned) { // what is left of a failed one has no hole
		if err := h.touch(func() { delete(h.w.made, thing) }); err != nil {
			return toyEvent{}, err
		}
		if err := h.at(ctx, "cleaned", act); err != nil {
			return toyEvent{}, err
		}
	}
	return toyEvent{Kind: "cleaned"}, nil
}

func (h *hands) Inspect(ctx context.Context, act durable.Act[toyState]) (f durable.Finding, err error) {
	err = h.work(act.RecordID, func() error {
		if err := h.at(ctx, "inspect", act); err != nil {
			return err
		}
		if h.find != nil {
			f, err = h.find(act)
			return err
		}
		f.Verdict = durable.VerdictAbsent
		if act.Effect.Kind == "make" {
			return h.touch(func() {
				if h.w.made[thingOf(act, numberOf(act.Effect))] > 0 {
					f.Verdict = durable.VerdictCompleted
				}
			})
		}
		return nil
	})
	return f, err
}

func (h *hands) Reconcile(ctx context.Context, act durable.Act[toyState], _ *durable.Finding) (e toyEvent, err error) {
	e.Kind = "reconciled"
	err = h.work(act.RecordID, func() error {
		if err := errors.Join(h.at(ctx, "reconcile", act), h.reconcileErr); err != nil {
			return err
		}
		return h.touch(func() {
			for h.w.made[thingOf(act, e.N+1)] > 0 {
				e.N++
			}
		})
	})
	return e, err
}

// rest lets time pass: in a bubble it costs nothing, and all else comes to its
// end meanwhile.
func rest(d time.Duration) { <-time.After(d) }
