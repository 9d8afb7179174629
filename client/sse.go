package client

import (
	"bufio"
	"bytes"
	"io"

	"berth"
)

// Bounds of a server-sent event. The daemon's are a few hundred bytes; what is
// larger is not the daemon's.
const (
	maxEventLine = 64 << 10
	maxEventData = 256 << 10
)

// sseEvent is one dispatched event.
type sseEvent struct {
	name string // "message" when the stream gave none
	data []byte // valid until the next call
}

// sseReader reads a stream of server-sent events as the WHATWG specification
// says: lines end with LF, CR or CRLF, a comment begins with a colon, an empty
// line dispatches, an event without data only moves the last id.
type sseReader struct {
	r      *bufio.Reader
	lastID string // of the last event, also one without data
	id     string // as read so far in this event
	name   []byte
	data   []byte
	line   []byte
	begun  bool
	skipLF bool // the last line ended with CR
}

func newSSEReader(r io.Reader) *sseReader {
	return &sseReader{r: bufio.NewReaderSize(r, 4<<10)}
}

// next gives the next event; io.EOF at the end, also within an event, which is
// then dropped as the specification asks.
func (s *sseReader) next() (sseEvent, error) {
	s.name, s.data = s.name[:0], s.data[:0]
	hasData := false
	for {
		line, err := s.readLine()
		if err != nil {
			return sseEvent{}, err
		}
		if len(line) == 0 {
			s.lastID = s.id
			if !hasData {
				s.name = s.name[:0]
				continue
			}
			name := "message"
			if len(s.name) > 0 {
				name = string(s.name)
			}
			return sseEvent{name: name, data: s.data}, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) { // a comment has an empty field
		case "event":
			s.name = append(s.name[:0], value...)
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				s.id = string(value)
			}
		case "data":
			if len(s.data)+len(value) >= maxEventData {
				return sseEvent{}, errEventTooLong()
			}
			if hasData {
				s.data = append(s.data, '\n')
			}
			s.data, hasData = append(s.data, value...), true
		}
	}
}

func errEventTooLong() error {
	return berth.Errorf(berth.CodeDaemonUnreachable, "an event is longer than %d bytes", maxEventData)
}

// readLine gives a line without its end, valid until the next call. An
// unfinished line at the end of the stream is dropped with io.EOF.
func (s *sseReader) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if s.skipLF {
			s.skipLF = false
			if c == '\n' {
				continue
			}
		}
		if c == '\n' || c == '\r' {
			s.skipLF = c == '\r'
			if !s.begun { // a byte order mark may stand before the first line
				s.begun = true
				return bytes.TrimPrefix(s.line, []byte("\xef\xbb\xbf")), nil
			}
			return s.line, nil
		}
		if len(s.line) >= maxEventLine {
			return nil, errEventTooLong()
		}
		s.line = append(s.line, c)
	}
}
