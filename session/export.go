package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"berth"
	"berth/guestapi"
	"berth/terminal/screen"
)

// ExportFormat is how a session's output is written for other programs.
type ExportFormat string

// The formats.
const (
	ExportText ExportFormat = "text" // plain lines, as somebody would have read them
	ExportCast ExportFormat = "cast" // asciicast v3: docs.asciinema.org/manual/asciicast/v3
)

// Valid reports whether the format is one of the above.
func (f ExportFormat) Valid() bool { return f == ExportText || f == ExportCast }

// Export writes the output that is kept so far. It ends where the output ended
// when it began: a program that goes on writing does not keep it busy for ever.
func (r *Registry) Export(ctx context.Context, ref string, format ExportFormat, w io.Writer) error {
	if !format.Valid() {
		return berth.Errorf(berth.CodeInvalidArgument, "%q is no format", format).WithHint("use text or cast")
	}
	s, err := r.Get(ctx, ref)
	if err != nil {
		return err
	}
	var out exporter = &textExporter{w: w, transcript: screen.NewTranscript(s.Size)}
	if format == ExportCast {
		times, err := r.times(ctx, s)
		if err != nil {
			return err
		}
		out = &castExporter{w: w, filter: screen.NewFilter(true), session: s, clock: castClock{marks: times.Marks}}
	}
	if err := out.begin(); err != nil {
		return err
	}
	if err := r.replayLog(ctx, s, out.output); err != nil {
		return err
	}
	return out.end(s.Exit)
}

// times asks the guest when the output came. An older one does not know.
func (r *Registry) times(ctx context.Context, s berth.Session) (guestapi.Times, error) {
	e, h, err := r.use(ctx, s.ID, false, 0)
	if err != nil {
		return guestapi.Times{}, err
	}
	t, err := h.link.Guest.Times(ctx, e.id)
	if errors.Is(err, berth.CodeGuestOutdated) {
		return guestapi.Times{}, nil
	}
	return t, err
}

// replayLog calls f with the kept output in order. A part that is dropped while
// we read is passed over: it was the oldest.
func (r *Registry) replayLog(ctx context.Context, s berth.Session, f func(at uint64, p []byte) error) error {
	q := berth.LogRequest{FromStart: true}
	for end := uint64(0); ; {
		chunk, err := r.Log(ctx, s.ID, q)
		var gone *berth.Error
		if errors.As(err, &gone) && errors.Is(err, berth.CodeOffsetGone) && !q.FromStart {
			kept, perr := strconv.ParseUint(gone.Facts["kept_from"], 10, 64)
			if perr != nil || kept <= q.From {
				return err
			}
			q.From = kept
			continue
		}
		if err != nil {
			return err
		}
		if end == 0 {
			end = chunk.End
		}
		if len(chunk.Data) == 0 || chunk.Offset >= end {
			return nil
		}
		if err := f(chunk.Offset, chunk.Data); err != nil {
			return fmt.Errorf("write the export: %w", err)
		}
		q = berth.LogRequest{Generation: chunk.Generation, From: chunk.Offset + uint64(len(chunk.Data))}
	}
}

type exporter interface {
	begin() error
	output(at uint64, p []byte) error // at is the offset of p's first byte
	end(exit *berth.Exit) error       // nil = it still runs
}

type textExporter struct {
	w          io.Writer
	transcript *screen.Transcript
	buf        []byte
}

func (t *textExporter) begin() error { return nil }

func (t *textExporter) output(_ uint64, p []byte) error {
	t.buf = t.transcript.Append(t.buf[:0], p)
	_, err := t.w.Write(t.buf)
	return err
}

func (t *textExporter) end(*berth.Exit) error {
	_, err := t.w.Write(t.transcript.Finish(t.buf[:0]))
	return err
}

// castExporter writes one JSON document a line: a header, then events of an
// interval in seconds since the one before, a code and data.
type castExporter struct {
	w       io.Writer
	filter  *screen.Filter
	session berth.Session
	clock   castClock
	buf     []byte
	part    []byte // of a character that is not complete
	owed    int64  // milliseconds that the next event still has to tell
}

// castClock tells when output came. marks are of guestapi.Times.
type castClock struct {
	marks [][2]int64
	last  int64 // time of the event before, in milliseconds; 0 = none
}

// split says how many bytes of output that begin at an offset belong to one
// event: up to the next mark.
func (c *castClock) split(at uint64, n int) int {
	for len(c.marks) > 0 && c.marks[0][0] <= int64(at) { //nolint:gosec // no program puts out 8 EiB
		c.marks = c.marks[1:]
	}
	if len(c.marks) == 0 {
		return n
	}
	return int(min(int64(n), c.marks[0][0]-int64(at))) //nolint:gosec // as above
}

// interval gives the milliseconds since the last event for the output before the next
// mark; 0 where there is none. A pause before the first output that is kept is
// none of the recording.
func (c *castClock) interval() int64 {
	if len(c.marks) == 0 {
		return 0
	}
	now := c.marks[0][1]
	if c.last == 0 {
		c.last = now
	}
	ms := max(0, now-c.last)
	c.last = max(now, c.last)
	return ms
}

type castHeader struct {
	Version   int      `json:"version"`
	Term      castTerm `json:"term"`
	Timestamp int64    `json:"timestamp"`
	Title     string   `json:"title,omitempty"`
}

type castTerm struct {
	Cols int    `json:"cols"`
	Rows int    `json:"rows"`
	Type string `json:"type"`
}

func (c *castExporter) begin() error {
	return c.line(castHeader{
		Version:   3,
		Term:      castTerm{c.session.Size.Cols, c.session.Size.Rows, "xterm-256color"},
		Timestamp: c.session.CreatedAt.Truncate(time.Second).Unix(),
		Title:     c.session.Title,
	})
}

func (c *castExporter) output(at uint64, p []byte) error {
	for len(p) > 0 {
		n := c.clock.split(at, len(p))
		c.buf, _ = c.filter.Append(c.buf[:0], p[:n])
		if err := c.event(c.clock.interval(), "o", c.complete(c.buf)); err != nil {
			return err
		}
		at, p = at+uint64(n), p[n:] //nolint:gosec // positive
	}
	return nil
}

// complete holds a character back that is cut at the end: JSON has no half ones.
func (c *castExporter) complete(p []byte) string {
	p = append(c.part, p...)
	cut := len(p)
	for i := 1; i <= min(utf8.UTFMax-1, len(p)); i++ {
		if b := p[len(p)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-i:]) {
				cut = len(p) - i
			}
			break
		}
	}
	text := string(p[:cut])
	c.part = append([]byte(nil), p[cut:]...)
	return text
}

func (c *castExporter) end(exit *berth.Exit) error {
	if err := c.event(0, "o", string(c.part)); err != nil || exit == nil {
		return err
	}
	var left int64
	if end := exit.At.UnixMilli(); c.clock.last != 0 && end > c.clock.last {
		left = end - c.clock.last
	}
	return c.event(left, "x", strconv.Itoa(exit.Code))
}

// event writes one. What the filter took out whole leaves none, and its time
// goes to the next one.
func (c *castExporter) event(ms int64, code, data string) error {
	ms += c.owed
	if data == "" {
		c.owed = ms
		return nil
	}
	c.owed = 0
	return c.line([]any{float64(ms) / 1000, code, data})
}

func (c *castExporter) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the export: %w", err)
	}
	_, err = c.w.Write(append(data, '\n'))
	return err
}
