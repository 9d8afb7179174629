package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

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
	moved time.Time // when that last changed
}

func (b *opBar) show(op berth.Operation) {
	if b.a.flags.quiet || b.a.flags.json || op.Phase.Terminal() || op.Phase.NeedsPerson() {
		b.clear()
		return
	}
	now := b.a.env.Now()
	news := op.Phase != b.phase
	if news {
		b.phase, b.since, b.stage, b.moved = op.Phase, now, "", now
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
		if p.Done != b.last || news {
			b.moved = now
		}
		b.last = p.Done
		if p.Total > 0 {
			tenth = p.Done * 10 / p.Total
		}
	}
	if !isTerminal(b.a.env.Stderr) {
		if news || tenth > b.tenth {
			b.tenth = tenth
			b.a.tell("%s\n", progressText(op, 0, 0, 0))
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
	still := now.Sub(b.moved)
	if still < stillAfter {
		still = 0
	} else {
		rate = 0 // it was the speed of before
	}
	b.draw(progressText(op, rate, still, max(0, widthOf(b.a.env.Stderr)-1)))
}

// stillAfter is when a person is told that nothing moves: an operation that
// computes or waits looks like one that hangs.
const stillAfter = 5 * time.Second

func (b *opBar) draw(text string) {
	b.drawn = true
	b.a.tell("\r\x1b[K%s", text)
}

// away says that the daemon does not answer now.
func (b *opBar) away() {
	if b.drawn {
		b.draw(cut("waiting for the daemon…", max(0, widthOf(b.a.env.Stderr)-1)))
	}
}

// clear takes the line away, so that something else can be written.
func (b *opBar) clear() {
	if b.drawn {
		b.a.tell("\r\x1b[K")
		b.drawn = false
	}
}

const barWidth = 24

// progressText is one line of an operation at work, in at most width characters;
// 0 = as many as it takes. rate is in units a second, 0 = not known; still is how
// long nothing has moved, 0 = it moves. What matters least goes first where the
// line is narrow: the bar, the speed, the counts.
func progressText(op berth.Operation, rate int64, still time.Duration, width int) string {
	p := op.Progress
	if p == nil {
		return cut(progressHead(op)+"…"+stillText(still), width)
	}
	share, counts, bar := progressShare(*p)
	speed, left := progressSpeed(*p, rate)
	note := stillText(still)
	if p.Note != "" {
		note += "  " + p.Note
	}
	for _, parts := range [][]string{
		{bar, share, counts, speed, left, note}, {share, counts, speed, left, note}, {share, counts, left, note}, {share, left, note},
	} {
		text := oneLine(progressHead(op)+strings.Join(parts, ""), 0)
		if width <= 0 || utf8.RuneCountInString(text) <= width {
			return text
		}
	}
	return cut(oneLine(progressHead(op)+share+note, 0), width)
}

func progressHead(op berth.Operation) string {
	text := string(op.Phase)
	if op.CancelAsked {
		text += " (cancelling)"
	}
	if p := op.Progress; p != nil && p.Stage != "" {
		text += ": " + p.Stage
	}
	return text
}

func stillText(still time.Duration) string {
	if still <= 0 {
		return ""
	}
	return "  nothing new for " + still.Round(time.Second).String()
}

// unitText is a number of what a progress counts.
func unitText(p berth.Progress, n int64) string {
	if p.Unit == "bytes" {
		return planBytes(n)
	}
	return fmt.Sprint(n)
}

// progressShare is how far it has come: " 42%", "  3.1 MB of 7.4 MB" and a bar.
func progressShare(p berth.Progress) (share, counts, bar string) {
	switch {
	case p.Total > 0:
		done := min(max(p.Done, 0), p.Total)
		full := int(done * barWidth / p.Total)
		return fmt.Sprintf(" %d%%", done*100/p.Total), "  " + unitText(p, p.Done) + " of " + unitText(p, p.Total),
			" [" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "]"
	case p.Done > 0:
		return "", "  " + unitText(p, p.Done), ""
	}
	return "", "", ""
}

func progressSpeed(p berth.Progress, rate int64) (speed, left string) {
	if rate <= 0 {
		return "", ""
	}
	if rest := p.Total - p.Done; p.Total > 0 && rest > 0 {
		left = "  " + (time.Duration(rest/rate) * time.Second).String() + " left"
	}
	return "  " + unitText(p, rate) + "/s", left
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
