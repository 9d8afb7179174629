package berth

import "time"

// Phase is where an operation stands.
//
//	checking ─► awaiting_consent ─► checking ─► awaiting_host_step ─► preparing ─► pulling ─► verifying ─► activating ─► ready
//	                                   │  └► awaiting_relogin, awaiting_reboot (go on by themselves)
//	                                   └► removing ─► removed
//	any live phase ─► cancelling ─► cancelled; any ─► failed; failed and cancelled can be resumed
type Phase string

// The phases.
const (
	PhaseChecking         Phase = "checking"
	PhaseAwaitingConsent  Phase = "awaiting_consent"
	PhaseAwaitingHostStep Phase = "awaiting_host_step"
	PhaseAwaitingRelogin  Phase = "awaiting_relogin"
	PhaseAwaitingReboot   Phase = "awaiting_reboot"
	PhasePreparing        Phase = "preparing"
	PhasePulling          Phase = "pulling"
	PhaseVerifying        Phase = "verifying"
	PhaseActivating       Phase = "activating"
	PhaseRemoving         Phase = "removing"
	PhaseReady            Phase = "ready"
	PhaseRemoved          Phase = "removed"
	PhaseCancelling       Phase = "cancelling"
	PhaseCancelled        Phase = "cancelled"
	PhaseFailed           Phase = "failed"
)

// Valid reports whether the phase is one of the above.
func (p Phase) Valid() bool {
	switch p {
	case PhaseChecking, PhaseAwaitingConsent, PhaseAwaitingHostStep, PhaseAwaitingRelogin, PhaseAwaitingReboot,
		PhasePreparing, PhasePulling, PhaseVerifying, PhaseActivating, PhaseRemoving, PhaseReady, PhaseRemoved,
		PhaseCancelling, PhaseCancelled, PhaseFailed:
		return true
	}
	return false
}

// Terminal reports whether the operation is over. A failed or cancelled one can
// still be resumed.
func (p Phase) Terminal() bool {
	switch p {
	case PhaseReady, PhaseRemoved, PhaseCancelled, PhaseFailed:
		return true
	}
	return false
}

// NeedsPerson reports whether nothing goes on without a person.
func (p Phase) NeedsPerson() bool {
	switch p {
	case PhaseAwaitingConsent, PhaseAwaitingHostStep, PhaseAwaitingRelogin, PhaseAwaitingReboot:
		return true
	}
	return false
}

// Operation is a durable change of an environment or an installation.
type Operation struct {
	V    int           `json:"v"`
	ID   string        `json:"id"`
	Kind OperationKind `json:"kind"`
	// Target, Release and RetainModels are what was asked for.
	Target       Target `json:"target"`
	Release      string `json:"release,omitempty"` // id; "" = of the environment, or a removal
	RetainModels bool   `json:"retain_models,omitempty"`

	Phase      Phase  `json:"phase"`
	Checkpoint Phase  `json:"checkpoint,omitempty"` // the last work phase; "" = none was entered
	Effect     string `json:"effect,omitempty"`     // what is being done now: probe, pull, …; "" = nothing
	Revision   int64  `json:"revision"`
	Epoch      int64  `json:"epoch"`
	// PlanDigest is what would be done, ApprovedDigest what a person agreed to,
	// CarriedDigest that of a later probe under which consented work went on.
	PlanDigest     string    `json:"plan_digest,omitempty"`
	ApprovedDigest string    `json:"approved_digest,omitempty"`
	CarriedDigest  string    `json:"carried_digest,omitempty"`
	Consent        *Consent  `json:"consent,omitempty"` // nil = work has not begun
	Plan           *Plan     `json:"plan,omitempty"`
	HostStep       *HostStep `json:"host_step,omitempty"` // handed out and not answered
	Progress       *Progress `json:"progress,omitempty"`  // of the effect that runs
	Error          *OpError  `json:"error,omitempty"`
	CancelAsked    bool      `json:"cancel_asked,omitempty"`
	FollowUp       *FollowUp `json:"follow_up,omitempty"` // what begins when it has ended
	Owner          Identity  `json:"owner"`
	Created        time.Time `json:"created_at"`
	Updated        time.Time `json:"updated_at"`
}

// Consent is what was agreed to when work first began.
type Consent struct {
	Digest   string `json:"digest"`
	Release  string `json:"release,omitempty"`
	Image    string `json:"image,omitempty"` // digest
	Manifest string `json:"manifest,omitempty"`
	Target   Target `json:"target"`
}

// OpError is why an operation failed, or why it asks again.
type OpError struct {
	Code   Code              `json:"code"`
	Detail string            `json:"detail"`
	Hint   string            `json:"hint,omitempty"`
	Facts  map[string]string `json:"facts,omitempty"`
}

// FollowUp is the setup that follows a removal (a reinstallation).
type FollowUp struct {
	Key     string `json:"key"` // of idempotency, so that a repeat finds the same setup
	Target  Target `json:"target"`
	Release string `json:"release"`
	Begun   string `json:"begun,omitempty"` // id of the setup once it has begun
}

// Progress is how far the effect that runs has come. It never goes back while
// the same effect runs.
type Progress struct {
	Stage      string `json:"stage"` // "download", "unpack", "check", …
	Done       int64  `json:"done"`
	Total      int64  `json:"total,omitempty"` // 0 = not known
	Unit       string `json:"unit,omitempty"`  // "bytes" or ""
	Note       string `json:"note,omitempty"`  // what happens now, for a person
	DoneUnpack int64  `json:"done_unpack,omitempty"`
}

