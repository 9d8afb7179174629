package session

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"berth"
)

// Agent state comes from three sources, best first: what the program reports
// in its output (OSC 7501), what its hooks send, what its screen looks like.
// Everything here is pure: facts and a time in, a state out.

// AgentFacts is what is known about the agent of one session.
type AgentFacts struct {
	OSC    *berth.Agent // from the guest; nil = the program reports nothing
	Hook   *berth.Agent // from the last hook that said something; nil = none
	Screen *berth.Agent // from the screen rules, after the hold; nil = no known agent
}

// MergeAgent takes the best source that says something. An explicit "unknown"
// of a better source beats a guess of a worse one. prev is what was shown
// before: Since stays while state and kind stay, so that "blocked for 20
// minutes" is true however many messages came in between. Nil = no agent.
func MergeAgent(prev *berth.Agent, f AgentFacts, now time.Time) *berth.Agent {
	var best *berth.Agent
	var source berth.AgentSource
	switch {
	case f.OSC != nil:
		best, source = f.OSC, berth.AgentFromOSC
	case f.Hook != nil:
		best, source = f.Hook, berth.AgentFromHook
	case f.Screen != nil:
		best, source = f.Screen, berth.AgentFromScreen
	default:
		return nil
	}
	a := CleanAgent(*best)
	a.Source = source
	switch {
	case prev != nil && prev.State == a.State && prev.Kind == a.Kind && !prev.Since.IsZero():
		a.Since = prev.Since
	case a.Since.IsZero() || a.Since.After(now):
		a.Since = now
	}
	return &a
}

// CleanAgent makes what an untrusted program said safe to show: known words
// only, a bounded message without control characters, a percentage in range.
func CleanAgent(a berth.Agent) berth.Agent {
	if !a.State.Valid() {
		a.State = berth.AgentUnknown
	}
	if a.State != berth.AgentBlocked || !a.Kind.Valid() {
		a.Kind = ""
	}
	a.Message = CleanText(a.Message, berth.MaxAgentMessage)
	if a.Progress != nil {
		p := min(max(*a.Progress, 0), 100)
		a.Progress = &p
	}
	return a
}

// CleanText drops control and formatting characters (a terminal would obey
// them, and the bidirectional ones reorder what a person reads), joins white
// space to single blanks, and cuts at limit bytes between characters.
func CleanText(s string, limit int) string {
	var b strings.Builder
	blank := false
	for _, r := range s {
		if b.Len() >= limit {
			break
		}
		switch {
		case r == utf8.RuneError:
			continue
		case unicode.IsSpace(r):
			blank = b.Len() > 0
			continue
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner:
			continue
		}
		n := utf8.RuneLen(r)
		if blank {
			n++
		}
		if b.Len()+n > limit {
			break
		}
		if blank {
			b.WriteByte(' ')
			blank = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

// zeroWidthJoiner holds emoji together; alone it shows as nothing.
const zeroWidthJoiner = '\u200d'

// sameAgent reports whether two states show the same. Since is left out: it
// follows from the others.
func sameAgent(a, b *berth.Agent) bool {
	if a == nil || b == nil {
		return a == b
	}
	if (a.Progress == nil) != (b.Progress == nil) || a.Progress != nil && *a.Progress != *b.Progress {
		return false
	}
	return a.State == b.State && a.Kind == b.Kind && a.Message == b.Message && a.Source == b.Source
}

// restingAgent is what remains of an agent when its program has ended. Only
// "done" was a statement about the result; a working or blocked agent in a
// session without a program would be a lie.
func restingAgent(a *berth.Agent) *berth.Agent {
	if a != nil && a.State == berth.AgentDone {
		return a
	}
	return nil
}

// idleHold is how long a screen must look idle before a working agent is called
// idle: agents redraw their prompt for a moment between two tool calls.
const idleHold = 3 * time.Second

// ScreenHold keeps what the screen rules said, so that working turns into idle
// only after idleHold. Every other change shows at once, blocked above all.
// The zero value has seen nothing.
type ScreenHold struct {
	shown     *berth.Agent
	idleSince time.Time // when the screen began to look idle; zero = it does not
}

// See takes what the rules found (nil = nothing known) and gives what to show
// and when to look again at the latest; zero = no need.
func (h *ScreenHold) See(found *berth.Agent, now time.Time) (show *berth.Agent, again time.Time) {
	working := h.shown != nil && h.shown.State == berth.AgentWorking
	if !working || found == nil || found.State != berth.AgentIdle {
		h.idleSince = time.Time{}
		h.shown = found
		return found, time.Time{}
	}
	if h.idleSince.IsZero() {
		h.idleSince = now
	}
	if due := h.idleSince.Add(idleHold); now.Before(due) {
		return h.shown, due
	}
	h.idleSince = time.Time{}
	h.shown = found
	return found, time.Time{}
}
