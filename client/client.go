// Package client speaks to the berth daemon: over its unix socket, or over
// loopback TCP with a token.
//
// Every error is a *berth.Error with a code of the catalogue: the one that the
// daemon had, or CodeDaemonNotRunning where nobody listens,
// CodeDaemonUnreachable where somebody listens but does not answer, and
// CodeInterrupted where the caller's context ended.
//
// What follows something (Events, FollowLog, Wait, View) connects again by
// itself, for as long as its context lives: the daemon may be killed, stopped
// and replaced in between without a byte or an event lost or doubled.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"berth"
)

// Config says where the daemon is. Either Socket, or URL and Token.
type Config struct {
	Socket string // path of the daemon's unix socket
	URL    string // "http://127.0.0.1:PORT"
	Token  string // of the TCP listener
	// Timeout bounds a call that the daemon should answer at once; 0 = 30 s.
	// Calls that wait by nature (kill, wait, log with a wait, streams) have
	// their own bounds.
	Timeout time.Duration
	// ThroughDaemon makes every attach pass the daemon, also where the guest
	// could be reached without it.
	ThroughDaemon bool
}

// defaultTimeout is far above what a loaded machine needs to answer, so that
// its expiry means a daemon that hangs.
const defaultTimeout = 30 * time.Second

// killTimeout covers the three steps of a kill, two seconds each, and a
// machine that is slow to reap.
const killTimeout = 60 * time.Second

// socketHost is the Host header over the unix socket, where it means nothing.
const socketHost = "berth"

// maxAnswer bounds a JSON answer: a page of 1000 sessions with the longest
// command lines that berth accepts would be larger, but no real one is.
const maxAnswer = 64 << 20

// Client is safe for concurrent use.
type Client struct {
	base    string // "http://berth" or the URL, without a final slash
	socket  string
	token   string
	timeout time.Duration
	// throughDaemon is Config.ThroughDaemon.
	throughDaemon bool
	pause         time.Duration // first wait between two attempts; 0 = backoffFirst
	http          *http.Client
	tr            *http.Transport
}

// New makes a client; it does not connect. The error is CodeInvalidArgument.
func New(cfg Config) (*Client, error) {
	c := &Client{socket: cfg.Socket, token: cfg.Token, timeout: cfg.Timeout, throughDaemon: cfg.ThroughDaemon, base: "http://" + socketHost}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	switch {
	case cfg.Socket != "" && cfg.URL != "":
		return nil, berth.Errorf(berth.CodeInvalidArgument, "a client has a socket or a URL, not both")
	case cfg.Socket != "":
		if len(cfg.Socket) > berth.SocketPathMax {
			return nil, berth.Errorf(berth.CodeSocketPathTooLong, "the path %s has %d bytes; the system allows %d",
				cfg.Socket, len(cfg.Socket), berth.SocketPathMax)
		}
	case cfg.URL != "":
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, berth.Errorf(berth.CodeInvalidArgument, "%q is not the URL of a daemon", cfg.URL).
				WithHint("write it like http://127.0.0.1:1336")
		}
		c.base = strings.TrimSuffix(cfg.URL, "/")
	default:
		return nil, berth.Errorf(berth.CodeInvalidArgument, "a client needs a socket or a URL")
	}
	dialer := net.Dialer{Timeout: c.timeout}
	c.tr = &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if c.socket == "" {
				return dialer.DialContext(ctx, network, addr)
			}
			return dialOwn(ctx, &dialer, c.socket)
		},
		DisableCompression:  true, // the daemon is on this machine
		MaxIdleConnsPerHost: 4,    // a command line asks one thing at a time; a few serve an SDK's fan-out
		IdleConnTimeout:     30 * time.Second,
	}
	c.http = &http.Client{
		Transport: c.tr,
		// The daemon redirects nowhere; following one would send the token along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close ends idle connections. Calls and streams in progress go on.
func (c *Client) Close() error {
	c.tr.CloseIdleConnections()
	return nil
}

// call is one request.
type call struct {
	method  string
	path    string // begins with a slash; elements escaped
	query   url.Values
	header  http.Header
	body    any           // nil = none
	out     any           // nil = the answer has no document, or answer reads it
	timeout time.Duration // 0 = the client's
	// answer reads a body that is not a JSON document; nil = out.
	answer func(*http.Response) error
}

// do performs a call and gives back the typed error.
func (c *Client) do(ctx context.Context, q call) (status int, err error) {
	bound := q.timeout
	if bound <= 0 {
		bound = c.timeout
	}
	inner, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	req, err := c.request(inner, q)
	if err != nil {
		return 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, c.transportError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // the answer has been read, or failed already
	if resp.StatusCode >= 300 {
		return resp.StatusCode, readProblem(resp)
	}
	switch {
	case q.answer != nil:
		err = q.answer(resp)
	case q.out != nil:
		err = json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(q.out)
	}
	if err != nil {
		return resp.StatusCode, c.transportError(ctx, err)
	}
	return resp.StatusCode, nil
}

// request builds the HTTP request of a call.
func (c *Client) request(ctx context.Context, q call) (*http.Request, error) {
	target := c.base + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	var body io.Reader
	if q.body != nil {
		data, err := json.Marshal(q.body)
		if err != nil {
			return nil, berth.Errorf(berth.CodeInvalidArgument, "encode the request: %w", err)
		}
		body = bytes.NewReader(data) // net/http may send it again on a fresh connection
	}
	req, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "build the request: %w", err)
	}
	for name, values := range q.header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.authorize(req.Header)
	return req, nil
}

