package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"berth"
)

// fakeMachine is the part of a daemon that is about machines, played from a
// script: each look at the operation goes one state further.
type fakeMachine struct {
	mu       sync.Mutex
	plan     berth.Plan
	begun    []berth.BeginOperation
	keys     []string
	beginErr []error           // of the first calls
	states   []berth.Operation // the first is what begin answers
	at       int
	hold     int // state that lasts until something is answered; 0 = none
	onLook   func(n int) error
	looks    int
	resumed  []berth.ResumeOperation
	receipts []berth.Receipt
	canceled []string
	list     []berth.Operation
	engines  []berth.Engine
	added    [][]byte
	urls     []string
	err      error
}

func (f *fakeMachine) here() berth.Operation { return f.states[min(f.at, len(f.states)-1)] }

func (f *fakeMachine) on() (berth.Operation, error) {
	if f.err != nil {
		return berth.Operation{}, f.err
	}
	f.hold = 0
	f.at++
	return f.here(), nil
}

func (f *fakeMachine) Plan(_ context.Context, r berth.ProbeRequest) (berth.Plan, error) {
	f.plan.Kind, f.plan.Target = r.Kind, r.Target
	return f.plan, f.err
}
func (f *fakeMachine) Diagnostics(_ context.Context, host string) (berth.Diagnostics, error) {
	return berth.Diagnostics{V: 1, Version: host}, f.err
}
func (f *fakeMachine) BeginOperation(_ context.Context, b berth.BeginOperation, key string) (berth.Operation, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun, f.keys = append(f.begun, b), append(f.keys, key)
	if n := len(f.begun); n <= len(f.beginErr) && f.beginErr[n-1] != nil {
		return berth.Operation{}, false, f.beginErr[n-1]
	}
	if f.err != nil || len(f.states) == 0 {
		return berth.Operation{}, false, f.err
	}
	return f.here(), true, nil
}
func (f *fakeMachine) Operations(context.Context, string) ([]berth.Operation, error) {
	return f.list, f.err
}
func (f *fakeMachine) Operation(_ context.Context, id string) (berth.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if f.onLook != nil {
		if err := f.onLook(f.looks); err != nil {
			return berth.Operation{}, err
		}
	}
	for _, op := range f.list {
		if op.ID == id {
			return op, nil
		}
	}
	if len(f.states) == 0 {
		return berth.Operation{}, berth.Errorf(berth.CodeNotFound, "there is no operation %q", id)
	}
	if f.hold == 0 || f.at < f.hold {
		f.at++
	}
	return f.here(), f.err
}
func (f *fakeMachine) ResumeOperation(_ context.Context, _ string, r berth.ResumeOperation) (berth.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resumed = append(f.resumed, r)
	return f.on()
}
func (f *fakeMachine) CancelOperation(_ context.Context, id string) (berth.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.canceled = append(f.canceled, id)
	op := f.here()
	op.Phase = berth.PhaseCancelled
	return op, f.err
}
func (f *fakeMachine) AcceptReceipt(_ context.Context, _ string, r berth.Receipt) (berth.Operation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.receipts = append(f.receipts, r)
	return f.on()
}
func (f *fakeMachine) ResetOperations(context.Context, string) (berth.ResetResult, error) {
	return berth.ResetResult{V: 1, Archive: "20260301T120000Z", Archived: 3}, f.err
}
func (f *fakeMachine) Engines(context.Context) ([]berth.Engine, error) { return f.engines, f.err }
func (f *fakeMachine) Engine(_ context.Context, name string) (berth.Engine, error) {
	for _, e := range f.engines {
		if e.Engine == name {
			return e, f.err
		}
	}
	return berth.Engine{}, berth.Errorf(berth.CodeReleaseNotFound, "there is no engine %q", name)
}
func (f *fakeMachine) AddRelease(_ context.Context, data []byte) (berth.ReleaseView, bool, error) {
	f.added = append(f.added, data)
	return berth.ReleaseView{Release: berth.Release{V: 1, ID: "toy-1"}}, len(f.added) == 1, f.err
}
func (f *fakeMachine) AddReleaseFrom(_ context.Context, url string) (berth.ReleaseView, bool, error) {
	f.urls = append(f.urls, url)
	return berth.ReleaseView{Release: berth.Release{V: 1, ID: "toy-1"}}, true, f.err
}

