package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
	"berth/holder"
)

// expected is what the program "count slow" prints through a terminal, after the
// echo of the line that starts it.
func expected(lines int) []byte {
	var b bytes.Buffer
	b.WriteString("\r\n")
	for i := range lines {
		fmt.Fprintf(&b, "\x1b[3%dmline %d\x1b[0m äöü\r\n", i%8, i)
	}
	b.WriteString("all lines\r\n")
	return b.Bytes()
}

func TestKill9OfTheGuestLosesAndDoublesNothing(t *testing.T) {
	l := newLab(t)
	l.spawn()
	const lines = 60_000
	id := l.program("count", fmt.Sprint(lines), "slow")
	want := expected(lines)

	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	l.type_(id, "\r")
	got := []byte(nil)
	from := w.Hello.Offset
	for round := range 4 {
		w.await("more output", func() bool { return len(w.output) > 20_000 || bytes.Contains(w.output, []byte("all lines")) })
		l.kill()
		<-w.done
		got = append(got, w.output...)
		at := w.next
		l.spawn()
		w = l.attach(id, berth.AttachRequest{Generation: 1, Offset: &at, Size: berth.Size{Cols: 80, Rows: 24}})
		if w.Hello.Resume != berth.ResumeExact || w.Hello.Offset != at {
			t.Fatalf("round %d: hello = %+v, want exact at %d", round, w.Hello, at)
		}
	}
	w.awaitOutput("all lines\r\n")
	got = append(got, w.output...)
	if !bytes.Equal(got, want[from:]) {
		t.Errorf("the viewer got %d bytes from %d, want %d, or they are not the same", len(got), from, len(want)-int(from))
	}
	if out := l.output(id); !bytes.Equal(out, want) {
		t.Errorf("the log has %d bytes, want %d, or they are not the same", len(out), len(want))
	}
	scr := l.awaitScreen(id, "all lines")
	if want := fmt.Sprintf("line %d äöü", lines-1); !strings.Contains(strings.Join(scr.Lines, "\n"), want) {
		t.Errorf("the screen lacks %q: %q", want, scr.Lines)
	}
	if s := l.session(id); s.Skipped != 0 {
		t.Errorf("%d bytes were skipped", s.Skipped)
	}
	l.type_(id, "\r")
	if s := l.awaitState(id, berth.SessionExited); s.Exit.Code != 0 {
		t.Errorf("exit = %+v", s.Exit)
	}
}

func TestTheScreenIsTheSameAfterKill9(t *testing.T) {
	l := newLab(t)
	l.spawn()
	id := l.run("sh", "-c", `printf '\033]0;the title\007\033[?1049h\033[2J\033[5;7Halternate \033[7mreverse\033[0m\033[?2004h\033[?25l'; read x`)
	before := l.awaitScreen(id, "reverse")
	for range 3 {
		l.kill()
		l.spawn()
		after := l.awaitScreen(id, "reverse")
		if !bytes.Equal(after.ANSI, before.ANSI) || after.Title != "the title" || !after.Alternate || after.Cursor != before.Cursor {
			t.Fatalf("before: %+v\nafter: %+v", before, after)
		}
	}
}

func TestExitWhileNobodyListens(t *testing.T) {
	for _, logBytes := range []int64{16 << 20, 0} {
		t.Run(fmt.Sprint(logBytes), func(t *testing.T) {
			l := newLab(t)
			l.spawn()
			r := l.request("sh", "-c", "echo first; read x; echo last words; exit 3")
			r.LogBytes = logBytes
			id := l.create(r)
			l.awaitOutput(id, "first")
			l.kill()
			// The program's input is the holder's to write: ask it directly.
			st, err := holder.NewClient(filepath.Join(l.runtime(), berth.DirHolders, id+".sock")).Stream(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Input([]byte("\r")); err != nil {
				t.Fatal(err)
			}
			for kind := holder.KindOutput; kind != holder.KindExit; {
				item, err := st.Next()
				if err != nil {
					t.Fatal(err)
				}
				kind = item.Kind
			}
			_ = st.Close()
			eventually(t, "an exit record", func() bool {
				_, err := holder.ReadExit(filepath.Join(l.sessions(), id))
				return err == nil
			})
			l.spawn()
			got := l.awaitState(id, berth.SessionExited)
			if got.Exit.Code != 3 || got.Exit.Offset != got.Offsets.End {
				t.Errorf("exit = %+v, end %d", got.Exit, got.Offsets.End)
			}
			if out := string(l.output(id)); !strings.HasSuffix(out, "last words\r\n") {
				t.Errorf("log = %q", out)
			}
			w := l.attach(id, berth.AttachRequest{})
			w.awaitEnd()
			w.see(func() bool {
				if w.exit == nil || w.exit.Code != 3 || !strings.Contains(string(w.repaint), "last words") {
					t.Errorf("attach after the end: exit %+v, repaint %q", w.exit, w.repaint)
				}
				return true
			})
			l.removeAll(id)
		})
	}
}

// removeAll removes a session and looks whether a file of it is left.
func (l *lab) removeAll(id string) {
	l.t.Helper()
	s := l.session(id)
	if err := l.client.Remove(l.t.Context(), id); err != nil {
		l.t.Fatalf("remove: %v", err)
	}
	if err := filepath.WalkDir(l.dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, id) {
			l.t.Errorf("%s is left", path)
		}
		return err
	}); err != nil {
		l.t.Error(err)
	}
	if _, err := l.client.Session(l.t.Context(), id); !errors.Is(err, berth.CodeNotFound) {
		l.t.Errorf("after remove: %v", err)
	}
	if s.State.Live() {
		l.t.Errorf("a live session was removed")
	}
}

