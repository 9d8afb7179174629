package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

func TestOpCommands(t *testing.T) {
	failed := toyOp(berth.PhaseFailed, 3, func(op *berth.Operation) {
		op.ID, op.Target.Engine = "op-0000000000000001", "other"
		op.Error = &berth.OpError{Code: berth.CodePullFailed, Detail: "the registry\x1b went away", Hint: "berth op resume goes on from there"}
	})
	waiting := toyOp(berth.PhaseAwaitingHostStep, 4, toyStep("/none"))
	list := []berth.Operation{waiting, failed, toyOp(berth.PhaseAwaitingConsent, 1, func(op *berth.Operation) { op.ID = "op-0000000000000002" })}
	run := func(args ...string) (*desk, outcome) {
		d := newDesk(t, nil, nil, args...)
		d.machine.list = list
		d.machine.states = []berth.Operation{waiting, toyOp(berth.PhaseReady, 9)}
		return d, d.run(t.Context())
	}
	// A failure that was dealt with, and what is done, are of no concern.
	old := toyOp(berth.PhaseFailed, 1)
	if got := ofConcern([]berth.Operation{waiting, failed, old, toyOp(berth.PhaseReady, 9)}); len(got) != 2 || got[1].ID != failed.ID {
		t.Errorf("%+v", got)
	}
	if got := ofConcern([]berth.Operation{toyOp(berth.PhaseReady, 9), old}); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	var all strings.Builder
	for _, args := range [][]string{
		{"op", "ls"}, {"op", "show", testOp}, {"op", "show", failed.ID}, {"op", "show", list[2].ID}, {"op", "cancel", testOp},
		{"op", "receipt", testOp, "--declined"}, {"op", "reset"},
	} {
		_, got := run(args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%v: %+v", args, got)
		}
		all.WriteString("$ berth " + strings.Join(args, " ") + "\n" + got.stdout)
	}
	// The time of the day depends on the zone of this machine.
	golden(t, "op.txt", strings.ReplaceAll(all.String(), testNow.Add(-time.Minute).Local().Format(time.DateTime), "<begun>"))

	var doc operationList
	if _, got := run("op", "ls", "--json"); json.Unmarshal([]byte(got.stdout), &doc) != nil || doc.V != 1 || len(doc.Operations) != 3 {
		t.Errorf("got %+v", got)
	}
	list = append(list, toyOp(berth.PhaseReady, 9))
	for args, want := range map[string]int{"op ls --json": 3, "op ls --all --json": 4} {
		if _, got := run(strings.Fields(args)...); json.Unmarshal([]byte(got.stdout), &doc) != nil || len(doc.Operations) != want {
			t.Errorf("%s: %+v", args, got)
		}
	}
	d, got := run("op", "receipt", testOp, "--declined", "--json")
	if got.code != 0 || len(d.machine.receipts) != 1 || d.machine.receipts[0].Nonce != "once" {
		t.Errorf("got %+v %+v", got, d.machine.receipts)
	}
	if _, got := run("op", "receipt", failed.ID, "--declined"); got.code != berth.ExitRefused {
		t.Errorf("got %+v", got)
	}
	file := filepath.Join(t.TempDir(), "result.json")
	must(t, os.WriteFile(file, []byte(`{"v":1,"step_id":"st-9","nonce":"n","outcome":"completed"}`), 0o600))
	if d, got := run("op", "receipt", testOp, file); got.code != 0 || d.machine.receipts[0].StepID != "st-9" {
		t.Errorf("got %+v %+v", got, d.machine.receipts)
	}
	must(t, os.WriteFile(file, []byte(`{`), 0o600))
	if _, got := run("op", "receipt", testOp, file); got.code != berth.ExitUsage {
		t.Errorf("got %+v", got)
	}
	if _, got := run("op", "diagnostics", "--on", "box"); got.code != 0 || !strings.Contains(got.stdout, "\n  \"version\": \"box\"") {
		t.Errorf("got %+v", got)
	}
	if _, got := run("__complete", "op", "show", "op-0000"); !strings.Contains(got.stdout, failed.ID+"\t") || strings.Contains(got.stdout, testOp) {
		t.Errorf("got %+v", got)
	}
}

