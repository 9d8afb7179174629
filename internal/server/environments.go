package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"berth"
)

// Environments are the environments of all hosts and the operations on them. The
// errors are berth.Errors.
type Environments interface {
	List(ctx context.Context) (berth.Environments, error)
	// Probe makes a plan and changes nothing.
	Probe(ctx context.Context, r berth.ProbeRequest) (berth.Plan, error)
	// Begin begins an operation, or answers the one of the same key and request.
	Begin(ctx context.Context, key string, b berth.BeginOperation) (op berth.Operation, created bool, err error)
	Get(ctx context.Context, id string) (berth.Operation, error)
	// Operations lists a page, the newest first. host "" = all; after is the Next
	// of the page before, "" = the first page; CodeInvalidArgument for another.
	Operations(ctx context.Context, host, after string, limit int) (berth.Operations, error)
	Resume(ctx context.Context, id string, r berth.ResumeOperation) (berth.Operation, error)
	Cancel(ctx context.Context, id string) (berth.Operation, error)
	AcceptReceipt(ctx context.Context, id string, r berth.Receipt) (berth.Operation, error)
	Reset(ctx context.Context, host string) (berth.ResetResult, error)
	Diagnostics(ctx context.Context, host string) (berth.Diagnostics, error)
}

// Inputs and outputs of these routes.
type (
	OperationRef struct {
		ID string `path:"id" maxLength:"64" doc:"id of the operation"`
	}
	operationOut struct {
		Status   int
		ETag     string `header:"ETag"`
		Location string `header:"Location"`
		Body     berth.Operation
	}
	probeInput struct {
		Body berth.ProbeRequest
	}
	beginInput struct {
		Key  string `header:"Idempotency-Key" maxLength:"255" doc:"the same key and body again answers the operation that is there"`
		Body berth.BeginOperation
	}
	operationsInput struct {
		Host   string `query:"host" maxLength:"64" doc:"only operations on this host"`
		Cursor string `query:"cursor" maxLength:"255" doc:"next of the page before"`
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	}
	resumeInput struct {
		OperationRef
		Body berth.ResumeOperation
	}
	receiptInput struct {
		OperationRef
		Body berth.Receipt
	}
	resetInput struct {
		Body berth.ResetOperations
	}
	hostInput struct {
		Host string `path:"host" maxLength:"64" doc:"name of the host"`
	}
)

// environments is what the routes call.
func (s *Server) environments() (Environments, error) {
	if s.cfg.Environments == nil && s.cfg.Unavailable != nil {
		return nil, s.cfg.Unavailable
	}
	if s.cfg.Environments == nil {
		return nil, berth.Errorf(berth.CodeNotFound, "this daemon knows no environments").WithHint("run a berth that has them")
	}
	return s.cfg.Environments, nil
}

func (a api) environmentRoutes() {
	route(a, huma.Operation{
		OperationID: "list-environments", Method: http.MethodGet, Path: "/v1/environments", Tags: []string{"environments"},
		Summary: "What is installed on each host, and which operation is at work there. Nothing is probed",
	}, func(ctx context.Context, _ *none) (*body[berth.Environments], error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		list, err := e.List(ctx)
		return &body[berth.Environments]{list}, err
	})
	route(a, huma.Operation{
		OperationID: "make-plan", Method: http.MethodPost, Path: "/v1/plans", Tags: []string{"environments"},
		Summary: "Look at a host and say what a change would do. Changes nothing; the plan has the digest to approve",
	}, func(ctx context.Context, in *probeInput) (*body[berth.Plan], error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		ctx, cancel := a.untilStop(ctx)
		defer cancel()
		p, err := e.Probe(ctx, in.Body)
		return &body[berth.Plan]{p}, a.stoppedError(err)
	})
	route(a, huma.Operation{
		OperationID: "get-diagnostics", Method: http.MethodGet, Path: "/v1/environments/{host}/diagnostics", Tags: []string{"environments"},
		Summary: "A read-only report of one host, without secrets",
	}, func(ctx context.Context, in *hostInput) (*body[berth.Diagnostics], error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		ctx, cancel := a.untilStop(ctx)
		defer cancel()
		d, err := e.Diagnostics(ctx, in.Host)
		return &body[berth.Diagnostics]{d}, a.stoppedError(err)
	})
}

