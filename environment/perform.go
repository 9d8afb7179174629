package environment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"berth"
	"berth/durable"
)

// FactSource looks at one host; *Prober is one.
type FactSource interface {
	// Probe may join a look that is under way.
	Probe(ctx context.Context) (berth.Facts, error)
	// ProbeAfter begins to look after the call.
	ProbeAfter(ctx context.Context) (berth.Facts, error)
}

// Containers is Docker on one host, as this room needs it. It may be called
// before there is a Docker: then each call is CodeDockerUnreachable.
type Containers interface {
	// ImagePresent asks Docker whether the image is there by its digest.
	// CodeIdentityMismatch: something else answers to the reference.
	ImagePresent(ctx context.Context, image berth.Image) (bool, error)
	// Pull fetches an image by digest and looks that it is that. report never
	// blocks; its progress is of the whole image.
	Pull(ctx context.Context, image berth.Image, report func(berth.Progress)) error
	// Check runs an image to its end, with a GPU, and removes the container. A
	// program that fails is a result; a container that cannot be started is
	// CodeCheckFailed.
	Check(ctx context.Context, c Check) (CheckResult, error)
	// ImageUsers are the ids of all containers, running or not, that use the image.
	ImageUsers(ctx context.Context, image berth.Image) ([]string, error)
	// RemoveImage removes an image by digest, never by force. One that is not
	// there is no error; one in use is CodeResourceInUse.
	RemoveImage(ctx context.Context, image berth.Image) error
	// Owned are the ids of the containers of an engine that berth's own journal
	// lists.
	Owned(ctx context.Context, engine string) ([]string, error)
	// RemoveOwned stops and removes those, and no others. CodeStopUnconfirmed when nobody can say that
	// one stopped: it is not removed then.
	RemoveOwned(ctx context.Context, engine string) error
	// RequireCUDA reads NVIDIA_REQUIRE_CUDA of an image from its registry, without
	// pulling it; "" = it sets none.
	RequireCUDA(ctx context.Context, image berth.Image) (string, error)
}

// Check is one run of a check image.
type Check struct {
	Image berth.Image
	Argv  []string
	GPU   string // UUID
	// CDIDevice is the device that gives it ("nvidia.com/gpu=…"); "" = the nvidia
	// runtime does.
	CDIDevice string
}

// CheckResult is what it printed.
type CheckResult struct {
	ExitCode       int
	Stdout, Stderr string
}

// Engines is what loads models on a host. A nil one has loaded none.
type Engines interface {
	// Hold keeps loads of the engine off until release is called.
	Hold(ctx context.Context, engine string) (release func(), err error)
	// Unload ends everything that the engine has loaded, each stop confirmed;
	// CodeStopUnconfirmed names what is in doubt.
	Unload(ctx context.Context, engine string) error
	// RemoveCaches removes what a release cached. Nothing there is no error.
	RemoveCaches(ctx context.Context, release string) error
	// RemoveModels removes the models of the host.
	RemoveModels(ctx context.Context) error
}

// Releases are the releases that are known without a network.
type Releases interface {
	// Get is CodeReleaseNotFound for one that is not known.
	Get(id string) (berth.Release, error)
	// Known is CodeReleaseNotFound for an engine that has none.
	Known(engine string) error
	// Latest is the newest of an engine for a platform, CodeReleaseNotFound.
	Latest(engine, platform string) (berth.Release, error)
	// LatestForCPU is the newest that needs no GPU, CodeReleaseNotFound.
	LatestForCPU(engine, platform string) (berth.Release, error)
}

// HostSteps is what this room knows of the privileged helper: the form of its
// files. Nothing here is root.
type HostSteps interface {
	// Recipe of the helper of this build.
	Recipe() berth.RecipeRef
	// ParametersDigest as the helper computes it again.
	ParametersDigest(p berth.HostStepParameters) (string, error)
	// Files are the names of a step's request and result in its directory.
	Files(stepID string) (request, result string)
	// Request is the content of the request file.
	Request(operation string, step berth.HostStep, at time.Time) ([]byte, error)
	// TrustHelper says why somebody else than root and the user could change the
	// program before root runs it; nil = nobody can.
	TrustHelper(ctx context.Context, g Guest, program string, uid int) error
	// Receipt reads a result file.
	Receipt(data []byte) (berth.Receipt, error)
	// Undo reads what the helper recorded on the host and that was not taken back,
	// in the order in which it would be, with what would become of it. None = an
	// empty list.
	Undo(ctx context.Context, now HostState) ([]UndoEntry, error)
}

