package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"berth"
)

// opBar shows on standard error what an operation does: on a terminal a line
// that is drawn again, once something takes longer than progressAfter; elsewhere
// a plain line for each phase and each tenth of a download.
type opBar struct {
	a     *app
	drawn bool // a line stands on the terminal
	phase berth.Phase
	stage string
	tenth int64
	since time.Time // of the phase
	from  int64     // done when the stage was first seen, or began anew
	at    time.Time // when that was
	last  int64     // done, as it was shown last
}

func (b *opBar) show(op berth.Operation) {
	if b.a.flags.quiet || b.a.flags.json || op.Phase.Terminal() || op.Phase.NeedsPerson() {
		b.clear()
		return
	}
	now := b.a.env.Now()
	news := op.Phase != b.phase
	if news {
		b.phase, b.since, b.stage = op.Phase, now, ""
	}
	var done, tenth int64
	if p := op.Progress; p != nil {
		done = p.Done
		if p.Stage != b.stage {
			b.stage, b.from, b.at, b.tenth, news = p.Stage, p.Done, now, 0, true
		}
		if p.Done < b.last { // the next daemon has begun it anew
			b.from, b.at = p.Done, now
		}
		b.last = p.Done
		if p.Total > 0 {
			tenth = p.Done * 10 / p.Total
		}
	}
	if !isTerminal(b.a.env.Stderr) {
		if news || tenth > b.tenth {
			b.tenth = tenth
			b.a.tell("%s\n", progressText(op, 0))
		}
		return
	}
	if now.Sub(b.since) < progressAfter && !b.drawn {
		return
	}
	var rate int64
	if took := now.Sub(b.at); took >= time.Second && done > b.from {
		rate = int64(float64(done-b.from) / took.Seconds())
	}
	b.drawn = true
	b.a.tell("\r\x1b[K%s", cut(progressText(op, rate), max(0, widthOf(b.a.env.Stderr)-1)))
}

// clear takes the line away, so that something else can be written.
func (b *opBar) clear() {
	if b.drawn {
		b.a.tell("\r\x1b[K")
		b.drawn = false
	}
}

const barWidth = 24

// progressText is one line of an operation at work. rate is in units a second;
// 0 = not known.
func progressText(op berth.Operation, rate int64) string {
	text := string(op.Phase)
	if op.CancelAsked {
		text += " (cancelling)"
	}
	p := op.Progress
	if p == nil {
		return text + "…"
	}
	if p.Stage != "" {
		text += ": " + p.Stage
	}
	count := func(n int64) string {
		if p.Unit == "bytes" {
			return planBytes(n)
		}
		return fmt.Sprint(n)
	}
	switch {
	case p.Total > 0:
		share := min(max(p.Done, 0), p.Total)
		full := int(share * barWidth / p.Total)
		text += fmt.Sprintf(" [%s%s] %d%%  %s of %s", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), share*100/p.Total, count(p.Done), count(p.Total))
	case p.Done > 0:
		text += "  " + count(p.Done)
	}
	if rate > 0 {
		text += "  " + count(rate) + "/s"
		if left := p.Total - p.Done; p.Total > 0 && left > 0 {
			text += "  " + (time.Duration(left/rate) * time.Second).String() + " left"
		}
	}
	if p.Note != "" {
		text += "  " + p.Note
	}
	return oneLine(text, 0)
}

// widthOf is the width of a terminal; 0 = it is none.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	cols, _, err := term.GetSize(fd(f))
	if err != nil {
		return 0
	}
	return cols
}
