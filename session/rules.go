package session

import (
	"path"
	"strings"

	"berth"
)

// Screen rules are the last resort: they guess from the bottom of the screen
// what a known agent is doing, where the agent itself says nothing. They are
// few and narrow on purpose. A rule that fits too much calls a working agent
// idle, and then a machine sleeps under it; a rule that fits too little says
// "unknown", which harms nobody.

// KnownAgent names the agent that argv starts ("claude", "codex", "grok"), or
// "". It looks through `env`, and at the first word of a shell's -c command.
func KnownAgent(argv []string) string {
	for len(argv) > 0 {
		switch base := path.Base(argv[0]); base {
		case "claude", "codex", "grok":
			return base
		case "env", "exec", "nice", "nohup":
			argv = argv[1:]
			for len(argv) > 0 && (strings.HasPrefix(argv[0], "-") || strings.Contains(argv[0], "=")) {
				argv = argv[1:]
			}
		case "sh", "bash", "zsh", "dash", "fish":
			argv = shellCommand(argv[1:])
		default:
			return ""
		}
	}
	return ""
}

// shellCommand gives the words of the argument of -c. Splitting at blanks is
// enough: a quoted program name is not one of the three.
func shellCommand(args []string) []string {
	for i, a := range args {
		if !strings.HasPrefix(a, "-") {
			return nil
		}
		if !strings.HasPrefix(a, "--") && strings.Contains(a, "c") && i+1 < len(args) {
			words := strings.Fields(args[i+1])
			for len(words) > 0 && strings.Contains(words[0], "=") {
				words = words[1:]
			}
			return words
		}
	}
	return nil
}

// screenRule fits when every text of all is on the lines that it looks at.
type screenRule struct {
	all   []string
	state berth.AgentState
	kind  berth.BlockedKind
}

// ruleLines is how many of the last lines with text are looked at: a question
// box with its choices is not taller, and what an agent printed further up may
// quote anything.
const ruleLines = 14

// screenRules are tried in order: blocked first, since a box with a question
// may stand below a line that still says "working". Texts are lower case. The
// choice marks are part of the texts: prose that quotes a question has none.
var screenRules = map[string][]screenRule{
	"claude": {
		{[]string{"do you want", "❯ 1."}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"would you like to proceed", "❯ 1."}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"trust", "❯ 1. yes"}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"enter to select", "❯"}, berth.AgentBlocked, berth.BlockedQuestion},
		{[]string{"select login method"}, berth.AgentBlocked, berth.BlockedAuth},
		{[]string{"please run /login"}, berth.AgentBlocked, berth.BlockedAuth},
		{[]string{"esc to interrupt"}, berth.AgentWorking, ""},
		{[]string{"❯", "? for shortcuts"}, berth.AgentIdle, ""},
		{[]string{"> ", "? for shortcuts"}, berth.AgentIdle, ""},
		{[]string{"shift+tab to cycle"}, berth.AgentIdle, ""},
	},
	"codex": {
		{[]string{"would you like to", "› 1."}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"allow command?"}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"do you trust", "› 1."}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"sign in with chatgpt"}, berth.AgentBlocked, berth.BlockedAuth},
		{[]string{"esc to interrupt"}, berth.AgentWorking, ""},
		{[]string{"›", "context left"}, berth.AgentIdle, ""},
		{[]string{"›", "? for shortcuts"}, berth.AgentIdle, ""},
	},
	// Grok's wording is not documented; these two are common to its forerunners
	// and anything else stays unknown. Its hooks are the way to know.
	"grok": {
		{[]string{"do you want", "❯ 1."}, berth.AgentBlocked, berth.BlockedPermission},
		{[]string{"esc to interrupt"}, berth.AgentWorking, ""},
	},
}

// ScreenAgent guesses the state of the named agent from the lines of its
// screen. It never gives nil for a known agent: where no rule fits, the state
// is unknown.
func ScreenAgent(agent string, lines []string) *berth.Agent {
	rules, ok := screenRules[agent]
	if !ok {
		return nil
	}
	text := bottom(lines)
	for _, r := range rules {
		if fits(text, r.all) {
			return &berth.Agent{State: r.state, Kind: r.kind, Source: berth.AgentFromScreen}
		}
	}
	return &berth.Agent{State: berth.AgentUnknown, Source: berth.AgentFromScreen}
}

// bottom gives the last lines with text, in lower case and without the sides of
// a box, so that "│ ❯ 1. Yes │" reads as "❯ 1. yes".
func bottom(lines []string) string {
	var kept []string
	for i := len(lines) - 1; i >= 0 && len(kept) < ruleLines; i-- {
		line := strings.Trim(lines[i], " \t│┃|╭╮╰╯─━┌┐└┘")
		if line != "" {
			kept = append(kept, strings.ToLower(line)+" ")
		}
	}
	var b strings.Builder
	for i := len(kept) - 1; i >= 0; i-- {
		b.WriteString(kept[i])
		b.WriteByte('\n')
	}
	return b.String()
}

func fits(text string, all []string) bool {
	for _, t := range all {
		if !strings.Contains(text, t) {
			return false
		}
	}
	return true
}