// A failed operation is resumed at the revision that was read, and followed.
func TestOpResume(t *testing.T) {
	d := newDesk(t, nil, nil, "op", "resume", testOp, "--approve", testDigest)
	d.machine.states = []berth.Operation{
		toyOp(berth.PhaseFailed, 6), toyOp(berth.PhaseFailed, 6), toyOp(berth.PhaseChecking, 7), toyOp(berth.PhaseAwaitingConsent, 8), toyOp(berth.PhaseReady, 9),
	}
	got := d.run(t.Context())
	want := []berth.ResumeOperation{{Revision: 6}, {Revision: 8, Approve: testDigest}}
	if got.code != 0 || len(d.machine.resumed) != 2 || d.machine.resumed[0] != want[0] || d.machine.resumed[1] != want[1] {
		t.Errorf("got %+v, resumed %+v", got, d.machine.resumed)
	}
}

func TestEngineCommands(t *testing.T) {
	digest := "sha256:" + strings.Repeat("c", 64)
	engines := []berth.Engine{
		{Engine: "gone", Installations: []berth.Installation{{Host: "local", Engine: "gone", Status: berth.InstallationRemoving}}},
		{Engine: "toy", Releases: []berth.ReleaseView{
			{Embedded: true, Release: berth.Release{
				V: 1, ID: "toy-2", Engine: "toy", Version: "2", MinComputeCapability: "8.0", MinDriver: "580", RequiredDiskBytes: 3_000_000_000,
				Images:      map[string]berth.Image{"linux/arm64": {Repository: "example.org/toy", Digest: digest}, "linux/amd64": {Repository: "example.org/toy", Digest: digest}},
				CheckImages: map[string]berth.Image{"linux/amd64": {Repository: "example.org/check", Digest: digest}},
				Notices:     []string{"a licence"}, Unknown: []string{"the size"}, Source: "a test",
			}},
			{Release: berth.Release{V: 1, ID: "toy-1", Engine: "toy", Version: "1", Images: map[string]berth.Image{"linux/amd64": {}}, Source: "a test"}},
		}, Installations: []berth.Installation{{Host: "local", Engine: "toy", Release: berth.ReleaseRef{ID: "toy-1"}, Status: berth.InstallationReady}}},
	}
	run := func(stdin string, args ...string) (*desk, outcome) {
		d := newDesk(t, nil, nil, args...)
		d.env.Stdin = strings.NewReader(stdin)
		d.machine.engines = engines
		return d, d.run(t.Context())
	}
	var all strings.Builder
	for _, args := range [][]string{{"engine", "ls"}, {"engine", "show", "toy"}, {"engine", "show", "gone"}} {
		_, got := run("", args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%v: %+v", args, got)
		}
		all.WriteString("$ berth " + strings.Join(args, " ") + "\n" + got.stdout)
	}
	golden(t, "engine.txt", all.String())
	if _, got := run("", "engine", "show", "none"); got.code != berth.ExitNotFound {
		t.Errorf("got %+v", got)
	}
	if _, got := run("", "engine", "show", "toy", "--json"); !strings.HasPrefix(got.stdout, `{"v":1,"engine":"toy",`) {
		t.Errorf("got %+v", got)
	}
	file := filepath.Join(t.TempDir(), "r.json")
	must(t, os.WriteFile(file, []byte(`{"a":1}`), 0o600))
	for _, source := range []string{file, "file://" + file} {
		if d, got := run("", "engine", "releases", "add", source); got.code != 0 || got.stdout != "toy-1 was added\n" || string(d.machine.added[0]) != `{"a":1}` {
			t.Errorf("%s: %+v", source, got)
		}
	}
	if d, got := run(`{"b":2}`, "engine", "releases", "add", "-", "--json"); got.code != 0 || !strings.Contains(got.stdout, `"added":true`) || string(d.machine.added[0]) != `{"b":2}` {
		t.Errorf("got %+v", got)
	}
	if _, got := run(strings.Repeat(" ", maxRelease+1), "engine", "releases", "add", "-"); got.code != berth.ExitUsage {
		t.Errorf("got %+v", got)
	}
	if d, got := run("", "engine", "releases", "add", "https://example.org/r.json"); got.code != 0 || d.machine.urls[0] != "https://example.org/r.json" {
		t.Errorf("got %+v", got)
	}
	if _, got := run("", "engine", "releases", "add", file+".none"); got.code != berth.ExitUsage {
		t.Errorf("got %+v", got)
	}
	if _, got := run("", "__complete", "setup", "t"); !strings.HasPrefix(got.stdout, "toy\n") {
		t.Errorf("got %+v", got)
	}
	for line, want := range map[string]string{"setup toy --release ": "toy-2\ntoy-1\n", "setup other --release ": ":4\n", "update --release toy-1": "toy-1\n", "probe --on ": "local\n"} {
		at := strings.LastIndexByte(line, ' ')
		if _, got := run("", append(append([]string{"__complete"}, strings.Fields(line[:at])...), line[at+1:])...); !strings.HasPrefix(got.stdout, want) {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestLadder(t *testing.T) {
	card := berth.GPU{UUID: "GPU-1", Name: "H100"}
	good := func() berth.Facts {
		return berth.Facts{
			GPU:    berth.GPUFacts{OnBus: 1, Module: "580.1", Library: "580.1", Cards: []berth.GPU{card}},
			Docker: berth.DockerFacts{CLI: "/usr/bin/docker", Socket: "/run/docker.sock", Reachable: true, Version: "28.2.0", API: "1.50", CDI: true, CDIDevices: []string{"nvidia.com/gpu=GPU-1"}},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*berth.Facts)
		want   string
	}{
		{"all is well", func(*berth.Facts) {}, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:ok"},
		{"no card", func(f *berth.Facts) { f.GPU = berth.GPUFacts{} }, "gpu-bus:ok docker:ok"},
		{"driver was upgraded", func(f *berth.Facts) { f.GPU.Library, f.GPU.SMIError = "580.2", "mismatch" }, "gpu-bus:ok gpu-driver:fail gpu-cards:fail docker:ok gpu-device:ok"},
		{"no driver", func(f *berth.Facts) { f.GPU.Module, f.GPU.Cards = "", nil }, "gpu-bus:ok gpu-driver:warn gpu-cards:warn docker:ok"},
		{"no Docker", func(f *berth.Facts) { f.Docker = berth.DockerFacts{} }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:warn"},
		{"a Docker of somebody", func(f *berth.Facts) { f.Docker = berth.DockerFacts{CLI: "/usr/local/bin/docker", Error: "no socket"} }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:warn"},
		{"another card in the spec", func(f *berth.Facts) { f.Docker.CDIDevices = []string{"nvidia.com/gpu=GPU-2"} }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:warn"},
		{"CDI is off", func(f *berth.Facts) { f.Docker.CDI = false }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:warn"},
		{"the runtime", func(f *berth.Facts) { f.Docker.CDI, f.Docker.Runtimes = false, []string{"runc", "nvidia"} }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:ok"},
		{"a shorter name of the library", func(f *berth.Facts) { f.GPU.Module = "580.1.02" }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:ok"},
		{"checked under other versions", func(*berth.Facts) {}, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:ok engine-check:warn"},
		{"unknown", func(f *berth.Facts) { f.Unknown = []berth.Unknown{{Fact: "routes", Reason: "denied"}} }, "gpu-bus:ok gpu-driver:ok gpu-cards:ok docker:ok gpu-device:ok unknown:unknown"},
	} {
		f := good()
		c.change(&f)
		var got []string
		p := berth.Plan{Facts: &f, GPU: "GPU-1"}
		if c.name == "driver was upgraded" {
			p.Blockers = []berth.PlanNote{{Reason: string(berth.BlockDriverMismatch)}}
		}
		if c.name == "a Docker of somebody" {
			p.Blockers = []berth.PlanNote{{Reason: string(berth.BlockDockerUnrecognised), Message: "start that Docker"}}
		}
		if c.name == "checked under other versions" {
			p.Warnings = []berth.PlanNote{{Reason: string(berth.WarnVersions), Message: "it changed", Commands: []string{"berth setup vllm --release vllm-1"}}}
		}
		for _, r := range ladder(p) {
			got = append(got, r.Check+":"+r.Status)
			if c.name == "a Docker of somebody" && r.Check == "docker" && r.Fix != "start that Docker" {
				t.Errorf("%+v", r)
			}
			if (r.Status == findingFail || r.Status == findingWarn) && r.Fix == "" || r.Detail == "" {
				t.Errorf("%s: %+v", c.name, r)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
	if got := checkEngines(t.Context(), machineAPI{&fakeAPI{}, &fakeMachine{err: berth.Errorf(berth.CodeNotFound, "none")}}); got != nil {
		t.Errorf("without environments: %+v", got)
	}
	if got := checkEngines(t.Context(), machineAPI{&fakeAPI{}, &fakeMachine{err: errors.New("x")}}); len(got) != 1 || got[0].Status != findingUnknown {
		t.Errorf("%+v", got)
	}
}
