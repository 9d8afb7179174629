// Package server is the daemon's door: HTTP on a unix socket for this user, and
// on loopback TCP with a token. It checks who asks, turns requests into calls of
// the rooms below and their errors into problem documents, and decides nothing.
//
// What it needs is declared here as narrow interfaces; the daemon fills them.
package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"berth"
	"berth/durable"
)

// Sessions are the sessions of all hosts. The errors are berth.Errors.
type Sessions interface {
	// Create starts a session, or answers the one of the same key and spec.
	Create(ctx context.Context, spec berth.SessionSpec, key string) (s berth.Session, created bool, err error)
	Get(ctx context.Context, ref string) (berth.Session, error)
	List(ctx context.Context, f berth.SessionFilter) ([]berth.Session, error)
	// ifMatch is a revision, 0 = any; so below.
	Resize(ctx context.Context, ref string, size berth.Size, ifMatch int64) (berth.Session, error)
	Signal(ctx context.Context, ref, signal string) error
	Kill(ctx context.Context, ref string, ifMatch int64) (berth.KillResult, error)
	Remove(ctx context.Context, ref string, force bool, ifMatch int64) error
	Input(ctx context.Context, ref string, in berth.InputRequest) error
	Screen(ctx context.Context, ref string, ansi bool) (berth.Screen, error)
	Log(ctx context.Context, ref string, q berth.LogRequest) (berth.LogChunk, error)
	Wait(ctx context.Context, ref string) (berth.Session, error)
	Counts() berth.SessionCounts
}

// AttachStream carries the frames of one viewer. Read is for one goroutine,
// Write for one other; Close may come from anywhere and ends both.
type AttachStream interface {
	Read() (berth.Frame, error) // valid until the next call
	Buffered() bool             // whether Read would return at once
	Write(berth.Frame) error
	Close() error
}

// Events is the event sequence; a durable.Store is one.
type Events interface {
	Events(ctx context.Context, after int64, limit int) (durable.EventPage, error)
	Watch(ctx context.Context) <-chan struct{}
}

// StatusSource says what runs and what is wrong.
type StatusSource interface {
	Status(ctx context.Context) (berth.Status, error)
}

// Config is what a server is made of. All but TokenHash, Direct, Export, ReplaceGuest,
// Environments, Releases and Unavailable must be set.
type Config struct {
	Sessions Sessions
	// Attach opens a viewer's stream; ctx bounds the whole of it.
	Attach func(ctx context.Context, ref string, q berth.AttachRequest) (AttachStream, error)
	// Direct says where a session's guest can be reached without the daemon;
	// CodeNotFound where it cannot. nil = nowhere. Only who came over the unix
	// socket is told.
	Direct func(ctx context.Context, ref string) (berth.DirectAttach, error)
	// Export writes the kept output of a session as "text" or "cast". An error
	// before the first write is answered as a problem; one behind it cuts the
	// answer. nil = the route answers CodeNotFound.
	Export func(ctx context.Context, ref, format string, w io.Writer) error
	// ReplaceGuest puts a guest of this build in place of the local one; its
	// sessions go on. nil = the route answers CodeNotFound.
	ReplaceGuest func(ctx context.Context) error
	// Environments and Releases are behind the routes of the same names; nil =
	// those routes answer Unavailable, and where that is nil CodeNotFound.
	Environments Environments
	Releases     Releases
	Unavailable  error
	Events       Events
	Status       StatusSource
	// Stop asks the daemon to stop. It is called for POST /v1/shutdown and must
	// return at once.
	Stop func()
	// TokenHash is the SHA-256 of the TCP listener's token; zero = there is no
	// token, and no TCP listener is served.
	TokenHash [sha256.Size]byte
	Log       *slog.Logger
}

// timing are the bounds that tests shorten.
type timing struct {
	heartbeat  time.Duration // between comments on an idle event stream
	slow       time.Duration // a write to an event stream that takes longer cuts it
	stuck      time.Duration // a write that takes this long is given up
	ping       time.Duration // between pings on an attach
	pong       time.Duration // a viewer that answers no ping for so long is cut
	attachOpen time.Duration // for the guest to answer an attach
	body       time.Duration // for a client to send a request's body
	closing    time.Duration // for a viewer to answer that it was closed
}

func defaultTiming() timing {
	return timing{
		heartbeat:  15 * time.Second,
		slow:       5 * time.Second,
		stuck:      15 * time.Second,
		ping:       20 * time.Second,
		pong:       40 * time.Second,
		attachOpen: 15 * time.Second,
		body:       15 * time.Second,
		closing:    time.Second,
	}
}

