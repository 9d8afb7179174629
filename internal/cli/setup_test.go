package cli

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"berth"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.MkdirAll("testdata", 0o755)) //nolint:gosec // a directory of the repository
		must(t, berth.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func typed(text string) *string { return &text }

func TestSetupAsksThenDoes(t *testing.T) {
	result := filepath.Join(t.TempDir(), "result.json")
	d := newDesk(t, typed("y\n"), nil, "setup", "toy")
	d.attach = leaves(t, result)
	d.machine.states = []berth.Operation{
		toyOp(berth.PhaseChecking, 0), toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseChecking, 2),
		toyOp(berth.PhaseAwaitingHostStep, 3), // the request is not written yet
		toyOp(berth.PhaseAwaitingHostStep, 4, toyStep(result)), toyOp(berth.PhaseAwaitingHostStep, 4, toyStep(result)),
		toyOp(berth.PhasePreparing, 5), toyOp(berth.PhasePulling, 6), toyOp(berth.PhaseReady, 7),
	}
	d.machine.hold = 1
	got := d.run(t.Context())
	if got.code != 0 || got.stdout != "toy is ready on local (toy-1)\n" {
		t.Fatalf("got %+v", got)
	}
	if len(d.machine.begun) != 1 || d.machine.begun[0] != (berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "toy"}}) || len(d.machine.keys[0]) < 32 {
		t.Errorf("begun %+v with %q", d.machine.begun, d.machine.keys)
	}
	if len(d.machine.resumed) != 1 || d.machine.resumed[0] != (berth.ResumeOperation{Revision: 1, Approve: testDigest}) {
		t.Errorf("resumed %+v", d.machine.resumed)
	}
	// The helper runs once, by sudo, and what it does as root was said before.
	if len(d.ran) != 1 || quoteArgv(d.ran[0]) != "/usr/bin/sudo /usr/lib/berth/berth-hoststep /m/hoststeps/st.json" {
		t.Errorf("ran %v", d.ran)
	}
	for _, part := range []string{"install docker-ce", "Carry out this plan? [y/N]", "as root, the following is done now:"} {
		if !strings.Contains(got.stderr, part) {
			t.Errorf("the terminal never showed %q:\n%s", part, got.stderr)
		}
	}
	if len(d.machine.receipts) != 0 {
		t.Errorf("the result is the daemon's to read: %+v", d.machine.receipts)
	}
}

// A person who says anything but yes has changed nothing, and nothing is left
// that stands in the way of the next try.
func TestSetupRefused(t *testing.T) {
	for _, answer := range []string{"n\n", "\n", "maybe\n", "\x04"} {
		d := newDesk(t, typed(answer), nil, "setup", "toy")
		d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1)}
		got := d.run(t.Context())
		if got.code != berth.ExitNeedsPerson || got.stdout != "" || len(d.machine.resumed) != 0 || len(d.machine.canceled) != 1 {
			t.Errorf("%q: %+v, resumed %v, cancelled %v", answer, got, d.machine.resumed, d.machine.canceled)
		}
	}
}

// A "no" that comes after somebody else has approved ends nothing, and does not
// say that nothing was changed; nor does one that the daemon never heard.
func TestALateNo(t *testing.T) {
	d := newDesk(t, typed("n\n"), nil, "setup", "toy")
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhasePulling, 2)}
	got := d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || len(d.machine.canceled) != 0 || strings.Contains(got.stderr, "nothing was changed") || !strings.Contains(got.stderr, "decided meanwhile") {
		t.Errorf("%+v, cancelled %v", got, d.machine.canceled)
	}
	d = newDesk(t, typed("n\n"), nil, "setup", "toy")
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1)}
	d.machine.onLook = func(int) error { return berth.Errorf(berth.CodeDaemonNotRunning, "no daemon answers") }
	got = d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || strings.Contains(got.stderr, "nothing was changed") || !strings.Contains(got.stderr, "berth op cancel "+testOp) {
		t.Errorf("%+v", got)
	}
}

// An approval that the next daemon asks for again, for the same plan, is given
// without asking the person twice.
func TestApprovedOnce(t *testing.T) {
	d := newDesk(t, typed("y\n"), nil, "setup", "toy")
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseAwaitingConsent, 3), toyOp(berth.PhasePulling, 4), toyOp(berth.PhaseReady, 5)}
	got := d.run(t.Context())
	if got.code != 0 || len(d.machine.resumed) != 2 || strings.Count(got.stderr, "[y/N]") != 1 {
		t.Errorf("%+v, resumed %v", got, d.machine.resumed)
	}
}

