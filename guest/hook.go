package guest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"
	"unicode"
	"unicode/utf8"

	"berth/guestapi"
)

const (
	// hookIdle is how long a connection may say nothing. A sender writes its
	// line at once; one that stays open has forgotten us.
	hookIdle = time.Minute
	// maxHookEvent bounds the name of an event.
	maxHookEvent = 128
	// keptPayload bounds the payload that is kept. The state of an agent is in
	// small events; what an agent read from a file is not kept a second time.
	keptPayload = 64 << 10
)

// serveHooks reads hook lines of one connection until it ends.
func (s *session) serveHooks(conn *net.UnixConn) {
	lines := newLineReader(conn, guestapi.MaxHookLine)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(hookIdle)); err != nil {
			return
		}
		line, err := lines.next()
		if err != nil && !errors.Is(err, errLineTooLong) {
			return
		}
		if err == nil && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var hook guestapi.HookLine
		ok := err == nil
		if ok {
			hook, ok = parseHook(line, s.id)
		}
		s.noteHook(hook, ok)
	}
}

func (s *session) noteHook(hook guestapi.HookLine, ok bool) {
	s.mu.Lock()
	if ok {
		hook.At = s.g.now().UTC()
		s.hook = &hook
	} else {
		s.hookDrops++
	}
	if s.state.Live() {
		s.dirty(0, true)
	}
	s.mu.Unlock()
	s.changed(false)
}

// parseHook reads one line. It is untrusted: it must be JSON, for this session,
// and name its event in a few printable characters.
func parseHook(line []byte, id string) (guestapi.HookLine, bool) {
	var hook guestapi.HookLine
	if len(line) > guestapi.MaxHookLine || !utf8.Valid(line) || json.Unmarshal(line, &hook) != nil {
		return guestapi.HookLine{}, false
	}
	if hook.Session != id || hook.Event == "" || len(hook.Event) > maxHookEvent {
		return guestapi.HookLine{}, false
	}
	for _, r := range hook.Event {
		if !unicode.IsPrint(r) {
			return guestapi.HookLine{}, false
		}
	}
	hook.At = time.Time{} // ours to set
	if len(hook.Payload) > keptPayload {
		hook.Payload = nil
	}
	return hook, true
}

// errLineTooLong says that a line was passed over.
var errLineTooLong = errors.New("the line is too long")

// lineReader reads lines of at most max bytes. A longer one is passed over
// without being kept, and the next one is read.
type lineReader struct {
	r    *bufio.Reader
	max  int
	line []byte
}

func newLineReader(r io.Reader, maxLine int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 4<<10), max: maxLine}
}

// next gives a line without its end, valid until the next call; errLineTooLong
// for one that was passed over; another error at the end. A last line without a
// newline is a line: the sender closed behind it.
func (l *lineReader) next() ([]byte, error) {
	l.line = l.line[:0]
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if !long && len(l.line)+len(bytes.TrimSuffix(part, []byte("\n"))) > l.max {
			long = true
			l.line = nil // let go of it: the next line is short as a rule
		}
		if !long {
			l.line = append(l.line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case err != nil && len(l.line) == 0 && !long:
			return nil, io.EOF
		}
		if long {
			return nil, errLineTooLong
		}
		return bytes.TrimSuffix(l.line, []byte("\n")), nil
	}
}
