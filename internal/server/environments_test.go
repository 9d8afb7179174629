package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/client"
)

// fakeEnvironments answers from memory and remembers what it was asked.
type fakeEnvironments struct {
	mu      sync.Mutex
	calls   []any
	ops     []berth.Operation // the newest first
	keys    map[string]berth.Operation
	err     error
	probing chan struct{} // when set, Probe waits for its context
}

func (f *fakeEnvironments) note(call ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	return f.err
}

func (f *fakeEnvironments) last() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[len(f.calls)-1]
}

func (f *fakeEnvironments) List(context.Context) (berth.Environments, error) {
	in := berth.Installation{Host: "local", Engine: "toy", Release: berth.ReleaseRef{ID: "toy-1"}, Status: berth.InstallationReady}
	orphan := berth.Installation{Host: "local", Engine: "gone", Status: berth.InstallationReady}
	return berth.Environments{V: 1, Environments: []berth.Environment{{Host: "local", Supported: true, Installations: []berth.Installation{in, orphan}, Active: "op-1"}}}, f.note("list")
}

func (f *fakeEnvironments) Probe(ctx context.Context, r berth.ProbeRequest) (berth.Plan, error) {
	if f.probing != nil {
		close(f.probing)
		<-ctx.Done()
		return berth.Plan{}, ctx.Err()
	}
	return testPlan(r.Target), f.note("probe", r)
}