// HostState shows single things of a host as they are now: what a host step may
// have changed. An error says that it cannot be known.
type HostState interface {
	// File is the content of a system file, CodeNotFound where there is none.
	File(ctx context.Context, path string) ([]byte, error)
	// Package is the version of an installed package; "" = it is not installed.
	Package(ctx context.Context, name string) (version string, err error)
	// Unit is what systemd says of a unit's start at boot: "enabled", "disabled" …
	Unit(ctx context.Context, name string) (string, error)
	// Member reports whether the group files list the user in the group.
	Member(ctx context.Context, group, user string) (bool, error)
}

// performer does what operations ask for, on one host each.
type performer struct {
	cfg    Config
	hosts  map[string]*provisioner
	insts  installations
	follow func(ctx context.Context, f berth.FollowUp) (id string, err error)
}

type opAct = durable.Act[opState]

var _ durable.Performer[opState, opEvent] = (*performer)(nil)

// at is the provisioner of a host. CodeUnsupported where there is none.
func (p *performer) at(host string) (*provisioner, error) {
	h, ok := p.hosts[host]
	if !ok {
		return nil, berth.Errorf(berth.CodeUnsupported, "there is no host %.80q", host)
	}
	if h.Unsupported != "" {
		return nil, berth.Errorf(berth.CodeUnsupported, "%s", h.Unsupported)
	}
	return h, nil
}

// Perform does one effect.
func (p *performer) Perform(ctx context.Context, act opAct) (opEvent, error) {
	k := effectKind(act.Effect.Kind)
	switch k {
	case effProbe:
		return p.probe(ctx, act.State)
	case effFollowUp:
		id, err := p.follow(ctx, *act.State.Op.FollowUp)
		return opEvent{Kind: evFollowed, Begun: id}, err
	}
	h, err := p.at(act.State.Op.Target.Host)
	if err != nil {
		if k == effCleanup { // nothing was done on a host that nobody reaches
			return opEvent{Kind: evCleaned}, nil
		}
		return opEvent{}, err
	}
	switch k {
	case effHostStep:
		return h.handOut(ctx, act)
	case effAwaitReceipt:
		return h.awaitReceipt(ctx, act)
	case effWithdraw:
		return h.withdraw(ctx, act)
	case effVerifyHostStep:
		return p.verifyHostStep(ctx, act.State)
	case effWatchRelogin, effWatchReboot:
		return h.watch(ctx, k, act.State)
	case effPrepare:
		return h.prepare(ctx, act)
	case effPull:
		return h.pull(ctx, act)
	case effVerify:
		return h.verify(ctx, act)
	case effUnload:
		return h.unload(ctx, act)
	case effActivate:
		return p.activate(ctx, act)
	case effRemove:
		return p.remove(ctx, h, act)
	case effCleanup:
		return h.cleanUp(ctx, act)
	}
	return opEvent{}, berth.Errorf(berth.CodeInternal, "nobody can do %q", k)
}