func (a api) operationRoutes() {
	route(a, huma.Operation{
		OperationID: "begin-operation", Method: http.MethodPost, Path: "/v1/operations", Tags: []string{"operations"},
		Summary: "Begin a setup, an update or a removal. It asks for consent unless the digest of its plan is given", DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, in *beginInput) (*operationOut, error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		op, created, err := e.Begin(ctx, in.Key, in.Body)
		out := answerOperation(op)
		out.Location = "/v1/operations/" + op.ID
		if created {
			out.Status = http.StatusAccepted
		}
		return out, err
	})
	route(a, huma.Operation{
		OperationID: "list-operations", Method: http.MethodGet, Path: "/v1/operations", Tags: []string{"operations"},
		Summary: "List operations, the newest first",
	}, func(ctx context.Context, in *operationsInput) (*body[berth.Operations], error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		list, err := e.Operations(ctx, in.Host, in.Cursor, in.Limit)
		return &body[berth.Operations]{list}, err
	})
	route(a, huma.Operation{
		OperationID: "get-operation", Method: http.MethodGet, Path: "/v1/operations/{id}", Tags: []string{"operations"},
		Summary: "One operation, with the progress of what runs now",
	}, func(ctx context.Context, in *OperationRef) (*operationOut, error) {
		return a.operation(func(e Environments) (berth.Operation, error) { return e.Get(ctx, in.ID) })
	})
	route(a, huma.Operation{
		OperationID: "resume-operation", Method: http.MethodPost, Path: "/v1/operations/{id}/resume", Tags: []string{"operations"},
		Summary: "Approve the plan by its digest, or go on after a wait, a failure or a cancellation",
	}, func(ctx context.Context, in *resumeInput) (*operationOut, error) {
		return a.operation(func(e Environments) (berth.Operation, error) { return e.Resume(ctx, in.ID, in.Body) })
	})
	route(a, huma.Operation{
		OperationID: "cancel-operation", Method: http.MethodPost, Path: "/v1/operations/{id}/cancel", Tags: []string{"operations"},
		Summary: "Ask an operation to end at its next safe boundary",
	}, func(ctx context.Context, in *OperationRef) (*operationOut, error) {
		return a.operation(func(e Environments) (berth.Operation, error) { return e.Cancel(ctx, in.ID) })
	})
	route(a, huma.Operation{
		OperationID: "accept-receipt", Method: http.MethodPost, Path: "/v1/operations/{id}/receipt", Tags: []string{"operations"},
		Summary: "Answer the privileged step that waits. What a receipt claims is looked for on the machine",
	}, func(ctx context.Context, in *receiptInput) (*operationOut, error) {
		return a.operation(func(e Environments) (berth.Operation, error) { return e.AcceptReceipt(ctx, in.ID, in.Body) })
	})
	route(a, huma.Operation{
		OperationID: "reset-operations", Method: http.MethodPost, Path: "/v1/operations/reset", Tags: []string{"operations"},
		Summary: "Put the operations of a host that are over into an archive. What they made stays",
	}, func(ctx context.Context, in *resetInput) (*body[berth.ResetResult], error) {
		e, err := a.environments()
		if err != nil {
			return nil, err
		}
		r, err := e.Reset(ctx, in.Body.Host)
		return &body[berth.ResetResult]{r}, err
	})
}

// operation answers one operation.
func (a api) operation(do func(Environments) (berth.Operation, error)) (*operationOut, error) {
	e, err := a.environments()
	if err != nil {
		return nil, err
	}
	op, err := do(e)
	var missing *berth.Error
	if errors.As(err, &missing) && missing.Code == berth.CodeNotFound && missing.Hint == "" {
		missing.Hint = "berth op ls lists what there is" // the catalogue's is for sessions
	}
	return answerOperation(op), err
}

func answerOperation(op berth.Operation) *operationOut {
	return &operationOut{Status: http.StatusOK, ETag: etag(op.Revision), Body: op}
}

// environmentEnum gives the closed set of texts that a member may have; nil =
// it is open. Reasons and codes are open: there will be more.
func environmentEnum(name, property string) []any {
	switch strings.TrimSuffix(name, "Document") + "." + property {
	case "Plan.kind", "Operation.kind", "ProbeRequest.kind", "BeginOperation.kind":
		return texts(berth.OperationSetup, berth.OperationUpdate, berth.OperationRemove)
	case "Plan.availability":
		return texts(berth.Supported, berth.SetupRequired, berth.PrerequisiteBlocked, berth.Unsupported)
	case "Operation.phase":
		return texts(
			berth.PhaseChecking, berth.PhaseAwaitingConsent, berth.PhaseAwaitingHostStep, berth.PhaseAwaitingRelogin, berth.PhaseAwaitingReboot,
			berth.PhasePreparing, berth.PhasePulling, berth.PhaseVerifying, berth.PhaseActivating, berth.PhaseRemoving, berth.PhaseReady,
			berth.PhaseRemoved, berth.PhaseCancelling, berth.PhaseCancelled, berth.PhaseFailed,
		)
	case "Receipt.outcome":
		return texts(berth.ReceiptCompleted, berth.ReceiptDeclined, berth.ReceiptRelogin, berth.ReceiptReboot, berth.ReceiptFailed)
	case "Installation.status":
		return texts(berth.InstallationReady, berth.InstallationRemoving)
	}
	return nil
}

// texts are the values as huma compares them with what a request has.
func texts[T ~string](values ...T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