func TestSetupWithoutATerminal(t *testing.T) {
	result := filepath.Join(t.TempDir(), "result.json")
	states := []berth.Operation{
		toyOp(berth.PhaseChecking, 0), toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseAwaitingHostStep, 4, toyStep(result)),
		toyOp(berth.PhaseAwaitingHostStep, 4, toyStep(result)), toyOp(berth.PhasePreparing, 5),
		toyOp(berth.PhasePulling, 6, func(op *berth.Operation) {
			op.Progress = &berth.Progress{Stage: "download", Done: 450, Total: 1000, Unit: "bytes"}
		}),
		toyOp(berth.PhaseVerifying, 7), toyOp(berth.PhaseReady, 8),
	}
	// Nobody agreed: the plan is shown, and how to agree.
	d := newDesk(t, nil, nil, "setup", "toy")
	d.machine.states = states
	got := d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || got.stdout != "" || !strings.Contains(got.stderr, "hint: berth op resume "+testOp+" --approve "+testDigest) || len(d.machine.canceled) != 0 {
		t.Errorf("got %+v", got)
	}
	golden(t, "setup-needs-consent.txt", got.stderr)
	// With --yes the command to run as root is printed, and its result awaited.
	d = newDesk(t, nil, nil, "setup", "toy", "--yes")
	d.machine.states = states
	got = d.run(t.Context())
	if got.code != 0 || got.stdout != "toy is ready on local (toy-1)\n" || len(d.ran) != 0 {
		t.Errorf("got %+v, ran %v", got, d.ran)
	}
	golden(t, "setup-yes-piped.txt", got.stderr)
	// On a desktop pkexec asks.
	d = newDesk(t, nil, map[string]string{"DISPLAY": ":0"}, "setup", "toy", "--yes")
	d.machine.states, d.attach = states, leaves(t, result)
	if got = d.run(t.Context()); got.code != 0 || len(d.ran) != 1 || d.ran[0][0] != "/usr/bin/pkexec" {
		t.Errorf("got %+v, ran %v", got, d.ran)
	}
	// Root needs nobody's password.
	d = newDesk(t, nil, nil, "setup", "toy", "--yes", "--json")
	d.machine.states, d.attach = states, leaves(t, result)
	d.env.UserID = func() int { return 0 }
	got = d.run(t.Context())
	var op berth.Operation
	if err := json.Unmarshal([]byte(got.stdout), &op); err != nil || op.V != 1 || op.Phase != berth.PhaseReady || got.code != 0 || got.stderr != "" {
		t.Errorf("got %+v", got)
	}
	if len(d.ran) != 1 || d.ran[0][0] != "/usr/lib/berth/berth-hoststep" {
		t.Errorf("ran %v", d.ran)
	}
	// A script without root is not kept waiting for somebody who is not there.
	d = newDesk(t, nil, map[string]string{"DISPLAY": ":0"}, "setup", "toy", "--yes", "--json")
	d.machine.states = states
	got = d.run(t.Context())
	var p problem
	if json.Unmarshal([]byte(got.stdout), &op) != nil || op.Phase != berth.PhaseAwaitingHostStep || json.Unmarshal([]byte(got.stderr), &p) != nil ||
		got.code != berth.ExitNeedsPerson || !strings.Contains(p.Detail, "sudo /usr/lib/berth/berth-hoststep") {
		t.Errorf("got %+v", got)
	}
}

// The step of another machine is never run on this one.
func TestHostStepOfAnotherHost(t *testing.T) {
	onBox := func(op *berth.Operation) { op.Target.Host = "gpu-box" }
	d := newDesk(t, typed(""), nil, "setup", "toy", "--yes", "--on", "gpu-box")
	d.env.UserID = func() int { return 0 }
	d.machine.states = []berth.Operation{
		toyOp(berth.PhaseAwaitingConsent, 1, onBox), toyOp(berth.PhaseAwaitingHostStep, 4, toyStep("/none"), onBox), toyOp(berth.PhaseReady, 5, onBox),
	}
	got := d.run(t.Context())
	if got.code != 0 || len(d.ran) != 0 || !strings.Contains(got.stderr, "on gpu-box, run") {
		t.Errorf("got %+v, ran %v", got, d.ran)
	}
}

