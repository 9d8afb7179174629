package guestapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"berth"
)

// Client speaks to one guest over connections that dial gives. All calls share
// one HTTP/2 connection while it lives; a broken one is dialled again by the
// next call. It is safe for concurrent use.
type Client struct {
	http      *http.Client
	transport *http.Transport
	closed    context.Context
	stop      context.CancelFunc

	mu      sync.Mutex // orders the last spawn before Close
	streams sync.WaitGroup
}

const (
	// streamWindow is what the guest may send on one stream before it is read
	// here. It bounds what a viewer that reads nothing costs this process, and
	// 1 MiB is a hundred times what a unix socket has in flight.
	streamWindow = 1 << 20
	// connWindow is for all streams together. It is large so that a thousand
	// viewers who read nothing never stop the one who does.
	connWindow = 1 << 30
	// readFrame bounds one HTTP/2 frame: fewer, larger frames carry a flood.
	readFrame = 128 << 10
	// A stream that carries nothing is probed after pingAfter, and its
	// connection given up when no answer comes within pingTimeout: a stopped or
	// unplugged host must not look like a quiet program for ever.
	pingAfter   = 30 * time.Second
	pingTimeout = 30 * time.Second
	// maxAnswer bounds a JSON answer: a list of 4,096 sessions with long argv.
	maxAnswer = 512 << 20
	// maxProblem bounds an error answer.
	maxProblem = 256 << 10
)

// NewClient makes a client. dial opens a byte stream to the guest.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols:          &protocols,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			MaxReadFrameSize:              readFrame,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
		},
	}
	closed, stop := context.WithCancel(context.Background())
	return &Client{http: &http.Client{Transport: t}, transport: t, closed: closed, stop: stop}
}

// Close ends its idle connections and refuses further calls. Calls and streams
// that run now are broken off.
func (c *Client) Close() error {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.transport.CloseIdleConnections()
	c.streams.Wait()
	return nil
}

// spawn runs f in a goroutine that Close waits for. false = the client is
// closed and f does not run.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Err() != nil {
		return false
	}
	c.streams.Go(f)
	return true
}

// call bounds ctx by the client's life. The returned function must be called
// when the call, and the body of its answer, are done with.
func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	undo := context.AfterFunc(c.closed, cancel)
	return ctx, func() {
		undo()
		cancel()
	}
}

// send makes the request and turns every kind of failure into a *berth.Error.
// On success the caller closes the body.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	if c.closed.Err() != nil {
		return nil, berth.Errorf(berth.CodeHostUnreachable, "the connection to the guest is closed")
	}
	u := url.URL{Scheme: "http", Host: "guest", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "request %s %s: %w", method, path, err)
	}
	req.Header.Set("User-Agent", "berth/"+berth.Version())
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, transportError(ctx, method+" "+path, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close() //nolint:errcheck // it was only read
		return nil, problemError(resp, method+" "+path)
	}
	return resp, nil
}

// transportError is for a request that got no answer.
func transportError(ctx context.Context, what string, err error) error {
	var coded *berth.Error
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return berth.Errorf(berth.CodeTimeout, "%s: %w", what, context.DeadlineExceeded)
	case ctx.Err() != nil:
		return berth.Errorf(berth.CodeInterrupted, "%s: %w", what, context.Canceled)
	case errors.As(err, &coded): // from dial: the driver knows best
		return coded
	}
	return berth.Errorf(berth.CodeHostUnreachable, "%s: %w", what, err)
}

// problemError gives back the error that the guest had. An answer without a
// problem document comes from a guest that does not know the path or method.
func problemError(resp *http.Response, what string) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil { // half an answer is none
		return berth.Errorf(berth.CodeHostUnreachable, "%s: %w", what, err)
	}
	var p berth.ProblemDocument
	if json.Unmarshal(data, &p) == nil && p.Code != "" {
		return &berth.Error{Code: p.Code, Detail: p.Detail, Hint: p.Hint, Facts: p.Facts}
	}
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return berth.Errorf(berth.CodeGuestOutdated, "the guest does not know %s", what)
	}
	return berth.Errorf(berth.CodeGuestFailed, "%s: the guest answered %s", what, resp.Status)
}

