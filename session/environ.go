package session

import (
	"slices"
	"strings"

	"berth"
)

// defaultTerm is what the terminal of a session is: its guest answers queries
// as an xterm with 256 colours, whatever terminal the daemon was started in.
const defaultTerm = "xterm-256color"

// Environ is the environment that a program gets, as NAME=VALUE, sorted. base
// is the daemon's own environment at `up`; on a host other than the local one
// it is empty, since what this machine has is not that machine's business.
//
// The order of strength: a variable that was asked for beats what berth sets
// (TERM), which beats base. A withheld name never passes, whatever has it.
// Asking for a variable and withholding it at once is CodeUsage: one of the two
// is a mistake, and to guess which one could hand out a secret. The variables
// that the guest adds (BERTH_SESSION, BERTH_SOCKET, SSH_AUTH_SOCK) are not here.
func Environ(base []string, spec berth.SessionSpec) ([]string, error) {
	if err := checkWithheld(spec); err != nil {
		return nil, err
	}
	env := map[string]string{}
	for _, kv := range base {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || enclosing(name) {
			continue
		}
		env[name] = value
	}
	env["TERM"] = defaultTerm
	if strings.HasPrefix(spec.Cwd, "/") {
		env["PWD"] = spec.Cwd
	}
	for _, name := range spec.Withhold {
		if name != "TERM" && name != "PWD" { // what berth sets is never withheld
			delete(env, name)
		}
	}
	for name, value := range spec.Env {
		env[name] = value
	}
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out, nil
}

// checkWithheld refuses a name that is asked for and withheld, and a name that
// berth sets for the program.
func checkWithheld(spec berth.SessionSpec) error {
	for _, name := range spec.Withhold {
		if _, ok := spec.Env[name]; ok {
			return berth.Errorf(berth.CodeUsage, "%s is asked for and withheld at once", name).
				WithHint("leave out --env " + name + " or --withhold " + name)
		}
	}
	for name := range spec.Env {
		if name == "SSH_AUTH_SOCK" || strings.HasPrefix(name, "BERTH_") {
			return berth.Errorf(berth.CodeUsage, "%s is set by berth itself", name).
				WithHint("leave out --env " + name)
		}
	}
	return nil
}

// enclosing reports whether a variable tells of the session, agent, terminal or
// service that the daemon happened to be started in. A program that inherits
// one believes that it runs there: an agent refuses to start inside itself, an
// editor sends escape sequences of a terminal that is not there, a program
// reports its readiness to the daemon's service manager. Only identity is
// listed, never what a user sets on purpose: keys, models, directories and
// switches (ANTHROPIC_API_KEY, CLAUDE_CODE_USE_BEDROCK, CODEX_HOME) pass.
func enclosing(name string) bool {
	if slices.Contains(enclosingNames[:], name) {
		return true
	}
	for _, prefix := range enclosingPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

var enclosingPrefixes = [...]string{
	"BERTH_", // an enclosing berth session
	// Multiplexers and session keepers.
	"ZELLIJ", "SHPOOL_SESSION", "HERDR_", "ZMX_",
	// Terminals.
	"TERM_PROGRAM", "LC_TERMINAL", "ITERM_", "KITTY_", "ALACRITTY_", "WEZTERM_", "GHOSTTY_",
	"KONSOLE_", "GNOME_TERMINAL_", "XTERM_", "WT_", "VSCODE_",
}

var enclosingNames = [...]string{
	// What the shell or berth sets anew.
	"PWD", "OLDPWD", "SHLVL", "_", "TERM", "TERMCAP", "LINES", "COLUMNS",
	// The guest gives a socket that follows the viewers; an inherited one goes
	// stale and makes `git push` hang.
	"SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_TTY",
	// Multiplexers and session keepers.
	"TMUX", "TMUX_PANE", "STY", "WINDOW", "ABDUCO_SESSION",
	// Terminals and editors with a terminal in them.
	"TERM_SESSION_ID", "WINDOWID", "VTE_VERSION", "TILIX_ID", "TERMINATOR_UUID", "COLORFGBG", "INSIDE_EMACS",
	"NVIM", "NVIM_LISTEN_ADDRESS", "VIM", "VIMRUNTIME", "MYVIMRC",
	// Claude Code.
	"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_SESSION", "CLAUDE_CODE_SESSION_ID",
	"CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_PARENT_SESSION_ID", "CLAUDE_CODE_EXECPATH", "CLAUDE_CODE_REMOTE",
	"CLAUDE_CODE_REMOTE_SESSION_ID", "CLAUDE_CODE_MESSAGING_SOCKET", "CLAUDE_CODE_AGENT_ID", "CLAUDE_CODE_TASK_LIST_ID",
	"CLAUDE_SESSION_ID", "CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT", "CLAUDE_ENV_FILE", "CLAUDE_AGENT_SDK_VERSION",
	// Codex.
	"CODEX_THREAD_ID", "CODEX_SESSION_ID", "CODEX_CONVERSATION_ID", "CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED",
	"CODEX_CI", "CODEX_TASK", "CODEX_INTERNAL_ORIGINATOR_OVERRIDE", "CODEX_MANAGED_BY_NPM", "CODEX_MANAGED_BY_BUN",
	// Grok.
	"GROK_AGENT", "GROK_SESSION", "GROK_SESSION_ID", "GROK_HOOK_EVENT", "GROK_HOOK_NAME", "GROK_WORKSPACE_ROOT",
	// Other agents.
	"GEMINI_CLI", "GEMINI_SESSION_ID", "GEMINI_PROJECT_DIR", "GEMINI_CWD", "CURSOR_AGENT", "CURSOR_TRACE_ID",
	"CURSOR_CONVERSATION_ID", "OPENCODE", "OPENCODE_PID", "OPENCODE_SESSION_ID", "OPENCODE_CALLER", "COPILOT_AGENT_SESSION_ID",
	"KIRO_SESSION_ID", "KILO_RUN_ID", "ANTIGRAVITY_TRAJECTORY_ID", "REPLIT_SESSION", "CLINE_ACTIVE", "AI_AGENT",
	// The daemon's service.
	"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "INVOCATION_ID", "JOURNAL_STREAM",
	"SYSTEMD_EXEC_PID", "MAINPID", "MANAGERPID", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY",
	"MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "FDSTORE",
}