// Without a result the helper never ran: that is told as declined, with all that
// a receipt must match, so that the operation does not wait for ever.
func TestHostStepDeclined(t *testing.T) {
	d := newDesk(t, typed(""), nil, "setup", "toy", "--yes")
	d.attach = func([]string) error { return errWrongPassword }
	declined := toyOp(berth.PhaseFailed, 5, func(op *berth.Operation) {
		op.Error = &berth.OpError{Code: berth.CodeElevationDeclined, Detail: "the privileged step was declined"}
	})
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseAwaitingHostStep, 4, toyStep("/none")), declined}
	got := d.run(t.Context())
	want := berth.Receipt{
		StepID: "st-0123456789abcdef", Nonce: "once", Revision: 4, Action: "apply", Recipe: berth.RecipeRef{ID: "linux-r2", Digest: "sha256:r"},
		ParametersDigest: "sha256:p", Outcome: berth.ReceiptDeclined,
	}
	if got.code != berth.ExitNeedsPerson || len(d.machine.receipts) != 1 || !sameReceipt(d.machine.receipts[0], want) || !strings.Contains(got.stderr, "berth op resume "+testOp) {
		t.Errorf("got %+v, receipts %+v", got, d.machine.receipts)
	}
}

func sameReceipt(a, b berth.Receipt) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// What was approved is what is done: a digest that no longer fits, and a plan
// that changed after --yes, end without a change.
func TestChangedPlanIsNotApproved(t *testing.T) {
	other := "sha256:" + strings.Repeat("b", 64)
	d := newDesk(t, nil, nil, "setup", "toy", "--approve", other)
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseReady, 2)}
	got := d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || len(d.machine.resumed) != 0 || !strings.Contains(got.stderr, "no longer the one that was approved") || d.machine.begun[0].Approve != other {
		t.Errorf("got %+v, resumed %v", got, d.machine.resumed)
	}
	changed := toyOp(berth.PhaseAwaitingConsent, 3, func(op *berth.Operation) { op.PlanDigest = other })
	d = newDesk(t, nil, nil, "setup", "toy", "--yes")
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), changed, toyOp(berth.PhaseReady, 4)}
	got = d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || len(d.machine.resumed) != 1 || got.stdout != "" {
		t.Errorf("got %+v, resumed %v", got, d.machine.resumed)
	}
	// A person at the terminal is asked again.
	d = newDesk(t, typed("y\n"), nil, "setup", "toy", "--yes")
	d.machine.states = []berth.Operation{toyOp(berth.PhaseAwaitingConsent, 1), changed, toyOp(berth.PhaseReady, 4)}
	got = d.run(t.Context())
	if got.code != 0 || len(d.machine.resumed) != 2 || d.machine.resumed[1].Approve != other || !strings.Contains(got.stderr, "no longer the one that you approved") {
		t.Errorf("got %+v, resumed %v", got, d.machine.resumed)
	}
}

