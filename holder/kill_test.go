package holder_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/holder"
	"berth/process"
)

// pidIn waits until a program has written its PID into a file.
func pidIn(t *testing.T, path string) (pid int) {
	t.Helper()
	waitFor(t, "a PID in "+path, func() bool {
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(b), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	return pid
}

func identity(t *testing.T, pid int) berth.Identity {
	t.Helper()
	id, err := process.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestKillPolite(t *testing.T) {
	s := start(t, "sh", "-c", "trap 'echo bye; exit 9' HUP; echo ready; while :; do sleep 0.05; done", grace(30*time.Second))
	s.waitOutput("ready")
	begin := time.Now()
	res, err := s.Kill(ctx(t))
	if err != nil || res.Exit == nil || res.Exit.Code != 9 || len(res.Survivors) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("a program that goes at SIGHUP took %s of a grace of 30 s", took)
	}
	if res.Exit != nil && *res.Exit != s.waitExit() {
		t.Errorf("told %+v, on disk %+v", *res.Exit, s.waitExit())
	}
	if got := lastOutput(t, s); !strings.Contains(got, "bye") {
		t.Errorf("the last words are missing: %q", got)
	}
}

// TestKillStubborn: one that ignores everything is killed, in the order and
// with the graces that were given; also one that is stopped.
func TestKillStubborn(t *testing.T) {
	for _, script := range []string{
		"trap 'echo hup' HUP; trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done",
		"trap '' HUP TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done",
	} {
		s := start(t, "sh", "-c", script, grace(300*time.Millisecond))
		s.waitOutput("ready")
		begin := time.Now()
		res, err := s.Kill(ctx(t))
		if err != nil || res.Exit == nil || res.Exit.Signal != "SIGKILL" || len(res.Survivors) != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		if took := time.Since(begin); took < 600*time.Millisecond {
			t.Errorf("killed after %s: the graces were not kept", took)
		}
		if strings.Contains(script, "hup") {
			got := lastOutput(t, s)
			if hup, term := strings.Index(got, "hup\r\n"), strings.Index(got, "term\r\n"); hup < 0 || term < hup {
				t.Errorf("%q", got)
			}
		}
	}
}

// TestKillStopped: a stopped program is woken, so that it can go in peace.
func TestKillStopped(t *testing.T) {
	s := start(t, "sh", "-c", "trap 'exit 6' HUP; echo ready; kill -STOP $$; while :; do sleep 0.05; done", grace(20*time.Second))
	s.waitOutput("ready")
	res, err := s.Kill(ctx(t))
	if err != nil || res.Exit == nil || res.Exit.Code != 6 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestKillBackgroundJobs: an interactive shell puts each job into a process
// group of its own; all of the session's groups are hung up.
func TestKillBackgroundJobs(t *testing.T) {
	dir := t.TempDir()
	s := start(t, "bash", "-c", "set -m; sh -c 'echo $$ > "+dir+"/a; trap \"\" HUP; sleep 1000' & sh -c 'echo $$ > "+dir+"/b; sleep 1000' & wait", grace(200*time.Millisecond))
	a, b := identity(t, pidIn(t, dir+"/a")), identity(t, pidIn(t, dir+"/b"))
	res, err := s.Kill(ctx(t))
	if err != nil || res.Exit == nil || len(res.Survivors) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	for _, id := range []berth.Identity{a, b} {
		if v := process.Look(id); v != process.Dead {
			t.Errorf("job %d is %s", id.PID, v)
		}
	}
}

// needCgroup skips where no cgroup can be made; in CI that is a failure.
func needCgroup(t *testing.T, s *session) {
	t.Helper()
	if s.run.Cgroup != "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no cgroup v2 can be made here")
	}
	t.Skip("no cgroup v2 can be made here")
}

// TestKillReachesEscapee: a grandchild that left session, group and parent, and
// ignores everything, dies with the session.
func TestKillReachesEscapee(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	s := start(t, "sh", "-c", "setsid -f sh -c 'trap \"\" HUP TERM; echo $$ > "+file+"; while :; do sleep 0.05; done' </dev/null >/dev/null 2>&1; read x", grace(200*time.Millisecond))
	needCgroup(t, s)
	escapee := identity(t, pidIn(t, file))
	res, err := s.Kill(ctx(t))
	if err != nil || res.Exit == nil || !res.Contained || len(res.Survivors) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if v := process.Look(escapee); v != process.Dead {
		t.Errorf("the escapee is %s", v)
	}
	s.waitGone()
	if _, err := os.Lstat(s.run.Cgroup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cgroup is still there: %v", err)
	}
}

// TestEscapeeOutlivesExit: what daemonised itself is left alone when the
// program ends, is counted, and can be killed by the record.
func TestEscapeeOutlivesExit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	s := start(t, "sh", "-c", "setsid -f sh -c 'echo $$ > "+file+"; exec sleep 1000' </dev/null >/dev/null 2>&1; while ! test -s "+file+"; do sleep 0.01; done")
	needCgroup(t, s)
	escapee := identity(t, pidIn(t, file))
	if exit := s.waitExit(); exit.Survivors != 1 {
		t.Errorf("%+v", exit)
	}
	s.waitGone()
	if v := process.Look(escapee); v != process.Alive {
		t.Errorf("the survivor is %s", v)
	}
	res, err := holder.KillRemains(s.dir)
	if err != nil || res.Exit == nil || !res.Contained || len(res.Survivors) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if v := process.Look(escapee); v != process.Dead {
		t.Errorf("the survivor is %s", v)
	}
}