// HostStep is the privileged part of an operation, handed out to the person's
// own sudo or pkexec.
type HostStep struct {
	ID               string             `json:"id"`
	Action           string             `json:"action"` // "apply" or "undo"
	Recipe           RecipeRef          `json:"recipe"`
	Parameters       HostStepParameters `json:"parameters"`
	ParametersDigest string             `json:"parameters_digest"`
	Nonce            string             `json:"nonce"`
	Revision         int64              `json:"revision"`          // of the operation when it was issued
	Request          string             `json:"request,omitempty"` // path of the request file on the host; "" = not written yet
	Result           string             `json:"result,omitempty"`  // path at which the helper leaves its result
	Command          []string           `json:"command,omitempty"` // what to run as root: the helper and the request
}

// HostStepParameters is all that the helper is told. It is a closed set: no
// command, no package name, no path.
type HostStepParameters struct {
	User       string   `json:"user"`
	Arch       string   `json:"arch"`   // x86_64 or aarch64
	Family     string   `json:"family"` // apt or dnf
	Distro     string   `json:"distro"`
	Version    string   `json:"version"`
	Components []string `json:"components"` // in the recipe's order
	// Stops is how many running containers may be stopped; -1 = it was not known.
	Stops int `json:"stops"`
	// Changes are the numbers of the recorded changes that an undo may take back.
	Changes []int64 `json:"changes,omitempty"`
}

// ReceiptOutcome is what the helper, or the person, says of a host step.
type ReceiptOutcome string

// The outcomes.
const (
	ReceiptCompleted ReceiptOutcome = "completed"
	ReceiptDeclined  ReceiptOutcome = "declined"
	ReceiptRelogin   ReceiptOutcome = "relogin_required"
	ReceiptReboot    ReceiptOutcome = "reboot_required"
	ReceiptFailed    ReceiptOutcome = "failed"
)

// Valid reports whether the outcome is one of the above.
func (o ReceiptOutcome) Valid() bool {
	switch o {
	case ReceiptCompleted, ReceiptDeclined, ReceiptRelogin, ReceiptReboot, ReceiptFailed:
		return true
	}
	return false
}

// Receipt answers a host step. It is a claim: what it says was done is looked
// for on the machine.
type Receipt struct {
	StepID           string         `json:"step_id"`
	Nonce            string         `json:"nonce"`
	Revision         int64          `json:"revision"`
	Action           string         `json:"action"`
	Recipe           RecipeRef      `json:"recipe"`
	ParametersDigest string         `json:"parameters_digest"`
	Outcome          ReceiptOutcome `json:"outcome"`
	LogTail          string         `json:"log_tail,omitempty"` // last 16 KiB
	ErrorCode        string         `json:"error_code,omitempty"`
	Steps            []ReceiptStep  `json:"steps,omitempty"`
}

// ReceiptStep is one step of a receipt.
type ReceiptStep struct {
	ID       string `json:"id"`
	Status   string `json:"status"` // satisfied, applied, failed or not_run
	ExitCode int    `json:"exit_code,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// BeginOperation is the body of POST /v1/operations.
type BeginOperation struct {
	Kind         OperationKind `json:"kind"`
	Target       Target        `json:"target"`
	Release      string        `json:"release,omitempty"`       // id; "" = the newest of the engine
	RetainModels bool          `json:"retain_models,omitempty"` // removal
	Approve      string        `json:"approve,omitempty"`       // digest of a plan that was seen; "" = ask
	// Reinstall removes, keeps models, then sets up Release. Approve is of the
	// removal; "" = of what it would be now. The setup asks its own.
	Reinstall bool `json:"reinstall,omitempty"`
}

// ResumeOperation is the body of POST /v1/operations/{id}/resume: it approves a
// plan, or goes on after a wait, a failure or a cancellation.
type ResumeOperation struct {
	Revision int64  `json:"revision"` // as read
	Approve  string `json:"approve,omitempty"`
}

// Operations answers GET /v1/operations.
type Operations struct {
	V          int         `json:"v"`
	Operations []Operation `json:"operations"` // never nil; the newest first
	Next       string      `json:"next,omitempty"`
}

// ResetResult answers POST /v1/operations/reset.
type ResetResult struct {
	V        int    `json:"v"`
	Archive  string `json:"archive"`  // name of what the finished operations were moved into
	Archived int    `json:"archived"` // how many
}

// Diagnostics is a read-only report of one host for a person who helps. It
// carries no secret.
type Diagnostics struct {
	V             int            `json:"v"`
	Version       string         `json:"version"`
	At            time.Time      `json:"at"`
	Facts         *Facts         `json:"facts,omitempty"`
	FactsError    string         `json:"facts_error,omitempty"`
	Installations []Installation `json:"installations"`
	Operations    []Operation    `json:"operations"`
	HostChanges   []HostChange   `json:"host_changes"` // what the host steps recorded
	Releases      []ReleaseRef   `json:"releases"`
}

// HostChange is one thing that a host step changed, as the helper recorded it.
type HostChange struct {
	Step   string    `json:"step"`
	Kind   string    `json:"kind"` // file, package, group or service
	Path   string    `json:"path,omitempty"`
	Before string    `json:"before,omitempty"` // sha256 of a file, version of a package; "" = it was absent
	After  string    `json:"after,omitempty"`
	Name   string    `json:"name,omitempty"`
	Value  string    `json:"value,omitempty"` // of a group: the user who was added
	User   string    `json:"user,omitempty"`  // who had it done
	Seq    int64     `json:"seq,omitempty"`   // its number in the helper's record
	At     time.Time `json:"at"`
}
