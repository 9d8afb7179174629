package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth"
)

// eventSilence is how long a stream of events may be silent: the daemon sends
// a heartbeat every 15 seconds, and two of them may be lost in a pause.
const eventSilence = 50 * time.Second

// Events calls f for each event from the sequence number from on, the old ones
// first, then new ones as they come; from 0 = only new ones. It connects again
// after any break and goes on behind the last event that f has had. An event
// of kind berth.EventGap says that some are no longer kept. It returns when ctx
// ends, on a definite error, or with the error of f as it is. When no daemon
// answers the first time, it returns CodeDaemonNotRunning.
func (c *Client) Events(ctx context.Context, from int64, f func(berth.Event) error) error {
	follower := eventFollower{client: c, from: from, f: f}
	b := backoff{first: c.pause}
	for first := true; ; {
		heard, err := follower.once(ctx, true)
		switch {
		case follower.stop != nil:
			return follower.stop
		case ctx.Err() != nil:
			return contextError(ctx)
		case err != nil && !transient(err), first && !heard && errors.Is(err, berth.CodeDaemonNotRunning):
			return err
		}
		if heard {
			first = false
			b.reset()
		}
		if err := b.wait(ctx); err != nil {
			return err
		}
	}
}

// PastEvents is Events without the following: it returns nil behind the newest
// event that there is. from 0 = the oldest kept.
func (c *Client) PastEvents(ctx context.Context, from int64, f func(berth.Event) error) error {
	follower := eventFollower{client: c, from: max(from, 1), f: f}
	b := backoff{first: c.pause}
	for {
		heard, err := follower.once(ctx, false)
		switch {
		case follower.stop != nil, follower.ended:
			return follower.stop
		case ctx.Err() != nil:
			return contextError(ctx)
		case err != nil && (!heard || !transient(err)):
			return err
		}
		if err := b.wait(ctx); err != nil { // cut half way: go on behind the last one
			return err
		}
	}
}

// eventFollower remembers over connections what its caller has had.
type eventFollower struct {
	client *Client
	from   int64  // asked for by the caller
	lastID string // "" = nothing was heard yet
	f      func(berth.Event) error
	stop   error // of f; ends the following
	ended  bool  // the daemon said that there is no more
}

// once follows one connection. heard reports whether the daemon answered.
func (e *eventFollower) once(ctx context.Context, follow bool) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{}
	header := http.Header{"Accept": {"text/event-stream"}}
	if !follow {
		q.Set("follow", "false")
	}
	if e.lastID != "" {
		header.Set("Last-Event-ID", e.lastID)
	} else if e.from > 0 {
		q.Set("from", strconv.FormatInt(e.from, 10))
	}
	req, err := e.client.request(ctx, call{method: http.MethodGet, path: "/v1/events", query: q, header: header})
	if err != nil {
		return false, err
	}
	// A connection that nobody closes and nobody feeds is a dead one.
	silence := time.AfterFunc(eventSilence, cancel)
	defer silence.Stop()
	resp, err := e.client.http.Do(req)
	if err != nil {
		return false, e.lost(err)
	}
	defer func() { _ = resp.Body.Close() }() // the stream is over either way
	if resp.StatusCode != http.StatusOK {
		return false, readProblem(resp)
	}
	return true, e.read(resp.Body, silence)
}

// lost makes every end of a connection a transient one, also the one that the
// silence caused by cancelling the inner context.
func (e *eventFollower) lost(err error) error {
	if errors.Is(err, context.Canceled) {
		return berth.Errorf(berth.CodeDaemonUnreachable, "the stream of events was silent for %s: %w", eventSilence, err)
	}
	return e.client.transportError(context.Background(), err)
}

// read dispatches the events of one connection.
func (e *eventFollower) read(body io.Reader, silence *time.Timer) error {
	sse := newSSEReader(alive{body, silence})
	for {
		msg, err := sse.next()
		if sse.lastID != "" {
			e.lastID = sse.lastID
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return e.lost(err)
		case msg.name == eventCut, msg.name == eventStopping:
			return nil // told to come again
		case msg.name == eventEnd:
			e.ended = true
			return nil
		}
		var ev berth.Event
		if err := json.Unmarshal(msg.data, &ev); err != nil {
			return berth.Errorf(berth.CodeInternal, "an event of kind %q cannot be read: %w", msg.name, err)
		}
		if err := e.f(ev); err != nil {
			e.stop = err
			return nil
		}
	}
}

// Names of messages on the stream that are no events: the daemon says why it
// ends the stream. They have no id, so they do not move the cursor.
const (
	eventCut      = "cut"
	eventStopping = "stopping"
	eventEnd      = "end" // of a stream that was asked not to follow
)

// alive pushes the silence out with everything that arrives, heartbeats too.
type alive struct {
	r       io.Reader
	silence *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.silence.Reset(eventSilence)
	}
	return n, err
}
