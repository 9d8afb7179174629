package environment

import (
	"context"
	"encoding/json"

	"berth"
	"berth/durable"
)

// MaxIdempotencyKey bounds the bytes of a caller's idempotency key.
const MaxIdempotencyKey = 256

// Begin begins an operation. The same key with the same request answers the same
// operation, and created = false; with another request it is CodeConflict. Key ""
// = each call is another operation. A host on which another operation is at work
// is CodeConflict with that one as fact "holder".
func (s *Service) Begin(ctx context.Context, key string, b berth.BeginOperation) (op berth.Operation, created bool, err error) {
	if b.Reinstall {
		return s.BeginReinstall(ctx, key, b.Target, b.Release, b.Approve)
	}
	if err := s.valid(b.Kind, b.Target, b.Release); err != nil {
		return op, false, err
	}
	fingerprint, err := durable.Fingerprint(b)
	if err != nil {
		return op, false, err
	}
	return s.begin(ctx, clientKey(key), fingerprint, berth.Operation{
		Kind: b.Kind, Target: b.Target, Release: b.Release, RetainModels: b.RetainModels, ApprovedDigest: b.Approve,
	})
}

// clientKey keeps a caller's keys apart from those that berth derives.
func clientKey(key string) string {
	if key == "" {
		return ""
	}
	return "client:" + key
}

func (s *Service) begin(ctx context.Context, key, fingerprint string, op berth.Operation) (berth.Operation, bool, error) {
	if len(key) > MaxIdempotencyKey+len("client:") {
		return op, false, berth.Errorf(berth.CodeInvalidArgument, "the idempotency key has more than %d bytes", MaxIdempotencyKey)
	}
	id, err := berth.NewID(berth.OperationID, s.cfg.Now(), s.cfg.Random)
	if err != nil {
		return op, false, err
	}
	op.ID = id
	if op.FollowUp != nil {
		op.FollowUp.Key = followUpKey(id)
	}
	state := begun(op)
	step := state.commit(effProbe)
	if key == "" {
		fingerprint = ""
	}
	snap, created, err := s.runner.Begin(ctx, durable.BeginRequest[opState]{
		ID: id, State: state, Plan: step.Plan, IdempotencyKey: key, Fingerprint: fingerprint, BusyKey: step.BusyKey, Events: step.Events,
	})
	if holder := berth.AsError(err); err != nil && holder.Facts["busy_key"] != "" {
		err = berth.Errorf(berth.CodeConflict, "the operation %s is not over on %s", holder.Facts["holder"], op.Target.Host).WithFact("holder", holder.Facts["holder"]).
			WithHint("berth op show " + holder.Facts["holder"] + " says what it does or waits for; berth op cancel ends it")
	}
	if err != nil {
		return op, false, err
	}
	return view(snap), created, nil
}

// Get reads an operation, with the progress of what runs now.
func (s *Service) Get(ctx context.Context, id string) (berth.Operation, error) {
	if !berth.ValidID(berth.OperationID, id) {
		return berth.Operation{}, durable.NotFound(KindOperation, id)
	}
	snap, err := s.runner.Get(ctx, id)
	if err != nil {
		return berth.Operation{}, err
	}
	return view(snap), nil
}

// Operations lists operations, the newest first. host "" = of all hosts; then
// limit bounds the page (0 = durable.MaxPage). With a host a page may be shorter
// than that and yet not be the last.
func (s *Service) Operations(ctx context.Context, host, after string, limit int) (berth.Operations, error) {
	if host != "" {
		if err := s.onHost(host); err != nil {
			return berth.Operations{}, err
		}
	}
	list, next, err := s.runner.List(ctx, durable.Query{After: after, Limit: limit})
	if err != nil {
		return berth.Operations{}, err
	}
	out := berth.Operations{V: 1, Operations: []berth.Operation{}, Next: next}
	for _, snap := range list {
		if host == "" || snap.State.Op.Target.Host == host {
			out.Operations = append(out.Operations, view(snap))
		}
	}
	return out, nil
}

// Cancel asks an operation to end. One that is over is answered as it is.
func (s *Service) Cancel(ctx context.Context, id string) (berth.Operation, error) {
	return s.feed(ctx, id, opEvent{Kind: evCancel})
}

// Resume approves the plan that an operation asks about, or goes on after a
// wait, a failure or a cancellation. CodeRevisionMismatch when r was read at
// another revision, CodePlanChanged when r.Approve is not the plan's digest: then
// nothing was changed.
func (s *Service) Resume(ctx context.Context, id string, r berth.ResumeOperation) (berth.Operation, error) {
	return s.feed(ctx, id, opEvent{Kind: evResume, Approve: r.Approve, Revision: r.Revision})
}