func TestHowOperationsEnd(t *testing.T) {
	failed := func(code berth.Code) func(*berth.Operation) {
		return func(op *berth.Operation) {
			op.Error = &berth.OpError{Code: code, Detail: "what happened", Hint: "do that", Facts: map[string]string{"x": "y"}}
		}
	}
	for _, c := range []struct {
		name string
		op   berth.Operation
		want int
		text string
	}{
		{"relogin", toyOp(berth.PhaseAwaitingRelogin, 2), 5, "log out and in again"},
		{"reboot", toyOp(berth.PhaseAwaitingReboot, 2), 5, "restart it"},
		{"cancelled", toyOp(berth.PhaseCancelled, 2), 1, "berth op resume " + testOp},
		{"blocked", toyOp(berth.PhaseFailed, 2, failed(berth.CodePrerequisiteBlocked)), 5, "do that"},
		{"check failed", toyOp(berth.PhaseFailed, 2, failed(berth.CodeCheckFailed)), 1, "what happened"},
		{"held", toyOp(berth.PhaseFailed, 2, failed(berth.CodeResourceInUse)), 4, "what happened"},
		{"failed without a word", toyOp(berth.PhaseFailed, 2), 1, "does not say why"},
		{"ready", toyOp(berth.PhaseReady, 2), 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, nil, nil, "setup", "toy", "--yes")
			d.machine.states = []berth.Operation{toyOp(berth.PhaseChecking, 0), c.op}
			got := d.run(t.Context())
			if got.code != c.want || !strings.Contains(got.stderr, c.text) || (got.stdout == "") != (c.want != 0) {
				t.Errorf("got %+v", got)
			}
			d = newDesk(t, nil, nil, "setup", "toy", "--yes", "--json")
			d.machine.states = []berth.Operation{toyOp(berth.PhaseChecking, 0), c.op}
			got = d.run(t.Context())
			var op berth.Operation
			if err := json.Unmarshal([]byte(got.stdout), &op); err != nil || op.Phase != c.op.Phase || got.code != c.want || strings.Count(got.stdout, "\n") != 1 {
				t.Errorf("got %+v: %v", got, err)
			}
			var p problem
			if c.want != 0 && (json.Unmarshal([]byte(got.stderr), &p) != nil || p.Code == "" || p.Facts["operation"] != testOp) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A blocked setup shows what stands against it, with the commands to run.
func TestBlockedSetupShowsThePlan(t *testing.T) {
	plan := toyPlan(berth.PlanNote{Reason: string(berth.BlockNoGPU), Message: "there is no NVIDIA card", Commands: []string{"lspci -d 10de:"}})
	d := newDesk(t, nil, nil, "setup", "toy")
	d.machine.engines = []berth.Engine{{Engine: "toy", Releases: []berth.ReleaseView{
		{Release: berth.Release{ID: "toy-gpu", Engine: "toy", MinComputeCapability: "8.0"}}, {Release: berth.Release{ID: "toy-cpu", Engine: "toy"}},
	}}}
	d.machine.states = []berth.Operation{toyOp(berth.PhaseChecking, 0), toyOp(berth.PhaseFailed, 1, func(op *berth.Operation) {
		op.Plan = &plan
		op.Error = &berth.OpError{Code: berth.CodePrerequisiteBlocked, Detail: "there is no NVIDIA card", Facts: map[string]string{"reason": string(berth.BlockNoGPU)}}
	})}
	got := d.run(t.Context())
	if got.code != berth.ExitNeedsPerson || got.stdout != "" {
		t.Errorf("got %+v", got)
	}
	golden(t, "setup-blocked.txt", got.stderr)
}

// Ctrl-C leaves the operation at work and says how to come back.
func TestInterruptedSetupGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := newDesk(t, nil, nil, "setup", "toy", "--yes")
	d.machine.states = []berth.Operation{toyOp(berth.PhasePulling, 5)}
	d.machine.onLook = func(n int) error {
		if n == 3 {
			cancel()
		}
		return nil
	}
	got := d.run(ctx)
	if got.code != berth.ExitInterrupted || got.stdout != "" || len(d.machine.canceled) != 0 {
		t.Errorf("got %+v, cancelled %v", got, d.machine.canceled)
	}
	for _, part := range []string{"setup of toy on local goes on", "berth op show " + testOp, "berth op cancel " + testOp} {
		if !strings.Contains(got.stderr, part) {
			t.Errorf("no %q in\n%s", part, got.stderr)
		}
	}
}

// The daemon may be replaced meanwhile. One that stays away is told of.
func TestSetupOutlivesTheDaemon(t *testing.T) {
	d := newDesk(t, nil, nil, "setup", "toy", "--yes")
	d.machine.states = []berth.Operation{toyOp(berth.PhasePulling, 5), toyOp(berth.PhasePulling, 5), toyOp(berth.PhaseReady, 6)}
	d.machine.onLook = func(n int) error {
		if n < 5 {
			return errNobody
		}
		return nil
	}
	if got := d.run(t.Context()); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	d = newDesk(t, nil, nil, "setup", "toy", "--yes")
	now := testNow
	d.env.Now = func() time.Time { now = now.Add(time.Second); return now }
	d.machine.states = []berth.Operation{toyOp(berth.PhasePulling, 5)}
	d.machine.onLook = func(int) error { return errNobody }
	if got := d.run(t.Context()); got.code != berth.ExitFailed || !strings.Contains(got.stderr, "berth op show "+testOp) {
		t.Errorf("got %+v", got)
	}
}

// The same command again follows what it began; another one is refused.
func TestSetupAgainIsFollowed(t *testing.T) {
	busy := berth.Errorf(berth.CodeConflict, "busy").WithFact("holder", testOp)
	d := newDesk(t, nil, nil, "setup", "toy", "--approve", testDigest)
	d.machine.beginErr = []error{busy}
	d.machine.states = []berth.Operation{toyOp(berth.PhaseChecking, 0), toyOp(berth.PhaseAwaitingConsent, 1), toyOp(berth.PhaseReady, 2)}
	got := d.run(t.Context())
	if got.code != 0 || len(d.machine.resumed) != 1 || !strings.Contains(got.stderr, "following "+testOp) {
		t.Errorf("got %+v", got)
	}
	for _, args := range [][]string{{"remove", "toy", "--yes"}, {"setup", "other", "--yes"}, {"setup", "toy", "--release", "toy-2", "--yes"}} {
		d = newDesk(t, nil, nil, args...)
		d.machine.beginErr = []error{busy}
		d.machine.states = []berth.Operation{toyOp(berth.PhasePulling, 3)}
		if got := d.run(t.Context()); got.code != berth.ExitRefused || !strings.Contains(got.stderr, "berth op cancel "+testOp) {
			t.Errorf("%v: %+v", args, got)
		}
	}
	// An answer that was lost is asked for again with the same key.
	d = newDesk(t, nil, nil, "setup", "toy", "--yes")
	d.machine.beginErr = []error{berth.Errorf(berth.CodeDaemonUnreachable, "cut")}
	d.machine.states = []berth.Operation{toyOp(berth.PhaseReady, 3)}
	if got := d.run(t.Context()); got.code != 0 || len(d.machine.keys) != 2 || d.machine.keys[0] != d.machine.keys[1] {
		t.Errorf("got %+v with %v", got, d.machine.keys)
	}
}

func TestRemoveAsksForWhatItSays(t *testing.T) {
	for _, c := range []struct {
		args []string
		want berth.BeginOperation
	}{
		{[]string{"remove", "toy"}, berth.BeginOperation{Kind: berth.OperationRemove, Target: berth.Target{Host: "local", Engine: "toy"}, RetainModels: true}},
		{[]string{"remove", "toy", "--models", "--on", "box"}, berth.BeginOperation{Kind: berth.OperationRemove, Target: berth.Target{Host: "box", Engine: "toy"}}},
		{[]string{"remove", "--environment"}, berth.BeginOperation{Kind: berth.OperationRemove, Target: berth.Target{Host: "local"}, RetainModels: true}},
		{[]string{"update", "toy", "--release", "toy-2"}, berth.BeginOperation{Kind: berth.OperationUpdate, Target: berth.Target{Host: "local", Engine: "toy"}, Release: "toy-2"}},
		{[]string{"setup", "--environment"}, berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local"}}},
	} {
		d := newDesk(t, nil, nil, c.args...)
		d.machine.states = []berth.Operation{toyOp(berth.PhaseRemoved, 1)}
		if got := d.run(t.Context()); got.code != 0 || got.stdout != "toy was removed from local\n" || d.machine.begun[0] != c.want {
			t.Errorf("%v: %+v, begun %+v", c.args, got, d.machine.begun)
		}
	}
}

// A reinstallation is agreed to twice: to the removal by its digest before it
// begins, to the setup when its plan is there.
func TestReinstall(t *testing.T) {
	removed := toyOp(berth.PhaseRemoved, 2)
	removed.Kind, removed.FollowUp = berth.OperationRemove, &berth.FollowUp{Target: removed.Target, Release: "toy-1"}
	begun := removed
	begun.FollowUp = &berth.FollowUp{Target: removed.Target, Release: "toy-1", Begun: "op-06h2w0q3n5x8k1ac"}
	play := func(answers *string, args ...string) *desk {
		d := newDesk(t, answers, nil, append([]string{"setup", "toy", "--reinstall"}, args...)...)
		d.machine.plan = toyPlan()
		d.machine.engines = []berth.Engine{{Engine: "toy", Installations: []berth.Installation{{Host: "local", Engine: "toy", Release: berth.ReleaseRef{ID: "toy-1"}}}}}
		d.machine.states = []berth.Operation{toyOp(berth.PhaseRemoving, 1), removed, begun, toyOp(berth.PhaseAwaitingConsent, 3), toyOp(berth.PhasePulling, 4), toyOp(berth.PhaseReady, 5)}
		return d
	}
	want := berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "toy"}, Release: "toy-1", Approve: testDigest, Reinstall: true}
	for name, d := range map[string]*desk{"asked": play(typed("y\ny\n")), "yes": play(nil, "--yes")} {
		got := d.run(t.Context())
		if got.code != 0 || got.stdout != "toy is ready on local (toy-1)\n" || len(d.machine.begun) != 1 || d.machine.begun[0] != want || len(d.machine.resumed) != 1 {
			t.Errorf("%s: %+v, begun %+v, resumed %v", name, got, d.machine.begun, d.machine.resumed)
		}
	}
	for name, d := range map[string]*desk{"refused": play(typed("n\n")), "nobody": play(nil)} {
		if got := d.run(t.Context()); got.code != berth.ExitNeedsPerson || len(d.machine.begun) != 0 || !strings.Contains(got.stderr, "nothing was changed") {
			t.Errorf("%s: %+v, begun %+v", name, got, d.machine.begun)
		}
	}
	// What is not there is not removed.
	d := play(nil, "--yes")
	d.machine.engines = nil
	if got := d.run(t.Context()); got.code != berth.ExitNotFound || len(d.machine.begun) != 0 {
		t.Errorf("%+v", got)
	}
	// The setup did not begin: that is said, with what begins it.
	d = play(nil, "--yes")
	removed.Error = &berth.OpError{Code: berth.CodeInternal, Detail: "no disk"}
	d.machine.states = []berth.Operation{toyOp(berth.PhaseRemoving, 1), removed}
	if got := d.run(t.Context()); got.code != berth.ExitFailed || !strings.Contains(got.stderr, "berth setup toy --release toy-1") {
		t.Errorf("%+v", got)
	}
}

