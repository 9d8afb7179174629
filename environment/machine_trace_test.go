package environment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth"
	"berth/durable"
)

// A trace is a script of events with the state after each. Lines that begin with
// "$ " are the script; the rest is written by -update and read by a person.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/traces/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d traces: %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			was, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			is := trace(t, string(was))
			if *update {
				if err := os.WriteFile(f, []byte(is), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if is != string(was) {
				t.Errorf("the machine does otherwise than %s says:\n%s", f, is)
			}
		})
	}
}

func trace(t *testing.T, text string) string {
	var b strings.Builder
	var s *sim
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		script, ok := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "#") || line == "":
			fmt.Fprintln(&b, line)
		case ok:
			fmt.Fprintln(&b, line)
			words := strings.Fields(script)
			if words[0] == "begin" {
				s = newSim(operationOf(arguments(words[1:])))
				fmt.Fprintln(&b, "  "+s.String())
				continue
			}
			before := s.String()
			if err := s.play(t, words[0], arguments(words[1:])); err != nil {
				if s.String() != before {
					t.Errorf("%q was refused and changed the operation", script)
				}
				fmt.Fprintf(&b, "  refused: %s\n", refusal(err))
				continue
			}
			fmt.Fprintln(&b, "  "+s.String())
		}
	}
	return b.String()
}

func refusal(err error) string {
	if errors.Is(err, errDropped) || errors.Is(err, errUnchanged) {
		return err.Error()
	}
	e := berth.AsError(err)
	if d := e.Facts["differs"]; d != "" {
		return string(e.Code) + ": " + d
	}
	return string(e.Code)
}

type args map[string]string

func arguments(words []string) args {
	a := args{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		a[k] = v
	}
	return a
}

func (a args) list(k string) []string {
	if a[k] == "" {
		return nil
	}
	return strings.Split(a[k], ",")
}

func (a args) has(k string) bool { _, ok := a[k]; return ok }

func (a args) plan() testPlan {
	return testPlan{digest: a["digest"], release: a["release"], blockers: a.list("blockers"), hostStep: a.list("step"), image: a["image"], unsupported: a.has("unsupported")}
}

func operationOf(a args) berth.Operation {
	op := berth.Operation{Kind: berth.OperationKind(a["kind"]), Target: berth.Target{Host: "local", Engine: a["engine"]}, ApprovedDigest: a["approve"]}
	if a.has("reinstall") {
		op.FollowUp = &berth.FollowUp{Key: "k", Target: op.Target, Release: "vllm-2"}
	}
	return op
}

// play does one line of a script. The answers of effects are known by their
// names; a receipt with "file" came from the result file.
func (s *sim) play(t *testing.T, what string, a args) error {
	rev := s.rev
	if a.has("rev") {
		rev, _ = strconv.ParseInt(a["rev"], 10, 64)
	}
	switch k := eventKind(what); k {
	case evApprove, evResume:
		return s.feed(opEvent{Kind: k, Approve: a["digest"], Revision: rev}, false)
	case evCancel:
		return s.feed(opEvent{Kind: k}, false)
	case evReceipt:
		r := s.receipt(berth.ReceiptOutcome(a["outcome"]))
		if a.has("again") {
			r = s.last
		}
		s.spoil(r, a["wrong"])
		r.LogTail = strings.ReplaceAll(a["log"], "_", " ")
		if err := s.feed(opEvent{Kind: k, Receipt: r}, a.has("file")); err != nil {
			return err
		}
		s.last = r
		return nil
	case evPlanned:
		return s.feed(s.planned(a.plan()), true)
	case evHostVerified:
		return s.feed(opEvent{Kind: k, Plan: s.plan(a.plan()), BootID: "boot-1"}, true)
	case evHandedOut:
		return s.feed(opEvent{Kind: k, Step: &berth.HostStep{Request: "/q", Result: "/r", Command: []string{"berth-hoststep", "/q"}}}, true)
	case evReconciled:
		l := &sighting{Relogin: a.has("relogin"), Reboot: a.has("reboot"), Verdict: durable.Verdict(a["verdict"]), Effect: effectKind(a["of"])}
		e := opEvent{Kind: k, Look: l, BootID: a["boot"]}
		return s.feed(e, s.effect() == effReconcile)
	case evFollowed:
		return s.feed(opEvent{Kind: k, Begun: "op-2"}, true)
	case evFailed:
		return s.feed(failedEvent(string(s.effect()), berth.Errorf(berth.Code(a["code"]), "it failed")), true)
	case evWithdrawn, evWaitOver, evPrepared, evPulled, evVerified, evUnloaded, evActivated, evRemoved, evCleaned:
		return s.feed(opEvent{Kind: k}, true)
	}
	t.Fatalf("the script says %q", what)
	return nil
}

func (s *sim) spoil(r *berth.Receipt, field string) {
	switch field {
	case "step_id":
		r.StepID = "st-9"
	case "nonce":
		r.Nonce = "n9"
	case "revision":
		r.Revision++
	case "action":
		r.Action = "other"
	case "recipe":
		r.Recipe.Digest = "other"
	case "parameters":
		r.ParametersDigest = "other"
	}
}

// Every phase and every event occurs in the traces, so that no row of the table
// is without one.
func TestTracesCoverTheTable(t *testing.T) {
	files, _ := filepath.Glob("testdata/traces/*.txt")
	var all string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	for effect, events := range answerOf {
		if !strings.Contains(all, ":"+string(effect)) {
			t.Errorf("no trace has the effect %s", effect)
		}
		for _, e := range append(slices.Clone(events), evFailed, evCancel, evResume, evApprove, evReconciled) {
			if !strings.Contains(all, "$ "+string(e)) {
				t.Errorf("no trace has the event %s", e)
			}
		}
	}
	for _, p := range []berth.Phase{berth.PhaseChecking, berth.PhaseAwaitingConsent, berth.PhaseAwaitingHostStep, berth.PhaseAwaitingRelogin, berth.PhaseAwaitingReboot,
		berth.PhasePreparing, berth.PhasePulling, berth.PhaseVerifying, berth.PhaseActivating, berth.PhaseRemoving, berth.PhaseReady, berth.PhaseRemoved,
		berth.PhaseCancelling, berth.PhaseCancelled, berth.PhaseFailed} {
		if !strings.Contains(all, " "+string(p)) {
			t.Errorf("no trace comes to %s", p)
		}
	}
}
