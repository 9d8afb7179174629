package screen

import (
	"bytes"
	"strconv"
	"strings"
)

type verdict uint8

const (
	pass verdict = iota
	drop
	replace
)

// body gives the sequence without its introducer.
func body(seq []byte) (first byte, rest []byte) {
	if len(seq) < 2 {
		return 0, nil
	}
	if seq[0] == 0x1b {
		i := 1
		for i < len(seq)-1 && (seq[i] < 0x20 || seq[i] == 0x7f) { // controls between
			i++
		}
		return seq[i], seq[i+1:]
	}
	switch seq[1] {
	case 0x9b:
		return '[', seq[2:]
	case 0x9d:
		return ']', seq[2:]
	case 0x90:
		return 'P', seq[2:]
	case 0x9f:
		return '_', seq[2:]
	}
	return 'X', seq[2:]
}

// trimST takes the end off a string.
func trimST(data []byte) []byte {
	for _, end := range []string{"\x1b\\", "\xc2\x9c", "\a", "\x1b"} {
		if rest, ok := bytes.CutSuffix(data, []byte(end)); ok {
			return rest
		}
	}
	return data
}

// judge appends what of a whole sequence goes on.
func (f *Filter) judge(dst, seq []byte) []byte {
	first, rest := body(seq)
	v, with := pass, ""
	text := false
	switch first {
	case '[':
		v, with = f.verdictCSI(rest)
	case ']':
		v, text = f.verdictOSC(trimST(rest)), true
	case 'P':
		v, text = verdictDCS(trimST(rest)), true
	case '_':
		v, text = verdictAPC(trimST(rest)), true
	case 'X', '^':
		text = true
	case 'Z', '%': // a query; another encoding
		v = drop
	}
	switch v {
	case pass:
		return append7(dst, seq)
	case replace:
		dst = append(dst, with...)
	}
	if !text {
		dst = f.controls(dst, seq)
	}
	return dst
}

// verdictLong judges a sequence that is over the bound by its beginning.
func (f *Filter) verdictLong() verdict {
	first, rest := body(f.held)
	switch first {
	case ']':
		number, _, _ := bytes.Cut(rest, []byte{';'})
		switch n, err := strconv.Atoi(string(number)); {
		case err != nil, asks(n), n == 7501:
			return drop
		}
		return f.verdictOSC(rest)
	case 'P':
		return verdictDCS(rest)
	case '_':
		return verdictAPC(rest)
	case 'X', '^':
		return pass
	}
	return drop
}

// verdictCSI judges a control sequence from its parameters on. With replace,
// with is what goes on instead.
func (f *Filter) verdictCSI(seq []byte) (v verdict, with string) {
	var plain [256]byte
	text := plain[:0]
	for _, c := range seq {
		if c >= 0x20 && c != 0x7f {
			text = append(text, c)
		}
	}
	if len(text) == 0 {
		return pass, ""
	}
	final := text[len(text)-1]
	text = text[:len(text)-1]
	prefix := byte(0)
	if len(text) > 0 && text[0] >= '<' && text[0] <= '?' {
		prefix, text = text[0], text[1:]
	}
	inter := byte(0)
	if n := len(text); n > 0 && text[n-1] < 0x30 {
		inter, text = text[n-1], text[:n-1]
	}
	if inter != 0 {
		return verdictIntermediate(inter, final), ""
	}
	switch final {
	case 'c', 'x', 'i':
		return drop, ""
	case 'n':
		if prefix != '>' {
			return drop, ""
		}
	case 'q':
		if prefix == '>' {
			return drop, ""
		}
	case 'u', 'm', 'S':
		if prefix == '?' {
			return drop, ""
		}
	case 't':
		number, _, _ := bytes.Cut(text, []byte{';'})
		if op := strings.TrimLeft(string(number), "0"); op != "22" && op != "23" {
			return drop, ""
		}
	case 'h', 'l':
		if prefix == '?' {
			return verdictModes(string(text), final)
		}
	}
	return pass, ""
}

// verdictIntermediate judges a control sequence by intermediate and final byte.
func verdictIntermediate(inter, final byte) verdict {
	switch string([]byte{inter, final}) {
	case "$p", // DECRQM
		"$w", "$u", "&u", "*y", "\"v", // reports of state, checksums, contents
		"'|", "'z", "'w", // locator
		"#R", "#|", "+r": // colours and attributes; the keyboard's type
		return drop
	}
	return pass
}

// notFollowed are the private modes that the model does not follow and that
// would change a viewer's screen or send reports.
var notFollowed = map[string]bool{"3": true, "40": true, "69": true, "1001": true, "2048": true}

func verdictModes(text string, final byte) (verdict, string) {
	found := false
	var keep []string
	for n := range strings.SplitSeq(text, ";") {
		if notFollowed[strings.TrimLeft(n, "0")] {
			found = true
		} else {
			keep = append(keep, n)
		}
	}
	switch {
	case !found:
		return pass, ""
	case len(keep) == 0:
		return drop, ""
	}
	return replace, "\x1b[?" + strings.Join(keep, ";") + string(final)
}

// asks reports whether OSC n has a form that asks for something.
func asks(n int) bool {
	return n == 4 || n == 5 || n >= 10 && n <= 19 || n == 21 || n == 22 || n == 50 || n == 60 || n == 61
}

func (f *Filter) verdictOSC(data []byte) verdict {
	number, rest, _ := bytes.Cut(data, []byte{';'})
	n, err := strconv.Atoi(string(number))
	switch {
	case err != nil:
		return pass
	case n == 7501:
		return drop
	case asks(n):
		for part := range bytes.SplitSeq(rest, []byte{';'}) {
			if bytes.HasSuffix(part, []byte{'?'}) || n == 22 && bytes.HasPrefix(part, []byte{'?'}) || n >= 60 {
				return drop
			}
		}
	case n == 5522 && bytes.Contains(rest, []byte("type=read")):
		return drop
	case n == 52, n == 5522:
		if _, what, _ := bytes.Cut(rest, []byte{';'}); f.replay || bytes.Equal(what, []byte{'?'}) {
			return drop
		}
	case n == 99 && bytes.Contains(rest, []byte("p=?")):
		return drop
	case n == 9, n == 99, n == 777:
		if f.replay {
			return drop
		}
	case n == 1337:
		for _, ask := range []string{"Report", "Capabilities", "RequestUpload"} {
			if bytes.HasPrefix(rest, []byte(ask)) {
				return drop
			}
		}
		if f.replay {
			return drop
		}
	}
	return pass
}

// verdictDCS drops DECRQSS, XTGETTCAP and what is wrapped for tmux, where a
// query could hide.
func verdictDCS(data []byte) verdict {
	head := bytes.TrimLeft(data, "0123456789;<=>?")
	for _, ask := range []string{"$q", "+q", "tmux;"} {
		if bytes.HasPrefix(head, []byte(ask)) {
			return drop
		}
	}
	return pass
}

// verdictAPC drops queries of the kitty graphics protocol.
func verdictAPC(data []byte) verdict {
	keys, _, _ := bytes.Cut(data, []byte{';'})
	if len(keys) > 0 && keys[0] == 'G' {
		for key := range bytes.SplitSeq(keys[1:], []byte{','}) {
			if string(key) == "a=q" {
				return drop
			}
		}
	}
	return pass
}
