package screen

// settings sets the modes and what else does not depend on the cursor.
func (r *repainter) settings() {
	s := r.s
	r.tabs()
	for _, t := range s.titles {
		r.str("\x1b]2;" + t + "\x1b\\\x1b[22;2t")
	}
	if s.titled {
		r.str("\x1b]2;" + s.title + "\x1b\\")
	}
	if s.cwdURL != "" {
		r.str("\x1b]7;" + s.cwdURL + "\x1b\\")
	}
	r.savedModes()
	// In groups: some terminals take no more than 16 parameters.
	r.str("\x1b[?9;1000;1002;1003;1005;1006;1015;1016l\x1b[?1;12;1004;1007;2004;2031;5522;7727;9001l\x1b>\x1b[>4m")
	for _, m := range privateModes {
		switch m.bit {
		case modeVisible, modeSync, modeAutowrap, modeOrigin, modeKeypad, modeSizeReports, modeClusters:
			continue // elsewhere, or the guest's own
		}
		if s.modes&m.bit != 0 {
			r.private(int(m.number), 'h')
		}
	}
	if s.mouse != 0 {
		r.private(int(s.mouse), 'h')
	}
	if s.modes&modeKeypad != 0 {
		r.str("\x1b=")
	}
	if s.modifyKeys != 0 {
		r.str("\x1b[>4;")
		r.num(int(s.modifyKeys))
		r.str("m")
	}
	r.str("\x1b[")
	r.num(int(s.cursorStyle))
	r.str(" q")
}

// visible shows or hides the cursor.
func (r *repainter) visible() {
	if r.s.modes&modeVisible != 0 {
		r.str("\x1b[?25h")
	} else {
		r.str("\x1b[?25l")
	}
}

func (r *repainter) private(n int, final byte) {
	r.str("\x1b[?")
	r.num(n)
	r.dst = append(r.dst, final)
}

// savedModes sets what XTSAVE kept, for XTRESTORE to find.
func (r *repainter) savedModes() {
	s := r.s
	for _, m := range privateModes {
		if s.savedMask&m.bit == 0 || m.bit == modeSizeReports {
			continue
		}
		if s.savedModes&m.bit != 0 {
			r.private(int(m.number), 'h')
		} else {
			r.private(int(m.number), 'l')
		}
		r.private(int(m.number), 's')
	}
	if s.savedMouseSet {
		r.private(1000, 'l')
		if s.savedMouse != 0 {
			r.private(int(s.savedMouse), 'h')
		}
		r.private(1000, 's')
	}
	if s.savedMask != 0 {
		r.str("\x1b[?5;6;7;45;2026;2027l")
	}
}

func (r *repainter) tabs() {
	r.str("\x1b[3g")
	for x := 0; x < r.cols; x++ {
		if r.s.tabs.has(x) {
			r.str("\x1b[")
			r.num(x + 1)
			r.str("G\x1bH")
		}
	}
}