// TestKillJoins: all callers of a kill get the one result.
func TestKillJoins(t *testing.T) {
	s := start(t, "sh", "-c", "trap '' HUP TERM; echo ready; while :; do sleep 0.05; done", grace(300*time.Millisecond))
	s.waitOutput("ready")
	var wg sync.WaitGroup
	results := make([]holder.KillResult, 4)
	errs := make([]error, len(results))
	begin := time.Now()
	for i := range results {
		wg.Go(func() { results[i], errs[i] = s.Kill(ctx(t)) })
	}
	wg.Wait()
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("took %s: the kills did not join", took)
	}
	for i := range results {
		if errs[i] != nil || results[i].Exit == nil || *results[i].Exit != *results[0].Exit {
			t.Errorf("%d: %+v, %v", i, results[i], errs[i])
		}
	}
}

// TestTermOfHolder: SIGTERM to the holder ends the program in order and leaves
// a record; a hang-up of the holder does nothing.
func TestTermOfHolder(t *testing.T) {
	s := start(t, "sh", "-c", "trap 'exit 8' HUP; echo ready; while :; do sleep 0.05; done")
	s.waitOutput("ready")
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGTSTP} {
		if err := unix.Kill(s.run.Holder.PID, sig); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Info(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.run.Holder.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := s.waitExit(); exit.Code != 8 {
		t.Errorf("%+v", exit)
	}
}

// TestTermWithoutLog: a holder that would stay after the program's end goes at
// SIGTERM too, before that end and after it: a service manager waits for it.
func TestTermWithoutLog(t *testing.T) {
	for _, script := range []string{"read x", "exit 3"} {
		s := start(t, "sh", "-c", script, noLog)
		if script == "exit 3" {
			s.waitExit()
		}
		if err := unix.Kill(s.run.Holder.PID, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.waitGone()
		if _, err := holder.ReadExit(s.dir); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// TestKillOfHolder: kill -9 of the holder hangs the program up; what is left of
// it is found by the record.
func TestKillOfHolder(t *testing.T) {
	s := start(t, "sh", "-c", "trap '' HUP; echo ready; while :; do sleep 0.05; done")
	s.waitOutput("ready")
	if err := unix.Kill(s.run.Holder.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.waitGone()
	if v := process.Look(s.run.Program); v != process.Alive {
		t.Errorf("the program is %s", v)
	}
	res, err := holder.KillRemains(s.dir)
	if err != nil || res.Exit != nil || len(res.Survivors) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if v := process.Look(s.run.Program); v != process.Dead {
		t.Errorf("the program is %s", v)
	}
}

// TestRemainsOfAnother: a record whose PID belongs to another process by now,
// or that is of another boot, kills nobody (pitchfork #665, multica #8317).
func TestRemainsOfAnother(t *testing.T) {
	dir := t.TempDir()
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	write := func(start uint64, boot, cgroup string) {
		text := fmt.Sprintf(`{"holder":{"boot_id":%q,"pid":1,"start_time":1},"program":{"boot_id":%q,"pid":%d,"start_time":%d},"generation":1,"started_at":"2026-01-01T00:00:00Z","cgroup":%q,"log_bytes":1}`,
			boot, boot, self.PID, start, cgroup)
		if err := os.WriteFile(filepath.Join(dir, berth.FileIdentity), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		start        uint64
		boot, cgroup string
	}{
		{self.StartTime + 1, self.BootID, ""},
		{self.StartTime, "00000000-0000-0000-0000-000000000000", ""},
		{self.StartTime + 1, self.BootID, "/sys/fs/cgroup"},
		{self.StartTime + 1, self.BootID, "/tmp"},
	} {
		write(c.start, c.boot, c.cgroup)
		if res, err := holder.KillRemains(dir); err != nil || len(res.Survivors) != 0 {
			t.Errorf("%+v: %+v, %v", c, res, err)
		}
	} // that this line is reached is the test
	if _, err := holder.KillRemains(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
}