const (
	testOp     = "op-0123456789abcdef"
	testDigest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

func toyPlan(blockers ...berth.PlanNote) berth.Plan {
	if blockers == nil {
		blockers = []berth.PlanNote{}
	}
	return berth.Plan{
		V: 1, Digest: testDigest, Kind: berth.OperationSetup, Target: berth.Target{Host: berth.LocalHost, Engine: "toy"},
		Availability: berth.SetupRequired, Blockers: blockers, Warnings: []berth.PlanNote{}, GPUs: []berth.GPU{},
		Changes: []berth.Change{
			{Code: berth.ChangeInstallPackages, Text: "install docker-ce", Why: "engines run in containers", Elevated: true},
			{Code: berth.ChangePullImage, Text: "pull example.org/toy", Why: "it is the engine", Bytes: 1000},
		},
		Elevation: true,
	}
}

// toyOp is the setup of a toy engine in a phase.
func toyOp(phase berth.Phase, revision int64, change ...func(*berth.Operation)) berth.Operation {
	op := berth.Operation{
		V: 1, ID: testOp, Kind: berth.OperationSetup, Target: berth.Target{Host: berth.LocalHost, Engine: "toy"}, Release: "toy-1",
		Phase: phase, Revision: revision, Created: testNow.Add(-time.Minute),
	}
	if phase != berth.PhaseChecking {
		p := toyPlan()
		op.Plan, op.PlanDigest = &p, p.Digest
	}
	for _, c := range change {
		c(&op)
	}
	return op
}

func toyStep(result string) func(*berth.Operation) {
	return func(op *berth.Operation) {
		op.HostStep = &berth.HostStep{
			ID: "st-0123456789abcdef", Action: "apply", Recipe: berth.RecipeRef{ID: "linux-r2", Digest: "sha256:r"}, ParametersDigest: "sha256:p",
			Nonce: "once", Revision: 4, Request: "/m/hoststeps/st.json", Result: result, Command: []string{"/usr/lib/berth/berth-hoststep", "/m/hoststeps/st.json"},
		}
	}
}

// desk is a command line with a fake machine behind it, on a terminal or not.
type desk struct {
	machine fakeMachine
	env     Env
	out     bytes.Buffer
	screen  func() string // what standard error has shown; call it after Run
	ran     [][]string    // through Attached
	attach  func(argv []string) error
}

type machineAPI struct {
	*fakeAPI
	*fakeMachine
}

// newDesk makes one. answers are typed at the terminal; nil = there is none.
func newDesk(t *testing.T, answers *string, vars map[string]string, args ...string) *desk {
	t.Helper()
	d := &desk{}
	var errs *bytes.Buffer
	d.env, _, errs = testEnv(t, machineAPI{&fakeAPI{}, &d.machine}, vars, strings.NewReader(""), args...)
	d.env.Stdout = &d.out
	d.env.Poll = time.Microsecond
	d.env.UserID = func() int { return 1000 }
	d.env.LookPath = func(name string) (string, error) { return "/usr/bin/" + name, nil }
	d.env.Attached = func(argv []string) error {
		d.ran = append(d.ran, argv)
		if d.attach != nil {
			return d.attach(argv)
		}
		return nil
	}
	d.screen = errs.String
	if answers == nil {
		return d
	}
	master, slave, err := pty.Open()
	must(t, err)
	must(t, pty.Setsize(master, &pty.Winsize{Cols: 100, Rows: 30}))
	var shown bytes.Buffer
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = io.Copy(&shown, master) // ends when the slave is closed
	}()
	_, err = io.WriteString(master, *answers)
	must(t, err)
	d.env.Stdin, d.env.Stderr = slave, slave
	closed := false
	end := func() {
		if !closed {
			closed = true
			_ = slave.Close()
			<-reading
			_ = master.Close()
		}
	}
	t.Cleanup(end)
	d.screen = func() string { end(); return strings.ReplaceAll(shown.String(), "\r\n", "\n") }
	return d
}

func (d *desk) run(ctx context.Context) outcome {
	code := Run(ctx, d.env)
	return outcome{code, d.out.String(), d.screen()}
}

// leaves makes a helper that leaves its result.
func leaves(t *testing.T, path string) func([]string) error {
	return func([]string) error {
		must(t, os.WriteFile(path, []byte("{}"), 0o600))
		return nil
	}
}

var errWrongPassword = errors.New("exit status 1")
