package session

import (
	"context"
	"io"
	"log/slog"
	"time"

	"berth"
	"berth/durable"
	"berth/guestapi"
)

// Guest is what the registry needs of a host's guest; *guestapi.Client has it.
type Guest interface {
	Create(ctx context.Context, r guestapi.CreateSession) (guestapi.Session, error)
	Session(ctx context.Context, id string) (guestapi.Session, error)
	Remove(ctx context.Context, id string) error
	Resize(ctx context.Context, id string, size berth.Size) error
	Signal(ctx context.Context, id, signal string) error
	Kill(ctx context.Context, id string) (berth.KillResult, error)
	Input(ctx context.Context, id string, in berth.InputRequest) error
	Screen(ctx context.Context, id string, ansi bool) (berth.Screen, error)
	Log(ctx context.Context, id string, r berth.LogRequest) (berth.LogChunk, error)
	Times(ctx context.Context, id string) (guestapi.Times, error)
	Attach(ctx context.Context, id string, r berth.AttachRequest) (*guestapi.AttachStream, error)
	Events(ctx context.Context, f func(guestapi.Event) error) error
}

// Store is what the registry needs of the store; every durable.Store has it.
type Store interface {
	Begin(ctx context.Context, b durable.Begin) (rec durable.Record, created bool, err error)
	Change(ctx context.Context, c durable.Change) (durable.Record, error)
	Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...durable.EventDraft) error
	Get(ctx context.Context, kind, id string) (durable.Record, error)
	List(ctx context.Context, q durable.Query) (durable.Page, error)
	Publish(ctx context.Context, events ...durable.EventDraft) (last int64, err error)
	Failed() <-chan struct{}
}

// HostLink is how the registry reaches one host.
type HostLink struct {
	Name string
	// Ensure makes sure that a guest runs there. It is called before each
	// connection, so it restarts a guest that was killed.
	Ensure func(ctx context.Context) error
	Guest  Guest
}

// Defaults are the daemon's settings for what a request leaves out.
type Defaults struct {
	LogBytes   int64 // 0 = no log on disk
	RingBytes  int64 // memory ring of a holder; at least 4 KiB
	SizePolicy berth.SizePolicy
}

// Config is what a Registry is made of. All fields are required, but Hosts may
// be empty and BaseEnv nil.
type Config struct {
	Store    Store
	Hosts    []HostLink
	Defaults Defaults
	BaseEnv  []string // the daemon's environment at `up`, for sessions on the local host
	Home     string   // where a session on the local host starts when nobody said
	Now      func() time.Time
	Random   io.Reader // crypto/rand.Reader, but for tests
	Log      *slog.Logger
}

const minRing = 4 << 10

func (c Config) validate() error {
	switch {
	case c.Store == nil || c.Now == nil || c.Random == nil || c.Log == nil:
		return berth.Errorf(berth.CodeInternal, "session: store, clock, random source and log are required")
	case c.Home == "" || c.Home[0] != '/':
		return berth.Errorf(berth.CodeInternal, "session: home %q is not an absolute path", c.Home)
	case c.Defaults.LogBytes < 0 || c.Defaults.RingBytes < minRing || !c.Defaults.SizePolicy.Valid():
		return berth.Errorf(berth.CodeInternal, "session: defaults %+v are out of range", c.Defaults)
	}
	seen := map[string]bool{}
	for _, h := range c.Hosts {
		if h.Name == "" || h.Ensure == nil || h.Guest == nil || seen[h.Name] {
			return berth.Errorf(berth.CodeInternal, "session: host %q is incomplete or given twice", h.Name)
		}
		seen[h.Name] = true
	}
	return nil
}
