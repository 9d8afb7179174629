package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/durable"
	"berth/internal/lab"
)

// upAt starts the daemon so that it ends itself at a failpoint; "" = at none.
func (l *labHouse) upAt(point string) int {
	l.t.Helper()
	cmd := l.command("up", "-q")
	if point != "" {
		cmd.Env = append(cmd.Env, durable.FailpointVar+"="+point)
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (point == "" || !errors.As(err, &exit)) { // it may have come to the point before it was ready
		l.t.Fatalf("berth up: %v\n%s", err, out)
	}
	pid, _ := l.daemonPID()
	return pid
}

func (l *labHouse) daemonPID() (int, bool) {
	out, _, code := l.run("status", "--json")
	var s berth.Status
	if code != 0 || json.Unmarshal([]byte(out), &s) != nil {
		return 0, false
	}
	return s.Daemon.PID, true
}

// through runs a command that changes the machine while the daemon dies at each
// of the points in turn and is started again, until the operation is over. It
// gives the operation and how many of the points were come to.
func (l *labHouse) through(points []string, between func(), args ...string) (op berth.Operation, deaths int) {
	l.t.Helper()
	next := func() string {
		if len(points) == 0 {
			return ""
		}
		p := points[0]
		points = points[1:]
		return p
	}
	known := l.known // what was there before
	defer func() {
		l.known = map[string]bool{}
		for _, o := range l.operations() {
			l.known[o.ID] = true
		}
	}()
	pid := l.upAt(next())
	ctx, cancel := context.WithTimeout(l.ctx, 90*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		cmd := l.command(append(slices.Clone(args), "--json")...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			l.t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = cmd.Wait() // its exit status is read below
		}()
		tick := time.NewTicker(10 * time.Millisecond)
		for over := false; !over; {
			select {
			case <-done:
				over = true
			case <-tick.C:
			}
			if pid == 0 || !running(pid) {
				deaths++
				if between != nil {
					between()
				}
				pid = l.upAt(next())
			}
		}
		tick.Stop()
		op = berth.Operation{}
		if json.Unmarshal(out.Bytes(), &op) == nil && op.Phase.Terminal() && cmd.ProcessState.ExitCode() == 0 {
			return op, deaths
		}
		// The command lost its daemon before it had an answer: whoever gives it
		// again follows the same operation, or finds it done.
		for _, o := range l.operations() {
			if !known[o.ID] && string(o.Kind) == args[0] && (o.Phase == berth.PhaseReady || o.Phase == berth.PhaseRemoved) {
				return o, deaths
			}
		}
		l.t.Logf("again after: %s", strings.TrimSpace(errs.String()))
	}
	l.t.Fatalf("%v did not come to its end; %+v", args, l.operations())
	return op, deaths
}

func (l *labHouse) operations() []berth.Operation {
	l.t.Helper()
	out, _, code := l.run("op", "ls", "--all", "--json")
	var list berth.Operations
	if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
		return nil
	}
	return list.Operations
}

// TestSetupThroughCrashes: whatever the point at which the daemon dies, once or
// twice, with or without a restart of the machine in between, the operation
// comes to the end that it would have come to.
func TestSetupThroughCrashes(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.upAt("")
	release := l.addRelease(true)
	l.must("down")
	reached := map[string]bool{}
	boots := 0
	reboot := func() {
		boots++
		l.machine.SetBootID(t, "22222222-2222-4222-8222-"+strings.Repeat("0", 8)+itoa(1000+boots))
	}
	// What only a second daemon, or an archive, comes to is crashed at elsewhere.
	elsewhere := []string{"after_post", "before_settle", "after_settle", "before_archive", "after_archive"}
	for i, point := range durable.FailpointNames {
		if slices.Contains(elsewhere, point) {
			continue
		}
		points := []string{point, point}
		switch point {
		case "before_takeover", "after_takeover", "after_inspect", "after_reconcile":
			points = []string{"after_start", point, point}
		}
		var between func()
		if i%2 == 1 {
			between = reboot
		}
		t.Run(point, func(t *testing.T) {
			op, deaths := l.through(points, between, "setup", release.Engine, "--yes")
			if op.Phase != berth.PhaseReady || op.Target.Engine != release.Engine || op.Kind != berth.OperationSetup {
				t.Fatalf("setup: %s %+v", op.Phase, op.Error)
			}
			if deaths >= len(points)-1 {
				reached[point] = true
			}
			l.must("down")
			op, _ = l.through(points, between, "remove", release.Engine, "--yes")
			if op.Phase != berth.PhaseRemoved || op.Kind != berth.OperationRemove {
				t.Fatalf("remove: %s %+v", op.Phase, op.Error)
			}
			l.must("down")
		})
	}
	// The n-th effect rather than the first: each one's beginning and end.
	for _, point := range []string{"before_start", "after_perform", "after_commit"} {
		for n := 2; ; n++ {
			at := point + ":" + itoa(n)
			deaths := 0
			t.Run(at, func(t *testing.T) {
				op, d := l.through([]string{at}, reboot, "setup", release.Engine, "--yes")
				if op.Phase != berth.PhaseReady || op.Kind != berth.OperationSetup {
					t.Fatalf("setup: %s %+v", op.Phase, op.Error)
				}
				deaths += d
				l.must("down")
				op, d = l.through([]string{at}, reboot, "remove", release.Engine, "--yes")
				if op.Phase != berth.PhaseRemoved || op.Kind != berth.OperationRemove {
					t.Fatalf("remove: %s %+v", op.Phase, op.Error)
				}
				deaths += d
				l.must("down")
			})
			if deaths == 0 || t.Failed() {
				break // neither has so many
			}
		}
	}
	for _, point := range durable.FailpointNames {
		if !reached[point] && !slices.Contains(elsewhere, point) {
			t.Errorf("no daemon died at %s: the campaign does not come there", point)
		}
	}
}
