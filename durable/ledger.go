package durable

import (
	"encoding/json"
	"strconv"
	"strings"

	"berth"
)

const (
	// MaxPlan is how many effects one commit plans at most.
	MaxPlan = 64
	// MaxOwned is how many resource ids a record owns at most.
	MaxOwned = 4096
	// EffectsKept bounds the ledger of a record that lives for years: effects
	// that are no longer pending are forgotten once the record is that many
	// revisions further, at the next commit that plans some.
	EffectsKept = 200
)

// LedgerChange is what a commit does to the ledger of its record, in the same
// transaction.
type LedgerChange struct {
	// Plan are effects to perform, after those that are kept.
	Plan []EffectPlan
	// Answered is the pending effect that the commit settles as done or failed;
	// nil = none. When it is not pending the whole commit is CodeConflict.
	Answered *EffectMark
	// Keep leaves the other pending effects pending; else they are superseded,
	// as they always are by a commit that makes the record terminal.
	Keep bool
	// Progress is the last one of effects, by id, which the commit settles.
	Progress map[string]berth.Progress
}

// EffectMark moves one effect in the ledger, see EffectStatus.
type EffectMark struct {
	ID     string
	Status EffectStatus
	Result json.RawMessage // of a done one; nil = none
	Error  string          // of a failed or unknown one
	// Progress is the last one; nil leaves what the ledger has.
	Progress *berth.Progress
}

// EffectID is the id of the n-th effect, from 1, that the commit to a revision
// planned.
func EffectID(revision int64, n int) string {
	return strconv.FormatInt(revision, 10) + "." + strconv.Itoa(n)
}

// ParseEffectID gives what an EffectID was made of.
func ParseEffectID(id string) (revision int64, n int, err error) {
	r, place, ok := strings.Cut(id, ".")
	if ok {
		if revision, err = strconv.ParseInt(r, 10, 64); err == nil {
			n, err = strconv.Atoi(place)
		}
	}
	if !ok || err != nil || EffectID(revision, n) != id {
		return 0, 0, berth.Errorf(berth.CodeInvalidArgument, "%q is not the id of an effect", id)
	}
	return revision, n, nil
}

// Planned are the effects that a commit to that revision plans.
func Planned(plan []EffectPlan, revision int64) []Effect {
	effects := make([]Effect, len(plan))
	for i, p := range plan {
		effects[i] = Effect{ID: EffectID(revision, i+1), Kind: p.Kind, Data: p.Data, Status: EffectPlanned, Revision: revision}
	}
	return effects
}

// Apply decides what becomes of the pending effects of a record, which the
// commit makes next: those that change, and those that are new.
func (l *LedgerChange) Apply(pending []Effect, next Record) (changed, planned []Effect, err error) {
	if l == nil {
		return nil, nil, nil
	}
	answered := l.Answered == nil
	for _, e := range pending {
		switch {
		case l.Answered != nil && e.ID == l.Answered.ID:
			if e, err = e.Marked(*l.Answered, berth.Identity{}); err != nil {
				return nil, nil, err
			}
			answered = true
		case l.Keep && !next.Terminal:
			continue
		default:
			e.Status = EffectSuperseded
		}
		if p, ok := l.Progress[e.ID]; ok {
			e.Progress = &p
		}
		changed = append(changed, e)
	}
	if !answered {
		return nil, nil, NotPending(next.Kind, next.ID, l.Answered.ID)
	}
	return changed, Planned(l.Plan, next.Revision), nil
}

// Marked gives the effect after a mark by performer, or the refusal. What is
// settled stays so. Started again means: by another performer, after a look.
func (e Effect) Marked(m EffectMark, performer berth.Identity) (Effect, error) {
	if !e.Status.Pending() {
		return Effect{}, berth.Errorf(berth.CodeConflict, "the effect %s is %s", e.ID, e.Status).WithFact("status", string(e.Status))
	}
	if e.Status == EffectPlanned && m.Status == EffectUnknown {
		return Effect{}, berth.Errorf(berth.CodeConflict, "the effect %s has not started", e.ID).WithFact("status", string(e.Status))
	}
	e.Status, e.Error = m.Status, m.Error
	if m.Result != nil {
		e.Result = m.Result
	}
	if m.Progress != nil {
		e.Progress = m.Progress
	}
	if m.Status == EffectStarted {
		e.Performer = performer
	}
	return e, nil
}

// Validate checks what can be checked without the store.
func (m EffectMark) Validate() error {
	if _, _, err := ParseEffectID(m.ID); err != nil {
		return err
	}
	switch m.Status {
	case EffectStarted, EffectDone, EffectFailed, EffectUnknown:
	default:
		return berth.Errorf(berth.CodeInvalidArgument, "an effect cannot be marked %q", m.Status)
	}
	if m.Result != nil {
		if err := validState(0, m.Result); err != nil {
			return err
		}
	}
	if len(m.Error) > MaxState {
		return berth.Errorf(berth.CodeTooLarge, "the error of an effect has %d bytes; at most %d are allowed", len(m.Error), MaxState)
	}
	return nil
}

func (l *LedgerChange) validate(terminal bool) error {
	if l == nil {
		return nil
	}
	if l.Answered != nil {
		if err := l.Answered.Validate(); err != nil {
			return err
		}
		if l.Answered.Status != EffectDone && l.Answered.Status != EffectFailed {
			return berth.Errorf(berth.CodeInvalidArgument, "an answered effect is done or failed, not %s", l.Answered.Status)
		}
	}
	return validPlan(l.Plan, terminal)
}

func validPlan(plan []EffectPlan, terminal bool) error {
	if len(plan) > MaxPlan {
		return berth.Errorf(berth.CodeInvalidArgument, "%d effects are planned; at most %d are allowed", len(plan), MaxPlan)
	}
	if terminal && len(plan) > 0 {
		return berth.Errorf(berth.CodeInvalidArgument, "an ended record cannot have effects planned")
	}
	for _, p := range plan {
		if err := validNames(named{"kind of an effect", p.Kind}); err != nil {
			return err
		}
		if p.Data != nil {
			if err := validState(0, p.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// ValidateOwn checks the arguments of an Own.
func ValidateOwn(kind, id string, resources []string) error {
	if err := validNames(named{"kind", kind}, named{"id", id}); err != nil {
		return err
	}
	for _, r := range resources {
		if err := validNames(named{"id of a resource", r}); err != nil {
			return err
		}
	}
	return nil
}

// Performs is nil when owner, with that epoch, may perform r's effects and own
// resources for it: r was neither taken over nor written by another process.
func (r Record) Performs(epoch int64, owner berth.Identity) error {
	if r.Epoch != epoch {
		return guard(r, r.Revision, epoch)
	}
	if r.Owner != owner {
		return stale(berth.CodeFenced, r, "%s %s is owned by process %d now", r.Kind, r.ID, r.Owner.PID)
	}
	if r.Terminal {
		return berth.Errorf(berth.CodeConflict, "%s %s has ended", r.Kind, r.ID).WithFact("holder", r.ID)
	}
	return nil
}

// NotPending is the refusal of an answer to an effect that no longer waits for
// one, or that the record never had.
func NotPending(kind, id, effect string) error {
	return berth.Errorf(berth.CodeConflict, "the effect %s of %s %s is not pending", effect, kind, id).WithFact("effect", effect)
}

// OwnsTooMuch is the refusal of more resources than a record may own.
func OwnsTooMuch(kind, id string) error {
	return berth.Errorf(berth.CodeTooLarge, "%s %s would own more than %d resources", kind, id, MaxOwned)
}