// AcceptReceipt takes what the helper, or the person, says of the host step that
// waits. CodeReceiptConflict when it is not for that one, or was used before.
func (s *Service) AcceptReceipt(ctx context.Context, id string, r berth.Receipt) (berth.Operation, error) {
	if n := len(r.LogTail); n > maxReceiptLog {
		r.LogTail = r.LogTail[n-maxReceiptLog:]
	}
	before, err := s.Get(ctx, id)
	if err != nil {
		return before, err
	}
	op, err := s.feed(ctx, id, opEvent{Kind: evReceipt, Receipt: &r})
	if h := s.does.hosts[before.Target.Host]; err == nil && before.HostStep != nil && before.HostStep.Request != "" && h != nil && h.Unsupported == "" {
		h.dropRequest(ctx, *before.HostStep)
	}
	return op, err
}

func (s *Service) feed(ctx context.Context, id string, e opEvent) (berth.Operation, error) {
	if !berth.ValidID(berth.OperationID, id) {
		return berth.Operation{}, durable.NotFound(KindOperation, id)
	}
	snap, err := s.runner.Feed(ctx, id, durable.AnyRevision, e)
	if isUnchanged(err) {
		return s.Get(ctx, id)
	}
	if err != nil {
		return berth.Operation{}, err
	}
	return view(snap), nil
}

// view is an operation as others see it.
func view(snap durable.Snapshot[opState]) berth.Operation {
	op, rec := snap.State.Op, snap.Record
	op.V, op.ID, op.Revision, op.Epoch = 1, rec.ID, rec.Revision, rec.Epoch
	op.Owner, op.Created, op.Updated = rec.Owner, rec.Created, rec.Updated
	if effectKind(op.Effect).waiting() {
		op.Effect = ""
	}
	if len(snap.Pending) > 0 && op.Effect != "" {
		op.Progress = snap.Pending[0].Progress
	}
	return op
}

// Reset puts the operations of a host that are over away, under one name.
// CodeOperationLive while one is at work. What they describe stays.
func (s *Service) Reset(ctx context.Context, host string) (berth.ResetResult, error) {
	var ids []string
	if err := s.onHost(host); err != nil {
		return berth.ResetResult{}, err
	}
	q := durable.Query{}
	for {
		list, next, err := s.runner.List(ctx, q)
		if err != nil {
			return berth.ResetResult{}, err
		}
		for _, o := range list {
			switch {
			case o.State.Op.Target.Host != host:
			case !o.Record.Terminal:
				return berth.ResetResult{}, berth.Errorf(berth.CodeOperationLive, "the operation %s on %s is %s", o.Record.ID, host, o.State.Op.Phase).WithFact("holder", o.Record.ID).
					WithHint("wait for it, or: berth op cancel " + o.Record.ID)
			default:
				ids = append(ids, o.Record.ID)
			}
		}
		if q.After = next; next == "" {
			break
		}
	}
	if len(ids) == 0 {
		return berth.ResetResult{V: 1}, nil
	}
	made, err := s.runner.Archive(ctx, durable.ArchiveRequest{IDs: ids, Events: environmentChanged(host)})
	if err != nil {
		return berth.ResetResult{}, err
	}
	return berth.ResetResult{V: 1, Archive: made.Stamp, Archived: made.Records}, nil
}

// Diagnostics reports on a host, changing nothing. What cannot be read is said
// in FactsError and left out.
func (s *Service) Diagnostics(ctx context.Context, host string) (berth.Diagnostics, error) {
	d := berth.Diagnostics{
		V: 1, Version: s.cfg.Version, At: s.cfg.Now().UTC(), Installations: []berth.Installation{},
		Operations: []berth.Operation{}, HostChanges: []berth.HostChange{}, Releases: []berth.ReleaseRef{},
	}
	if err := s.onHost(host); err != nil {
		return d, err
	}
	h, err := s.does.at(host)
	if err != nil {
		d.FactsError = err.Error()
	} else if facts, err := h.look(ctx, false); err != nil {
		d.FactsError = err.Error()
	} else {
		d.Facts = &facts
	}
	if h != nil {
		entries, err := s.cfg.HostSteps.Undo(ctx, h.State)
		if err != nil {
			s.cfg.Log.Warn("the changes of the host steps cannot be read", "host", host, "error", err)
		}
		for _, e := range entries {
			d.HostChanges = append(d.HostChanges, e.Change)
		}
	}
	if d.Installations, err = s.does.insts.on(ctx, host); err != nil {
		return d, err
	}
	ops, err := s.Operations(ctx, host, "", 0)
	if err != nil {
		return d, err
	}
	d.Operations = ops.Operations
	for i := range d.Operations {
		if step := d.Operations[i].HostStep; step != nil { // its nonce is a secret while it waits
			hidden := *step
			hidden.Nonce = ""
			d.Operations[i].HostStep = &hidden
		}
	}
	for _, in := range d.Installations {
		d.Releases = append(d.Releases, in.Release)
	}
	return d, nil
}

// hostOf is the host that an operation's record is about; "" = it cannot be read.
func hostOf(rec durable.Record) string {
	var s struct {
		Op struct {
			Target berth.Target `json:"target"`
		} `json:"op"`
	}
	if err := json.Unmarshal(rec.State, &s); err != nil {
		return ""
	}
	return s.Op.Target.Host
}
