package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"berth"
)

// waitFor waits until ok holds.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testWait)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not come true")
		}
	}
}

// What can be copied into a shell is one word for each argument there.
func TestQuotedForAShell(t *testing.T) {
	for _, arg := range []string{"/home/ada/R&D(1)/bin/x", "a;b", "~", "#", "*", "a|b", "<f"} {
		if got := quoteArgv([]string{arg}); got != "'"+arg+"'" {
			t.Errorf("%s", got)
		}
	}
}

// A report shows what nobody sees, and is the same document.
func TestVisible(t *testing.T) {
	const text = "\u009b31m\u202e\U000E0001\u007f"
	doc, err := json.Marshal(map[string]string{"a": text})
	must(t, err)
	shown := visible(doc)
	var back map[string]string
	if err := json.Unmarshal([]byte(shown), &back); err != nil || back["a"] != text || strings.ContainsAny(shown, "\u009b\u202e\U000E0001\u007f") {
		t.Errorf("%q %v", shown, err)
	}
}

// A hint's command is about the daemon that this command was given.
func TestHintsKeepTheDirectories(t *testing.T) {
	got := runCLI(t, &fakeAPI{err: berth.Errorf(berth.CodeDaemonNotRunning, "no daemon")}, "ps", "--state-dir", "/tmp/a b")
	if !strings.Contains(got.stderr, "start it with: berth --state-dir '/tmp/a b' up") {
		t.Errorf("%+v", got)
	}
	if got := runCLI(t, &fakeAPI{err: berth.Errorf(berth.CodeDaemonNotRunning, "no daemon")}, "ps"); !strings.Contains(got.stderr, "start it with: berth up") {
		t.Errorf("%+v", got)
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                      "plain",
		"a\x1b[2Jb\nc\x9bd":          "a [2Jb c\uFFFDd",
		"a\u009bd":                   "a d",   // the 8-bit CSI as a character
		"x\u202Ey":                   "x y",   // right-to-left override
		"x\u200By\uFEFFz":            "x y z", // nobody sees them
		"\U0001F468\u200D\U0001F469": "\U0001F468\u200D\U0001F469",
		"żółw":                       "żółw",
	} {
		if got := oneLine(in, 0); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := oneLine("abcdef", 4); got != "abc…" {
		t.Errorf("got %q", got)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Minute: "0s", 59 * time.Second: "59s", 90 * time.Second: "1m", 61 * time.Minute: "1h01m", 50 * time.Hour: "2d02h",
	} {
		if got := age(testNow, testNow.Add(-d)); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}

func TestQuoteArgv(t *testing.T) {
	if got := quoteArgv([]string{"sh", "-c", "echo 'x'", ""}); got != `sh -c 'echo '\''x'\''' ''` {
		t.Errorf("got %s", got)
	}
}