func (c *Client) authorize(h http.Header) {
	h.Set("User-Agent", "berth/"+berth.Version())
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
}

// maxProblem bounds an error document.
const maxProblem = 1 << 20

// readProblem reads an error answer. Something that is not a problem document
// comes from a program that is not a berth daemon, or from a proxy before it.
func readProblem(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	var doc berth.ProblemDocument
	if err != nil || json.Unmarshal(data, &doc) != nil || doc.Code == "" {
		return berth.Errorf(berth.CodeDaemonUnreachable, "the answer %s is not one of a berth daemon", resp.Status).
			WithFact("status", resp.Status)
	}
	return doc.Err()
}

// gone looks whether the daemon that reset a connection is dead. One that is
// killed resets what waits to be accepted, and for a moment its last threads
// still hold the socket.
func (c *Client) gone(ctx context.Context) bool {
	const looks, between = 5, 10 * time.Millisecond
	if c.socket == "" {
		return false
	}
	for range looks {
		conn, err := (&net.Dialer{Timeout: between}).DialContext(ctx, "unix", c.socket)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if err != nil {
			return false
		}
		_ = conn.Close() // it was only a look
		select {
		case <-time.After(between):
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// transportError gives a code to a failure below HTTP. ctx is the caller's.
func (c *Client) transportError(ctx context.Context, err error) error {
	var known *berth.Error
	var call *url.Error // which request it was, is not what the user asked
	if errors.As(err, &call) {
		err = call.Err
	}
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return berth.Errorf(berth.CodeInterrupted, "the call was given up: %w", context.Canceled)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		// In words the cause only says again that nobody listens there.
		return &berth.Error{Code: berth.CodeDaemonNotRunning, Detail: "no daemon answers at " + c.where(), Err: err}
	case errors.Is(err, syscall.ECONNRESET) && c.gone(ctx):
		return &berth.Error{Code: berth.CodeDaemonNotRunning, Detail: "the daemon at " + c.where() + " has just ended", Err: err}
	case ctx.Err() != nil:
		return berth.Errorf(berth.CodeDaemonUnreachable, "no answer from %s within the time that was given: %w", c.where(), ctx.Err())
	}
	return berth.Errorf(berth.CodeDaemonUnreachable, "the daemon at %s does not answer: %w", c.where(), err)
}

func (c *Client) where() string {
	if c.socket != "" {
		return c.socket
	}
	return c.base
}

// transient reports whether the same call may work in a moment, since what
// failed is the way to the session and not the session.
func transient(err error) bool {
	for _, code := range []berth.Code{
		berth.CodeDaemonNotRunning, berth.CodeDaemonUnreachable, berth.CodeDaemonStopping,
		berth.CodeHostUnreachable, berth.CodeGuestFailed, berth.CodeTimeout,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}
