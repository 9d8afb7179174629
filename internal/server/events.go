package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"berth"
)

// eventBatch is how many events are read from the store at once, and so the
// most that one event stream keeps in memory: what is slow reads on later, from
// the store, and has no queue.
const eventBatch = 256

// events answers GET /v1/events.
func (a api) events(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Allow", http.MethodGet)
		writeProblem(w, r, berth.Errorf(berth.CodeMethodNotAllowed, "an event stream has no head alone"))
		return
	}
	q, err := parseEventQuery(r)
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	ctx, cancel := a.untilStop(r.Context())
	defer cancel()
	// Watch before the first read: an event between the two wakes us.
	wake := a.cfg.Events.Watch(ctx)
	page, err := a.cfg.Events.Events(ctx, max(q.after, 0), eventBatch)
	if err != nil {
		writeProblem(w, r, a.stoppedError(err))
		return
	}
	if q.after < 0 { // only new ones
		q.after = page.Last
		page.Events, page.Gap = nil, nil
	}
	a.metrics.followers.Inc()
	defer a.metrics.followers.Dec()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &eventWriter{w: w, rc: http.NewResponseController(w), slow: a.times.slow, stuck: a.times.stuck, after: q.after}
	// An id without data makes a reader that is cut before its first event come
	// back to this place.
	out.id(q.after)
	for {
		if page.Gap != nil {
			out.event(*page.Gap, page.Gap.To-1)
		}
		for _, e := range page.Events {
			out.event(e, e.Seq)
		}
		if !a.flush(out) {
			return
		}
		if len(page.Events) < eventBatch { // caught up
			if !q.follow {
				out.end("end", nil)
				return
			}
			if !a.idle(r, out, wake) {
				return
			}
		}
		if page, err = a.cfg.Events.Events(ctx, out.after, eventBatch); err != nil {
			out.end("stopping", newProblem(a.stoppedError(err)))
			return
		}
	}
}

// idle waits for more. false = the stream is over.
func (a api) idle(r *http.Request, out *eventWriter, wake <-chan struct{}) bool {
	beat := time.NewTicker(a.times.heartbeat)
	defer beat.Stop()
	for {
		select {
		case _, ok := <-wake:
			if ok {
				return true
			}
			// The watch ends with the stop, or with its store.
			out.end("stopping", newProblem(berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping")))
			return false
		case <-a.stop:
			out.end("stopping", newProblem(berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping")))
			return false
		case <-r.Context().Done():
			return false
		case <-beat.C:
			out.buf.WriteString(":\n\n")
			if !a.flush(out) {
				return false
			}
		}
	}
}

// flush sends what is in the buffer. false = the reader was cut or is gone.
func (a api) flush(out *eventWriter) bool {
	took, err := out.flush()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.metrics.cut.Inc() // its buffers are full: it cannot be told
		return false
	case err != nil:
		return false
	case took > out.slow:
		a.metrics.cut.Inc()
		out.end("cut", newProblem(berth.Errorf(berth.CodeTimeout, "the reader of the events was too slow: it took %s to read a part", took.Round(time.Millisecond)).
			WithHint("connect again with Last-Event-ID")))
		return false
	}
	return true
}

type eventQuery struct {
	after  int64 // cursor; -1 = only new ones
	follow bool
}

func parseEventQuery(r *http.Request) (eventQuery, error) {
	q := eventQuery{after: -1, follow: true}
	query := r.URL.Query()
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return q, berth.Errorf(berth.CodeInvalidArgument, "Last-Event-ID %q is not the id of an event", text)
		}
		q.after = n
	} else if text := query.Get("from"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return q, berth.Errorf(berth.CodeInvalidArgument, "from %q is not a sequence number", text)
		}
		q.after = max(n-1, 0)
	}
	if text := query.Get("follow"); text != "" {
		follow, err := strconv.ParseBool(text)
		if err != nil {
			return q, berth.Errorf(berth.CodeInvalidArgument, "follow %q is neither true nor false", text)
		}
		q.follow = follow
	}
	return q, nil
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w           http.ResponseWriter
	rc          *http.ResponseController
	slow, stuck time.Duration
	buf         bytes.Buffer
	after       int64 // cursor behind what is in the buffer
}

func (e *eventWriter) id(n int64) { e.buf.WriteString("id: " + strconv.FormatInt(n, 10) + "\n\n") }

// event adds one. JSON has no line breaks, so it is one data line.
func (e *eventWriter) event(ev berth.Event, cursor int64) {
	data, err := json.Marshal(ev)
	if err != nil {
		return // numbers, strings and a time of this era; cannot be
	}
	e.buf.WriteString("id: " + strconv.FormatInt(cursor, 10) + "\nevent: " + string(ev.Kind) + "\ndata: ")
	e.buf.Write(data)
	e.buf.WriteString("\n\n")
	e.after = cursor
}

// end says why the stream ends, as far as the reader can be reached.
func (e *eventWriter) end(name string, why *problem) {
	data := []byte("{}")
	if why != nil {
		if encoded, err := json.Marshal(why); err == nil {
			data = encoded
		}
	}
	e.buf.WriteString("event: " + name + "\ndata: ")
	e.buf.Write(data)
	e.buf.WriteString("\n\n")
	_, _ = e.flush() // the stream is over either way
}

// flush writes the buffer and reports how long the reader's buffers took it.
func (e *eventWriter) flush() (time.Duration, error) {
	if e.buf.Len() == 0 {
		return 0, nil
	}
	began := time.Now()
	if err := e.rc.SetWriteDeadline(began.Add(e.stuck)); err != nil {
		return 0, err
	}
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return 0, err
	}
	err := e.rc.Flush()
	e.buf.Reset()
	return time.Since(began), err
}
