package cli

import "bytes"

// resetTerminal puts back every mode that a program may have left on in the
// user's terminal. It is sent at any end of a viewer: detach, exit, a lost
// daemon, a signal, a panic. It asks nothing and moves the cursor no further
// than the program's own alternate screen did.
//
// The order matters: first whatever sequence was cut off is ended; the alternate
// screen is left before its margins could be mistaken for the main screen's; the
// cursor is kept (DECSC, DECRC) around what would move it.
const resetTerminal = "\x18\x1b\\" + // CAN and ST: end a sequence that was cut off
	"\x1b[?2026l" + // synchronised output: show what is held back
	"\x1b[<99u" + // kitty keyboard: pop this screen's stack empty
	"\x1b7\x1b[?1049l" + // leave the alternate screen; on the main one DECSC makes its DECRC move nothing
	"\x1b[<99u\x1b[=0;1u" + // kitty keyboard of the main screen
	"\x1b[>4m" + // modifyOtherKeys as the terminal had it
	"\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l" + // mouse
	"\x1b[?1004l\x1b[?2004l\x1b[?2031l\x1b[?2048l\x1b[?5522l\x1b[?7727l\x1b[?9001l" + // focus, paste, colour scheme and size reports, raw keys
	"\x1b[!p" + // soft reset: origin mode, insert mode, character sets, without moving the cursor
	"\x1b[?69l\x1b7\x1b[r\x1b8" + // margins, which move the cursor
	"\x1b[4l\x1b[20l\x1b[?1l\x1b[?5l\x1b[?7h\x1b[?45l\x1b>" + // insert, newline, cursor keys, reverse video, wrap, keypad
	"\x1b(B\x1b)B\x0f" + // character sets
	"\x1b[0m\x1b]8;;\x1b\\" + // attributes, hyperlink
	"\x1b[0 q\x1b[?25h" // cursor shape, cursor shown

// saveTerminal and giveBack keep over a session what has no one value to go back
// to: the window title (XTWINOPS 22 and 23) and whether the wheel scrolls with
// arrow keys on the alternate screen, which some terminals have on from the
// start (XTSAVE and XTRESTORE of mode 1007). Terminals without them ignore both.
const (
	saveTerminal = "\x1b[22;0t\x1b[?1007s"
	giveBack     = "\x1b[?1007r\x1b[23;0t"
)

// leaveLine goes to a fresh line below the cursor and clears what was below, so
// that the shell's prompt stands right after what the session showed.
const leaveLine = "\r\n" + clearBelow

// clearBelow is for a cursor that stands on a fresh line already.
const clearBelow = "\x1b[J"

// colourWatch remembers which colours of the terminal were changed through us.
// Only those are reset: a user may have set others by the same sequences.
type colourWatch struct {
	palette, foreground, background, cursor bool
}

// watch looks through what goes to the terminal. The server sends no sequence
// in two pieces, so each piece can be looked at alone.
func (c *colourWatch) watch(p []byte) {
	for {
		i := bytes.Index(p, []byte("\x1b]"))
		if i < 0 {
			return
		}
		p = p[i+2:]
		switch {
		case bytes.HasPrefix(p, []byte("4;")):
			c.palette = true
		case bytes.HasPrefix(p, []byte("10;")):
			c.foreground = true
		case bytes.HasPrefix(p, []byte("11;")):
			c.background = true
		case bytes.HasPrefix(p, []byte("12;")):
			c.cursor = true
		}
	}
}

// reset is the sequences that undo them.
func (c *colourWatch) reset() string {
	var s string
	for _, r := range []struct {
		on  bool
		seq string
	}{
		{c.palette, "\x1b]104\x1b\\"}, {c.foreground, "\x1b]110\x1b\\"},
		{c.background, "\x1b]111\x1b\\"}, {c.cursor, "\x1b]112\x1b\\"},
	} {
		if r.on {
			s += r.seq
		}
	}
	return s
}
