package screen

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// maxReplies bounds the answers that nobody took: a program that floods queries
// loses answers and costs no memory.
const maxReplies = 16 << 10

// What the terminal says it is: a VT220 with colours; to the second question an
// xterm 277, the version from which on programs use the SGR mouse encoding
// without asking further.
const (
	answerDA1 = "\x1b[?62;22c"
	answerDA2 = "\x1b[>0;277;0c"
	answerDA3 = "\x1bP!|00000000\x1b\\"
)

func (s *Screen) reply(text string) {
	if len(s.replies)+len(text) <= maxReplies {
		s.replies = append(s.replies, text...)
	}
}

func (s *Screen) replyCSI(format string, args ...any) {
	s.reply("\x1b[" + fmt.Sprintf(format, args...))
}

// replyOSC ends as the query did: some programs read up to BEL only.
func (s *Screen) replyOSC(body string) {
	if s.bell {
		s.reply("\x1b]" + body + "\a")
		return
	}
	s.reply("\x1b]" + body + "\x1b\\")
}

// TakeReplies gives the answers to queries since the last call, for the
// program's input; nil = none. The caller owns them.
func (s *Screen) TakeReplies() []byte {
	r := s.replies
	s.replies = nil
	return r
}

func (s *Screen) replyVersion() {
	name := s.opts.Name
	if s.opts.Version != "" {
		name += "(" + s.opts.Version + ")"
	}
	s.reply("\x1bP>|" + clean(name, 128) + "\x1b\\")
}

// deviceStatus is DSR.
func (s *Screen) deviceStatus(n int) {
	switch n {
	case 5:
		s.reply("\x1b[0n")
	case 6:
		s.replyCSI("%d;%dR", s.row()+1, s.x+1)
	}
}

// privateStatus is DSR with a question mark.
func (s *Screen) privateStatus(n int) {
	switch n {
	case 6:
		s.replyCSI("?%d;%d;1R", s.row()+1, s.x+1)
	case 15:
		s.reply("\x1b[?13n") // no printer
	case 25:
		s.reply("\x1b[?20n") // user keys unlocked
	case 26:
		s.reply("\x1b[?27;1;0;0n") // a keyboard
	case 53, 55:
		s.reply("\x1b[?53n") // no locator
	case 996:
		scheme := 1 // dark
		if r, g, b, ok := parseColour(s.dynamicColour(1)); ok && 299*int(r)+587*int(g)+114*int(b) > 500*0xffff {
			scheme = 2
		}
		s.replyCSI("?997;%dn", scheme)
	}
}

// requestMode is DECRQM: 1 set, 2 reset, 0 not known here.
func (s *Screen) requestMode(private bool) {
	n := s.param(0, 0)
	if !private {
		state := 0
		switch n {
		case 4:
			state = onOff(s.modes&modeInsert != 0)
		case 20:
			state = onOff(s.modes&modeNewline != 0)
		}
		s.replyCSI("%d;%d$y", n, state)
		return
	}
	state := 0
	switch n {
	case 9, 1000, 1002, 1003:
		state = onOff(int(s.mouse) == n)
	case 47, 1047, 1049:
		state = onOff(s.alt != nil)
	case 2027:
		// A program that sets it is followed; one that asks is told that it is not
		// known, because not every viewer of the session would follow.
		if s.modes&modeClusters != 0 {
			state = 1
		}
	default:
		if n < 1<<16 {
			if bit := privateBit(uint16(n)); bit != 0 {
				state = onOff(s.modes&bit != 0)
			}
		}
	}
	s.replyCSI("?%d;%d$y", n, state)
}

func onOff(on bool) int {
	if on {
		return 1
	}
	return 2
}

func (s *Screen) reportModifyKeys(n int) {
	if n == 4 {
		s.replyCSI(">4;%dm", s.modifyKeys)
	}
}

// reportParameters is DECREQTPARM.
func (s *Screen) reportParameters(n int) {
	if n <= 1 {
		s.replyCSI("%d;1;1;128;128;1;0x", n+2)
	}
}

// reportSize is the report of mode 2048. Sizes in pixels are not known: a
// session has many viewers.
func (s *Screen) reportSize() { s.replyCSI("48;%d;%d;0;0t", s.rows, s.cols) }

// window is XTWINOPS. Titles are never given back: what one program printed
// would become another's input.
func (s *Screen) window() {
	switch s.param(0, 0) {
	case 11:
		s.reply("\x1b[1t")
	case 13:
		s.reply("\x1b[3;0;0t")
	case 14:
		s.reply("\x1b[4;0;0t")
	case 15:
		s.reply("\x1b[5;0;0t")
	case 16:
		s.reply("\x1b[6;0;0t")
	case 18:
		s.replyCSI("8;%d;%dt", s.rows, s.cols)
	case 19:
		s.replyCSI("9;%d;%dt", s.rows, s.cols)
	case 20:
		s.reply("\x1b]L\x1b\\")
	case 21:
		s.reply("\x1b]l\x1b\\")
	case 22:
		if s.param(1, 0) != 1 { // 1 = the icon's title alone, which is not kept
			if len(s.titles) == maxTitles {
				s.titles = append(s.titles[:0], s.titles[1:]...)
			}
			s.titles = append(s.titles, s.title)
		}
	case 23:
		if n := len(s.titles); n > 0 && s.param(1, 0) != 1 {
			s.title, s.titled = s.titles[n-1], true
			s.titles = s.titles[:n-1]
		}
	}
}

