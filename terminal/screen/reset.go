package screen

// resetSequence puts a local terminal back after a viewer left: see
// ResetSequence for what each part does.
const resetSequence = "\x18\x1b\\" + // out of any sequence; ends a string
	"\x1b[?9;1000;1002;1003;1005;1006;1015;1016l" + // mouse
	"\x1b[?1004;2004;2031;2048;5522;7727;9001l" + // focus, paste, reports
	"\x1b[<32u\x1b[>4m" + // kitty keys of this screen, modifyOtherKeys
	// The main screen. 1049 restores a saved cursor even where it was shown
	// already: then it is the one that was saved just before.
	"\x1b7\x1b[?1049l" +
	"\x1b[<32u" + // and its kitty keys
	// Soft reset: origin mode, insert mode, scroll region, pen, character sets,
	// cursor keys and keypad, and the cursor stays where it is. Then each of them
	// for terminals that do not know it; the ones that move the cursor in between
	// saving and restoring it.
	"\x1b[!p\x1b[?1;5;45;69;2027l\x1b>\x1b[?7h\x1b7\x1b[?6l\x1b[r\x1b8" +
	"\x1b[4;20l\x1b[m\x1b]8;;\x1b\\" + // insert, newline; pen, link
	"\x0f\x1b(B\x1b)B\x1b*B\x1b+B" + // character sets
	"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\" + // colours
	"\x1b[0 q\x1b[?25h" + // cursor
	"\x1b[?2026l" // synchronised output, last

// ResetSequence is what puts a local terminal back after a viewer leaves: mouse,
// focus and paste modes, keyboard modes, the main screen, scroll region, pen,
// character sets, colours and the cursor. It erases nothing, moves the cursor
// only as leaving the alternate screen does, and is safe on a terminal that has
// none of it set. The caller owns the bytes.
//
// The command line, which cannot import this package, is sent the text.
func ResetSequence() []byte { return []byte(resetSequence) }
