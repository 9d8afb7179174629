package cli

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"berth"
)

// defaultDetachKey is Ctrl-\ and then d.
const defaultDetachKey = `ctrl-\ d`

// keyChord is one key as a terminal may report it: its code point, and whether
// Ctrl is held.
type keyChord struct {
	r    rune
	ctrl bool
}

// detachKeys is the keys that detach: a prefix, and the key after it. Without a
// second key the prefix alone detaches. The zero value never detaches.
type detachKeys struct {
	prefix keyChord
	second keyChord // r = 0: none
}

// parseDetachKeys reads "ctrl-\ d", "ctrl-]" or "none". The first key needs
// Ctrl: a plain letter could never be typed again.
func parseDetachKeys(text string) (detachKeys, error) {
	bad := func() (detachKeys, error) {
		return detachKeys{}, berth.Errorf(berth.CodeInvalidArgument, "%q is not a detach key", text).
			WithHint(`write it like 'ctrl-\ d', 'ctrl-]' or none`)
	}
	fields := strings.Fields(text)
	if len(fields) == 1 && fields[0] == "none" {
		return detachKeys{}, nil
	}
	if len(fields) == 0 || len(fields) > 2 {
		return bad()
	}
	var keys detachKeys
	var ok bool
	if keys.prefix, ok = parseChord(fields[0]); !ok || !keys.prefix.ctrl {
		return bad()
	}
	if len(fields) == 2 {
		if keys.second, ok = parseChord(fields[1]); !ok {
			return bad()
		}
	}
	return keys, nil
}

func parseChord(text string) (keyChord, bool) {
	rest, ctrl := strings.CutPrefix(strings.ToLower(text), "ctrl-")
	r, n := utf8.DecodeRuneInString(rest)
	if n == 0 || n != len(rest) || r <= ' ' || r == utf8.RuneError {
		return keyChord{}, false
	}
	if !ctrl { // case matters for a plain key
		r, _ = utf8.DecodeRuneInString(text)
	}
	k := keyChord{r, ctrl}
	return k, !ctrl || k.control() != 0
}

// control is the byte that a terminal sends for Ctrl and the key; 0 = it has none.
func (k keyChord) control() byte {
	if k.r >= 'a' && k.r <= 'z' || k.r == '\\' || k.r == ']' || k.r == '^' || k.r == '_' {
		return byte(k.r) & 0x1f
	}
	return 0
}

// keyScanner finds the detach keys in what a terminal sends and passes on the
// rest unchanged. A terminal sends Ctrl-\ as the byte 0x1c, or, when the program
// turned on the kitty protocol or modifyOtherKeys, as a sequence: both are found.
//
// It never holds a key back for a time: only the prefix itself waits, for the
// next key. Pasted text is passed on unseen, since it is data.
type keyScanner struct {
	keys    detachKeys
	held    []byte // the prefix as it came; empty = not armed
	inPaste bool
	tail    []byte // in a paste: the last bytes, to find its end mark over two reads
}

var pasteStart, pasteEnd = []byte("\x1b[200~"), []byte("\x1b[201~")

// scan appends to dst what is for the program. detach reports that the keys
// were pressed; what came after them is dropped, as nobody is meant by it.
func (s *keyScanner) scan(dst, p []byte) (out []byte, detach bool) {
	for len(p) > 0 {
		if s.inPaste {
			n := s.pasted(p)
			dst, p = append(dst, p[:n]...), p[n:]
			continue
		}
		if len(s.held) == 0 {
			n := s.plain(p)
			dst, p = append(dst, p[:n]...), p[n:]
			if len(p) == 0 {
				break
			}
		}
		t := nextToken(p)
		p = p[len(t.raw):]
		if dst, detach = s.token(dst, t); detach {
			return dst, true
		}
	}
	return dst, false
}

// plain is how many bytes need no look: no escape and not the prefix's byte.
func (s *keyScanner) plain(p []byte) int {
	prefix := s.keys.prefix.control()
	for i, b := range p {
		if b == 0x1b || b == prefix && prefix != 0 {
			return i
		}
	}
	return len(p)
}

// pasted is how many bytes belong to the paste, its end mark included.
func (s *keyScanner) pasted(p []byte) int {
	seen := append(s.tail, p...)
	i := bytes.Index(seen, pasteEnd)
	if i < 0 {
		s.tail = append([]byte(nil), seen[max(0, len(seen)-len(pasteEnd)+1):]...)
		return len(p)
	}
	n := i + len(pasteEnd) - len(s.tail)
	s.inPaste, s.tail = false, nil
	return n
}

// token handles one key or sequence.
func (s *keyScanner) token(dst []byte, t token) (out []byte, detach bool) {
	if bytes.Equal(t.raw, pasteStart) {
		s.inPaste = true
		return append(s.release(dst), t.raw...), false
	}
	if len(s.held) == 0 {
		if t.kind == tokenKey && s.keys.prefix.r != 0 && t.is(s.keys.prefix) {
			if s.keys.second.r == 0 {
				return dst, true
			}
			s.held = append(s.held, t.raw...)
			return dst, false
		}
		return append(dst, t.raw...), false
	}
	switch {
	case t.kind == tokenRelease && t.is(s.keys.prefix):
		return dst, false // its press was held back too
	case t.kind != tokenKey:
		return append(dst, t.raw...), false // mouse, focus, a modifier alone: no key
	case t.is(s.keys.second):
		s.held = s.held[:0]
		return dst, true
	case t.is(s.keys.prefix):
		return s.release(dst), false // twice sends one
	}
	return append(s.release(dst), t.raw...), false
}

