package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"berth"
)

const apiDescription = `berth's daemon on its unix socket (mode 0600, the peer's user is checked), and on loopback TCP with a bearer token.
Every document carries "v":1. Errors are problem documents (RFC 9457) with a code of docs/errors.md.
Records carry a revision, which is their ETag; changes take If-Match.`

// Paths of the streams, which huma only describes.
const (
	routeAttach  = "/v1/sessions/{ref}/attach"
	routeExport  = "/v1/sessions/{ref}/export"
	routeEvents  = "/v1/events"
	routeMetrics = "/metrics"
	routeOpenAPI = "/openapi.json"
)

func securitySchemes() map[string]*huma.SecurityScheme {
	return map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "of the TCP listener; the unix socket needs none"},
	}
}

// streamRoutes registers what is no document.
func (a api) streamRoutes(mux *http.ServeMux) {
	query := func(name, typ, doc string) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: doc, Schema: &huma.Schema{Type: typ}}
	}
	ref := &huma.Param{Name: "ref", In: "path", Required: true, Description: "id of the session, or its name", Schema: &huma.Schema{Type: "string"}}
	schema := a.huma.OpenAPI().Components.Schemas
	// The bodies of frames are nowhere else in the description.
	for _, t := range []reflect.Type{
		reflect.TypeFor[berth.AttachHello](), reflect.TypeFor[berth.OutputGap](), reflect.TypeFor[berth.ViewerState](),
		reflect.TypeFor[berth.ViewerFocus](), reflect.TypeFor[berth.SignalRequest](), reflect.TypeFor[berth.Exit](),
	} {
		schema.Schema(t, true, "")
	}
	add := func(path, id, tag, summary, description, contentType string, s *huma.Schema, status, statusText string, params ...*huma.Param) {
		response := &huma.Response{Description: statusText}
		if contentType != "" {
			response.Content = map[string]*huma.MediaType{contentType: {Schema: s}}
		}
		a.huma.OpenAPI().AddOperation(&huma.Operation{
			Method: http.MethodGet, Path: path, OperationID: id, Tags: []string{tag}, Summary: summary, Description: description,
			Parameters: params, Responses: map[string]*huma.Response{status: response, "default": a.problem},
		})
	}
	add(routeAttach, "attach-session", "sessions", "Attach a viewer (WebSocket)", attachDescription, "", nil, "101", "Switching Protocols", ref,
		query("generation", "integer", "of the output that the viewer has"), query("offset", "integer", "first byte that it has not seen; absent = a fresh attach"),
		query("cols", "integer", "width of its terminal; absent = it has none"), query("rows", "integer", "height of its terminal"),
		query("read_only", "boolean", "it may only look"), query("size_policy", "string", "latest, smallest or fixed"),
		query("ssh_auth_sock", "string", "path of the SSH agent that it lends"))
	add(routeEvents, "follow-events", "events", "Follow events (server-sent events)", eventsDescription, "text/event-stream",
		schema.Schema(reflect.TypeFor[berth.Event](), true, ""), "200", "OK",
		query("from", "integer", "first sequence number wanted; absent = only new ones"), query("follow", "boolean", "false = end behind the newest event"),
		&huma.Param{Name: "Last-Event-ID", In: "header", Description: "go on behind this one; beats from", Schema: &huma.Schema{Type: "integer"}})
	text := &huma.Schema{Type: "string"}
	add(routeExport, "export-session", "sessions", "The kept output as plain text or as an asciicast",
		"An answer that breaks off is not whole.", "text/plain", text, "200", "OK", ref, query("format", "string", "text or cast"))
	add(routeMetrics, "get-metrics", "daemon", "Metrics in the Prometheus text format", "", "text/plain", text, "200", "OK")
	add(routeOpenAPI, "get-openapi", "daemon", "This description", "", "application/json", &huma.Schema{Type: "object"}, "200", "OK")

	mux.HandleFunc("GET "+routeAttach, a.attach)
	mux.HandleFunc("GET "+routeExport, a.export)
	mux.HandleFunc("GET "+routeEvents, a.events)
	mux.Handle("GET "+routeMetrics, a.metrics.handler())
}

const attachDescription = `One binary message is one frame: a type byte and a body.
From the viewer: I input (bytes), R resize (Size), S signal (SignalRequest), F focus (ViewerFocus).
From the daemon: H hello (AttachHello, first), P repaint (bytes), O output (u64 offset, u32 covers, bytes; big-endian), G gap (OutputGap), T state (ViewerState), X exit (Exit, last).
The daemon closes with 1000 behind X, and with 1012 when the viewer should connect again with its generation and offset.
On TCP a browser sends the token as the subprotocol berth.bearer.TOKEN beside berth.v1.`

const eventsDescription = `Each message has the sequence number as id, the kind as event and an Event as data. A gap says that some are no longer kept.
A message "cut" or "stopping" without id says why the daemon ends the stream: come again with Last-Event-ID. "end" ends a stream with follow=false.`

// refine says what huma cannot see in the types: which texts are closed sets,
// that no list is null, and that an answer may have more members one day. A
// request with a member that is not known stays refused: an option that is not
// understood must not be ignored.
func refine(name string, s *huma.Schema) {
	switch name {
	case "SessionSpec", "ResizeRequest", "SignalRequest", "InputRequest", "Size",
		"ProbeRequest", "BeginOperation", "ResumeOperation", "ResetOperations", "AddRelease", "Target", "Receipt", "ReceiptStep", "RecipeRef":
	default:
		s.AdditionalProperties = nil
	}
	for property, p := range s.Properties {
		if p.Type == huma.TypeArray {
			p.Nullable = false
		}
		if closed := environmentEnum(name, property); closed != nil {
			p.Enum = closed
			p.PrecomputeMessages()
		}
		switch name + "." + property {
		case "Session.state", "SessionDocument.state":
			p.Enum = []any{berth.SessionStarting, berth.SessionRunning, berth.SessionExited, berth.SessionLost, berth.SessionUnknown}
		case "Session.size_policy", "SessionDocument.size_policy":
			p.Enum = []any{berth.SizeLatest, berth.SizeSmallest, berth.SizeFixed}
		case "Exit.reason":
			p.Enum = []any{berth.ExitExited, berth.ExitSuspended, berth.ExitEnded}
		case "Agent.state":
			p.Enum = []any{berth.AgentWorking, berth.AgentBlocked, berth.AgentIdle, berth.AgentDone, berth.AgentUnknown}
		case "Agent.kind":
			p.Enum = []any{berth.BlockedPermission, berth.BlockedQuestion, berth.BlockedAuth}
		case "AttachHello.resume":
			p.Enum = []any{berth.ResumeFresh, berth.ResumeExact, berth.ResumeGap, berth.ResumeGeneration}
		}
	}
}

// describe writes the description once, the way it is committed, and serves it.
func describe(doc *huma.OpenAPI, mux *http.ServeMux) ([]byte, error) {
	schemas := doc.Components.Schemas.Map()
	// huma registers its own error document even where no route uses it.
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	for name, schema := range schemas {
		refine(name, schema)
	}
	compact, err := json.Marshal(doc)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInternal, "describe the API: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, compact, "", "  "); err != nil {
		return nil, berth.Errorf(berth.CodeInternal, "describe the API: %w", err)
	}
	out.WriteByte('\n')
	mux.HandleFunc("GET "+routeOpenAPI, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(out.Bytes()) // whoever went away needs no answer
	})
	return out.Bytes(), nil
}
