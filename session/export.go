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
		out = &castExporter{w: w, filter: screen.NewFilter(true), session: s}
	}
	if err := out.begin(); err != nil {
		return err
	}
	if err := r.replayLog(ctx, s, out.output); err != nil {
		return err
	}
	return out.end(s.Exit)
}

// replayLog calls f with the kept output in order. A part that is dropped while
// we read is passed over: it was the oldest.
func (r *Registry) replayLog(ctx context.Context, s berth.Session, f func([]byte) error) error {
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
		if err := f(chunk.Data); err != nil {
			return fmt.Errorf("write the export: %w", err)
		}
		q = berth.LogRequest{Generation: chunk.Generation, From: chunk.Offset + uint64(len(chunk.Data))}
	}
}

type exporter interface {
	begin() error
	output(p []byte) error
	end(exit *berth.Exit) error // nil = it still runs
}

type textExporter struct {
	w          io.Writer
	transcript *screen.Transcript
	buf        []byte
}

func (t *textExporter) begin() error { return nil }

func (t *textExporter) output(p []byte) error {
	t.buf = t.transcript.Append(t.buf[:0], p)
	_, err := t.w.Write(t.buf)
	return err
}

func (t *textExporter) end(*berth.Exit) error {
	_, err := t.w.Write(t.transcript.Finish(t.buf[:0]))
	return err
}

// castExporter writes one JSON document a line: a header, then events of an
// interval in seconds, a code and data. The log keeps bytes and not their
// times, so all intervals are 0: a player shows the end at once, and a
// converter gets every byte.
type castExporter struct {
	w       io.Writer
	filter  *screen.Filter
	session berth.Session
	buf     []byte
	part    []byte // of a character that is not complete
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

func (c *castExporter) output(p []byte) error {
	c.buf, _ = c.filter.Append(c.buf[:0], p)
	return c.event("o", c.complete(c.buf))
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
	if err := c.event("o", string(c.part)); err != nil || exit == nil {
		return err
	}
	return c.event("x", strconv.Itoa(exit.Code))
}

func (c *castExporter) event(code, data string) error {
	if data == "" {
		return nil
	}
	return c.line([]any{0, code, data})
}

func (c *castExporter) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the export: %w", err)
	}
	_, err = c.w.Write(append(data, '\n'))
	return err
}
