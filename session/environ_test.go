package session

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"berth"
)

func TestEnviron(t *testing.T) {
	base := []string{
		"PATH=/bin", "HOME=/home/u", "LANG=C.UTF-8", "EDITOR=vi", "BROKEN", "=x", "EQ=a=b",
		"ANTHROPIC_API_KEY=k1", "CLAUDE_CODE_USE_BEDROCK=1", "CLAUDE_CODE_OAUTH_TOKEN=k2", "CLAUDE_CONFIG_DIR=/c", "CODEX_HOME=/x",
		"OPENAI_API_KEY=k3", "GROK_API_KEY=k4", "GEMINI_API_KEY=k5", "CURSOR_API_KEY=k6", "COLORTERM=truecolor",
		"BERTH_SESSION=s-old", "BERTH_SOCKET=/old", "BERTH_STATE_DIR=/old", "TMUX=/tmp/t", "TMUX_PANE=%1", "STY=1.pts", "ZELLIJ=0", "ZELLIJ_SESSION_NAME=z",
		"CLAUDECODE=1", "CLAUDE_CODE_ENTRYPOINT=cli", "CLAUDE_CODE_SSE_PORT=1", "CLAUDE_CODE_SESSION_ID=x", "CODEX_THREAD_ID=t", "CODEX_SANDBOX=seatbelt",
		"GROK_SESSION_ID=g", "GEMINI_CLI=1", "CURSOR_AGENT=1", "CURSOR_TRACE_ID=c",
		"TERM=dumb", "TERM_PROGRAM=iTerm.app", "TERM_PROGRAM_VERSION=3", "LINES=24", "COLUMNS=80", "WINDOWID=7", "KITTY_WINDOW_ID=1", "KITTY_PID=2",
		"ALACRITTY_LOG=/l", "WEZTERM_PANE=0", "VTE_VERSION=7000", "GHOSTTY_RESOURCES_DIR=/g", "VSCODE_IPC_HOOK_CLI=/v",
		"NOTIFY_SOCKET=/run/n", "LISTEN_FDS=1", "INVOCATION_ID=i", "JOURNAL_STREAM=9:9", "SSH_AUTH_SOCK=/stale", "PWD=/old", "OLDPWD=/old", "SHLVL=2", "_=/bin/berth",
	}
	env, err := Environ(base, berth.SessionSpec{Cwd: "/work", Env: map[string]string{"EDITOR": "nano", "TMUX": "asked"}, Withhold: []string{"OPENAI_API_KEY", "PWD", "NOT_THERE"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ANTHROPIC_API_KEY=k1", "CLAUDE_CODE_OAUTH_TOKEN=k2", "CLAUDE_CODE_USE_BEDROCK=1", "CLAUDE_CONFIG_DIR=/c", "CODEX_HOME=/x", "COLORTERM=truecolor",
		"CURSOR_API_KEY=k6", "EDITOR=nano", "EQ=a=b", "GEMINI_API_KEY=k5", "GROK_API_KEY=k4", "HOME=/home/u", "LANG=C.UTF-8", "PATH=/bin", "PWD=/work",
		"TERM=xterm-256color", "TMUX=asked",
	}
	if !slices.Equal(env, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(env, "\n"), strings.Join(want, "\n"))
	}
	env, err = Environ(nil, berth.SessionSpec{Env: map[string]string{"TERM": "vt100"}})
	if err != nil || !slices.Equal(env, []string{"TERM=vt100"}) {
		t.Errorf("on another host: %v, %v", env, err)
	}
	for _, spec := range []berth.SessionSpec{
		{Env: map[string]string{"K": "hush"}, Withhold: []string{"K"}},
		{Env: map[string]string{"BERTH_SOCKET": "hush"}},
		{Env: map[string]string{"SSH_AUTH_SOCK": "hush"}},
	} {
		if _, err := Environ(base, spec); !errors.Is(err, berth.CodeUsage) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}
