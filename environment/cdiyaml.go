package environment

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CDI specs are written by nvidia-ctk as plain block YAML, and by people who
// follow it. This reads that part of YAML and no more: mappings and sequences in
// blocks, scalars on one line, JSON in a value. Anchors, tags, aliases, block
// scalars and several documents are refused with their line, so that a spec
// that this cannot read is unknown and never half read. The values are those of
// encoding/json: map[string]any, []any, string; scalars stay text.

const (
	maxYAMLDepth = 32
	maxYAMLLines = 100_000
)

type yamlLine struct {
	number, indent int
	text           string // without indent and comment; "- " stays
}

type yamlReader struct {
	lines []yamlLine
	at    int
}

// decodeYAML reads one document.
func decodeYAML(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, invalidf("YAML is not UTF-8")
	}
	lines, err := yamlLines(string(data))
	if err != nil {
		return nil, err
	}
	r := &yamlReader{lines: lines}
	if len(lines) == 0 {
		return nil, nil
	}
	v, err := r.block(lines[0].indent, 0)
	if err == nil && r.at < len(r.lines) {
		err = r.fail("does not belong to what is above it")
	}
	return v, err
}

// yamlLines drops what is empty, comments and the document marks.
func yamlLines(text string) ([]yamlLine, error) {
	var lines []yamlLine
	number, ended := 0, false
	for raw := range strings.Lines(text) {
		if number++; number > maxYAMLLines {
			return nil, invalidf("YAML has more than %d lines", maxYAMLLines)
		}
		raw = strings.TrimSuffix(strings.TrimSuffix(raw, "\n"), "\r")
		if strings.ContainsFunc(raw, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, invalidf("YAML line %d: a character that does not print", number)
		}
		text := strings.TrimLeft(raw, " ")
		l := yamlLine{number: number, indent: len(raw) - len(text), text: strings.TrimRight(uncomment(text), " ")}
		switch {
		case l.text == "":
			continue
		case strings.HasPrefix(l.text, "%"):
			return nil, invalidf("YAML line %d: a directive", number)
		case l.text == "---" && l.indent == 0 && len(lines) == 0 && !ended:
			continue
		case l.text == "..." && l.indent == 0:
			ended = true
			continue
		case ended, l.indent == 0 && strings.HasPrefix(l.text, "---"):
			return nil, invalidf("YAML line %d: a second document", number)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// uncomment cuts a comment off: a # at the start or after a blank, outside quotes.
func uncomment(s string) string {
	quote := byte(0)
	var seen before
	for i := 0; i < len(s); i++ {
		c := s[i]
		if i > 0 {
			seen.take(s[i-1])
		}
		switch {
		case quote == '"' && c == '\\':
			seen.take(c)
			i++
		case quote == '\'' && c == quote && i+1 < len(s) && s[i+1] == quote:
			seen.take(c)
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && seen.opensQuote():
			quote = c
		case c == '#' && (i == 0 || s[i-1] == ' '):
			return s[:i]
		}
	}
	return s
}

// before is what stands before a character of a line, as far as it matters.
type before struct {
	last    byte // that is no blank; 0 = none
	gap     bool // a blank came after it
	bracket bool // there was one that opens
}

func (b *before) take(c byte) {
	if c == ' ' {
		b.gap = b.last != 0
		return
	}
	b.last, b.gap = c, false
	b.bracket = b.bracket || c == '{' || c == '['
}

// opensQuote reports whether a quote there begins a scalar, and is not a letter
// inside one.
func (b before) opensQuote() bool {
	switch b.last {
	case 0, '[', '{', ',':
		return true
	case ':':
		return b.gap || b.bracket
	case '-':
		return b.gap
	}
	return false
}

func (r *yamlReader) fail(what string) error {
	l := r.lines[min(r.at, len(r.lines)-1)]
	return invalidf("YAML line %d: %s: %q", l.number, what, clip(l.text))
}

// block reads what stands at one indent.
func (r *yamlReader) block(indent, depth int) (any, error) {
	if depth > maxYAMLDepth {
		return nil, r.fail("nested too deeply")
	}
	l := r.lines[r.at]
	if isItem(l.text) {
		return r.sequence(indent, depth)
	}
	if _, _, ok := cutKey(l.text); ok {
		return r.mapping(indent, depth)
	}
	r.at++
	v, err := scalar(l.text)
	if err != nil {
		r.at--
		return nil, r.fail(err.Error())
	}
	return v, nil
}

func isItem(text string) bool { return text == "-" || strings.HasPrefix(text, "- ") }

func (r *yamlReader) sequence(indent, depth int) (any, error) {
	out := []any{}
	for r.at < len(r.lines) && r.lines[r.at].indent == indent && isItem(r.lines[r.at].text) {
		l := &r.lines[r.at]
		rest := strings.TrimLeft(l.text[1:], " ")
		var v any
		var err error
		if rest == "" {
			r.at++
			v, err = r.below(indent+1, depth)
		} else {
			// What follows the dash stands as if it were on a line of its own.
			l.indent += len(l.text) - len(rest)
			l.text = rest
			v, err = r.block(l.indent, depth+1)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (r *yamlReader) mapping(indent, depth int) (any, error) {
	out := map[string]any{}
	for r.at < len(r.lines) && r.lines[r.at].indent == indent && !isItem(r.lines[r.at].text) {
		key, rest, ok := cutKey(r.lines[r.at].text)
		if !ok {
			return nil, r.fail("neither a key nor an item")
		}
		if _, twice := out[key]; twice {
			return nil, r.fail("the same key twice")
		}
		var v any
		var err error
		if rest == "" {
			r.at++
			least := indent + 1
			if r.at < len(r.lines) && r.lines[r.at].indent == indent && isItem(r.lines[r.at].text) {
				least = indent // the items of a sequence may stand below their key
			}
			v, err = r.below(least, depth)
		} else if v, err = scalar(rest); err != nil {
			err = r.fail(err.Error())
		} else {
			r.at++
		}
		if err != nil {
			return nil, err
		}
		out[key] = v
	}
	return out, nil
}

// below reads a value on the lines that follow, or nothing.
func (r *yamlReader) below(least, depth int) (any, error) {
	if r.at == len(r.lines) || r.lines[r.at].indent < least {
		return nil, nil
	}
	return r.block(r.lines[r.at].indent, depth+1)
}

// cutKey takes "key: value" or "key:" apart.
func cutKey(text string) (key, rest string, ok bool) {
	if text[0] == '"' || text[0] == '\'' {
		end := quoteEnd(text)
		if end < 0 || end+1 >= len(text) || text[end+1] != ':' || end+2 < len(text) && text[end+2] != ' ' {
			return "", "", false
		}
		v, err := scalar(text[:end+1])
		s, isText := v.(string)
		return s, strings.TrimSpace(text[end+2:]), err == nil && isText
	}
	k, v, found := strings.Cut(text, ": ")
	if !found {
		k, found = strings.CutSuffix(text, ":")
	}
	return k, strings.TrimSpace(v), found && k != "" && k[len(k)-1] != ' ' && isPlain(k)
}

// quoteEnd finds the closing quote of the text that a quote begins; -1 = none.
func quoteEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[0] == '"' && s[i] == '\\':
			i++
		case s[0] == '\'' && s[i] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		case s[i] == s[0]:
			return i
		}
	}
	return -1
}

// scalar reads a value that ends with its line.
func scalar(s string) (any, error) {
	switch s[0] {
	case '"', '[', '{':
		// YAML's double quotes are JSON's, but for escapes that no path needs.
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			return nil, invalidf("no value that is JSON too")
		}
		return v, nil
	case '\'':
		if quoteEnd(s) != len(s)-1 {
			return nil, invalidf("a quote that does not end")
		}
		return strings.ReplaceAll(s[1:len(s)-1], "''", "'"), nil
	}
	if !isPlain(s) {
		return nil, invalidf("a form of YAML that is not read here")
	}
	return s, nil
}

// isPlain reports whether text without quotes means itself: it begins as paths,
// words, numbers and flags do, and has nothing in it that could be a key.
func isPlain(s string) bool {
	c := s[0]
	switch {
	case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', strings.IndexByte("/._$+=(\\", c) >= 0:
	case c == '-' && len(s) > 1 && s[1] != ' ' && !strings.HasPrefix(s, "---"): // a flag
	default:
		return false
	}
	return !strings.Contains(s, ": ") && !strings.HasSuffix(s, ":") && !strings.HasPrefix(s, "...")
}