// Server serves the API on any number of listeners.
type Server struct {
	cfg     Config
	times   timing
	metrics *metrics
	openapi []byte
	handler http.Handler // behind the doors
	uid     int          // who may use the unix socket, beside root

	base    context.Context // of every request; ends when Shutdown gives up waiting
	cancel  context.CancelFunc
	stop    chan struct{} // closed when Shutdown begins
	stopNow sync.Once

	mu      sync.Mutex // guards the two below
	servers []*http.Server
	streams sync.WaitGroup // attaches: their connections are out of http.Server's hands
}

// New makes a server. The error is CodeInvalidArgument.
func New(cfg Config) (*Server, error) {
	if cfg.Sessions == nil || cfg.Attach == nil || cfg.Events == nil || cfg.Status == nil || cfg.Stop == nil || cfg.Log == nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "a server needs all of Sessions, Attach, Events, Status, Stop and Log")
	}
	s := &Server{cfg: cfg, times: defaultTiming(), uid: os.Geteuid(), stop: make(chan struct{})}
	s.base, s.cancel = context.WithCancel(context.Background())
	s.metrics = newMetrics(cfg.Sessions.Counts)
	mux := http.NewServeMux()
	var err error
	if s.openapi, err = s.routes(mux); err != nil {
		s.cancel()
		return nil, err
	}
	s.handler = s.around(mux)
	return s, nil
}

// Bounds of a connection, so that one that sends nothing costs little.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// ServeUnix serves this user and root on a unix socket, until Shutdown: then it
// returns nil. It closes the listener.
func (s *Server) ServeUnix(l net.Listener) error {
	return s.serve(l, &http.Server{Handler: s.unixDoor(s.handler), ConnContext: withPeer})
}

// ServeTCP serves who has the token, on a loopback address, until Shutdown:
// then it returns nil. It closes the listener.
func (s *Server) ServeTCP(l net.Listener) error {
	addr, ok := l.Addr().(*net.TCPAddr)
	switch {
	case !ok || !addr.IP.IsLoopback():
		_ = l.Close() // it must not stay open with nobody behind it
		return berth.Errorf(berth.CodeConfigInvalid, "the API listens on loopback addresses only, not on %s", l.Addr()).
			WithHint("set [api] listen to 127.0.0.1:PORT, and reach it from elsewhere through ssh")
	case s.cfg.TokenHash == [sha256.Size]byte{}:
		_ = l.Close()
		return berth.Errorf(berth.CodeConfigInvalid, "the API does not listen on %s without a token", l.Addr())
	}
	return s.serve(l, &http.Server{Handler: s.tcpDoor(s.handler, addr.Port)})
}

func (s *Server) serve(l net.Listener, h *http.Server) error {
	h.BaseContext = func(net.Listener) context.Context { return s.base }
	h.ReadHeaderTimeout = readHeaderTimeout
	h.IdleTimeout = idleTimeout
	h.MaxHeaderBytes = maxHeaderBytes
	h.ErrorLog = slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn)
	s.mu.Lock()
	if s.stopping() {
		s.mu.Unlock()
		return l.Close()
	}
	s.servers = append(s.servers, h)
	s.mu.Unlock()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return berth.Errorf(berth.CodeInternal, "serve %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Server) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Shutdown stops serving: no new connection, every viewer and every follower of
// events is told to come back, and what runs may finish until ctx ends; then it
// is cut. It returns when all of it is gone. The error says that something was cut.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopNow.Do(func() { close(s.stop) })
	servers := s.servers
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		// All at once: a listener that waits for another's requests would take
		// new ones meanwhile.
		errs := make([]error, len(servers))
		var closing sync.WaitGroup
		for i, h := range servers {
			closing.Go(func() { errs[i] = h.Shutdown(ctx) })
		}
		closing.Wait()
		s.streams.Wait()
		done <- errors.Join(errs...)
	}()
	var err error
	select {
	case err = <-done:
		s.cancel()
	case <-ctx.Done():
		s.cancel() // ends requests and streams
		err = errors.Join(ctx.Err(), <-done)
	}
	for _, h := range servers {
		err = errors.Join(err, h.Close())
	}
	return err
}

// enter counts a stream in, unless the server stops.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping() {
		return false
	}
	s.streams.Add(1)
	return true
}
