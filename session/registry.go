// Package session is the daemon's side of sessions: the registry, adoption
// after a restart, the state of agents, hooks.
package session

import (
	"context"

	"berth"
	"berth/guestapi"
)

// Registry knows every session of every host by asking its guest.
type Registry struct{}

// Run follows all guests until ctx ends. Synced is closed when every reachable
// guest has been listed once.
func (r *Registry) Run(ctx context.Context) error { panic("todo") }

// Synced is closed when every host has been listed once or found unreachable.
func (r *Registry) Synced() <-chan struct{} { panic("todo") }

// Create starts a session. The same idempotency key and spec again answers the
// session that is there; key "" = none.
func (r *Registry) Create(ctx context.Context, spec berth.SessionSpec, key string) (s berth.Session, created bool, err error) {
	panic("todo")
}

// Get finds a session by id, else by name: the live one of that name, else the
// newest. CodeNotFound otherwise.
func (r *Registry) Get(ctx context.Context, ref string) (berth.Session, error) { panic("todo") }

// List lists sessions, newest first.
func (r *Registry) List(ctx context.Context, f berth.SessionFilter) ([]berth.Session, error) {
	panic("todo")
}

// Resize changes the size. ifMatch is a revision, 0 = any; so below.
func (r *Registry) Resize(ctx context.Context, ref string, size berth.Size, ifMatch int64) (berth.Session, error) {
	panic("todo")
}

// Signal signals the foreground process group.
func (r *Registry) Signal(ctx context.Context, ref, signal string) error { panic("todo") }

// Kill ends the program and returns when it is gone.
func (r *Registry) Kill(ctx context.Context, ref string, ifMatch int64) (guestapi.KillResult, error) {
	panic("todo")
}

// Remove forgets a session that has ended, with every file of it. force kills it first.
func (r *Registry) Remove(ctx context.Context, ref string, force bool, ifMatch int64) error {
	panic("todo")
}

// Input writes to the program.
func (r *Registry) Input(ctx context.Context, ref string, in guestapi.InputRequest) error {
	panic("todo")
}

// Screen gives the screen.
func (r *Registry) Screen(ctx context.Context, ref string, ansi bool) (guestapi.Screen, error) {
	panic("todo")
}

// Log reads output.
func (r *Registry) Log(ctx context.Context, ref string, q guestapi.LogRequest) (guestapi.LogChunk, error) {
	panic("todo")
}

// Attach opens a viewer's stream.
func (r *Registry) Attach(ctx context.Context, ref string, q guestapi.AttachRequest) (*guestapi.AttachStream, error) {
	panic("todo")
}

// Wait returns the session once its program is not live any more.
func (r *Registry) Wait(ctx context.Context, ref string) (berth.Session, error) { panic("todo") }

// Counts counts sessions by state.
func (r *Registry) Counts() berth.SessionCounts { panic("todo") }

// Guest is how the guest of a host stands.
func (r *Registry) Guest(host string) berth.GuestStatus { panic("todo") }

// Problems are the standing conditions that the registry knows of.
func (r *Registry) Problems() []berth.Problem { panic("todo") }
