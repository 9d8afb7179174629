package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestHookLines(t *testing.T) {
	l := newLab(t)
	l.spawn()
	id := l.run("sh", "-c", "read x")
	path := filepath.Join(l.runtime(), berth.DirRelays, id+".sock")
	c := dial(t, path)
	good := func(event string) string {
		return fmt.Sprintf(`{"session":%q,"event":%q,"payload":{"n":1},"new":true}`, id, event)
	}
	bad := []string{
		"not json", `{"session":"s-0000000000000000","event":"Stop"}`, `{"session":"` + id + `"}`,
		`{"session":"` + id + `","event":"Big","payload":"` + strings.Repeat("x", guestapi.MaxHookLine) + `"}`,
	}
	for _, line := range append([]string{good("Start")}, append(bad, good("Stop"))...) {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	var s guestapi.Session
	eventually(t, "the last line", func() bool {
		s = l.session(id)
		return s.Hook != nil && s.Hook.Event == "Stop" && s.HooksDropped == int64(len(bad))
	})
	if s.Hook.At.IsZero() || string(s.Hook.Payload) != `{"n":1}` {
		t.Errorf("hook = %+v", s.Hook)
	}
	// A line without its newline counts when the sender closes.
	_, _ = io.WriteString(c, good("Last"))
	_ = c.Close()
	eventually(t, "the line without an end", func() bool { return l.session(id).Hook.Event == "Last" })
	// The path is in the program's environment: it must work with the next guest,
	// and what was said must not be forgotten.
	l.stop()
	l.spawn()
	eventually(t, "what was said before", func() bool { s := l.session(id); return s.Hook != nil && s.Hook.Event == "Last" })
	_, _ = io.WriteString(dial(t, path), good("Next")+"\n")
	eventually(t, "a line to the next guest", func() bool { return l.session(id).Hook.Event == "Next" })
}

// TestAHookBeforeTheHolderAnswers: a program may send its first hook before the
// guest has read a byte from its holder. What the deposit says is older.
func TestAHookBeforeTheHolderAnswers(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "read x")
	path := filepath.Join(l.runtime(), berth.DirRelays, id+".sock")
	send := func(event string) {
		t.Helper()
		c := dial(t, path)
		if _, err := fmt.Fprintf(c, `{"session":%q,"event":%q}`+"\n", id, event); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	send("First")
	eventually(t, "the first line", func() bool { s := l.session(id); return s.Hook != nil && s.Hook.Event == "First" })
	l.stop() // deposits it
	running, err := holder.ReadRunning(filepath.Join(l.sessions(), id))
	if err != nil {
		t.Fatal(err)
	}
	pid := running.Holder.PID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	l.start()
	send("Second")
	listed := func() guestapi.Session {
		all, err := l.client.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%d sessions, %v", len(all), err)
		}
		return all[0]
	}
	eventually(t, "the second line", func() bool { s := listed(); return s.Hook != nil && s.Hook.Event == "Second" })
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	l.awaitState(id, berth.SessionRunning)
	if s := listed(); s.Hook == nil || s.Hook.Event != "Second" {
		t.Errorf("hook = %+v", s.Hook)
	}
	// The next guest must know it too.
	l.stop()
	l.start()
	eventually(t, "it over a restart", func() bool { s := listed(); return s.Hook != nil && s.Hook.Event == "Second" })
}

func TestConnectionsAreBounded(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "read x")
	path := filepath.Join(l.runtime(), berth.DirRelays, id+".sock")
	var conns []net.Conn
	for range doorConns {
		c := dial(t, path)
		conns = append(conns, c)
	}
	eventually(t, "one that is closed at once", func() bool {
		c := dial(t, path)
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		_ = c.Close()
		return errors.Is(err, io.EOF)
	})
	_ = conns[0].Close()
	eventually(t, "room again", func() bool {
		_, err := fmt.Fprintf(dial(t, path), `{"session":%q,"event":"E"}`+"\n", id)
		return err == nil && l.session(id).Hook != nil
	})
}

