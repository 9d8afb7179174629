package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"berth"
)

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"nosuch"},
		{"run"},
		{"run", "--nosuch", "--", "true"},
		{"run", "--size", "wide", "true"},
		{"run", "--env", "=x", "true"},
		{"run", "--env", "NOT_SET_HERE", "true"},
		{"run", "--name", "Not A Name", "true"},
		{"run", "--size-policy", "largest", "true"},
		{"run", "--detach-key", "d", "true"},
		{"attach"},
		{"attach", "a", "b"},
		{"attach", "a", "--size-policy", "largest"},
		{"logs", "a", "--from", "x"},
		{"logs", "a", "--from", "1", "--tail", "1"},
		{"send", "a"},
		{"resize", "a", "0x0"},
		{"signal", "a"},
		{"wait", "a", "--timeout", "0s"},
		{"kill"},
		{"rm"},
		{"rm", "--all-ended", "a"},
		{"export", "a", "--format", "mp4"},
		{"ps", "extra"},
		{"--nosuch"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			got := runCLI(t, &fakeAPI{}, args...)
			if got.code != berth.ExitUsage || got.stdout != "" || !strings.HasPrefix(got.stderr, "berth: ") {
				t.Errorf("got %+v", got)
			}
			got = runCLI(t, &fakeAPI{}, append([]string{"--json"}, args...)...)
			var p problem
			if err := json.Unmarshal([]byte(got.stderr), &p); err != nil {
				t.Fatalf("stderr is no document: %v: %q", err, got.stderr)
			}
			if got.code != berth.ExitUsage || got.stdout != "" || p.V != 1 || p.Code == "" || p.Detail == "" || p.Facts == nil {
				t.Errorf("got %+v, %+v", got, p)
			}
		})
	}
}

// The --json of a command line that cannot be parsed counts also behind what
// could not be parsed, but not in the program's own arguments.
func TestUsageErrorFindsJSON(t *testing.T) {
	if got := runCLI(t, &fakeAPI{}, "ps", "--nosuch", "--json"); !strings.HasPrefix(got.stderr, `{"v":1,`) {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, &fakeAPI{}, "run", "--nosuch", "--", "x", "--json"); !strings.HasPrefix(got.stderr, "berth: ") {
		t.Errorf("got %+v", got)
	}
}

func TestExitStatusOfErrors(t *testing.T) {
	for _, c := range []struct {
		code berth.Code
		want int
	}{
		{berth.CodeDaemonNotRunning, 1}, {berth.CodeNotFound, 3}, {berth.CodeNameTaken, 4},
		{berth.CodeHeld, 4}, {berth.CodeInvalidArgument, 2}, {berth.CodeInterrupted, 130}, {berth.CodeInternal, 1},
	} {
		api := &fakeAPI{err: berth.Errorf(c.code, "what happened").WithHint("do that").WithFact("name", "x")}
		got := runCLI(t, api, "--json", "ps")
		var p problem
		if err := json.Unmarshal([]byte(got.stderr), &p); err != nil {
			t.Fatal(err)
		}
		if got.code != c.want || p.Code != c.code || p.Detail != "what happened" || p.Hint != "do that" || p.Facts["name"] != "x" || got.stdout != "" {
			t.Errorf("%s: got %+v", c.code, got)
		}
	}
	got := runCLI(t, &fakeAPI{err: berth.Errorf(berth.CodeDaemonNotRunning, "nobody")}, "status")
	if want := "berth: nobody\n  hint: start it with: berth up\n"; got.stderr != want || got.code != 1 {
		t.Errorf("got %+v, want %q", got, want)
	}
}

// An error may carry text of a program or of a file name: it must not move the
// cursor of the user's terminal.
func TestErrorIsOneCleanLine(t *testing.T) {
	got := runCLI(t, &fakeAPI{err: berth.Errorf(berth.CodeNotFound, "no \x1b[2Jsession\n")}, "ps")
	if strings.ContainsAny(strings.TrimSuffix(got.stderr, "\n"), "\x1b") || strings.Count(got.stderr, "\n") != 2 {
		t.Errorf("got %q", got.stderr)
	}
}

func TestInterruptedIs130(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	api := &fakeAPI{err: context.Canceled}
	env, _, errs := testEnv(t, api, nil, nil, "ps")
	if code := Run(ctx, env); code != berth.ExitInterrupted || errs.String() != "" {
		t.Errorf("got %d, %q", code, errs.String())
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	a := &app{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			args := append(strings.Fields(c.CommandPath())[1:], "--help")
			got := runCLI(t, &fakeAPI{}, args...)
			if got.code != 0 || got.stderr != "" {
				t.Errorf("%s: %+v", c.CommandPath(), got)
			}
			for _, part := range []string{"Usage", "Examples", c.CommandPath(), "--json"} {
				if !strings.Contains(got.stdout, part) {
					t.Errorf("%s --help has no %q:\n%s", c.CommandPath(), part, got.stdout)
				}
			}
			walk(c)
		}
	}
	walk(newRoot(a))
}

func TestVersionIsTheRecord(t *testing.T) {
	got := runCLI(t, &fakeAPI{}, "version", "--json")
	var v struct {
		V int `json:"v"`
		berth.VersionInfo
	}
	if err := json.Unmarshal([]byte(got.stdout), &v); err != nil {
		t.Fatal(err)
	}
	if v.V != 1 || v.Version != berth.Version() || v.Protocol != berth.GuestProtocol {
		t.Errorf("got %s", got.stdout)
	}
}

func TestCompletionOffersSessions(t *testing.T) {
	api := &fakeAPI{sessions: []berth.Session{session("calm-heron", berth.SessionRunning), session("old-heron", berth.SessionExited)}}
	got := runCLI(t, api, "__complete", "attach", "")
	if !strings.Contains(got.stdout, "calm-heron\t") || strings.Contains(got.stdout, "old-heron") {
		t.Errorf("got %q", got.stdout)
	}
	got = runCLI(t, &fakeAPI{err: errors.New("no daemon")}, "__complete", "logs", "")
	if got.code != 0 || strings.Contains(got.stdout, "no daemon") {
		t.Errorf("got %+v", got)
	}
}