func TestRemove(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "echo here; read x")
	l.awaitOutput(id, "here")
	if err := l.client.Remove(t.Context(), id); !errors.Is(err, berth.CodeSessionLive) {
		t.Errorf("remove of a live one: %v", err)
	}
	r, err := l.client.Kill(t.Context(), id)
	if err != nil || r.Exit == nil || len(r.Survivors) != 0 {
		t.Errorf("kill = %+v, %v", r, err)
	}
	if s := l.session(id); s.State != berth.SessionExited {
		t.Errorf("right after kill the session is %s", s.State)
	}
	if r, err := l.client.Kill(t.Context(), id); err != nil || r.Exit == nil {
		t.Errorf("a second kill = %+v, %v", r, err)
	}
	l.removeAll(id)
}

func TestCreateIsIdempotent(t *testing.T) {
	l := newLab(t)
	l.spawn()
	r := l.request("sh", "-c", "echo started; read x")
	var wg sync.WaitGroup
	pids := make([]int, 8)
	for i := range pids {
		wg.Go(func() {
			s, err := l.client.Create(t.Context(), r)
			if err != nil {
				t.Errorf("create %d: %v", i, err)
			}
			pids[i] = s.PID
		})
	}
	wg.Wait()
	l.kill()
	l.spawn()
	again, err := l.client.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(pids, again.PID) {
		if pid != pids[0] || pid == 0 {
			t.Errorf("programs %v and %d, want one", pids, again.PID)
			break
		}
	}
	if out := l.awaitOutput(r.ID, "started"); bytes.Count(out, []byte("started")) != 1 {
		t.Errorf("output %q", out)
	}
}

func TestAFailedStartLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.start()
	for code, r := range map[berth.Code]guestapi.CreateSession{
		berth.CodeCommandNotFound: l.request("/no/such/program"),
		berth.CodeCwdUnusable:     func() guestapi.CreateSession { r := l.request("true"); r.Cwd = "/no/such/dir"; return r }(),
		berth.CodeInvalidArgument: func() guestapi.CreateSession { r := l.request("true"); r.ID = "../x"; return r }(),
	} {
		if _, err := l.client.Create(t.Context(), r); !errors.Is(err, code) {
			t.Errorf("got %v, want %v", err, code)
		}
		if _, err := os.Lstat(filepath.Join(l.sessions(), r.ID)); code != berth.CodeInvalidArgument && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the directory: %v", code, err)
		}
	}
	if list, err := l.client.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list = %v, %v", list, err)
	}
}

