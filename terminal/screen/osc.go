package screen

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"berth"
)

// Bounds of what OSC strings leave behind.
const (
	maxTitles    = 10 // xterm's bound of the title stack
	maxColour    = 48
	maxMessage   = 4096 // bytes of a whole OSC 7501, from its specification
	maxReportKey = 16
)

// osc acts on the data of an operating system command.
func (s *Screen) osc(data []byte) {
	number, rest, _ := bytes.Cut(data, []byte{';'})
	n, err := strconv.Atoi(string(number))
	if err != nil {
		return
	}
	switch n {
	case 0, 2:
		s.title, s.titled = clean(string(rest), berth.MaxTitle), true
	case 4:
		s.oscPalette(string(rest))
	case 7:
		s.oscCwd(string(rest))
	case 8:
		s.oscLink(string(rest))
	case 10, 11, 12:
		for i, spec := range strings.Split(string(rest), ";") {
			if n+i <= 12 {
				s.oscColour(n+i, spec)
			}
		}
	case 52:
		if _, what, _ := strings.Cut(string(rest), ";"); what == "?" {
			// The clipboard is never read out: it is empty for every program.
			s.replyOSC("52;c;")
		}
	case 104:
		s.oscResetPalette(string(rest))
	case 110, 111, 112:
		s.colours[n-110] = ""
	case 133:
		if bytes.HasPrefix(rest, []byte{'A'}) && s.busy {
			// A new prompt: whoever said that it works or waits is gone.
			s.clearReport()
		}
	case 7501:
		s.oscStatus(string(rest))
	}
}

// clean makes foreign text fit to be shown: no control characters, no overrides
// of the writing direction, valid UTF-8, at most limit bytes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 ||
			r == 0x200e || r == 0x200f || r == 0x61c || r == 0x2028 || r == 0x2029 {
			return -1
		}
		return r
	}, text)
	if len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	return text
}

// validColour reports whether spec looks like a colour of any known form: it is
// kept as it was said, for the viewer's terminal to understand.
func validColour(spec string) bool {
	if spec == "" || len(spec) > maxColour {
		return false
	}
	for _, c := range []byte(spec) {
		if c <= ' ' || c >= 0x7f || c == ';' || c == '?' {
			return false
		}
	}
	return true
}

func (s *Screen) oscPalette(rest string) {
	for rest != "" {
		var index, spec string
		index, rest, _ = strings.Cut(rest, ";")
		spec, rest, _ = strings.Cut(rest, ";")
		n, err := strconv.Atoi(index)
		if err != nil || n < 0 || n > 255 {
			continue
		}
		switch {
		case spec == "?":
			s.replyOSC("4;" + strconv.Itoa(n) + ";" + s.paletteColour(n))
		case validColour(spec):
			if s.palette == nil {
				s.palette = map[uint8]string{}
			}
			s.palette[uint8(n)] = spec
		}
	}
}

func (s *Screen) oscResetPalette(rest string) {
	if rest == "" {
		s.palette = nil
		return
	}
	for _, index := range strings.Split(rest, ";") {
		if n, err := strconv.Atoi(index); err == nil && n >= 0 && n < 256 {
			delete(s.palette, uint8(n))
		}
	}
}

func (s *Screen) oscColour(n int, spec string) {
	switch {
	case spec == "?":
		s.replyOSC(strconv.Itoa(n) + ";" + s.dynamicColour(n-10))
	case validColour(spec):
		s.colours[n-10] = spec
	}
}

// oscCwd keeps the directory of a file URL. One that is longer than can be kept
// is not kept at all: a cut path names another directory.
func (s *Screen) oscCwd(raw string) {
	s.cwd, s.cwdURL = "", ""
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "file" && u.Scheme != "kitty-shell-cwd") || !strings.HasPrefix(u.Path, "/") {
		return
	}
	if p := clean(u.Path, berth.MaxTitle+1); p == u.Path && len(p) <= berth.MaxTitle && clean(raw, 2*maxLink) == raw {
		s.cwd, s.cwdURL = p, raw
	}
}

func (s *Screen) oscLink(rest string) {
	_, uri, ok := strings.Cut(rest, ";")
	e := s.extra(s.pen.attr)
	e.link = ""
	if ok && uri != "" && len(rest) <= maxLink && clean(rest, maxLink) == rest {
		e.link = rest
	}
	s.setExtra(e)
}

// clearReport tells that the program's reported state is over.
func (s *Screen) clearReport() {
	if s.reported && s.opts.OnReport != nil {
		s.opts.OnReport(Report{State: berth.AgentUnknown, Cleared: true})
	}
	s.reported, s.busy = false, false
}

// oscStatus acts on OSC 7501, the program status protocol: a query that is to be
// answered with itself, so that agents turn their reports on, or a report:
// key=value pairs between colons. A report with an unknown state or a bad id is
// void; unknown keys and malformed pairs are passed over.
//
// The state error has no twin here. It becomes idle: the program neither works
// nor waits for an answer, and a failed run must not hold a machine awake as a
// blocked one does. The message says that it failed.
func (s *Screen) oscStatus(body string) {
	if strings.HasPrefix(body, "?") {
		s.replyOSC("7501;?")
		return
	}
	keys, ok := statusPairs(body)
	if !ok {
		return
	}
	r := Report{Child: keys["id"], Message: statusText(keys["msg"])}
	if r.Message == "" {
		r.Message = statusText(keys["title"])
	}
	state := keys["state"]
	switch state {
	case "idle", "working", "blocked", "done":
		r.State = berth.AgentState(state)
	case "error":
		r.State = berth.AgentIdle
		r.Message = clean(strings.TrimSuffix("error: "+r.Message, ": "), berth.MaxAgentMessage)
	case "clear":
		r = Report{State: berth.AgentUnknown, Cleared: true, Child: r.Child}
	default:
		return
	}
	if kind := berth.BlockedKind(keys["kind"]); state == "blocked" && kind.Valid() {
		r.Kind = kind
	}
	if n, err := strconv.ParseUint(keys["progress"], 10, 8); err == nil && n <= 100 && (state == "working" || state == "blocked") {
		percent := int(n)
		r.Progress = &percent
	}
	if r.Child == "" {
		s.reported = !r.Cleared
		s.busy = state == "working" || state == "blocked"
	}
	if s.opts.OnReport != nil {
		s.opts.OnReport(r)
	}
}

// statusPairs splits a report and checks its bounds.
func statusPairs(body string) (map[string]string, bool) {
	keys := map[string]string{}
	if len(body)+len("\x1b]7501;\x1b\\") > maxMessage {
		return nil, false
	}
	for pair := range strings.SplitSeq(body, ":") {
		key, value, ok := strings.Cut(pair, "=")
		if len(key) > maxReportKey {
			return nil, false
		}
		if ok && key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyz") == "" && statusValue(value, ",/=") {
			keys[key] = value
		}
	}
	if id, ok := keys["id"]; ok {
		segments := strings.Split(id, "/")
		if len(id) > 128 || len(segments) > 8 {
			return nil, false
		}
		for _, part := range segments {
			if part == "" || len(part) > 32 || !statusValue(part, "") {
				return nil, false
			}
		}
	}
	return keys, true
}

func statusValue(value, more string) bool {
	for _, c := range []byte(value) {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && strings.IndexByte("_.+-", c) < 0 && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}

// statusText decodes base64, padded or not.
func statusText(value string) string {
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(clean(string(text), berth.MaxAgentMessage))
}
