package guest

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"berth"
	"berth/guestapi"
	"berth/terminal"
)

// Flow control. What a client sends on one stream before it is read is bounded,
// so that typing into a program that does not read costs 128 KiB; the windows
// of all streams of a connection together are large, so that this viewer does
// not stop the others.
const (
	streamWindow = 128 << 10
	connWindow   = 1 << 30
	// maxStreams is for all calls and viewers of one daemon.
	maxStreams = 16384
)

type server struct {
	g      *Guest
	retire func()
	execs  chan struct{} // a place for each program of an exec that runs
}

// newServer makes the server, and counts its handlers while they run.
func newServer(g *Guest, retire func()) (*http.Server, *handlerCount) {
	s := &server{g: g, retire: retire, execs: make(chan struct{}, maxExecs)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/info", s.info)
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("POST /v1/retire", s.retireNow)
	mux.HandleFunc("GET /v1/sessions", s.list)
	mux.HandleFunc("POST /v1/sessions", s.create)
	mux.HandleFunc("GET /v1/sessions/{id}", s.get)
	mux.HandleFunc("DELETE /v1/sessions/{id}", s.remove)
	mux.HandleFunc("POST /v1/sessions/{id}/attach", s.attach)
	mux.HandleFunc("GET /v1/sessions/{id}/log", s.logChunk)
	mux.HandleFunc("GET /v1/sessions/{id}/screen", s.screen)
	mux.HandleFunc("GET /v1/sessions/{id}/times", s.times)
	mux.HandleFunc("POST /v1/sessions/{id}/resize", s.resize)
	mux.HandleFunc("POST /v1/sessions/{id}/signal", s.signal)
	mux.HandleFunc("POST /v1/sessions/{id}/kill", s.kill)
	mux.HandleFunc("POST /v1/sessions/{id}/input", s.input)
	s.machineRoutes(mux)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true) // for viewers that take a connection over
	var handlers handlerCount
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.add(1)
			defer handlers.add(-1)
			mux.ServeHTTP(w, r)
		}),
		Protocols: &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
		},
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}, &handlers
}

func (s *server) info(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.g.info()) }

func (s *server) retireNow(w http.ResponseWriter, _ *http.Request) {
	s.g.depositAll() // once more at the stop; by then little is left to write
	answer(w, http.StatusOK, struct{}{})
	s.retire()
}