func TestLostSessionsSayWhy(t *testing.T) {
	l := newLab(t)
	l.spawn()
	id := l.run("sh", "-c", "echo before; trap '' HUP; read x")
	l.awaitOutput(id, "before")
	never := l.request("true")
	other := l.request("true")
	l.kill()

	// One that a guest died over before it started a holder, and one of another boot.
	for boot, r := range map[string]guestapi.CreateSession{"": never, "another": other} {
		dir := filepath.Join(l.sessions(), r.ID)
		rec := newRecord(r, boot, time.Now())
		if boot == "" {
			data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
			if err != nil {
				t.Fatal(err)
			}
			rec.BootID = strings.TrimSpace(string(data))
		}
		if err := errors.Join(os.Mkdir(dir, 0o700), rec.write(dir)); err != nil {
			t.Fatal(err)
		}
	}
	l.spawn()
	for id, want := range map[string]string{never.ID: "never started", other.ID: "the machine restarted"} {
		if s := l.session(id); s.State != berth.SessionLost || s.Exit.Reason != berth.ExitEnded || s.Exit.Detail != want {
			t.Errorf("state %s, exit %+v, want lost: %s", s.State, s.Exit, want)
		}
	}
	// And one whose holder is killed while the guest reads it.
	running, err := holder.ReadRunning(filepath.Join(l.sessions(), id))
	if err != nil {
		t.Fatal(err)
	}
	w := l.attach(id, berth.AttachRequest{})
	if err := unix.Kill(running.Holder.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := l.awaitState(id, berth.SessionLost)
	if !strings.HasPrefix(s.Exit.Detail, "the holder was killed") {
		t.Errorf("exit = %+v", s.Exit)
	}
	w.awaitEnd()
	w.see(func() bool {
		if w.exit == nil || w.exit.Reason != berth.ExitEnded {
			t.Errorf("the viewer was told %+v", w.exit)
		}
		return true
	})
	if err := l.client.Input(t.Context(), id, berth.InputRequest{Data: []byte("x")}); !errors.Is(err, berth.CodeSessionLost) {
		t.Errorf("input to a lost one: %v", err)
	}
	if _, err := l.client.Kill(t.Context(), id); err != nil {
		t.Errorf("kill what a holder left: %v", err)
	}
	l.removeAll(id)
}

func TestADamagedSessionHarmsNoOther(t *testing.T) {
	l := newLab(t)
	l.spawn()
	good := l.run("sh", "-c", "echo good; read x")
	bad := l.run("sh", "-c", "echo bad; exit 0")
	l.awaitState(bad, berth.SessionExited)
	l.kill()
	path := filepath.Join(l.sessions(), bad, berth.FileSpec)
	if err := os.WriteFile(path, []byte(`{"schema":1,"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := l.request("x").ID
	if err := os.Mkdir(filepath.Join(l.sessions(), empty), 0o700); err != nil {
		t.Fatal(err)
	}
	l.spawn()
	l.awaitScreen(good, "good")
	info, err := l.client.Info(t.Context())
	if err != nil || len(info.Unreadable) != 2 {
		t.Fatalf("unreadable = %+v, %v", info.Unreadable, err)
	}
	for _, u := range info.Unreadable {
		if !strings.Contains(u.Detail, berth.FileSpec) {
			t.Errorf("%q does not name the file", u.Detail)
		}
	}
	if _, err := l.client.Session(t.Context(), bad); !errors.Is(err, berth.CodeRecordUnreadable) {
		t.Errorf("session: %v", err)
	}
	for _, id := range []string{bad, empty} {
		if err := l.client.Remove(t.Context(), id); err != nil {
			t.Errorf("remove a damaged one: %v", err)
		}
	}
	if _, err := os.Lstat(filepath.Join(l.sessions(), bad)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func TestTwoGuestsNeverServeOneDirectory(t *testing.T) {
	l := newLab(t)
	l.start()
	if err := Run(t.Context(), l.config()); !errors.Is(err, berth.CodeAlreadyRunning) {
		t.Errorf("a second guest: %v", err)
	}
	l.stop()
	path := filepath.Join(l.runtime(), berth.SocketGuest)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket after a clean stop: %v", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), l.config()); !errors.Is(err, berth.CodeForeignSocket) {
		t.Errorf("with a foreign file there: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Errorf("the foreign file: %q, %v", data, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	l.start()
	if err := os.Chmod(l.runtime(), 0o755); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if err := Run(t.Context(), l.config()); !errors.Is(err, berth.CodeRuntimeDir) {
		t.Errorf("with a runtime directory that is open to others: %v", err)
	}
	if err := os.Chmod(l.runtime(), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestRetire(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, l.config()) }()
	l.awaitUp()
	id := l.run("sh", "-c", "echo here; read x")
	w := l.attach(id, berth.AttachRequest{})
	w.await("the text", func() bool { return strings.Contains(string(w.repaint)+string(w.output), "here") })
	if err := l.client.Retire(t.Context()); err != nil {
		t.Errorf("retire: %v", err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("a retired guest ends with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a retired guest does not end")
	}
	<-w.done
	w.see(func() bool {
		if w.exit != nil {
			t.Error("a viewer was told that the program ended")
		}
		return true
	})
	snap, err := holder.ReadSnapshot(filepath.Join(l.sessions(), id))
	if err != nil || snap.Offset != 6 {
		t.Errorf("the deposit stands at %d, %v; want 6", snap.Offset, err)
	}
	l.start()
	l.awaitScreen(id, "here")
}

func TestTheRecordHasNoValues(t *testing.T) {
	l := newLab(t)
	l.start()
	r := l.request("sh", "-c", "echo $SECRET-$TERM-$BERTH_SESSION; echo $BERTH_SOCKET; echo $SSH_AUTH_SOCK; read x")
	r.Env = append(r.Env, "SECRET=hunter2", "BERTH_SESSION=outer", "SSH_AUTH_SOCK=/outer", "TERM=")
	r.EnvNames, r.Withheld, r.Parent = []string{"SECRET"}, []string{"AWS_KEY"}, "s-0000000000000000"
	id := l.create(r)
	out := string(l.awaitOutput(id, ".sock\r\n"+filepath.Join(l.runtime(), berth.DirAgents)))
	if !strings.HasPrefix(out, "hunter2-xterm-256color-"+id+"\r\n"+filepath.Join(l.runtime(), berth.DirRelays, id+".sock")) {
		t.Errorf("the program sees %q", out)
	}
	data, err := os.ReadFile(filepath.Join(l.sessions(), id, berth.FileSpec))
	if err != nil || strings.Contains(string(data), "hunter2") {
		t.Errorf("%s, %v", data, err)
	}
	l.stop()
	l.start()
	s := l.session(id)
	if s.Parent != r.Parent || s.EnvNames[0] != "SECRET" || s.Withheld[0] != "AWS_KEY" || !s.CreatedAt.Equal(r.CreatedAt) || s.Argv[2] != r.Argv[2] || s.Log.Cap != r.LogBytes {
		got, _ := json.Marshal(s)
		t.Errorf("the record after a restart: %s", got)
	}
}
