package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/guestapi"
)

var _ Guest = (*guestapi.Client)(nil)

// builtPrograms is where realPrograms built; "" = it was not needed.
var builtPrograms string

// The real guest and holder, built at the first use.
var realPrograms = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		return "", err
	}
	builtPrograms = dir
	for _, name := range []string{"berth-guest", "berth-holder"} {
		cmd := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(dir, name), "berth/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
})

// realGuest is the real program with a client; ensure starts it where it does
// not run, as a driver does.
type realGuest struct {
	t        *testing.T
	bin, dir string
	*guestapi.Client

	mu  sync.Mutex
	cmd *exec.Cmd
}

func newRealRig(t *testing.T) (*rig, *realGuest) {
	t.Helper()
	bin, err := realPrograms()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	real := &realGuest{t: t, bin: bin, dir: dir}
	real.Client = guestapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "r", berth.SocketGuest))
	})
	t.Cleanup(func() {
		_ = real.Close()
		real.kill()
	})
	st := openSQLite(t, filepath.Join(dir, berth.FileStore))
	t.Cleanup(func() { _ = st.Close() })
	g := newRigOn(t, st)
	g.cfg.Hosts[0].Ensure, g.cfg.Hosts[0].Guest = real.ensure, real
	g.cfg.BaseEnv = append(os.Environ(), "TOKEN=base-secret", "CLAUDECODE=1")
	g.cfg.Home = dir
	g.cfg.Log = slog.New(slog.NewTextHandler(lockedWriter{g.logMu, g.log}, nil))
	return g, real
}

func (r *realGuest) ensure(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(r.dir, "r", berth.SocketGuest))
		if err == nil {
			return c.Close()
		}
		if r.cmd == nil {
			r.cmd = exec.Command(filepath.Join(r.bin, "berth-guest"), "serve", "--sessions", filepath.Join(r.dir, "s"), "--runtime", filepath.Join(r.dir, "r"),
				"--holder", filepath.Join(r.bin, "berth-holder"), "--log", filepath.Join(r.dir, "guest.log"))
			r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir}
			if err := r.cmd.Start(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// kill kills the guest as a power cut would, and reaps it.
func (r *realGuest) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait() // it was killed
	r.cmd = nil
}

// clean removes every session, so that no holder outlives the test.
func clean(g *rig) {
	list, err := g.r.List(context.Background(), berth.SessionFilter{})
	if err != nil {
		g.t.Error(err)
	}
	for _, s := range list {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := g.r.Remove(ctx, s.ID, true, 0); err != nil {
			g.t.Errorf("remove %s: %v", s.ID, err)
		}
		cancel()
	}
}

func (g *rig) output(id string) string {
	g.t.Helper()
	c, err := g.r.Log(g.t.Context(), id, berth.LogRequest{FromStart: true})
	if err != nil {
		g.t.Fatal(err)
	}
	return string(c.Data)
}

func TestRealSessionOutlivesGuestAndDaemon(t *testing.T) {
	g, real := newRealRig(t)
	g.run()
	defer func() { clean(g) }()
	s := g.create(berth.SessionSpec{Name: "work", Argv: []string{"sh", "-c", "echo ready; read x; echo got $x; exit 7"}})
	g.until("it prints", func() bool { return strings.Contains(g.output(s.ID), "ready") })
	for round := range 3 {
		before := g.r.Guest(berth.LocalHost).PID
		real.kill()
		if round == 1 {
			g.restart()
		}
		// Whoever only asks does not notice.
		if _, err := g.r.Log(t.Context(), "work", berth.LogRequest{FromStart: true}); err != nil {
			t.Errorf("a read while the guest is being replaced: %v", err)
		}
		g.until("another guest has it", func() bool { return g.r.Guest(berth.LocalHost).PID != before })
		g.until("it is adopted", func() bool {
			return g.get("work").State == berth.SessionRunning && g.r.Guest(berth.LocalHost).Reachable
		})
		if got := g.get("work"); got.PID != s.PID || got.Generation != 1 || got.ID != s.ID {
			t.Fatalf("it is another one now: %+v", got)
		}
	}
	if err := g.r.Input(t.Context(), "work", berth.InputRequest{Data: []byte("tea"), Enter: true}); err != nil {
		t.Fatal(err)
	}
	got, err := g.r.Wait(t.Context(), "work")
	if err != nil || got.Exit == nil || got.Exit.Code != 7 {
		t.Fatalf("%+v, %v", got, err)
	}
	if out := g.output(s.ID); !strings.Contains(out, "got tea") || uint64(len(out)) != got.Exit.Offset {
		t.Errorf("output %q, exit %+v", out, got.Exit)
	}
	dir := filepath.Join(real.dir, "s", s.ID)
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := g.r.Remove(t.Context(), "work", false, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its files are left: %v", err)
	}
}