func (s *server) list(w http.ResponseWriter, _ *http.Request) {
	s.g.mu.Lock()
	all := s.g.list()
	s.g.mu.Unlock()
	out := guestapi.SessionList{Sessions: make([]guestapi.Session, 0, len(all))}
	for _, session := range all {
		out.Sessions = append(out.Sessions, session.snapshotView())
	}
	answer(w, http.StatusOK, out)
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	var in guestapi.CreateSession
	if err := decode(w, r, berth.MaxRequest, &in); err != nil {
		problem(w, r, err)
		return
	}
	session, created, err := s.g.create(r.Context(), in)
	if err != nil {
		problem(w, r, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	answer(w, status, session.snapshotView())
}

// session finds the session of the path, and answers where there is none.
func (s *server) session(w http.ResponseWriter, r *http.Request) *session {
	found, err := s.g.find(r.PathValue("id"))
	if err == nil {
		err = found.waitSettled(r.Context())
	}
	if err != nil {
		problem(w, r, err)
		return nil
	}
	return found
}

func (s *server) get(w http.ResponseWriter, r *http.Request) {
	if session := s.session(w, r); session != nil {
		answer(w, http.StatusOK, session.freshView(r.Context()))
	}
}

func (s *server) remove(w http.ResponseWriter, r *http.Request) {
	if err := s.g.remove(r.Context(), r.PathValue("id")); err != nil {
		problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

func (s *server) resize(w http.ResponseWriter, r *http.Request) {
	var in berth.ResizeRequest
	s.act(w, r, &in, func(session *session) (any, error) {
		if err := session.waitReady(r.Context()); err != nil {
			return nil, err
		}
		return struct{}{}, session.resize(in.Size)
	})
}

func (s *server) signal(w http.ResponseWriter, r *http.Request) {
	var in berth.SignalRequest
	s.act(w, r, &in, func(session *session) (any, error) {
		return struct{}{}, session.signal(r.Context(), in.Signal)
	})
}

func (s *server) kill(w http.ResponseWriter, r *http.Request) {
	var in struct{}
	s.act(w, r, &in, func(session *session) (any, error) { return session.kill(r.Context()) })
}

func (s *server) input(w http.ResponseWriter, r *http.Request) {
	var in berth.InputRequest
	s.act(w, r, &in, func(session *session) (any, error) {
		return struct{}{}, session.write(r.Context(), in)
	})
}

// act is a POST with a JSON body to a session.
func (s *server) act(w http.ResponseWriter, r *http.Request, in any, f func(*session) (any, error)) {
	if err := decode(w, r, berth.MaxRequest, in); err != nil {
		problem(w, r, err)
		return
	}
	session := s.session(w, r)
	if session == nil {
		return
	}
	out, err := f(session)
	if err != nil {
		problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}

func (s *server) screen(w http.ResponseWriter, r *http.Request) {
	session := s.session(w, r)
	if session == nil {
		return
	}
	out, err := session.screenNow(r.Context(), r.URL.Query().Get("ansi") == "1")
	if err != nil {
		problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}

func (s *server) times(w http.ResponseWriter, r *http.Request) {
	session := s.session(w, r)
	if session == nil {
		return
	}
	marks, err := terminal.ReadMarks(filepath.Join(session.dir, berth.DirOutput))
	if err != nil {
		problem(w, r, err)
		return
	}
	out := guestapi.Times{Marks: make([][2]int64, len(marks))}
	for i, m := range marks {
		out.Marks[i] = [2]int64{int64(m.Offset), m.At.UnixMilli()} //nolint:gosec // no program puts out 8 EiB
	}
	answer(w, http.StatusOK, out)
}

func (s *server) logChunk(w http.ResponseWriter, r *http.Request) {
	session := s.session(w, r)
	if session == nil {
		return
	}
	req, err := guestapi.ParseLogQuery(r.URL.Query())
	if err != nil {
		problem(w, r, err)
		return
	}
	c, err := session.readOutput(r.Context(), req)
	if err != nil {
		problem(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(guestapi.HeaderGeneration, strconv.Itoa(c.Generation))
	h.Set(guestapi.HeaderOffset, strconv.FormatUint(c.Offset, 10))
	h.Set(guestapi.HeaderKeptFrom, strconv.FormatUint(c.KeptFrom, 10))
	h.Set(guestapi.HeaderEnd, strconv.FormatUint(c.End, 10))
	if c.Ended {
		h.Set(guestapi.HeaderEnded, "1")
	}
	_, _ = w.Write(c.Data) // a client that went away is no failure of ours
}

// attach is the one call that goes both ways at once. It answers errors as a
// problem until the first frame, and ends the stream after.
func (s *server) attach(w http.ResponseWriter, r *http.Request) {
	session := s.session(w, r)
	if session == nil {
		return
	}
	if r.ProtoMajor == 1 && !wantsDirect(r) {
		problem(w, r, berth.Errorf(berth.CodeInvalidArgument, "over HTTP/1.1 an attach takes the connection over").
			WithHint("send Upgrade: "+berth.DirectUpgrade))
		return
	}
	req, err := guestapi.ParseAttachQuery(r.URL.Query())
	if err != nil {
		problem(w, r, err)
		return
	}
	id, err := s.g.newViewerID()
	if err != nil {
		problem(w, r, err)
		return
	}
	if err := session.waitReady(r.Context()); err != nil {
		problem(w, r, err)
		return
	}
	a := &attachment{s: session, req: req, v: &viewer{
		id: id, wakeup: make(chan struct{}, 1), sshSock: req.SSHAuthSock,
		voter: sizeVoter{size: req.Size, readOnly: req.ReadOnly},
	}}
	if !session.isLive() {
		s.attachEnded(w, r, a)
		return
	}
	hello, first, err := a.start(r.Context())
	if errors.Is(err, errEndedMeanwhile) {
		s.attachEnded(w, r, a)
		return
	}
	if err != nil {
		problem(w, r, err)
		return
	}
	defer session.leave(a.v)
	session.changed(false)
	s.stream(w, r, a, func(st *stream) error { return a.run(st.ctx, st.in, hello, first) })
}

func (s *server) attachEnded(w http.ResponseWriter, r *http.Request, a *attachment) {
	if err := a.checkEnded(); err != nil {
		problem(w, r, err)
		return
	}
	s.stream(w, r, a, func(st *stream) error { return a.serveEnded(st.ctx) })
}

// stream begins the answer and lets serve write frames to it.
func (s *server) stream(w http.ResponseWriter, r *http.Request, a *attachment, serve func(*stream) error) {
	st, err := s.openStream(w, r)
	if err == nil {
		a.out, a.flush = st.out, st.flush
		err = serve(st)
		if st.ctx.Err() != nil {
			err = nil // the client went away
		}
		st.close()
	}
	if err != nil {
		a.s.log.Info("a viewer's stream ended", "viewer", a.v.id, "reason", err)
	}
}

// decode reads a JSON body of at most limit bytes. Unknown fields are ignored:
// a newer client may send them.
func decode(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return bodyError(err, limit)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return berth.Errorf(berth.CodeInvalidArgument, "the request is not the JSON that is expected: %w", err)
	}
	return nil
}

// bodyError says why a body could not be read.
func bodyError(err error, limit int64) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return berth.Errorf(berth.CodeTooLarge, "the request is larger than %d bytes", limit)
	}
	return berth.Errorf(berth.CodeInvalidArgument, "read the request: %w", err)
}

func answer(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		writeProblem(w, berth.Errorf(berth.CodeInternal, "encode the answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a client that went away is no failure of ours
}

// problem answers an error.
func problem(w http.ResponseWriter, r *http.Request, err error) {
	if ctxErr := r.Context().Err(); ctxErr != nil && errors.Is(err, ctxErr) {
		err = berth.Errorf(berth.CodeInterrupted, "the caller stopped waiting: %w", ctxErr)
	}
	writeProblem(w, err)
}

func writeProblem(w http.ResponseWriter, err error) {
	p := berth.NewProblem(err)
	data, err := json.Marshal(p)
	if err != nil { // cannot be: strings and numbers alone
		data = []byte(`{"code":"internal"}`)
	}
	w.Header().Set("Content-Type", berth.ProblemType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(data, '\n')) // a client that went away is no failure of ours
}
