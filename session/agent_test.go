package session

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"berth"
	"berth/guestapi"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestMergeAgent(t *testing.T) {
	osc := &berth.Agent{State: berth.AgentUnknown}
	hook := &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedAuth}
	screen := &berth.Agent{State: berth.AgentIdle}
	if a := MergeAgent(nil, AgentFacts{}, noon); a != nil {
		t.Errorf("nothing known gives %+v", a)
	}
	if a := MergeAgent(nil, AgentFacts{OSC: osc, Hook: hook, Screen: screen}, noon); a.State != berth.AgentUnknown || a.Source != berth.AgentFromOSC {
		t.Errorf("an explicit unknown does not count: %+v", a)
	}
	a := MergeAgent(nil, AgentFacts{Hook: hook, Screen: screen}, noon)
	if a.State != berth.AgentBlocked || a.Kind != berth.BlockedAuth || !a.Since.Equal(noon) {
		t.Errorf("%+v", a)
	}
	// "Blocked for twenty minutes" stays true when another message comes.
	again := *hook
	again.Message = "still waiting"
	if b := MergeAgent(a, AgentFacts{Hook: &again}, noon.Add(20*time.Minute)); !b.Since.Equal(noon) || b.Message != "still waiting" {
		t.Errorf("%+v", b)
	}
	future := &berth.Agent{State: berth.AgentIdle, Since: noon.Add(time.Hour)}
	if b := MergeAgent(a, AgentFacts{OSC: future}, noon); b.Since.After(noon) {
		t.Errorf("a guest's clock runs ahead, and so does since: %+v", b)
	}
}

func TestCleanAgent(t *testing.T) {
	p := 400
	a := CleanAgent(berth.Agent{State: "dancing", Kind: "permission", Message: "a\x1b[2Jb\u202ec\n\n d" + strings.Repeat("é", 600), Progress: &p})
	if a.State != berth.AgentUnknown || a.Kind != "" || *a.Progress != 100 {
		t.Errorf("%+v", a)
	}
	if !strings.HasPrefix(a.Message, "a[2Jbc dé") || len(a.Message) > berth.MaxAgentMessage || !utf8.ValidString(a.Message) {
		t.Errorf("message %q", a.Message)
	}
}

func TestScreenHold(t *testing.T) {
	working, idle, blocked := ScreenAgent("claude", []string{"esc to interrupt"}), ScreenAgent("claude", []string{"❯", "? for shortcuts"}), &berth.Agent{State: berth.AgentBlocked}
	var h ScreenHold
	see := func(found *berth.Agent, at time.Duration, want *berth.Agent) {
		t.Helper()
		if got, _ := h.See(found, noon.Add(at)); got != want {
			t.Errorf("after %s: %+v, want %+v", at, got, want)
		}
	}
	see(idle, 0, idle) // nothing to hold: it was never seen working
	see(working, time.Second, working)
	see(idle, 2*time.Second, working)
	see(idle, 4*time.Second, working)
	see(working, 4500*time.Millisecond, working) // the prompt was only there between two tools
	see(idle, 6*time.Second, working)
	see(blocked, 7*time.Second, blocked) // a question is never held back
	see(idle, 8*time.Second, idle)
	see(working, 9*time.Second, working)
	see(idle, 10*time.Second, working)
	see(idle, 13*time.Second, idle)
	see(nil, 14*time.Second, nil)
}