func (f *fakeEnvironments) Begin(_ context.Context, key string, b berth.BeginOperation) (berth.Operation, bool, error) {
	if err := f.note("begin", key, b); err != nil {
		return berth.Operation{}, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if op, ok := f.keys[key]; ok {
		return op, false, nil
	}
	op := testOperation(len(f.ops) + 1)
	op.Kind, op.Target = b.Kind, b.Target
	if f.keys == nil {
		f.keys = map[string]berth.Operation{}
	}
	f.keys[key] = op
	f.ops = append([]berth.Operation{op}, f.ops...)
	return op, true, nil
}

func (f *fakeEnvironments) Get(_ context.Context, id string) (berth.Operation, error) {
	if err := f.note("get", id); err != nil {
		return berth.Operation{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range f.ops {
		if op.ID == id {
			return op, nil
		}
	}
	return berth.Operation{}, berth.Errorf(berth.CodeNotFound, "no operation %q", id)
}

func (f *fakeEnvironments) Operations(_ context.Context, host, after string, limit int) (berth.Operations, error) {
	out := berth.Operations{V: 1, Operations: []berth.Operation{}}
	if err := f.note("operations", host, after, limit); err != nil {
		return out, err
	}
	// A cursor is the store's own and no id.
	from := 0
	if after != "" {
		var err error
		if from, err = strconv.Atoi(after); err != nil {
			return out, berth.Errorf(berth.CodeInvalidArgument, "the cursor %q is not one of a list", after)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, op := range f.ops {
		if i < from {
			continue
		}
		if len(out.Operations) == limit {
			out.Next = strconv.Itoa(i)
			break
		}
		out.Operations = append(out.Operations, op)
	}
	return out, nil
}

func (f *fakeEnvironments) Resume(ctx context.Context, id string, r berth.ResumeOperation) (berth.Operation, error) {
	if err := f.note("resume", id, r); err != nil {
		return berth.Operation{}, err
	}
	return f.quiet(ctx, id)
}

func (f *fakeEnvironments) Cancel(ctx context.Context, id string) (berth.Operation, error) {
	if err := f.note("cancel", id); err != nil {
		return berth.Operation{}, err
	}
	return f.quiet(ctx, id)
}

func (f *fakeEnvironments) AcceptReceipt(ctx context.Context, id string, r berth.Receipt) (berth.Operation, error) {
	if err := f.note("receipt", id, r); err != nil {
		return berth.Operation{}, err
	}
	return f.quiet(ctx, id)
}

func (f *fakeEnvironments) quiet(ctx context.Context, id string) (berth.Operation, error) {
	op, err := f.Get(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = f.calls[:len(f.calls)-1]
	return op, err
}

func (f *fakeEnvironments) Reset(_ context.Context, host string) (berth.ResetResult, error) {
	return berth.ResetResult{V: 1, Archive: "20260101T000000Z", Archived: 2}, f.note("reset", host)
}

func (f *fakeEnvironments) Diagnostics(_ context.Context, host string) (berth.Diagnostics, error) {
	return berth.Diagnostics{
		V: 1, Version: "x", Installations: []berth.Installation{}, Operations: []berth.Operation{}, HostChanges: []berth.HostChange{}, Releases: []berth.ReleaseRef{},
	}, f.note("diagnostics", host)
}

// fakeReleases is a store of one engine.
type fakeReleases struct {
	list  []berth.ReleaseView
	docs  [][]byte
	added bool
	err   error
}

func (f *fakeReleases) List() []berth.ReleaseView { return f.list }
func (f *fakeReleases) Add(data []byte) (berth.ReleaseView, bool, error) {
	f.docs = append(f.docs, data)
	return testRelease("toy-2"), f.added, f.err
}
func (f *fakeReleases) Fetch(_ context.Context, url string) ([]byte, error) {
	return []byte(`{"from":"` + url + `"}`), f.err
}

func testRelease(id string) berth.ReleaseView {
	return berth.ReleaseView{Release: berth.Release{V: 1, ID: id, Engine: "toy", Version: "1", Images: map[string]berth.Image{}, Source: "a test"}}
}

// testPlan and testOperation have every list that a script may loop over.
func testPlan(target berth.Target) berth.Plan {
	return berth.Plan{
		V: 1, Digest: "sha256:1", Kind: berth.OperationSetup, Target: target, Availability: berth.SetupRequired,
		Blockers: []berth.PlanNote{}, Warnings: []berth.PlanNote{}, Changes: []berth.Change{}, GPUs: []berth.GPU{},
	}
}

func testOperation(n int) berth.Operation {
	id, err := berth.NewID(berth.OperationID, time.UnixMilli(int64(1_000_000+n)), zeros{})
	if err != nil {
		panic(err)
	}
	return berth.Operation{V: 1, ID: id, Kind: berth.OperationSetup, Phase: berth.PhaseChecking, Revision: int64(n), Target: berth.Target{Host: "local"}}
}

func environmentHouse(t *testing.T) (*house, *fakeEnvironments, *fakeReleases) {
	envs, rels := &fakeEnvironments{}, &fakeReleases{list: []berth.ReleaseView{testRelease("toy-1")}, added: true}
	return newHouse(t, func(h *house) { h.cfg.Environments, h.cfg.Releases = envs, rels }), envs, rels
}

func TestEnvironmentCalls(t *testing.T) {
	h, envs, _ := environmentHouse(t)
	c, ctx := h.client(t), within(t, 10*time.Second)
	expect := func(want ...any) {
		t.Helper()
		if got := envs.last(); !reflect.DeepEqual(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	}
	if list, err := c.Environments(ctx); err != nil || len(list) != 1 || list[0].Active != "op-1" || len(list[0].Installations) != 2 {
		t.Errorf("environments: %+v %v", list, err)
	}
	probe := berth.ProbeRequest{Kind: berth.OperationRemove, Target: berth.Target{Host: "local", Engine: "toy"}, RetainModels: true}
	if p, err := c.Plan(ctx, probe); err != nil || p.Digest != "sha256:1" || p.Target != probe.Target || p.Blockers == nil {
		t.Errorf("plan: %+v %v", p, err)
	}
	expect("probe", probe)
	begin := berth.BeginOperation{Kind: berth.OperationSetup, Target: probe.Target, Release: "toy-1", Approve: "sha256:1", Reinstall: true, RetainModels: true}
	op, created, err := c.BeginOperation(ctx, begin, "key")
	if err != nil || !created || op.Target != probe.Target {
		t.Fatalf("begin: %+v %v %v", op, created, err)
	}
	expect("begin", "key", begin)
	if again, created, err := c.BeginOperation(ctx, begin, "key"); err != nil || created || again.ID != op.ID {
		t.Errorf("begin again: %+v %v %v", again, created, err)
	}
	if got, err := c.Operation(ctx, op.ID); err != nil || got.ID != op.ID {
		t.Errorf("get: %v", err)
	}
	resume := berth.ResumeOperation{Revision: 3, Approve: "sha256:1"}
	if _, err := c.ResumeOperation(ctx, op.ID, resume); err != nil {
		t.Error(err)
	}
	expect("resume", op.ID, resume)
	if _, err := c.CancelOperation(ctx, op.ID); err != nil {
		t.Error(err)
	}
	expect("cancel", op.ID)
	receipt := berth.Receipt{
		StepID: "st-1", Nonce: "n", Revision: 4, Action: "apply", Recipe: berth.RecipeRef{ID: "r", Digest: "sha256:2"}, ParametersDigest: "sha256:3",
		Outcome: berth.ReceiptFailed, LogTail: "x\ny", ErrorCode: "e", Steps: []berth.ReceiptStep{{ID: "a", Status: "failed", ExitCode: 1, Detail: "d"}},
	}
	if _, err := c.AcceptReceipt(ctx, op.ID, receipt); err != nil {
		t.Error(err)
	}
	expect("receipt", op.ID, receipt)
	if r, err := c.ResetOperations(ctx, "local"); err != nil || r.Archived != 2 {
		t.Errorf("reset: %+v %v", r, err)
	}
	expect("reset", "local")
	if d, err := c.Diagnostics(ctx, "a host"); err != nil || d.Version != "x" {
		t.Errorf("diagnostics: %+v %v", d, err)
	}
	expect("diagnostics", "a host")
}

// A script that is cut off begins again with its key; the answer says by its
// status whether this request began anything, and by its ETag which revision.
func TestBeginAnswers(t *testing.T) {
	h, _, _ := environmentHouse(t)
	const request = `{"kind":"setup","target":{"host":"local","engine":"toy"}}`
	first := h.ask(t, "POST", "/v1/operations", request, "Idempotency-Key", "k")
	var op berth.Operation
	if err := json.Unmarshal(first.body, &op); err != nil || op.V != 1 {
		t.Fatalf("%s: %v", first.body, err)
	}
	if first.status != http.StatusAccepted || first.header.Get("Location") != "/v1/operations/"+op.ID || first.header.Get("ETag") != `"1"` {
		t.Errorf("%d %v", first.status, first.header)
	}
	if again := h.ask(t, "POST", "/v1/operations", request, "Idempotency-Key", "k"); again.status != http.StatusOK {
		t.Errorf("again: %d", again.status)
	}
	if got := h.ask(t, "GET", "/v1/operations/"+op.ID, ""); got.status != 200 || got.header.Get("ETag") != `"1"` {
		t.Errorf("%d %v", got.status, got.header)
	}
}

func TestOperationPages(t *testing.T) {
	h, envs, _ := environmentHouse(t)
	for n := range 5 {
		envs.ops = append([]berth.Operation{testOperation(n)}, envs.ops...)
	}
	c, ctx := h.client(t), within(t, 10*time.Second)
	page, err := c.OperationPage(ctx, "local", "", 2)
	if err != nil || len(page.Operations) != 2 || page.Next == "" {
		t.Fatalf("%+v %v", page, err)
	}
	page, err = c.OperationPage(ctx, "local", page.Next, 2)
	if err != nil || len(page.Operations) != 2 || page.Operations[0].ID != testOperation(2).ID {
		t.Fatalf("%+v %v", page, err)
	}
	if got, want := envs.last(), []any{"operations", "local", "2", 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
	if all, err := c.Operations(ctx, ""); err != nil || len(all) != 5 {
		t.Errorf("%d %v", len(all), err)
	}
}

func TestBadEnvironmentRequests(t *testing.T) {
	h, envs, _ := environmentHouse(t)
	for _, c := range []struct{ name, method, path, body string }{
		{"no kind", "POST", "/v1/operations", `{"target":{"host":"local"}}`},
		{"unknown kind", "POST", "/v1/operations", `{"kind":"destroy","target":{"host":"local"}}`},
		{"no target", "POST", "/v1/operations", `{"kind":"setup"}`},
		{"unknown member", "POST", "/v1/operations", `{"kind":"setup","target":{"host":"local"},"force":true}`},
		{"unknown member of the target", "POST", "/v1/operations", `{"kind":"setup","target":{"host":"local","model":"x"}}`},
		{"unknown kind of plan", "POST", "/v1/plans", `{"kind":"x","target":{"host":"local"}}`},
		{"no revision", "POST", "/v1/operations/op-1/resume", `{}`},
		{"unknown outcome", "POST", "/v1/operations/op-1/receipt", `{"step_id":"s","nonce":"n","revision":1,"action":"apply","recipe":{"id":"r","digest":"d"},"parameters_digest":"d","outcome":"done"}`},
		{"receipt without a nonce", "POST", "/v1/operations/op-1/receipt", `{"step_id":"s","revision":1,"action":"apply","recipe":{"id":"r","digest":"d"},"parameters_digest":"d","outcome":"completed"}`},
		{"reset of nothing", "POST", "/v1/operations/reset", `{}`},
		{"limit", "GET", "/v1/operations?limit=0", ""},
		{"release and URL", "POST", "/v1/releases", `{"document":{},"url":"https://x"}`},
		{"neither", "POST", "/v1/releases", `{}`},
		{"a file of the daemon", "POST", "/v1/releases", `{"url":"file:///etc/passwd"}`},
		{"not https", "POST", "/v1/releases", `{"url":"http://x/r.json"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := h.ask(t, c.method, c.path, c.body); r.problem(t).Code != berth.CodeInvalidArgument {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
	if len(envs.calls) != 0 {
		t.Errorf("it was asked %v", envs.calls)
	}
	if r := h.ask(t, "GET", "/v1/operations?cursor=e30", ""); r.problem(t).Code != berth.CodeInvalidArgument {
		t.Errorf("cursor: %d %s", r.status, r.body)
	}
}

func TestEnvironmentErrorsKeepTheirType(t *testing.T) {
	h, envs, rels := environmentHouse(t)
	envs.err = berth.Errorf(berth.CodePlanChanged, "the plan changed").WithFact("digest", "sha256:9")
	rels.err = berth.Errorf(berth.CodeConflict, "taken")
	c, ctx := h.client(t), within(t, 10*time.Second)
	_, err := c.ResumeOperation(ctx, "op-1", berth.ResumeOperation{Revision: 1})
	if !errors.Is(err, berth.CodePlanChanged) || berth.AsError(err).Facts["digest"] != "sha256:9" {
		t.Errorf("%v", err)
	}
	if _, _, err := c.AddRelease(ctx, []byte(`{}`)); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("%v", err)
	}
	envs.err = nil
	if _, err := c.Operation(ctx, "op-9"); !errors.Is(err, berth.CodeNotFound) || !strings.Contains(berth.AsError(err).Hint, "op ls") {
		t.Errorf("%v, hint %q", err, berth.AsError(err).Hint)
	}
	without := newHouse(t, nil).client(t)
	_, err1 := without.Environments(ctx)
	_, err2 := without.Operation(ctx, "op-1")
	_, err3 := without.Engines(ctx)
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, berth.CodeNotFound) {
			t.Errorf("without environments, %d: %v", i, err)
		}
	}
}

// A stop does not wait for a look at a machine.
func TestStopEndsAProbe(t *testing.T) {
	h, envs, _ := environmentHouse(t)
	envs.probing = make(chan struct{})
	got := make(chan error, 1)
	c, ctx := h.client(t), within(t, 10*time.Second)
	go func() { _, err := c.Plan(ctx, berth.ProbeRequest{Target: berth.Target{Host: "local"}}); got <- err }()
	<-envs.probing
	if err := h.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, berth.CodeDaemonStopping) {
		t.Errorf("%v", err)
	}
}

func TestEngineCalls(t *testing.T) {
	h, _, rels := environmentHouse(t)
	c, ctx := h.client(t), within(t, 10*time.Second)
	all, err := c.Engines(ctx)
	if err != nil || len(all) != 2 || all[0].Engine != "gone" || all[0].Releases == nil || len(all[0].Installations) != 1 ||
		all[1].Engine != "toy" || len(all[1].Releases) != 1 || len(all[1].Installations) != 1 {
		t.Errorf("%+v %v", all, err)
	}
	if e, err := c.Engine(ctx, "toy"); err != nil || e.Engine != "toy" {
		t.Errorf("%+v %v", e, err)
	}
	if _, err := c.Engine(ctx, "none"); !errors.Is(err, berth.CodeReleaseNotFound) {
		t.Errorf("%v", err)
	}
	if list, err := c.Releases(ctx); err != nil || len(list) != 1 || list[0].ID != "toy-1" {
		t.Errorf("%+v %v", list, err)
	}
	if r, err := c.Release(ctx, "toy-1"); err != nil || r.ID != "toy-1" || r.V != 1 {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := c.Release(ctx, "toy-9"); !errors.Is(err, berth.CodeReleaseNotFound) {
		t.Errorf("%v", err)
	}
	for _, path := range []string{"/v1/environments", "/v1/engines", "/v1/engines/toy", "/v1/releases", "/v1/releases/toy-1", "/v1/operations"} {
		var doc struct{ V int }
		if r := h.ask(t, "GET", path, ""); json.Unmarshal(r.body, &doc) != nil || doc.V != 1 || r.status != 200 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	// What the reader of releases judges is the text as it was sent: a member
	// that is there twice must reach it twice.
	if _, added, err := c.AddRelease(ctx, []byte(`{"a":1,"a":2}`)); err != nil || !added || string(rels.docs[0]) != `{"a":1,"a":2}` {
		t.Errorf("%v %v %s", added, err, rels.docs)
	}
	rels.added = false
	if _, added, err := c.AddReleaseFrom(ctx, "https://x/r.json"); err != nil || added || string(rels.docs[1]) != `{"from":"https://x/r.json"}` {
		t.Errorf("%v %v %s", added, err, rels.docs)
	}
	if _, _, err := c.AddRelease(ctx, []byte(`{`)); !errors.Is(err, berth.CodeReleaseInvalid) {
		t.Errorf("%v", err)
	}
}

// The lists of operations over TCP need the token like everything else.
func TestEnvironmentsOverTCPNeedTheToken(t *testing.T) {
	h, _, _ := environmentHouse(t)
	ctx := within(t, 5*time.Second)
	for token, want := range map[string]error{testToken: nil, "wrong": berth.CodeUnauthorized} {
		c, err := client.New(client.Config{URL: h.url, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Operations(ctx, ""); !errors.Is(err, want) {
			t.Errorf("%s: %v", token, err)
		}
		_ = c.Close()
	}
}