// tmux #3957: an old SSH_AUTH_SOCK makes git push hang for ever.
func TestTheSSHAgentOfTheNewestViewer(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "read x")
	path := filepath.Join(l.runtime(), berth.DirAgents, id+".sock")
	ask := func() string {
		c := dial(t, path)
		_, _ = io.WriteString(c, "who\n")
		_ = c.(*net.UnixConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		b, err := io.ReadAll(c)
		if err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("read: %v", err)
		}
		return string(b)
	}
	if got := ask(); got != "" {
		t.Errorf("without a viewer: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	agent := func(name string) string {
		p := filepath.Join(l.dir, name)
		ln, err := net.Listen("unix", p)
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				line, _ := bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, name+" heard "+line)
				_ = c.Close()
			}
		})
		return p
	}
	first := l.attach(id, berth.AttachRequest{SSHAuthSock: agent("one")})
	if got := ask(); got != "one heard who\n" {
		t.Errorf("with one: %q", got)
	}
	second := l.attach(id, berth.AttachRequest{SSHAuthSock: agent("two")})
	l.attach(id, berth.AttachRequest{}) // lends none
	if got := ask(); got != "two heard who\n" {
		t.Errorf("with two: %q", got)
	}
	second.close()
	eventually(t, "the first one's again", func() bool { return ask() == "one heard who\n" })
	first.close()
	eventually(t, "none", func() bool { return ask() == "" })
}

func TestEvents(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "printf '\\033]0;one\\007'; read x; printf '\\033]0;two\\007\\033]7501;state=working\\033\\\\'; read x; exit 4")
	l.awaitScreen(id, "")
	var mu sync.Mutex
	var seen []guestapi.Event
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.client.Events(ctx, func(e guestapi.Event) error {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, e)
			return nil
		})
	}()
	last := func(f func(e guestapi.Event) bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) > 0 && f(seen[len(seen)-1])
		}
	}
	eventually(t, "synced", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for i, e := range seen {
			if e.Synced {
				return i >= 2 && seen[0].Hello != nil && seen[1].Session != nil && seen[1].Session.ID == id
			}
		}
		return false
	})
	l.type_(id, "\r")
	eventually(t, "a new title", last(func(e guestapi.Event) bool { return e.Session != nil && e.Session.Title == "two" }))
	l.type_(id, "\r")
	eventually(t, "the end", last(func(e guestapi.Event) bool {
		return e.Session != nil && e.Session.State == berth.SessionExited && e.Session.Exit.Code == 4
	}))
	if err := l.client.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removed", last(func(e guestapi.Event) bool { return e.Removed == id }))
	r := l.request("sh", "-c", "read x")
	l.create(r)
	eventually(t, "a new one", last(func(e guestapi.Event) bool {
		return e.Session != nil && e.Session.ID == r.ID && e.Session.State == berth.SessionRunning
	}))
	cancel()
	if err := <-done; !errors.Is(err, berth.CodeInterrupted) {
		t.Errorf("events end with %v", err)
	}
}

func TestManySessionsAreAdoptedQuickly(t *testing.T) {
	l := newLab(t)
	l.spawn()
	const n = 40
	var ids []string
	for i := range n {
		ids = append(ids, l.run("sh", "-c", fmt.Sprintf("echo session %d; read x", i)))
	}
	for i, id := range ids {
		l.awaitOutput(id, fmt.Sprintf("session %d", i))
	}
	l.kill()
	began := time.Now()
	l.spawn()
	list, err := l.client.List(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("%d sessions, %v", len(list), err)
	}
	for i := range list {
		if list[i].ID != ids[n-1-i] || list[i].State != berth.SessionRunning {
			t.Errorf("session %d is %s %s", i, list[i].ID, list[i].State)
		}
	}
	t.Logf("%d sessions after %v", n, time.Since(began))
	for i, id := range ids {
		l.awaitScreen(id, fmt.Sprintf("session %d", i))
	}
	t.Logf("and %d screens after %v", n, time.Since(began))
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			if _, err := l.client.Kill(t.Context(), id); err != nil {
				t.Errorf("kill: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(l.sessions()); err != nil {
		t.Error(err)
	}
}