func TestHookAgent(t *testing.T) {
	for _, c := range []struct {
		event, payload string
		state          berth.AgentState // "" = it says nothing
		kind           berth.BlockedKind
		message        string
	}{
		{"SessionStart", `{}`, berth.AgentIdle, "", ""},
		{"UserPromptSubmit", `{"prompt":"a secret"}`, berth.AgentWorking, "", ""},
		{"PreToolUse", `{"tool_name":"Bash","tool_input":{"command":"curl -H token"}}`, berth.AgentWorking, "", ""},
		{"PreToolUse", `{"tool_name":"AskUserQuestion"}`, berth.AgentBlocked, berth.BlockedQuestion, ""},
		{"PostToolUse", ``, berth.AgentWorking, "", ""},
		{"PermissionRequest", `{"tool_name":"Bash","tool_input":{"command":"curl -H token"}}`, berth.AgentBlocked, berth.BlockedPermission, "Bash"},
		{"Notification", `{"notification_type":"permission_prompt","message":"Claude needs your permission to use Bash"}`, berth.AgentBlocked, berth.BlockedPermission, "Claude needs your permission to use Bash"},
		{"Notification", `{"message":"Claude needs your permission to use Bash"}`, berth.AgentBlocked, berth.BlockedPermission, "Claude needs your permission to use Bash"},
		{"Notification", `{"notification_type":"idle_prompt","message":"Claude is waiting for your input"}`, berth.AgentIdle, "", ""},
		{"Notification", `{"message":"Claude is waiting for your input"}`, berth.AgentIdle, "", ""},
		{"Notification", `{"notification_type":"elicitation_dialog","message":"Which one?"}`, berth.AgentBlocked, berth.BlockedQuestion, "Which one?"},
		{"Notification", `{"notification_type":"auth_success"}`, "", "", ""},
		{"Stop", `{"last_assistant_message":"a secret"}`, berth.AgentIdle, "", ""},
		{"StopFailure", `{"error":"authentication_failed"}`, berth.AgentBlocked, berth.BlockedAuth, ""},
		{"StopFailure", `{"error":"rate_limit"}`, berth.AgentIdle, "", ""},
		{"SubagentStop", `{}`, "", "", ""},
		{"SessionEnd", `{"reason":"exit"}`, berth.AgentDone, "", ""},
		{"", `{"type":"agent-turn-complete","input-messages":["a secret"]}`, berth.AgentIdle, "", ""}, // Codex notify
		{"agent-turn-complete", ``, berth.AgentIdle, "", ""},
		{"", `{"hookEventName":"pre_tool_use","toolName":"Bash"}`, berth.AgentWorking, "", ""}, // Grok
		{"", `{"hookEventName":"notification","notificationType":"permission_prompt"}`, berth.AgentBlocked, berth.BlockedPermission, ""},
		{"working", `{"message":"step 3","progress":40}`, berth.AgentWorking, "", "step 3"},
		{"blocked", `{"kind":"question","message":"which?"}`, berth.AgentBlocked, berth.BlockedQuestion, "which?"},
		{"blocked", `{"kind":"mood"}`, berth.AgentBlocked, "", ""},
		{"done", `"just text"`, berth.AgentDone, "", ""},
		{"tea", `{}`, "", "", ""},
		{"", `[]`, "", "", ""},
	} {
		a := HookAgent(guestapi.HookLine{Event: c.event, Payload: json.RawMessage(c.payload), At: noon})
		if c.state == "" {
			if a != nil {
				t.Errorf("%s %s: %+v, want nothing", c.event, c.payload, a)
			}
			continue
		}
		if a == nil || a.State != c.state || a.Kind != c.kind || a.Message != c.message || a.Source != berth.AgentFromHook || !a.Since.Equal(noon) {
			t.Errorf("%s %s: %+v, want %s %s %q", c.event, c.payload, a, c.state, c.kind, c.message)
		}
	}
}

func FuzzHookAgent(f *testing.F) {
	for _, seed := range []string{
		`{"hook_event_name":"Notification","notification_type":"permission_prompt","message":"m\u001b[31m"}`,
		`{"hookEventName":"pre_tool_use","toolName":"Bash","toolInput":{"command":"ls"}}`,
		`{"type":"agent-turn-complete","thread-id":"1","last-assistant-message":"x"}`,
		`{"kind":"question","message":"\ud800","progress":-5}`, `{"progress":1e300}`, `{"message":{"a":1}}`, `[[[[`, `null`,
	} {
		f.Add("Notification", []byte(seed))
		f.Add("blocked", []byte(seed))
		f.Add("", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, event string, payload []byte) {
		a := HookAgent(guestapi.HookLine{Event: event, Payload: payload})
		if a == nil {
			return
		}
		if !a.State.Valid() || !a.Kind.Valid() || a.Kind != "" && a.State != berth.AgentBlocked ||
			len(a.Message) > berth.MaxAgentMessage || !utf8.ValidString(a.Message) {
			t.Errorf("%+v", a)
		}
		if strings.ContainsFunc(a.Message, unicode.IsControl) {
			t.Errorf("control characters in %q", a.Message)
		}
		if a.Progress != nil && (*a.Progress < 0 || *a.Progress > 100) {
			t.Errorf("progress %d", *a.Progress)
		}
	})
}

