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
		if cmd.ProcessState.ExitCode() == berth.ExitNotFound { // it is removed already: what is left is its setup
			args = slices.DeleteFunc(args, func(a string) bool { return a == "--reinstall" })
		}
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

// elsewhere are the points that only a second daemon, or an archive, comes to:
// they are crashed at in the kernel's own campaign.
var elsewhere = []string{"after_post", "before_settle", "after_settle", "before_archive", "after_archive"}

// crashesAt are the points of one run that dies at a point twice: some are come
// to only after another death.
func crashesAt(point string) []string {
	switch point {
	case "before_takeover", "after_takeover", "after_inspect", "after_reconcile":
		return []string{"after_start", point, point}
	}
	return []string{point, point}
}

// reboots gives a function after which the machine is of another boot.
func (l *labHouse) reboots() func() {
	boots := 0
	return func() {
		boots++
		l.machine.SetBootID(l.t, "22222222-2222-4222-8222-"+strings.Repeat("0", 8)+itoa(1000+boots))
	}
}

// TestSetupThroughCrashes: whatever the point at which the daemon dies, once or
// twice, with or without a restart of the machine in between, the operation
// comes to the end that it would have come to.
func TestSetupThroughCrashes(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.upAt("")
	release := l.addRelease(true)
	l.must("down")
	reached, reboot := map[string]bool{}, l.reboots()
	for i, point := range durable.FailpointNames {
		if slices.Contains(elsewhere, point) {
			continue
		}
		points := crashesAt(point)
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

// TestReinstallThroughCrashes: a removal with a setup behind it, in one record,
// whatever the point at which the daemon dies. The setup begins once, and at the
// end one installation is there, then none, and nothing else of berth's.
func TestReinstallThroughCrashes(t *testing.T) {
	l := newLabHouse(t, lab.Docker28, lab.MachineOptions{Toolkit: "1.18.0"})
	l.upAt("")
	release := l.addRelease(true)
	before := l.inventory()
	l.known = map[string]bool{l.op("setup", release.Engine, "--yes").ID: true}
	l.must("down")
	reboot := l.reboots()
	again := func(t *testing.T, points []string, between func()) (deaths int) {
		op, deaths := l.through(points, between, "setup", release.Engine, "--reinstall", "--yes")
		if op.Phase != berth.PhaseReady || op.Kind != berth.OperationSetup {
			t.Fatalf("%s of a %s: %+v", op.Phase, op.Kind, op.Error)
		}
		began := map[string]int{}
		for _, o := range l.operations() {
			if o.FollowUp != nil {
				began[o.FollowUp.Begun]++
			}
		}
		for id, n := range began {
			if id == "" || n != 1 {
				t.Errorf("the setup %q was begun by %d removals", id, n)
			}
		}
		l.must("down")
		return deaths
	}
	for i, point := range durable.FailpointNames {
		if slices.Contains(elsewhere, point) {
			continue
		}
		between := reboot
		if i%2 == 1 {
			between = nil
		}
		t.Run(point, func(t *testing.T) { again(t, crashesAt(point), between) })
	}
	for n := 2; ; n++ { // the n-th effect rather than the first
		deaths := 0
		at := "after_perform:" + itoa(n)
		t.Run(at, func(t *testing.T) { deaths = again(t, []string{at}, reboot) })
		if deaths == 0 || t.Failed() {
			break // there are not so many
		}
	}
	l.must("up")
	l.machine.SetBootID(t, "11111111-1111-4111-8111-111111111111")
	l.op("remove", release.Engine, "--yes")
	l.untouched(before)
}
