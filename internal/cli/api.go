package cli

import (
	"context"
	"io"

	"berth"
	"berth/client"
)

// API is what the command line asks of a daemon. Errors are *berth.Error:
// CodeDaemonNotRunning where nobody answers. What follows something (Wait,
// FollowLog, Events, View) connects again by itself until ctx ends.
type API interface {
	Status(ctx context.Context) (berth.Status, error)
	Shutdown(ctx context.Context) error
	ReplaceGuest(ctx context.Context) error

	// Create starts a session; the same key again starts nothing twice.
	Create(ctx context.Context, spec berth.SessionSpec, key string) (berth.Session, error)
	Sessions(ctx context.Context, f berth.SessionFilter) ([]berth.Session, error)
	Session(ctx context.Context, ref string) (berth.Session, error)
	Resize(ctx context.Context, ref string, size berth.Size) (berth.Session, error)
	Signal(ctx context.Context, ref, signal string) error
	Kill(ctx context.Context, ref string) (berth.KillResult, error)
	Remove(ctx context.Context, ref string, force bool) error
	Input(ctx context.Context, ref string, in berth.InputRequest) error
	Screen(ctx context.Context, ref string, ansi bool) (berth.Screen, error)
	Log(ctx context.Context, ref string, q berth.LogRequest) (berth.LogChunk, error)
	FollowLog(ctx context.Context, ref string, q berth.LogRequest, f func(berth.LogChunk) error) error
	Wait(ctx context.Context, ref string) (berth.Session, error)
	Export(ctx context.Context, ref, format string, w io.Writer) error

	// Events calls f for each event from a sequence number on, then for each new
	// one until ctx ends; 0 = only new ones. PastEvents stops at the newest; 0 =
	// from the oldest kept.
	Events(ctx context.Context, from int64, f func(berth.Event) error) error
	PastEvents(ctx context.Context, from int64, f func(berth.Event) error) error

	// View follows a session as a viewer. The first connection is made here.
	View(ctx context.Context, ref string, q berth.AttachRequest) (Viewer, error)

	EnvironmentAPI
}

// EnvironmentAPI is the part of it that is about machines and engines; see the
// methods of client.Client of the same names.
type EnvironmentAPI interface {
	Plan(ctx context.Context, r berth.ProbeRequest) (berth.Plan, error)
	Diagnostics(ctx context.Context, host string) (berth.Diagnostics, error)
	BeginOperation(ctx context.Context, b berth.BeginOperation, key string) (op berth.Operation, created bool, err error)
	Operations(ctx context.Context, host string) ([]berth.Operation, error)
	Operation(ctx context.Context, id string) (berth.Operation, error)
	ResumeOperation(ctx context.Context, id string, r berth.ResumeOperation) (berth.Operation, error)
	CancelOperation(ctx context.Context, id string) (berth.Operation, error)
	AcceptReceipt(ctx context.Context, id string, r berth.Receipt) (berth.Operation, error)
	ResetOperations(ctx context.Context, host string) (berth.ResetResult, error)
	Engines(ctx context.Context) ([]berth.Engine, error)
	Engine(ctx context.Context, name string) (berth.Engine, error)
	AddRelease(ctx context.Context, document []byte) (v berth.ReleaseView, added bool, err error)
	AddReleaseFrom(ctx context.Context, url string) (v berth.ReleaseView, added bool, err error)
}

// Viewer is a viewer that outlives its connections: see client.Viewer.
type Viewer interface {
	Next() (client.Update, error)
	Input(p []byte) error
	Resize(size berth.Size) error
	Focus(f berth.ViewerFocus) error
	Close() error
}

// connect makes the API of the daemon that serves these directories. A socket
// path that is too long is told at the first call, like a daemon that is not
// there: it is no fault of the command line.
func connect(paths berth.Paths) (API, error) {
	c, err := client.New(client.Config{Socket: paths.DaemonSocket()})
	if err != nil {
		return nil, err
	}
	return daemonAPI{c}, nil
}

// daemonAPI narrows the client to what the command line asks.
type daemonAPI struct{ *client.Client }

func (d daemonAPI) Create(ctx context.Context, spec berth.SessionSpec, key string) (berth.Session, error) {
	s, _, err := d.Client.Create(ctx, spec, key)
	return s, err
}

func (d daemonAPI) Resize(ctx context.Context, ref string, size berth.Size) (berth.Session, error) {
	return d.Client.Resize(ctx, ref, size, anyRevision)
}

func (d daemonAPI) Kill(ctx context.Context, ref string) (berth.KillResult, error) {
	return d.Client.Kill(ctx, ref, anyRevision)
}

func (d daemonAPI) Remove(ctx context.Context, ref string, force bool) error {
	return d.Client.Remove(ctx, ref, force, anyRevision)
}

func (d daemonAPI) View(ctx context.Context, ref string, q berth.AttachRequest) (Viewer, error) {
	v, err := d.Client.View(ctx, ref, q)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// anyRevision: a person at a terminal acts on the session as it is.
const anyRevision = 0