func TestRealEnvironment(t *testing.T) {
	g, _ := newRealRig(t)
	g.run()
	defer func() { clean(g) }()
	s := g.create(berth.SessionSpec{Argv: []string{"sleep", "60"}, Env: map[string]string{"ASKED": "yes"}, Withhold: []string{"TOKEN"}})
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(string(data), "\x00")
	for _, want := range []string{"ASKED=yes", "TERM=xterm-256color", "BERTH_SESSION=" + s.ID} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %v", want, env)
		}
	}
	for _, kv := range env {
		if strings.HasPrefix(kv, "TOKEN=") || strings.HasPrefix(kv, "CLAUDECODE=") {
			t.Errorf("the program got %s", kv)
		}
	}
}

func TestRealRefusal(t *testing.T) {
	g, real := newRealRig(t)
	g.run()
	_, _, err := g.r.Create(t.Context(), berth.SessionSpec{Argv: []string{"no-such-program-anywhere"}}, "")
	wantCode(t, err, berth.CodeCommandNotFound)
	_, _, err = g.r.Create(t.Context(), berth.SessionSpec{Argv: []string{"sh"}, Cwd: "/no/such/directory"}, "")
	wantCode(t, err, berth.CodeCwdUnusable)
	if list, _ := g.r.List(t.Context(), berth.SessionFilter{}); len(list) != 0 {
		t.Errorf("left %+v", list)
	}
	if entries, err := os.ReadDir(filepath.Join(real.dir, "s")); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestRealAgentState(t *testing.T) {
	g, real := newRealRig(t)
	g.run()
	defer func() { clean(g) }()
	s := g.create(berth.SessionSpec{Argv: []string{"sh", "-c", `read x; printf '\033]7501;state=working\033\\'; read x`}})
	line, err := json.Marshal(guestapi.HookLine{Session: s.ID, Event: "PermissionRequest", Payload: json.RawMessage(`{"tool_name":"Bash"}`)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(real.dir, "r", berth.DirRelays, s.ID+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	g.until("the hook shows", func() bool { a := g.get(s.ID).Agent; return a != nil && a.State == berth.AgentBlocked })
	if a := g.get(s.ID).Agent; a.Kind != berth.BlockedPermission || a.Message != "Bash" || a.Source != berth.AgentFromHook {
		t.Errorf("%+v", a)
	}
	if err := g.r.Input(t.Context(), s.ID, berth.InputRequest{Enter: true}); err != nil {
		t.Fatal(err)
	}
	g.until("the report shows", func() bool { a := g.get(s.ID).Agent; return a != nil && a.Source == berth.AgentFromOSC })
	if a := g.get(s.ID).Agent; a.State != berth.AgentWorking {
		t.Errorf("%+v", a)
	}
	if !bytes.Contains([]byte(fmt.Sprint(g.kinds(s.ID))), []byte(berth.EventSessionAgent)) {
		t.Errorf("events %v", g.kinds(s.ID))
	}
}

func TestRealKill(t *testing.T) {
	g, _ := newRealRig(t)
	g.run()
	defer func() { clean(g) }()
	s := g.create(berth.SessionSpec{Argv: []string{"sleep", "600"}})
	got, err := g.r.Resize(t.Context(), s.ID, berth.Size{Cols: 100, Rows: 40}, 0)
	if err != nil || got.Size != (berth.Size{Cols: 100, Rows: 40}) {
		t.Fatalf("%+v, %v", got, err)
	}
	res, err := g.r.Kill(t.Context(), s.ID, 0)
	if err != nil || res.Exit == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := g.get(s.ID); got.State != berth.SessionExited || got.Exit.Code <= 128 {
		t.Errorf("%+v %+v", got, got.Exit)
	}
	if syscall.Kill(s.PID, 0) == nil {
		t.Error("the program is still there")
	}
}