// Inspect looks what became of an effect whose performer died. Most can simply
// be done again; what cannot be told is looked at by the probe that follows.
func (p *performer) Inspect(ctx context.Context, act opAct) (durable.Finding, error) {
	op := act.State.Op
	absent := durable.Finding{Verdict: durable.VerdictAbsent, Detail: "it can be done again"}
	switch effectKind(act.Effect.Kind) {
	case effPull:
		h, err := p.at(op.Target.Host)
		if err != nil || op.Plan == nil || op.Plan.Image == nil {
			return absent, err
		}
		there, err := h.Containers.ImagePresent(ctx, *op.Plan.Image)
		switch {
		case err != nil && berth.AsError(err).Code == berth.CodeIdentityMismatch:
			return durable.Finding{Verdict: durable.VerdictForeign, Detail: err.Error()}, nil
		case err != nil:
			return durable.Finding{Verdict: durable.VerdictUnknown, Detail: err.Error()}, nil
		case there:
			return durable.Finding{Verdict: durable.VerdictCompleted, Detail: "the image is there"}, nil
		}
	case effActivate:
		inst, _, err := p.insts.get(ctx, op.Target)
		if err != nil {
			return durable.Finding{}, err
		}
		if inst != nil && inst.Operation == act.RecordID && inst.Status == berth.InstallationReady && inst.Release.ID == op.Plan.Release.ID && len(inst.Superseded) == 0 {
			return durable.Finding{Verdict: durable.VerdictCompleted, Detail: "the installation is recorded"}, nil
		}
	case effRemove:
		if op.Target.Engine == "" {
			break
		}
		inst, _, err := p.insts.get(ctx, op.Target)
		if err != nil {
			return durable.Finding{}, err
		}
		if inst == nil {
			return durable.Finding{Verdict: durable.VerdictCompleted, Detail: "the installation is gone"}, nil
		}
	}
	return absent, nil
}

// Reconcile looks at the machine before an operation goes on.
func (p *performer) Reconcile(ctx context.Context, act opAct, finding *durable.Finding) (opEvent, error) {
	s := act.State
	l := &sighting{}
	if finding != nil {
		l.Verdict, l.Detail, l.Effect = finding.Verdict, finding.Detail, effectKind(act.Effect.Kind)
	}
	e := opEvent{Kind: evReconciled, Look: l}
	switch s.Op.Phase {
	case berth.PhaseRemoved, berth.PhaseCancelling:
		return e, nil // what follows needs no look
	}
	h, err := p.at(s.Op.Target.Host)
	if err != nil {
		return opEvent{}, err
	}
	facts, err := h.look(ctx, true)
	if err != nil {
		return opEvent{}, fmt.Errorf("look at %s: %w", h.Name, err)
	}
	e.BootID = facts.BootID
	l.Relogin = s.Op.Kind != berth.OperationRemove && needsRelogin(facts)
	// The boot that was to end is the one at the look that asked for it.
	l.Reboot = s.RebootAsked && facts.BootID != "" && facts.BootID == s.BootID
	return e, nil
}

// provisioner is one host with what is known to be true of it for ever.
type provisioner struct {
	Host
	steps HostSteps
	now   func() time.Time
	every time.Duration // between two looks of a wait
	log   *slog.Logger
	requirements
	nudges
}

// look reads the facts. An operation, which looks afresh, outlasts a guest that is
// replaced or died: the next one answers in a moment.
func (h *provisioner) look(ctx context.Context, afresh bool) (berth.Facts, error) {
	if !afresh {
		return h.Facts.Probe(ctx)
	}
	for try := 1; ; try++ {
		facts, err := h.Facts.ProbeAfter(ctx)
		gone := errors.Is(err, berth.CodeHostUnreachable) || errors.Is(err, berth.CodeGuestFailed)
		if !gone || try >= guestTries {
			return facts, err
		}
		if err := h.pause(ctx); err != nil {
			return berth.Facts{}, err
		}
	}
}

// guestTries bounds how long a guest that does not answer is waited for: half a
// minute, with a pause of DefaultWatchEvery after each.
const guestTries = 10

// needsRelogin reports whether all that lacks is that the group is in force.
func needsRelogin(f berth.Facts) bool {
	service := f.Docker.Service == "active" || f.Docker.Service == ""
	return !f.Docker.Reachable && f.User.UID != 0 && f.User.GroupConfigured && !f.User.GroupEffective && service
}

// routeOf chooses how a container gets the GPU: as the CDI device where the
// daemon takes such and it is described as it should be, else by the runtime that
// is configured, else not at all.
func routeOf(f berth.Facts, gpu string) gpuRoute {
	i := slices.IndexFunc(f.GPU.Cards, func(c berth.GPU) bool { return c.UUID == gpu })
	if gpu == "" || i < 0 {
		return routeNone
	}
	j := &judgement{f: &f, gpu: true, card: &f.GPU.Cards[i]}
	switch {
	case !j.gpuUsable():
		return routeNone
	case f.Docker.CDI && j.cdiReady():
		return gpuRoute(CDIKind + "=" + j.cdiName())
	}
	return routeRuntime
}