func TestKnownAgent(t *testing.T) {
	for want, argvs := range map[string][][]string{
		"claude": {{"claude"}, {"/opt/bin/claude", "-p"}, {"sh", "-c", "claude --resume x"}, {"bash", "-lc", "A=1 exec claude"}, {"env", "A=1", "claude"}, {"env", "-i", "sh", "-c", "claude"}},
		"codex":  {{"codex", "resume"}},
		"grok":   {{"nice", "grok"}},
		"":       {nil, {""}, {"vim", "claude"}, {"sh"}, {"sh", "-c"}, {"sh", "-c", ""}, {"sh", "script", "-c", "claude"}, {"claude-squad"}, {"env"}},
	} {
		for _, argv := range argvs {
			if got := KnownAgent(argv); got != want {
				t.Errorf("%q is %q, want %q", argv, got, want)
			}
		}
	}
}

func TestScreenRules(t *testing.T) {
	for _, c := range []struct {
		agent, screen string
		state         berth.AgentState
		kind          berth.BlockedKind
	}{
		{"claude", "✻ Pondering… (12s · ↓ 300 tokens · esc to interrupt)\n\n╭────╮\n│ >  │\n╰────╯\n  ? for shortcuts", berth.AgentWorking, ""},
		{"claude", "╭────╮\n│ >  │\n╰────╯\n  ? for shortcuts", berth.AgentIdle, ""},
		{"claude", "────\n❯ \n────\n  ⏵⏵ accept edits on (shift+tab to cycle)", berth.AgentIdle, ""},
		{"claude", "│ Bash command\n│ rm -r x\n│ Do you want to proceed?\n│ ❯ 1. Yes\n│   2. No", berth.AgentBlocked, berth.BlockedPermission},
		{"claude", " Select login method:\n ❯ 1. Claude account", berth.AgentBlocked, berth.BlockedAuth},
		// A text that quotes the question has no choices below it.
		{"claude", "The tool asks: Do you want to proceed?\n✻ Working… (esc to interrupt)", berth.AgentWorking, ""},
		{"claude", "some output\n$ ", berth.AgentUnknown, ""},
		{"claude", "esc to interrupt" + strings.Repeat("\nline", ruleLines) + "\n$", berth.AgentUnknown, ""},
		{"codex", "• Working (3s • esc to interrupt)\n\n› Explain this codebase", berth.AgentWorking, ""},
		{"codex", "  Would you like to run the following command?\n  $ rm x\n› 1. Yes, proceed (y)\n  2. No", berth.AgentBlocked, berth.BlockedPermission},
		{"codex", "› Explain this codebase\n\n  100% context left · ? for shortcuts", berth.AgentIdle, ""},
		{"grok", "anything", berth.AgentUnknown, ""},
	} {
		a := ScreenAgent(c.agent, strings.Split(c.screen, "\n"))
		if a == nil || a.State != c.state || a.Kind != c.kind {
			t.Errorf("%s %q: %+v, want %s %s", c.agent, c.screen, a, c.state, c.kind)
		}
	}
	if a := ScreenAgent("vim", []string{"esc to interrupt"}); a != nil {
		t.Errorf("%+v", a)
	}
}

// What the hooks are told to send must be what is understood.
func TestHookSettings(t *testing.T) {
	for _, agent := range []string{"claude", "codex", "grok"} {
		text, err := berth.HookSettings(agent)
		if err != nil || berth.HookPlace(agent) == "" {
			t.Fatal(err)
		}
		type entry struct {
			Hooks []struct {
				Type, Command string
				Timeout       int
			}
		}
		var file struct{ Hooks map[string][]entry }
		if agent == "codex" {
			err = toml.Unmarshal([]byte(text), &file)
		} else {
			err = json.Unmarshal([]byte(text), &file)
		}
		if err != nil || len(file.Hooks) < 6 {
			t.Fatalf("%s: %v in\n%s", agent, err, text)
		}
		for event, entries := range file.Hooks {
			h := entries[0].Hooks[0]
			if h.Type != "command" || h.Command != "berth hook --event "+event || h.Timeout < 3 {
				t.Errorf("%s %s: %+v", agent, event, h)
			}
			a := HookAgent(guestapi.HookLine{Event: event, Payload: json.RawMessage(`{"notification_type":"permission_prompt"}`)})
			if a == nil {
				t.Errorf("%s sends %s, which means nothing", agent, event)
			}
		}
	}
	if _, err := berth.HookSettings("vim"); err == nil || berth.HookPlace("vim") != "" {
		t.Error("vim is no agent")
	}
}