func TestPlanAndProbe(t *testing.T) {
	d := newDesk(t, nil, nil, "probe", "toy", "--on", "box")
	d.machine.plan = toyPlan()
	got := d.run(t.Context())
	if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "install docker-ce") || !strings.Contains(got.stdout, testDigest) || d.machine.plan.Target.Host != "box" {
		t.Errorf("got %+v", got)
	}
	d = newDesk(t, nil, nil, "remove", "toy", "--plan", "--json")
	d.machine.plan = toyPlan()
	got = d.run(t.Context())
	var p berth.Plan
	if err := json.Unmarshal([]byte(got.stdout), &p); err != nil || p.V != 1 || p.Kind != berth.OperationRemove || len(d.machine.begun) != 0 || strings.Count(got.stdout, `"v":1`) != 1 {
		t.Errorf("got %+v: %v", got, err)
	}
	blocked := toyPlan(berth.PlanNote{Reason: string(berth.BlockDisk), Message: "the disk is full"})
	unsupported := toyPlan()
	unsupported.Availability = berth.Unsupported
	for want, plan := range map[int]berth.Plan{berth.ExitNeedsPerson: blocked, berth.ExitFailed: unsupported} {
		d = newDesk(t, nil, nil, "probe")
		d.machine.plan = plan
		if got := d.run(t.Context()); got.code != want || got.stdout == "" || got.stderr != "" {
			t.Errorf("got %+v, want %d", got, want)
		}
	}
}

