// Package container works with containers and images through the Docker Engine
// API of a host: pull by digest with true progress, run once, start and stop
// with proof, and remember which containers are ours.
//
// It reads only what the API answers, never the text of a command line. The
// daemon is reached through a dial function, so that a remote host's socket is
// used through its guest just as the local one.
package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	moby "github.com/moby/moby/client"

	"berth"
	"berth/process"
)

// Config is what a Client is made of.
type Config struct {
	// Dial opens a connection to the daemon's socket. Required. An error with a
	// code of berth's keeps it; any other is CodeDockerUnreachable.
	Dial func(ctx context.Context) (net.Conn, error)
	Log  *slog.Logger // nil = none
	// Now is the clock of waits and of what is written down; nil = time.Now.
	Now func() time.Time
	// Journal remembers the containers that are ours; nil = Create and Reconcile
	// refuse, and check containers are not remembered.
	Journal Journal
	// Self is who owns the containers that this client creates. Required with a
	// Journal.
	Self berth.Identity
	// Look says whether an owner lives; nil = process.Look.
	Look func(berth.Identity) process.Verdict
	// Resolve follows the links of a path on the host of the daemon, so that a
	// link to a place that no container is given is refused too; nil = paths are
	// judged as they are written.
	Resolve func(ctx context.Context, path string) (string, error)

	// CallTimeout bounds one short call; 0 = 30 s.
	CallTimeout time.Duration
	// PullStall is how long a pull may say nothing before it is cut and taken up
	// again; 0 = 3 min.
	PullStall time.Duration
	// PullTries is how many tries in a row may bring nothing new; 0 = 5.
	PullTries int
	// PullBackoff is the wait after the first failed try; it doubles with each, up
	// to 30 s; 0 = 1 s.
	PullBackoff time.Duration
}

// Client talks to the Docker daemon of one host. Its methods may be called at
// once. Close it when it is no longer used.
type Client struct {
	cfg Config
	// api is made anew by Info, so that a daemon that was replaced by a newer or
	// an older one is spoken to in a version that it knows.
	api       atomic.Pointer[moby.Client]
	transport *http.Transport

	mu   sync.Mutex
	kept map[string]bool // containers that an earlier Reconcile had to keep
}

// New makes a client. It opens no connection.
func New(cfg Config) (*Client, error) {
	if cfg.Dial == nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "container: Dial is missing")
	}
	if cfg.Journal != nil && (cfg.Self.PID == 0 || cfg.Self.BootID == "") {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "container: a journal needs an owner")
	}
	if cfg.CallTimeout < 0 || cfg.PullStall < 0 || cfg.PullTries < 0 || cfg.PullBackoff < 0 {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "container: a bound is negative")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Look == nil {
		cfg.Look = process.Look
	}
	cfg.CallTimeout = orElse(cfg.CallTimeout, 30*time.Second)
	cfg.PullStall = orElse(cfg.PullStall, 3*time.Minute)
	cfg.PullTries = orElse(cfg.PullTries, 5)
	cfg.PullBackoff = orElse(cfg.PullBackoff, time.Second)
	c := &Client{cfg: cfg, kept: map[string]bool{}}
	c.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := cfg.Dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		MaxIdleConns:       4,
		IdleConnTimeout:    30 * time.Second,
		DisableCompression: true,
	}
	api, err := c.newAPI()
	if err != nil {
		return nil, err
	}
	c.api.Store(api)
	return c, nil
}

// newAPI makes a client that has not agreed on a version yet.
func (c *Client) newAPI() (*moby.Client, error) {
	api, err := moby.New(moby.WithHTTPClient(&http.Client{
		Transport: &bounded{c.transport}, CheckRedirect: moby.CheckRedirect}))
	if err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	return api, nil
}

func (c *Client) docker() *moby.Client { return c.api.Load() }

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Close drops connections that wait for use.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
}

// short bounds a call that answers at once.
func (c *Client) short(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.CallTimeout)
}

// maxAnswer bounds what one answer of the daemon may bring, but for streams,
// whose readers bound themselves.
const maxAnswer = 32 << 20

// bounded keeps answers below maxAnswer.
type bounded struct{ next http.RoundTripper }

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil && !streams(req.URL.Path) {
		resp.Body = &boundedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

// streams reports whether the path answers without an end of its own.
func streams(path string) bool {
	return hasSuffix(path, "/images/create", "/logs")
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}

// dialError marks what the dial function said. The API's client looks for a
// missing file, a refused permission and certain words, and answers those with
// an error of its own that no longer has this one in it; so none of them shows.
type dialError struct{ err error }

func (e *dialError) Error() string { return "Docker's socket cannot be dialled" }

const permissionHint = "your user may not use Docker's socket: berth setup explains what to do"

// dialFailed names what a guest said of the socket. That nobody listens there, or
// that there is none, is about Docker, and is not a thing that was not found.
func dialFailed(said *berth.Error, what string) error {
	e := berth.Errorf(berth.CodeDockerUnreachable, "%s: %s", what, said.Detail)
	switch {
	case said.Code == berth.CodeForbidden:
		return e.WithFact("reason", "permission").WithHint(permissionHint)
	case said.Code == berth.CodeNotFound && said.Facts["errno"] == "ENOENT":
		return e.WithFact("reason", "no_socket")
	case said.Code == berth.CodeNotFound:
		return e.WithFact("reason", "refused")
	}
	return berth.Errorf(said.Code, "%s: %w", what, said)
}

// failed names a failure of a call that tried what.
func failed(err error, what string) error {
	if err == nil {
		return nil
	}
	var dial *dialError
	if errors.As(err, &dial) {
		var coded *berth.Error
		if errors.As(dial.err, &coded) {
			return dialFailed(coded, what)
		}
		e := berth.Errorf(berth.CodeDockerUnreachable, "%s: %w", what, dial.err)
		switch {
		case errors.Is(dial.err, context.Canceled):
			return berth.Errorf(berth.CodeInterrupted, "%s: %w", what, dial.err)
		case errors.Is(dial.err, fs.ErrPermission):
			return e.WithFact("reason", "permission").WithHint(permissionHint)
		case errors.Is(dial.err, fs.ErrNotExist):
			return e.WithFact("reason", "no_socket")
		}
		return e.WithFact("reason", "refused")
	}
	var coded *berth.Error
	switch {
	case errors.As(err, &coded):
		return err
	case errors.Is(err, context.Canceled):
		return berth.Errorf(berth.CodeInterrupted, "%s: %w", what, err)
	case errors.Is(err, context.DeadlineExceeded):
		return berth.Errorf(berth.CodeTimeout, "%s: Docker did not answer in time: %w", what, err)
	case moby.IsErrConnectionFailed(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return berth.Errorf(berth.CodeDockerUnreachable, "%s: the connection to Docker was lost: %w", what, err).WithFact("reason", "lost")
	case diskFull(err.Error()):
		return berth.Errorf(berth.CodeDiskFull, "%s: %w", what, err)
	case errdefs.IsNotFound(err):
		return berth.Errorf(berth.CodeNotFound, "%s: %w", what, err)
	case errdefs.IsConflict(err):
		return berth.Errorf(berth.CodeConflict, "%s: %w", what, err)
	case errdefs.IsInvalidArgument(err):
		return berth.Errorf(berth.CodeInvalidArgument, "%s: %w", what, err)
	}
	return berth.Errorf(berth.CodeInternal, "%s: %w", what, err)
}
