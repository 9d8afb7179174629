package server

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"berth"
)

// around is what happens to every request between the door and its handler.
func (s *Server) around(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		_, pattern := mux.Handler(r)
		rec := &recorder{ResponseWriter: w}
		defer func() {
			if v := recover(); v != nil {
				s.panicked(rec, r, v)
			}
			s.metrics.request(pattern, r.Method, rec.code(), time.Since(began))
		}()
		w.Header().Set("Cache-Control", "no-store")
		switch {
		case s.stopping():
			w.Header().Set("Connection", "close")
			writeProblem(rec, r, berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping"))
		case pattern == "":
			s.unknown(rec, r, mux)
		default:
			if err := s.readBody(rec, r); err != nil {
				writeProblem(rec, r, err)
				return
			}
			mux.ServeHTTP(rec, r)
		}
	})
}

// panicked answers for a handler that failed in a way nobody foresaw. The stack
// goes to the log and not to the caller.
func (s *Server) panicked(rec *recorder, r *http.Request, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // the way to cut a connection
	}
	s.cfg.Log.Error("a handler panicked", "method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	s.metrics.panics.Inc()
	if rec.status != 0 || rec.hijacked {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
	writeProblem(rec, r, berth.Errorf(berth.CodeInternal, "the request failed in a way that was not foreseen"))
}

// unknown answers for what has no handler: net/http knows whether the path or
// only the method is unknown, but says it as plain text.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	var probe headerProbe
	mux.ServeHTTP(&probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.Header().Get("Allow")
		w.Header().Set("Allow", allow)
		writeProblem(w, r, berth.Errorf(berth.CodeMethodNotAllowed, "%s does not take %s", r.URL.Path, r.Method).
			WithHint("use "+allow))
		return
	}
	writeProblem(w, r, berth.Errorf(berth.CodeNotFound, "there is nothing at %s", r.URL.Path).
		WithHint("/openapi.json describes what there is"))
}

// headerProbe takes an answer and keeps its head.
type headerProbe struct {
	header http.Header
	status int
}

func (p *headerProbe) Header() http.Header {
	if p.header == nil {
		p.header = http.Header{}
	}
	return p.header
}
func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *headerProbe) WriteHeader(status int)      { p.status = status }

// readBody takes the body into memory before any handler runs. Its size and its
// time are bounded here, in one place; and the deadline is lifted again, since
// one that stays would cancel a handler that takes longer than the body may.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody || isUpgrade(r) {
		return nil
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(s.times.body)); err != nil {
		return berth.Errorf(berth.CodeInternal, "bound the time of a request's body: %w", err)
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, berth.MaxRequest))
	if err != nil {
		var tooLarge *http.MaxBytesError
		var slow net.Error
		switch {
		case errors.As(err, &tooLarge):
			return berth.Errorf(berth.CodeTooLarge, "the request's body is longer than %d bytes", tooLarge.Limit)
		case errors.As(err, &slow) && slow.Timeout():
			return berth.Errorf(berth.CodeTimeout, "the request's body did not come within %s", s.times.body)
		}
		return berth.Errorf(berth.CodeInterrupted, "the request's body did not come: %w", err)
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return berth.Errorf(berth.CodeInternal, "lift the bound of a request's body: %w", err)
	}
	if ct := r.Header.Get("Content-Type"); len(data) > 0 && !strings.HasPrefix(ct, "application/json") {
		// A form that a web page posts without asking has another type.
		return berth.Errorf(berth.CodeInvalidArgument, "the content type %q is not application/json", ct)
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	return nil
}

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status   int // 0 = nothing was written
	hijacked bool
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