func TestSetupUsage(t *testing.T) {
	for _, args := range [][]string{
		{"setup"}, {"setup", "toy", "--environment"}, {"setup", "toy", "x"}, {"setup", "Not/AnEngine"}, {"setup", "toy", "--approve", "abc"},
		{"setup", "toy", "--yes", "--plan"}, {"setup", "toy", "--yes", "--approve", testDigest}, {"remove"}, {"remove", "--environment", "--models"},
		{"setup", "--environment", "--release", "x"}, {"setup", "--environment", "--reinstall"}, {"setup", "toy", "--reinstall", "--approve", testDigest}, {"update"}, {"probe", "a", "b"}, {"op", "nosuch"}, {"op", "show"}, {"op", "resume", testOp, "--approve", "x"},
		{"op", "receipt", testOp}, {"op", "receipt", testOp, "file", "--declined"}, {"engine", "nosuch"}, {"engine", "show"}, {"engine", "releases", "nosuch"}, {"engine", "releases", "add"},
	} {
		if got := newDesk(t, nil, nil, args...).run(t.Context()); got.code != berth.ExitUsage || got.stdout != "" || !strings.HasPrefix(got.stderr, "berth: ") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestProgressText(t *testing.T) {
	pulling := func(p berth.Progress) berth.Operation {
		return toyOp(berth.PhasePulling, 1, func(op *berth.Operation) { op.Progress = &p })
	}
	var lines []string
	for _, c := range []struct {
		op   berth.Operation
		rate int64
	}{
		{toyOp(berth.PhasePreparing, 1), 0},
		{pulling(berth.Progress{Stage: "download", Total: 10_000_000_000, Unit: "bytes"}), 0},
		{pulling(berth.Progress{Stage: "download", Done: 4_300_000_000, Total: 10_000_000_000, Unit: "bytes"}), 57_000_000},
		{pulling(berth.Progress{Stage: "unpack", Done: 20_000_000_000, Total: 10_000_000_000, Unit: "bytes"}), 0},
		{pulling(berth.Progress{Stage: "download", Done: 4_300_000_000, Unit: "bytes"}), 1000},
		{pulling(berth.Progress{Stage: "check", Done: 2, Total: 5, Note: "a note\x1b[2J"}), 0},
		{toyOp(berth.PhasePulling, 1, func(op *berth.Operation) { op.CancelAsked = true }), 0},
	} {
		lines = append(lines, progressText(c.op, c.rate, 0, 0))
	}
	busy := pulling(berth.Progress{Stage: "download", Done: 4_300_000_000, Total: 10_000_000_000, Unit: "bytes", Note: "the connection was lost; trying again"})
	for _, width := range []int{120, 79, 60, 39, 20} {
		line := progressText(busy, 57_000_000, 25*time.Second, width)
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("%d characters at a width of %d", n, width)
		}
		lines = append(lines, line)
	}
	golden(t, "progress.txt", strings.Join(lines, "\n")+"\n")
}

// On a terminal the bar comes after a second, is drawn over itself and goes
// before the next thing is written.
// A download that begins anew, with the next daemon, has the speed that it has now.
func TestProgressBegunAnew(t *testing.T) {
	d := newDesk(t, typed(""), nil, "setup", "toy", "--yes")
	now := testNow
	d.env.Now = func() time.Time { now = now.Add(time.Second); return now }
	for _, done := range []int64{100_000, 600_000, 900_000, 10_000, 110_000, 210_000} {
		d.machine.states = append(d.machine.states, toyOp(berth.PhasePulling, 1, func(op *berth.Operation) {
			op.Progress = &berth.Progress{Stage: "download", Done: done, Total: 1_000_000, Unit: "bytes"}
		}))
	}
	d.machine.states = append(d.machine.states, toyOp(berth.PhaseReady, 2))
	if got := d.run(t.Context()); got.code != 0 || !strings.Contains(got.stderr, "210 kB of 1.0 MB  100 kB/s  7s left") {
		t.Errorf("got %q", got.stderr)
	}
}

func TestProgressBarOnATerminal(t *testing.T) {
	d := newDesk(t, typed(""), nil, "setup", "toy", "--yes")
	now := testNow
	d.env.Now = func() time.Time { now = now.Add(700 * time.Millisecond); return now }
	at := func(done int64) func(*berth.Operation) {
		return func(op *berth.Operation) {
			op.Progress = &berth.Progress{Stage: "download", Done: done, Total: 1000, Unit: "bytes"}
		}
	}
	d.machine.states = []berth.Operation{
		toyOp(berth.PhasePulling, 1, at(0)), toyOp(berth.PhasePulling, 1, at(100)), toyOp(berth.PhasePulling, 1, at(500)), toyOp(berth.PhasePulling, 1, at(900)), toyOp(berth.PhaseReady, 2),
	}
	got := d.run(t.Context())
	if got.code != 0 || strings.Contains(got.stderr, " 0%") || !strings.Contains(got.stderr, "\r\x1b[Kpulling: download") || !strings.Contains(got.stderr, "90%") ||
		!strings.HasSuffix(got.stderr, "\r\x1b[K") || strings.Contains(got.stdout, "pulling") {
		t.Errorf("got %q", got.stderr)
	}
}
