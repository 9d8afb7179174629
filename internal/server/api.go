package server

import (
	"context"
	"net/http"
	"reflect"
	"runtime"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"berth"
)

// api registers routes with huma, which reads parameters and bodies, checks
// them against the schemas and writes the description.
type api struct {
	*Server
	huma    huma.API
	problem *huma.Response
}

// route registers one call. The handler returns plain errors.
func route[I, O any](a api, op huma.Operation, handler func(context.Context, *I) (*O, error)) {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = a.problem
	op.MaxBodyBytes = berth.MaxRequest + 1 // readBody bounded it; huma refuses at its bound
	op.BodyReadTimeout = -1                // and the body is in memory
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		if err != nil {
			p := newProblem(err)
			if p.Code == berth.CodeInternal {
				a.cfg.Log.Error("a request failed", "operation", op.OperationID, "error", err)
			}
			return nil, p
		}
		return out, nil
	})
}

// Inputs and outputs, as huma reads and writes them. Those that are embedded
// are exported, since huma overlooks the fields of the others.
type (
	none        struct{}
	body[T any] struct{ Body T }
	SessionRef  struct {
		Ref string `path:"ref" maxLength:"64" doc:"id of the session, or its name"`
	}
	sessionOut struct {
		Status   int
		ETag     string `header:"ETag"`
		Location string `header:"Location"`
		Body     sessionDocument
	}
	listInput struct {
		Host   string `query:"host" doc:"only sessions on this host"`
		State  string `query:"state" doc:"only sessions in these states, with commas between"`
		Name   string `query:"name" doc:"only sessions of this name"`
		Parent string `query:"parent" doc:"only sessions that this one started"`
		Cursor string `query:"cursor" doc:"next of the page before"`
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"200"`
	}
	createInput struct {
		Key  string `header:"Idempotency-Key" maxLength:"255" doc:"the same key and body again answers the session that is there"`
		Body berth.SessionSpec
	}
	ChangeInput struct {
		SessionRef
		IfMatch string `header:"If-Match" doc:"ETag of the record as it was read"`
	}
	removeInput struct {
		ChangeInput
		Force bool `query:"force" doc:"end the program first"`
	}
	resizeInput struct {
		ChangeInput
		Body berth.ResizeRequest
	}
	signalInput struct {
		SessionRef
		Body berth.SignalRequest
	}
	inputInput struct {
		SessionRef
		Body berth.InputRequest
	}
	screenInput struct {
		SessionRef
		ANSI bool `query:"ansi" doc:"give the sequences that rebuild the screen too"`
	}
	logInput struct {
		SessionRef
		Generation int    `query:"generation" minimum:"0" doc:"0 = the current one"`
		From       uint64 `query:"from" doc:"offset of the first byte wanted"`
		FromStart  bool   `query:"from_start" doc:"take the first byte kept instead of from"`
		Limit      int    `query:"limit" minimum:"0" maximum:"1048576" doc:"0 = 1 MiB"`
		WaitMS     int64  `query:"wait_ms" minimum:"0" maximum:"60000" doc:"how long to wait when there is nothing yet"`
	}
	logOutput struct {
		ContentType string `header:"Content-Type"`
		Generation  int    `header:"Berth-Generation"`
		Offset      uint64 `header:"Berth-Offset" doc:"of the first byte of the body"`
		KeptFrom    uint64 `header:"Berth-Kept-From"`
		End         uint64 `header:"Berth-End" doc:"offset behind the last byte so far"`
		Ended       bool   `header:"Berth-Ended" doc:"no more will come behind the end"`
		Body        []byte
	}
	waitInput struct {
		SessionRef
		TimeoutMS int64 `query:"timeout_ms" minimum:"0" maximum:"60000" doc:"answer timeout after this; 0 = 25 s"`
	}
)

// routes registers everything and gives the description of it.
func (s *Server) routes(mux *http.ServeMux) ([]byte, error) {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	a := api{Server: s, huma: humago.New(mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			// The version of the API, not of the build: the file must not change with each commit.
			Info:       &huma.Info{Title: "berth", Version: "1", Description: apiDescription},
			Components: &huma.Components{Schemas: registry, SecuritySchemes: securitySchemes()},
			Security:   []map[string][]string{{}, {"token": {}}},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{transformErrors},
	})}
	a.huma.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(&humaCtx{innerContext: ctx}) })
	a.problem = &huma.Response{
		Description: "What went wrong, with a code of the catalogue",
		Content: map[string]*huma.MediaType{berth.ProblemType: {
			Schema: registry.Schema(reflect.TypeFor[berth.ProblemDocument](), true, ""),
		}},
	}
	a.daemonRoutes()
	a.sessionRoutes()
	a.actionRoutes()
	a.environmentRoutes()
	a.operationRoutes()
	a.engineRoutes()
	a.streamRoutes(mux)
	return describe(a.huma.OpenAPI(), mux)
}

func (a api) daemonRoutes() {
	route(a, huma.Operation{
		OperationID: "get-status", Method: http.MethodGet, Path: "/v1/status", Tags: []string{"daemon"},
		Summary: "What runs and what is wrong",
	}, func(ctx context.Context, _ *none) (*body[statusDocument], error) {
		st, err := a.cfg.Status.Status(ctx)
		if st.Problems == nil {
			st.Problems = []berth.Problem{}
		}
		return &body[statusDocument]{statusDocument{apiVersion, st}}, err
	})
	route(a, huma.Operation{
		OperationID: "get-version", Method: http.MethodGet, Path: "/v1/version", Tags: []string{"daemon"},
		Summary: "Which build the daemon is",
	}, func(context.Context, *none) (*body[versionDocument], error) {
		return &body[versionDocument]{versionDocument{apiVersion, berth.VersionInfo{
			Version: berth.Version(), Build: berth.Build(), Protocol: berth.GuestProtocol, Go: runtime.Version(),
		}}}, nil
	})
	route(a, huma.Operation{
		OperationID: "shut-down", Method: http.MethodPost, Path: "/v1/shutdown", Tags: []string{"daemon"},
		Summary: "Stop the daemon; what it runs goes on. On the unix socket only", DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, _ *none) (*body[shutdownDocument], error) {
		if ctx.Value(doorKey{}) != doorUnix {
			return nil, berth.Errorf(berth.CodeForbidden, "the daemon is stopped on its unix socket only").
				WithHint("berth down")
		}
		a.cfg.Stop()
		return &body[shutdownDocument]{shutdownDocument{apiVersion, true}}, nil
	})
	route(a, huma.Operation{
		OperationID: "replace-guest", Method: http.MethodPost, Path: "/v1/guest/replace", Tags: []string{"daemon"},
		Summary: "Put a guest of this build in place of the local one; its sessions go on",
	}, func(ctx context.Context, _ *none) (*none, error) {
		if a.cfg.ReplaceGuest == nil {
			return nil, berth.Errorf(berth.CodeNotFound, "this daemon replaces no guests")
		}
		return &none{}, a.cfg.ReplaceGuest(ctx)
	})
}

func (a api) sessionRoutes() {
	route(a, huma.Operation{
		OperationID: "list-sessions", Method: http.MethodGet, Path: "/v1/sessions", Tags: []string{"sessions"},
		Summary: "List sessions, newest first",
	}, func(ctx context.Context, in *listInput) (*body[sessionList], error) {
		states, err := parseStates(in.State)
		if err != nil {
			return nil, err
		}
		all, err := a.cfg.Sessions.List(ctx, berth.SessionFilter{Host: in.Host, States: states, Name: in.Name, Parent: in.Parent})
		if err != nil {
			return nil, err
		}
		list, err := page(all, in.Cursor, in.Limit)
		return &body[sessionList]{list}, err
	})
	route(a, huma.Operation{
		OperationID: "create-session", Method: http.MethodPost, Path: "/v1/sessions", Tags: []string{"sessions"},
		Summary: "Start a session", DefaultStatus: http.StatusCreated,
	}, func(ctx context.Context, in *createInput) (*sessionOut, error) {
		if err := in.Body.Validate(); err != nil {
			return nil, err
		}
		s, created, err := a.cfg.Sessions.Create(ctx, in.Body, in.Key)
		out := answer(s)
		out.Location = "/v1/sessions/" + s.ID
		if out.Status = http.StatusOK; created {
			out.Status = http.StatusCreated
		}
		return out, err
	})
	route(a, huma.Operation{
		OperationID: "get-session", Method: http.MethodGet, Path: "/v1/sessions/{ref}", Tags: []string{"sessions"},
		Summary: "One session: by id, else the live one of that name, else the newest",
	}, func(ctx context.Context, in *SessionRef) (*sessionOut, error) {
		s, err := a.cfg.Sessions.Get(ctx, in.Ref)
		return answer(s), err
	})
	route(a, huma.Operation{
		OperationID: "remove-session", Method: http.MethodDelete, Path: "/v1/sessions/{ref}", Tags: []string{"sessions"},
		Summary: "Forget a session that has ended, with every file of it",
	}, func(ctx context.Context, in *removeInput) (*none, error) {
		match, err := parseMatch(in.IfMatch)
		if err != nil {
			return nil, err
		}
		return &none{}, a.cfg.Sessions.Remove(ctx, in.Ref, in.Force, match)
	})
	route(a, huma.Operation{
		OperationID: "direct-attach", Method: http.MethodGet, Path: "/v1/sessions/{ref}/direct", Tags: []string{"sessions"},
		Summary: "Where an attach reaches the session's guest without the daemon. On the unix socket, for sessions of this machine",
	}, func(ctx context.Context, in *SessionRef) (*body[directDocument], error) {
		if a.cfg.Direct == nil || ctx.Value(doorKey{}) != doorUnix {
			return nil, berth.Errorf(berth.CodeNotFound, "this way in has no direct attach").WithHint("attach through the daemon")
		}
		d, err := a.cfg.Direct(ctx, in.Ref)
		return &body[directDocument]{directDocument{apiVersion, d}}, err
	})
	route(a, huma.Operation{
		OperationID: "wait-session", Method: http.MethodGet, Path: "/v1/sessions/{ref}/wait", Tags: []string{"sessions"},
		Summary: "Answer when the program has ended, or timeout when it still runs; then ask again",
	}, func(ctx context.Context, in *waitInput) (*sessionOut, error) {
		s, err := a.wait(ctx, in.Ref, waitFor(in.TimeoutMS, defaultWait))
		return answer(s), err
	})
}

// actionRoutes are what is done with a session.
func (a api) actionRoutes() {
	route(a, huma.Operation{
		OperationID: "resize-session", Method: http.MethodPost, Path: "/v1/sessions/{ref}/resize", Tags: []string{"sessions"},
		Summary: "Change the size of the terminal",
	}, func(ctx context.Context, in *resizeInput) (*sessionOut, error) {
		match, err := parseMatch(in.IfMatch)
		if err != nil {
			return nil, err
		}
		if !in.Body.Size.Valid() {
			return nil, berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", in.Body.Size, berth.MaxCols, berth.MaxRows)
		}
		s, err := a.cfg.Sessions.Resize(ctx, in.Ref, in.Body.Size, match)
		return answer(s), err
	})
	route(a, huma.Operation{
		OperationID: "signal-session", Method: http.MethodPost, Path: "/v1/sessions/{ref}/signal", Tags: []string{"sessions"},
		Summary: "Signal the foreground process group",
	}, func(ctx context.Context, in *signalInput) (*none, error) {
		return &none{}, a.cfg.Sessions.Signal(ctx, in.Ref, in.Body.Signal)
	})
	route(a, huma.Operation{
		OperationID: "kill-session", Method: http.MethodPost, Path: "/v1/sessions/{ref}/kill", Tags: []string{"sessions"},
		Summary: "End the program; answers when it is gone",
	}, func(ctx context.Context, in *ChangeInput) (*body[killDocument], error) {
		match, err := parseMatch(in.IfMatch)
		if err != nil {
			return nil, err
		}
		k, err := a.cfg.Sessions.Kill(ctx, in.Ref, match)
		if k.Survivors == nil {
			k.Survivors = []int{}
		}
		return &body[killDocument]{killDocument{apiVersion, k}}, err
	})
	route(a, huma.Operation{
		OperationID: "send-input", Method: http.MethodPost, Path: "/v1/sessions/{ref}/input", Tags: []string{"sessions"},
		Summary: "Write to the program",
	}, func(ctx context.Context, in *inputInput) (*none, error) {
		if len(in.Body.Data) > berth.MaxInput {
			return nil, berth.Errorf(berth.CodeTooLarge, "the input has %d bytes; the most is %d", len(in.Body.Data), berth.MaxInput)
		}
		return &none{}, a.cfg.Sessions.Input(ctx, in.Ref, in.Body)
	})
	route(a, huma.Operation{
		OperationID: "get-screen", Method: http.MethodGet, Path: "/v1/sessions/{ref}/screen", Tags: []string{"sessions"},
		Summary: "The screen as text",
	}, func(ctx context.Context, in *screenInput) (*body[screenDocument], error) {
		screen, err := a.cfg.Sessions.Screen(ctx, in.Ref, in.ANSI)
		if screen.Lines == nil {
			screen.Lines = []string{}
		}
		return &body[screenDocument]{screenDocument{apiVersion, screen}}, err
	})
	route(a, huma.Operation{
		OperationID: "read-log", Method: http.MethodGet, Path: "/v1/sessions/{ref}/log", Tags: []string{"sessions"},
		Summary: "Read output by offset",
		Responses: map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}}},
	}, a.log)
}

func (a api) log(ctx context.Context, in *logInput) (*logOutput, error) {
	ctx, cancel := a.untilStop(ctx)
	defer cancel()
	c, err := a.cfg.Sessions.Log(ctx, in.Ref, berth.LogRequest{
		Generation: in.Generation, From: in.From, FromStart: in.FromStart, Limit: in.Limit,
		Wait: time.Duration(in.WaitMS) * time.Millisecond,
	})
	if err != nil {
		return nil, a.stoppedError(err)
	}
	if c.Data == nil {
		c.Data = []byte{}
	}
	return &logOutput{
		ContentType: "application/octet-stream", Generation: c.Generation, Offset: c.Offset,
		KeptFrom: c.KeptFrom, End: c.End, Ended: c.Ended, Body: c.Data,
	}, nil
}

// wait answers when the program has ended.
func (s *Server) wait(ctx context.Context, ref string, d time.Duration) (berth.Session, error) {
	stoppable, cancel := s.untilStop(ctx)
	defer cancel()
	bounded, cancel2 := context.WithTimeout(stoppable, d)
	defer cancel2()
	session, err := s.cfg.Sessions.Wait(bounded, ref)
	if err != nil && bounded.Err() != nil && stoppable.Err() == nil {
		return session, berth.Errorf(berth.CodeTimeout, "the program still runs after %s", d).
			WithHint("ask again")
	}
	return session, s.stoppedError(err)
}

// untilStop gives a context that ends with ctx and when the server stops, for
// what would wait longer than a stop may take.
func (s *Server) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with its request: cancel is called by its handler
		defer close(done)
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-done }
}

// stoppedError replaces the error of a wait that the stop has ended.
func (s *Server) stoppedError(err error) error {
	if err != nil && s.stopping() {
		return berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping")
	}
	return err
}

func answer(s berth.Session) *sessionOut {
	return &sessionOut{Status: http.StatusOK, ETag: etag(s.Revision), Body: sessionDocument{apiVersion, whole(s)}}
}