// do makes a call with JSON in and out; in and out may be nil.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	ctx, done := c.call(ctx)
	defer done()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return berth.Errorf(berth.CodeInvalidArgument, "encode %s %s: %w", method, path, err)
		}
		if len(data) > berth.MaxRequest {
			return berth.Errorf(berth.CodeTooLarge, "%s %s: %d bytes are more than %d", method, path, len(data), berth.MaxRequest)
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return transportError(ctx, method+" "+path, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return berth.Errorf(berth.CodeGuestFailed, "the guest's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// sessionPath checks the id: it stands between a caller's text and a URL path.
func sessionPath(id, rest string) (string, error) {
	if !berth.ValidID(berth.SessionID, id) {
		return "", berth.Errorf(berth.CodeInvalidArgument, "%q is not a session id", id)
	}
	return "/v1/sessions/" + id + rest, nil
}

func (c *Client) doSession(ctx context.Context, method, id, rest string, query url.Values, in, out any) error {
	path, err := sessionPath(id, rest)
	if err != nil {
		return err
	}
	return c.do(ctx, method, path, query, in, out)
}

// Info asks who the guest is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var info Info
	err := c.do(ctx, http.MethodGet, "/v1/info", nil, nil, &info)
	return info, err
}

// Create starts a session, or gives the one that has that id.
func (c *Client) Create(ctx context.Context, r CreateSession) (Session, error) {
	var s Session
	err := c.do(ctx, http.MethodPost, "/v1/sessions", nil, r, &s)
	return s, err
}

// List lists all sessions, newest first.
func (c *Client) List(ctx context.Context) ([]Session, error) {
	var l SessionList
	err := c.do(ctx, http.MethodGet, "/v1/sessions", nil, nil, &l)
	return l.Sessions, err
}

// Session gives one, freshly looked at.
func (c *Client) Session(ctx context.Context, id string) (Session, error) {
	var s Session
	err := c.doSession(ctx, http.MethodGet, id, "", nil, nil, &s)
	return s, err
}

// Remove removes a session that has ended, with all its files. CodeSessionLive otherwise.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.doSession(ctx, http.MethodDelete, id, "", nil, nil, nil)
}

// Resize sets the size of a session, whatever its viewers have.
func (c *Client) Resize(ctx context.Context, id string, size berth.Size) error {
	return c.doSession(ctx, http.MethodPost, id, "/resize", nil, berth.ResizeRequest{Size: size}, nil)
}

// Signal signals the foreground group.
func (c *Client) Signal(ctx context.Context, id, signal string) error {
	return c.doSession(ctx, http.MethodPost, id, "/signal", nil, berth.SignalRequest{Signal: signal}, nil)
}

// Kill ends the program and returns when it is gone.
func (c *Client) Kill(ctx context.Context, id string) (berth.KillResult, error) {
	var r berth.KillResult
	err := c.doSession(ctx, http.MethodPost, id, "/kill", nil, struct{}{}, &r)
	return r, err
}

// Input writes to the program. It returns when the guest has queued all of it.
func (c *Client) Input(ctx context.Context, id string, in berth.InputRequest) error {
	return c.doSession(ctx, http.MethodPost, id, "/input", nil, in, nil)
}

// Screen gives the screen; ansi asks for its repaint too.
func (c *Client) Screen(ctx context.Context, id string, ansi bool) (berth.Screen, error) {
	query := url.Values{}
	if ansi {
		query.Set("ansi", "1")
	}
	var s berth.Screen
	err := c.doSession(ctx, http.MethodGet, id, "/screen", query, nil, &s)
	return s, err
}

// The headers of an answer to GET log. Their values are decimal numbers, and
// "1" for HeaderEnded.
const (
	HeaderGeneration = "Berth-Generation"
	HeaderOffset     = "Berth-Offset"
	HeaderKeptFrom   = "Berth-Kept-From"
	HeaderEnd        = "Berth-End"
	HeaderEnded      = "Berth-Ended"
)

// Log reads output.
func (c *Client) Log(ctx context.Context, id string, r berth.LogRequest) (berth.LogChunk, error) {
	path, err := sessionPath(id, "/log")
	if err != nil {
		return berth.LogChunk{}, err
	}
	ctx, done := c.call(ctx)
	defer done()
	resp, err := c.send(ctx, http.MethodGet, path, r.Query(), nil)
	if err != nil {
		return berth.LogChunk{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	chunk := berth.LogChunk{Ended: resp.Header.Get(HeaderEnded) == "1"}
	var errs [4]error
	chunk.Generation, errs[0] = strconv.Atoi(resp.Header.Get(HeaderGeneration))
	chunk.Offset, errs[1] = strconv.ParseUint(resp.Header.Get(HeaderOffset), 10, 64)
	chunk.KeptFrom, errs[2] = strconv.ParseUint(resp.Header.Get(HeaderKeptFrom), 10, 64)
	chunk.End, errs[3] = strconv.ParseUint(resp.Header.Get(HeaderEnd), 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return berth.LogChunk{}, berth.Errorf(berth.CodeGuestFailed, "the guest's headers of a log: %w", err)
	}
	chunk.Data, err = io.ReadAll(io.LimitReader(resp.Body, berth.MaxLogChunk+1))
	if err != nil {
		return berth.LogChunk{}, transportError(ctx, "read the log", err)
	}
	if len(chunk.Data) > berth.MaxLogChunk {
		return berth.LogChunk{}, berth.Errorf(berth.CodeGuestFailed, "the guest sent more than %d bytes of log", berth.MaxLogChunk)
	}
	return chunk, nil
}

// Times gives when the kept output came.
func (c *Client) Times(ctx context.Context, id string) (Times, error) {
	var t Times
	err := c.doSession(ctx, http.MethodGet, id, "/times", nil, nil, &t)
	return t, err
}

// Events follows the guest: see Event. It calls f for each until ctx ends, the
// stream breaks or f fails. It never returns nil: a clean end of the stream,
// as when the guest retires, is CodeHostUnreachable wrapping io.EOF.
func (c *Client) Events(ctx context.Context, f func(Event) error) error {
	ctx, done := c.call(ctx)
	defer done()
	resp, err := c.send(ctx, http.MethodGet, "/v1/events", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	dec := json.NewDecoder(resp.Body)
	for {
		var e Event
		if err := dec.Decode(&e); err != nil {
			return transportError(ctx, "follow the guest's events", err)
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Retire asks the guest to deposit every screen and exit. Its sessions go on.
func (c *Client) Retire(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/retire", nil, struct{}{}, nil)
}

// ParseAttachQuery reads what AttachRequest.Query wrote. Parameters that it does not know are
// ignored; one that is malformed is CodeInvalidArgument.
func ParseAttachQuery(q url.Values) (berth.AttachRequest, error) {
	r := berth.AttachRequest{
		ReadOnly:    q.Get("read_only") == "1" || q.Get("read_only") == "true",
		SizePolicy:  berth.SizePolicy(q.Get("size_policy")),
		SSHAuthSock: q.Get("ssh_auth_sock"),
	}
	if r.SizePolicy != "" && !r.SizePolicy.Valid() {
		return berth.AttachRequest{}, berth.Errorf(berth.CodeInvalidArgument, "size policy %q is not latest, smallest or fixed", r.SizePolicy)
	}
	var err error
	if r.Generation, err = intParam(q, "generation"); err != nil {
		return berth.AttachRequest{}, err
	}
	if r.Size.Cols, err = intParam(q, "cols"); err != nil {
		return berth.AttachRequest{}, err
	}
	if r.Size.Rows, err = intParam(q, "rows"); err != nil {
		return berth.AttachRequest{}, err
	}
	if r.Size != (berth.Size{}) && !r.Size.Valid() {
		return berth.AttachRequest{}, berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", r.Size, berth.MaxCols, berth.MaxRows)
	}
	if text := q.Get("offset"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return berth.AttachRequest{}, berth.Errorf(berth.CodeInvalidArgument, "offset %q is not a number", text)
		}
		r.Offset = &n
	}
	return r, nil
}

// ParseLogQuery reads what LogRequest.Query wrote.
func ParseLogQuery(q url.Values) (berth.LogRequest, error) {
	var r berth.LogRequest
	var err error
	if r.Generation, err = intParam(q, "generation"); err != nil {
		return r, err
	}
	if r.Limit, err = intParam(q, "limit"); err != nil {
		return r, err
	}
	wait, err := intParam(q, "wait_ms")
	if err != nil {
		return r, err
	}
	r.Wait = time.Duration(wait) * time.Millisecond
	text := q.Get("from")
	// Without from the log begins at its start; "start" is what daemons wrote
	// before there was from_start.
	r.FromStart = q.Get("from_start") == "true" || text == "" || text == "start"
	if !r.FromStart {
		if r.From, err = strconv.ParseUint(text, 10, 64); err != nil {
			return r, berth.Errorf(berth.CodeInvalidArgument, "from %q is not a number", text)
		}
	}
	return r, nil
}

// maxParam bounds every numeric parameter that is not an offset.
const maxParam = 1 << 30

func intParam(q url.Values, name string) (int, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxParam {
		return 0, berth.Errorf(berth.CodeInvalidArgument, "%s %q is not a number from 0 to %d", name, text, maxParam)
	}
	return n, nil
}

// Attach opens an attach stream. ctx bounds the whole stream.
func (c *Client) Attach(ctx context.Context, id string, r berth.AttachRequest) (*AttachStream, error) {
	path, err := sessionPath(id, "/attach")
	if err != nil {
		return nil, err
	}
	ctx, done := c.call(ctx)
	pr, pw := io.Pipe()
	resp, err := c.send(ctx, http.MethodPost, path, r.Query(), pr) //nolint:bodyclose // AttachStream.Close does
	if err != nil {
		done()
		_ = pw.Close()
		return nil, err
	}
	return &AttachStream{ctx: ctx, done: done, body: resp.Body, frames: berth.NewFrameReader(resp.Body), in: pw}, nil
}

// AttachStream carries frames. Read is for one goroutine, Write for one other.
type AttachStream struct {
	ctx    context.Context
	done   context.CancelFunc
	body   io.ReadCloser
	frames *berth.FrameReader
	in     *io.PipeWriter
	buf    []byte
}

// Read gives the next frame, valid until the next call; io.EOF at the end. A
// stream that ends without FrameExit was cut: attach again with the offset
// after the last output.
func (s *AttachStream) Read() (berth.Frame, error) {
	f, err := s.frames.Next()
	if err == nil || err == io.EOF { //nolint:errorlint // Next documents the bare io.EOF
		return f, err
	}
	return f, transportError(s.ctx, "read the attach stream", err)
}

// Buffered reports whether Read would return at once.
func (s *AttachStream) Buffered() bool { return s.frames.Ready() }

// Write sends a frame. It blocks while the guest does not take it.
func (s *AttachStream) Write(f berth.Frame) error {
	if len(f.Body)+1 > berth.MaxFrame {
		return berth.Errorf(berth.CodeTooLarge, "a frame of %d bytes is more than %d", len(f.Body)+1, berth.MaxFrame)
	}
	s.buf = f.AppendStream(s.buf[:0])
	if _, err := s.in.Write(s.buf); err != nil {
		return transportError(s.ctx, "write to the attach stream", fmt.Errorf("the stream ended: %w", err))
	}
	return nil
}

// Close ends it and lets blocked calls return. It may be called more than once
// and from any goroutine.
func (s *AttachStream) Close() error {
	s.done()
	_ = s.in.CloseWithError(io.ErrClosedPipe) // never fails
	return s.body.Close()
}
