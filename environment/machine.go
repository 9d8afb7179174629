package environment

import (
	"encoding/json"

	"berth"
	"berth/durable"
)

// KindOperation is the kind of an operation's record, KindInstallation that of
// an installation's. Both lie in the machine store.
const (
	KindOperation    = "operation"
	KindInstallation = "installation"
)

const operationSchema = 1

// effectKind is what an operation asks to be done.
type effectKind string

const (
	effProbe          effectKind = "probe"                 // facts and judgement
	effReconcile      effectKind = durable.EffectReconcile // what does the machine show, before going on
	effHostStep       effectKind = "host_step"             // write the request; nobody is root here
	effAwaitReceipt   effectKind = "await_receipt"         // until the result file appears, or a receipt comes from outside
	effWithdraw       effectKind = "withdraw_step"         // take the request back, unless the helper has it already
	effVerifyHostStep effectKind = "verify_host_step"      // the helper's word never counts
	effWatchRelogin   effectKind = "watch_relogin"
	effWatchReboot    effectKind = "watch_reboot"
	effPrepare        effectKind = "prepare" // a container sees the GPU
	effPull           effectKind = "pull"
	effVerify         effectKind = "verify"
	effUnload         effectKind = "unload" // engines let go, containers are gone
	effActivate       effectKind = "activate"
	effRemove         effectKind = "remove"
	effFollowUp       effectKind = "follow_up" // begin the setup of a reinstallation
	effCleanup        effectKind = "cleanup"
)

// waiting reports whether the effect only waits for a person: nothing is being
// done then, and an operation shows no effect.
func (k effectKind) waiting() bool {
	return k == effAwaitReceipt || k == effWatchRelogin || k == effWatchReboot
}

// eventKind is what happened to an operation.
type eventKind string

const (
	// Answers of effects.
	evPlanned      eventKind = "planned"
	evReconciled   eventKind = "reconciled"
	evHandedOut    eventKind = "handed_out"
	evWithdrawn    eventKind = "withdrawn"
	evHostVerified eventKind = "host_verified"
	evWaitOver     eventKind = "wait_over"
	evPrepared     eventKind = "prepared"
	evPulled       eventKind = "pulled"
	evVerified     eventKind = "verified"
	evUnloaded     eventKind = "unloaded"
	evActivated    eventKind = "activated"
	evRemoved      eventKind = "removed"
	evFollowed     eventKind = "followed"
	evCleaned      eventKind = "cleaned"
	evFailed       eventKind = "failed"
	// evReceipt comes from outside, or from the result file as an answer.
	evReceipt eventKind = "receipt"
	// From outside.
	evApprove eventKind = "approve"
	evResume  eventKind = "resume"
	evCancel  eventKind = "cancel"
)

// opEvent is one event; which of the fields are set goes with the kind.
type opEvent struct {
	Kind eventKind `json:"kind"`

	Plan *berth.Plan `json:"plan,omitempty"` // planned, host_verified; without its facts
	// Step is the host step that a plan asks for (planned, with fresh id and
	// nonce; nil = none), or where it was handed out (handed_out).
	Step  *berth.HostStep `json:"step,omitempty"`
	Pools poolState       `json:"pools,omitempty"` // planned, host_verified: what explains a failed start of Docker
	Route gpuRoute        `json:"route,omitempty"` // planned, host_verified

	Approve  string `json:"approve,omitempty"`  // approve, resume: a digest
	Revision int64  `json:"revision,omitempty"` // approve, resume: as the caller read it

	Receipt *berth.Receipt `json:"receipt,omitempty"`
	Look    *sighting      `json:"look,omitempty"`    // reconciled
	BootID  string         `json:"boot_id,omitempty"` // planned, host_verified, reconciled: the boot that was looked at
	Error   *berth.OpError `json:"error,omitempty"`   // failed
	Effect  effectKind     `json:"effect,omitempty"`  // failed: which one
	Begun   string         `json:"begun,omitempty"`   // followed: id of the setup
	// Versions under which the ladder was climbed (verified).
	Versions map[string]string `json:"versions,omitempty"`
}

// sighting is what the machine shows of an operation that is resumed or taken over.
type sighting struct {
	Relogin bool `json:"relogin,omitempty"` // the group is not effective yet
	Reboot  bool `json:"reboot,omitempty"`  // the machine still runs the boot that was to end
	// Verdict on the effect that a dead owner had begun, which Effect names; "" =
	// none was begun.
	Verdict durable.Verdict `json:"verdict,omitempty"`
	Effect  effectKind      `json:"effect,omitempty"`
	Detail  string          `json:"detail,omitempty"`
}

// gpuRoute is how a container is given its GPU: the name of a CDI device, or by
// the nvidia runtime. It is chosen from what the daemon says, and never falls
// back by itself.
type gpuRoute string

const (
	routeNone    gpuRoute = ""
	routeRuntime gpuRoute = "runtime"
)

// poolState says whether daemon.json sets address pools of its own.
type poolState string

const (
	poolsUnknown poolState = ""
	poolsSet     poolState = "set"
	poolsUnset   poolState = "unset"
)