func (s *keyScanner) release(dst []byte) []byte {
	dst = append(dst, s.held...)
	s.held = s.held[:0]
	return dst
}

// tokenKind says what a piece of input is.
type tokenKind int

const (
	tokenKey     tokenKind = iota // a key was pressed
	tokenRelease                  // a key was released (kitty protocol)
	tokenOther                    // mouse, focus, a modifier key alone, a report
)

// token is one piece of input. r is 0 where the key is no character.
type token struct {
	raw  []byte
	kind tokenKind
	r    rune
	ctrl bool
}

func (t token) is(k keyChord) bool {
	return t.r == k.r && t.ctrl == k.ctrl
}

// nextToken takes one key or sequence off the front of p, which is not empty. A
// sequence that is not complete in p counts as its single bytes: a terminal
// writes a key at once, and nothing is held back here.
func nextToken(p []byte) token {
	if p[0] != 0x1b {
		return plainToken(p)
	}
	if len(p) < 3 || p[1] != '[' {
		return token{raw: p[:1]}
	}
	end := 2
	for end < len(p) && p[end] >= 0x20 && p[end] <= 0x3f {
		end++
	}
	if end == len(p) || p[end] < 0x40 || p[end] > 0x7e {
		return token{raw: p[:1]}
	}
	raw, params := p[:end+1], string(p[2:end])
	switch p[end] {
	case 'u':
		return kittyKey(raw, params)
	case '~':
		return modifyOtherKey(raw, params)
	case 'M':
		if params == "" { // X10 mouse: three raw bytes follow
			return token{raw: p[:min(end+4, len(p))], kind: tokenOther}
		}
		return token{raw: raw, kind: tokenOther}
	case 'm', 'I', 'O', 'R', 'c', 'n', 'y', 't':
		return token{raw: raw, kind: tokenOther}
	}
	return token{raw: raw, kind: eventKind(params)}
}

// plainToken is one character, or one control byte.
func plainToken(p []byte) token {
	r, n := utf8.DecodeRune(p)
	if r < ' ' {
		if r = rune(p[0]) + 0x60; r < 'a' || r > 'z' {
			r = rune(p[0]) + 0x40 // Ctrl-\ is 0x1c
		}
		return token{raw: p[:1], r: r, ctrl: true}
	}
	return token{raw: p[:n], r: r}
}

// kitty's modifier bits, and its code points of keys that are only modifiers.
const (
	kittyCtrl      = 4
	kittyLocks     = 64 | 128 // caps lock, num lock
	kittyShift     = 1
	kittyModsFirst = 57441
	kittyModsLast  = 57454
)

// kittyKey reads "code:shifted:base;mods:event;text u".
func kittyKey(raw []byte, params string) token {
	fields := strings.Split(params, ";")
	code, err := strconv.Atoi(subfield(fields[0], 0))
	if err != nil {
		return token{raw: raw, kind: tokenOther} // a reply such as "?1u"
	}
	t := token{raw: raw, kind: eventKind(params), r: rune(code)} //nolint:gosec // an impossible code point equals no key
	if code >= kittyModsFirst && code <= kittyModsLast || code == 57358 || code == 57360 {
		t.kind = tokenOther
	}
	mods := modifiers(fields)
	t.ctrl = mods&kittyCtrl != 0
	if mods&^(kittyCtrl|kittyShift) != 0 {
		t.r = 0 // Alt or Super too: another key
	}
	return t
}

// modifyOtherKey reads xterm's "27;mods;code ~".
func modifyOtherKey(raw []byte, params string) token {
	fields := strings.Split(params, ";")
	if len(fields) != 3 || fields[0] != "27" {
		return token{raw: raw, kind: eventKind(params)}
	}
	code, err := strconv.Atoi(fields[2])
	if err != nil {
		return token{raw: raw}
	}
	mods := modifiers(fields)
	t := token{raw: raw, r: rune(code), ctrl: mods&kittyCtrl != 0} //nolint:gosec // an impossible code point equals no key
	if mods&^(kittyCtrl|kittyShift) != 0 {
		t.r = 0
	}
	return t
}

// modifiers are those of the second field, without the locks: they are a state
// of the keyboard, not a key held.
func modifiers(fields []string) int {
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.Atoi(subfield(fields[1], 0))
	if err != nil || n < 1 {
		return 0
	}
	return (n - 1) &^ kittyLocks
}

// eventKind tells a release (event type 3) from a press or a repeat.
func eventKind(params string) tokenKind {
	fields := strings.Split(params, ";")
	if len(fields) >= 2 && subfield(fields[1], 1) == "3" {
		return tokenRelease
	}
	return tokenKey
}

func subfield(field string, n int) string {
	parts := strings.Split(field, ":")
	if n >= len(parts) {
		return ""
	}
	return parts[n]
}
