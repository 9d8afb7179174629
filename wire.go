package berth

import (
	"net/url"
	"strconv"
	"time"
)

// Bounds of the API and of the guest protocol, in bytes.
const (
	MaxRequest  = 4 << 20 // a JSON request: argv and environment together
	MaxLogChunk = 1 << 20 // one answer of GET log
	MaxInput    = 1 << 20 // Data of one POST input
)

// ResizeRequest is the body of POST resize.
type ResizeRequest struct {
	Size Size `json:"size"`
}

// SignalRequest is the body of POST signal, and of a signal frame.
type SignalRequest struct {
	Signal string `json:"signal"` // "SIGINT" or "INT" or "2"
}

// KillResult answers POST kill, when the program is gone or the last signal has
// been sent without effect.
type KillResult struct {
	Exit      *Exit `json:"exit,omitempty"` // nil = it is still there
	Contained bool  `json:"contained"`      // whether a cgroup was killed too
	Survivors []int `json:"survivors"`      // PIDs known to be left; never nil
}

// InputRequest is the body of POST input.
type InputRequest struct {
	Data []byte `json:"data,omitempty"` // base64 in JSON, as encoding/json does; at most MaxInput
	// Paste asks for bracketed paste where the program has mode 2004 on;
	// an embedded end mark is removed.
	Paste bool `json:"paste,omitempty"`
	// Enter asks for a carriage return, as a separate write after Data.
	Enter bool `json:"enter,omitempty"`
}

// Screen answers GET screen.
type Screen struct {
	Generation int      `json:"generation"`
	Offset     uint64   `json:"offset"` // the output up to here is drawn
	Size       Size     `json:"size"`
	Lines      []string `json:"lines"` // one a row, without trailing blanks
	Cursor     Cursor   `json:"cursor"`
	Alternate  bool     `json:"alternate"` // the alternate screen is shown
	Title      string   `json:"title"`
	ANSI       []byte   `json:"ansi,omitempty"` // when asked for: sequences that rebuild the screen
}

// Cursor is where the cursor stands, from 0.
type Cursor struct {
	Col     int  `json:"col"`
	Row     int  `json:"row"`
	Visible bool `json:"visible"`
}

// LogRequest asks for output by offset.
type LogRequest struct {
	Generation int           // 0 = the current one
	From       uint64        // first byte wanted
	FromStart  bool          // take the first byte kept instead of From
	Limit      int           // in bytes; 0 = MaxLogChunk
	Wait       time.Duration // when nothing is there yet: how long to wait for it
}

// Query gives the request as query parameters of GET log, which are the same at
// the daemon and at a guest: generation, from or from_start, limit, wait_ms.
func (r LogRequest) Query() url.Values {
	q := url.Values{}
	if r.Generation != 0 {
		q.Set("generation", strconv.Itoa(r.Generation))
	}
	if r.FromStart {
		q.Set("from_start", "true")
	} else {
		q.Set("from", strconv.FormatUint(r.From, 10))
	}
	if r.Limit != 0 {
		q.Set("limit", strconv.Itoa(r.Limit))
	}
	if r.Wait > 0 {
		q.Set("wait_ms", strconv.FormatInt(r.Wait.Milliseconds(), 10))
	}
	return q
}

// LogChunk answers it. On the wire Data is the body and the rest are the
// headers below. Asking for a byte that is no longer kept is CodeOffsetGone
// with the fact kept_from; one past the end is CodeInvalidOffset.
type LogChunk struct {
	Generation int
	Offset     uint64 // of the first byte of Data
	KeptFrom   uint64
	End        uint64 // offset after the last byte of output so far
	Ended      bool   // no more will come after End
	Data       []byte
}

// Headers of an answer of GET log: numbers in decimal, Ended "true" or "false".
const (
	HeaderLogGeneration = "Berth-Generation"
	HeaderLogOffset     = "Berth-Offset"
	HeaderLogKeptFrom   = "Berth-Kept-From"
	HeaderLogEnd        = "Berth-End"
	HeaderLogEnded      = "Berth-Ended"
)

// ProblemDocument is the body of every error answer: RFC 9457 with berth's members.
type ProblemDocument struct {
	Type   string            `json:"type"`
	Title  string            `json:"title"`
	Status int               `json:"status"`
	Code   Code              `json:"code"`
	Detail string            `json:"detail"`
	Hint   string            `json:"hint,omitempty"`
	Facts  map[string]string `json:"facts,omitempty"`
}

// ProblemType is the media type of a ProblemDocument.
const ProblemType = "application/problem+json"

// problemTypePrefix and the code make the type member: a name, not a link.
const problemTypePrefix = "urn:berth:problem:"

// NewProblem dresses an error for the wire. The cause and whatever is not in
// Error's fields stay on this side. err must not be nil.
func NewProblem(err error) ProblemDocument {
	e := AsError(err)
	p := ProblemDocument{
		Type:   problemTypePrefix + string(e.Code),
		Title:  string(e.Code),
		Status: 500,
		Code:   e.Code,
		Detail: e.Error(),
		Hint:   e.Hint,
		Facts:  e.Facts,
	}
	if entry, ok := Catalogue(e.Code); ok {
		p.Title, p.Status = entry.Meaning, entry.Status
	}
	return p
}

// Err gives back the error that the document was made of. A document without a
// code, or of a newer peer with a code that is not known here, keeps its words.
func (p ProblemDocument) Err() *Error {
	e := &Error{Code: p.Code, Detail: p.Detail, Hint: p.Hint, Facts: p.Facts}
	if e.Code == "" {
		e.Code = CodeInternal
	}
	if e.Detail == "" {
		e.Detail = p.Title
	}
	return e
}
