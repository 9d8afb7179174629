package berth

import "strings"

// The hook settings make an agent call `berth hook --event NAME` at the events
// below, with the event as JSON on standard input. `berth hook` passes it to
// the session's relay socket, and the daemon's session room (hooks.go) turns it
// into a state:
//
//	SessionStart                              idle
//	UserPromptSubmit, PreToolUse, PostToolUse working (a tool that asks the person: blocked, question)
//	PermissionRequest                         blocked, permission
//	Notification                              blocked or idle, by its type
//	Stop                                      idle
//	SessionEnd                                done
//
// Any other program can send `berth hook --event working|blocked|idle|done`,
// with {"kind","message","progress"} on standard input where it likes.
//
// An agent has no event for "the person agreed", so a tool that runs after a
// question counts as blocked until it is through. Both keep a machine awake.

// hookEvents are the events asked for, in the order in which they happen. All
// three agents have them under these names.
var hookEvents = [...]string{
	"SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "Notification", "Stop", "SessionEnd",
}

// hookSeconds is what an agent waits for a hook at most; `berth hook` itself
// ends after two.
const hookSeconds = "5"

// HookSettings gives the text that makes the agent ("claude", "codex" or
// "grok") report to berth: exactly what goes into its file, JSON or TOML.
// HookPlace says where. CodeInvalidArgument for another agent.
func HookSettings(agent string) (string, error) {
	switch agent {
	case "claude":
		return hookJSON(hookEvents[:]), nil
	case "codex":
		return hookTOML([]string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "Stop"}), nil
	case "grok":
		// It has no PermissionRequest; its question comes as a Notification.
		return hookJSON([]string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Notification", "Stop", "SessionEnd"}), nil
	}
	return "", Errorf(CodeInvalidArgument, "there are no hook settings for %q", agent).
		WithHint("there are some for claude, codex and grok")
}

// HookPlace says where the settings go and what to know about them, as lines
// for a person; "" for an agent that HookSettings does not know.
func HookPlace(agent string) string {
	switch agent {
	case "claude":
		return `Claude Code: put this into ~/.claude/settings.json, or .claude/settings.json of
one project. Where the file has "hooks" already, add the entries to it.
`
	case "codex":
		return `Codex: put this at the end of ~/.codex/config.toml (Codex 0.124 or newer), then
open /hooks in Codex once and trust the new hooks: it skips them until then.
An older Codex knows only the end of a turn. For that, put this line at the top
of the file instead:
notify = ["berth", "hook", "--event", "agent-turn-complete"]
`
	case "grok":
		return `Grok: put this into ~/.grok/hooks/berth.json. Grok also reads the hooks of
Claude Code (.claude/settings.json); where berth is in there already, leave
this out. Which types of notification Grok sends is not documented: one that
speaks of a permission counts as blocked, any other changes nothing.
`
	}
	return ""
}

func hookJSON(events []string) string {
	var b strings.Builder
	b.WriteString("{\n  \"hooks\": {\n")
	for i, event := range events {
		b.WriteString(`    "` + event + `": [{ "hooks": [{ "type": "command", "command": "berth hook --event ` +
			event + `", "timeout": ` + hookSeconds + ` }] }]`)
		if i < len(events)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

func hookTOML(events []string) string {
	var b strings.Builder
	for i, event := range events {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("[[hooks." + event + "]]\n[[hooks." + event + ".hooks]]\ntype = \"command\"\ncommand = \"berth hook --event " +
			event + "\"\ntimeout = " + hookSeconds + "\n")
	}
	return b.String()
}