// opState is an operation as it is kept. What the kernel keeps (revision, epoch,
// owner, times) and what is not state (progress) is zero in Op.
type opState struct {
	Op berth.Operation `json:"op"`
	// Next is the host step of the plan, until it is handed out.
	Next *berth.HostStep `json:"next_step,omitempty"`
	// Nonces were answered. Each counts once, for ever.
	Nonces []string `json:"nonces,omitempty"`
	// Claim is what the receipt said that is now looked at; "" = none.
	Claim berth.ReceiptOutcome `json:"claim,omitempty"`
	// Last is the host step that was answered or withdrawn last: its files are
	// what a cleanup takes away.
	Last   *berth.HostStep `json:"last_step,omitempty"`
	BootID string          `json:"boot_id,omitempty"` // at the last look
	// RebootAsked: the boot of BootID has to end first.
	RebootAsked bool      `json:"reboot_asked,omitempty"`
	Pools       poolState `json:"pools,omitempty"`
	Route       gpuRoute  `json:"route,omitempty"`
	// Versions are those under which the ladder was climbed last.
	Versions map[string]string `json:"versions,omitempty"`
	// Agreed is the plan that work began under; what is privileged in it may be
	// done without asking again.
	Agreed *berth.Plan `json:"agreed,omitempty"`
}

// operations is the machine of operations.
//
//	begin ─► checking ──planned──► awaiting_consent ──approve──► checking ──planned, same digest──┐
//	            ▲  │                                                                              │
//	            │  ├─ only re-login lacks ─► awaiting_relogin ─┐                                  │
//	            │  └─ other blockers ─► failed                 │ seen to be over, or resume       │
//	            ├──────────────────────────────────────────────┘                                  │
//	            │                    awaiting_reboot ──────────┘ (as above)                       │
//	            │                          ▲                                                      │
//	            │                          │ says so, and it lacks                                ▼
//	            │        awaiting_host_step: host_step ─► await_receipt ─► verify_host_step ◄── work begins
//	            │                                                            │                    │
//	            │                         ┌── engine, environment ───────────┴────────────────────┤
//	            │                         ▼                                                       │ removal
//	            │                     preparing ─ engine ─► pulling ─► verifying ─► activating    ▼
//	            │                         └─ environment ─────────────►    │      (unload if      removing: unload ─► remove
//	            │                                                          │       an update)     │
//	            │                                                          ▼            ▼         ▼
//	            │                                                        ready        ready     removed (─► follow_up)
//	            │
//	            └─ resume ── failed, cancelled ◄─ cleanup ─ cancelling ◄─ cancel ─ any live phase
//
// Work that had begun goes on from its checkpoint instead of from the top when
// what was agreed to still covers the fresh plan and nothing privileged is new.
// A cancel is only noted while the helper may run, during activation and while
// a removal deletes; then it is applied at the next boundary, or dropped when
// the work won.
func operations() durable.Machine[opState, opEvent] {
	return durable.Machine[opState, opEvent]{
		Kind:    KindOperation,
		Schema:  operationSchema,
		Reduce:  reduce,
		Answers: answers,
		Failed:  failedEvent,
	}
}

// answerOf names the event that each effect is answered with. What the helper
// left may come while its request is being taken back.
var answerOf = map[effectKind][]eventKind{
	effProbe:          {evPlanned},
	effReconcile:      {evReconciled},
	effHostStep:       {evHandedOut},
	effAwaitReceipt:   {evReceipt},
	effWithdraw:       {evWithdrawn, evReceipt},
	effVerifyHostStep: {evHostVerified},
	effWatchRelogin:   {evWaitOver},
	effWatchReboot:    {evWaitOver},
	effPrepare:        {evPrepared},
	effPull:           {evPulled},
	effVerify:         {evVerified},
	effUnload:         {evUnloaded},
	effActivate:       {evActivated},
	effRemove:         {evRemoved},
	effFollowUp:       {evFollowed},
	effCleanup:        {evCleaned},
}

func answers(effect string, e opEvent) bool {
	if e.Kind == evFailed || e.Kind == evReconciled {
		return true // any effect can fail, and any can be found after a crash
	}
	for _, k := range answerOf[effectKind(effect)] {
		if k == e.Kind {
			return true
		}
	}
	return false
}

func failedEvent(effect string, err *berth.Error) opEvent {
	return opEvent{Kind: evFailed, Effect: effectKind(effect), Error: opError(err)}
}

// opError is err as an operation keeps it.
func opError(err error) *berth.OpError {
	e := berth.AsError(err)
	return &berth.OpError{Code: e.Code, Detail: e.Detail, Hint: e.Hint, Facts: e.Facts}
}

// busyKey keeps two operations off one host: they would share its Docker, its
// group and its images.
func busyKey(host string) string { return "environment:" + host }

func effectPlans(kinds ...effectKind) []durable.EffectPlan {
	out := make([]durable.EffectPlan, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, durable.EffectPlan{Kind: string(k), Data: json.RawMessage(nil)})
	}
	return out
}