// dcs answers DECRQSS and XTGETTCAP.
func (s *Screen) dcs(data []byte) {
	if s.inter == '$' {
		s.requestSetting(string(data))
		return
	}
	for name := range strings.SplitSeq(string(data), ";") {
		s.requestCapability(name)
	}
}

func (s *Screen) requestSetting(what string) {
	var value string
	switch what {
	case "m":
		value = string(s.appendSGR(nil, cell{}, s.pen, true))
		value = strings.TrimSuffix(strings.TrimPrefix(value, "\x1b["), "m")
		if value == "" {
			value = "0"
		} else if !strings.HasPrefix(value, "0") {
			value = "0;" + value
		}
		value += "m"
	case "r":
		value = fmt.Sprintf("%d;%dr", s.top+1, s.bottom+1)
	case " q":
		value = fmt.Sprintf("%d q", max(s.cursorStyle, 1))
	case "\"p":
		value = "62;1\"p"
	case "\"q":
		value = "0\"q"
	case "s":
		value = fmt.Sprintf("1;%ds", s.cols)
	case "t":
		value = fmt.Sprintf("%dt", s.rows)
	default:
		s.reply("\x1bP0$r\x1b\\")
		return
	}
	s.reply("\x1bP1$r" + value + "\x1b\\")
}

// The capabilities that are given out: those which programs cannot learn from
// the entry of xterm-256color.
var capabilities = map[string]string{
	"TN": "xterm-256color", "name": "xterm-256color", "Co": "256", "colors": "256", "RGB": "8", "Tc": "",
	"Su": "", "Smulx": "\x1b[4:%p1%dm", "Setulc": "\x1b[58:2::%p1%{65536}%/%d:%p1%{256}%/%{255}%&%d:%p1%{255}%&%d%;m",
	"Ss": "\x1b[%p1%d q", "Se": "\x1b[2 q", "Sync": "\x1b[?2026%?%p1%{1}%-%tl%eh%;", "Ms": "\x1b]52;%p1%s;%p2%s\x07",
	"BE": "\x1b[?2004h", "BD": "\x1b[?2004l", "PS": "\x1b[200~", "PE": "\x1b[201~", "XT": "", "bce": "", "Pst": "\x1b]7501;%p1%s\x1b\\",
}

func (s *Screen) requestCapability(name string) {
	raw, err := hex.DecodeString(name)
	value, ok := capabilities[string(raw)]
	if err != nil || !ok {
		if len(name) > 128 || strings.Trim(name, "0123456789abcdefABCDEF") != "" {
			name = ""
		}
		s.reply("\x1bP0+r" + name + "\x1b\\")
		return
	}
	answer := "\x1bP1+r" + name
	if value != "" {
		answer += "=" + strings.ToUpper(hex.EncodeToString([]byte(value)))
	}
	s.reply(answer + "\x1b\\")
}

// The colours of a terminal that nobody changed, as xterm has them.
const (
	defaultForeground = "rgb:e5e5/e5e5/e5e5"
	defaultBackground = "rgb:0000/0000/0000"
)

var ansiColours = [16]uint32{
	0x000000, 0xcd0000, 0x00cd00, 0xcdcd00, 0x0000ee, 0xcd00cd, 0x00cdcd, 0xe5e5e5,
	0x7f7f7f, 0xff0000, 0x00ff00, 0xffff00, 0x5c5cff, 0xff00ff, 0x00ffff, 0xffffff,
}

// dynamicColour is the text (0), background (1) or cursor (2) colour.
func (s *Screen) dynamicColour(i int) string {
	if r, g, b, ok := parseColour(s.colours[i]); ok {
		return formatColour(r, g, b)
	}
	if i == 1 {
		return defaultBackground
	}
	return defaultForeground
}

func (s *Screen) paletteColour(n int) string {
	if r, g, b, ok := parseColour(s.palette[uint8(n)]); ok {
		return formatColour(r, g, b)
	}
	var c uint32
	switch {
	case n < 16:
		c = ansiColours[n]
	case n < 232:
		level := func(i int) uint32 {
			if i == 0 {
				return 0
			}
			return uint32(55 + 40*i)
		}
		c = level((n-16)/36)<<16 | level((n-16)/6%6)<<8 | level((n-16)%6)
	default:
		c = uint32(8+10*(n-232)) * 0x010101
	}
	return formatColour(uint16(c>>16&0xff)*0x101, uint16(c>>8&0xff)*0x101, uint16(c&0xff)*0x101)
}

func formatColour(r, g, b uint16) string { return fmt.Sprintf("rgb:%04x/%04x/%04x", r, g, b) }

// parseColour reads rgb:r/g/b with 1 to 4 digits each, and #rgb with 1 to 4.
func parseColour(spec string) (r, g, b uint16, ok bool) {
	var parts []string
	if rest, found := strings.CutPrefix(spec, "rgb:"); found {
		parts = strings.Split(rest, "/")
	} else if rest, found := strings.CutPrefix(spec, "#"); found && len(rest)%3 == 0 {
		n := len(rest) / 3
		parts = []string{rest[:n], rest[n : 2*n], rest[2*n:]}
	}
	if len(parts) != 3 {
		return 0, 0, 0, false
	}
	var out [3]uint16
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, 16)
		if err != nil || len(p) == 0 || len(p) > 4 {
			return 0, 0, 0, false
		}
		out[i] = uint16(v * 0xffff / (1<<(4*len(p)) - 1))
	}
	return out[0], out[1], out[2], true
}
