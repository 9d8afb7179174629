package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	moby "github.com/moby/moby/client"

	"berth"
	"berth/internal/lab"
	"berth/process"
)

// engineImage pulls the engine image from a registry of the test.
func engineImage(t *testing.T, c *Client) berth.Image {
	t.Helper()
	image := lab.NewRegistry(t).Push(t, "lab/engine", lab.EngineImage(t))
	if err := c.Pull(within(t, time.Minute), image, nil); err != nil {
		t.Fatal(err)
	}
	return image
}

func engineSpec(image berth.Image, name string) Spec {
	return Spec{Image: image, Name: name, Engine: "lab", Instance: name, UID: 1234, GID: 1235, Ports: []Port{{Container: 8000}}}
}

// begin creates and starts, and removes at the end of the test whatever is left.
func begin(t *testing.T, d *lab.Daemon, c *Client, s Spec) string {
	t.Helper()
	id, err := c.Create(within(t, time.Minute), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forget(t, d, id) })
	if err := c.Start(within(t, time.Minute), id); err != nil {
		t.Fatal(err)
	}
	return id
}

func forget(t *testing.T, d *lab.Daemon, id string) {
	api, err := moby.New(moby.WithHost("unix://" + d.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close() //nolint:errcheck // a test's
	_, _ = api.ContainerRemove(context.WithoutCancel(t.Context()), id, moby.ContainerRemoveOptions{Force: true})
}

// get asks an engine until it answers with 200.
func get(t *testing.T, port int, path string) string {
	t.Helper()
	hc := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var body []byte
	until(t, "the engine's answer at "+path, func() bool {
		resp, err := hc.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
		if err != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // a test's
		body, err = io.ReadAll(resp.Body)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return string(body)
}

func TestEngineLife(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		j := newJournal(t)
		c := client(t, d, withJournal(t, j))
		cache, model := t.TempDir(), t.TempDir()
		s := engineSpec(engineImage(t, c), "life")
		s.Env = []string{"LAB_MODEL=toy", "HOME=/cache"}
		s.Mounts = []Mount{{cache, "/cache", false}, {model, "/model", true}}
		s.GPU = GPU{ways(d.Generation)[0], d.GPUs[1]}
		id := begin(t, d, c, s)
		es, err := j.Entries(t.Context())
		if err != nil || len(es) != 1 || es[0].ID != id || es[0].Instance != "life" || es[0].GPU != d.GPUs[1] {
			t.Fatalf("the journal: %+v, %v", es, err)
		}
		state, err := c.Inspect(t.Context(), id)
		if err != nil || !state.Present || !state.Running || state.PID == 0 || state.Ports[8000] == 0 {
			t.Fatalf("%+v, %v", state, err)
		}
		if got := get(t, state.Ports[8000], "/v1/models"); !strings.Contains(got, `"toy"`) {
			t.Errorf("models: %s", got)
		}
		// Removing what runs is refused.
		wantCode(t, c.Remove(t.Context(), id), berth.CodeStopUnconfirmed)
		stopped, err := c.Stop(within(t, time.Minute), id, 5*time.Second)
		if err != nil || !stopped.Confirmed || stopped.How != StopExited || stopped.Exit != 0 {
			t.Errorf("%+v, %v", stopped, err)
		}
		if out, _, err := c.Output(t.Context(), id, 10); err != nil || !strings.Contains(string(out), "serving toy") {
			t.Errorf("%s, %v", out, err)
		}
		if err := c.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if state, err := c.Inspect(t.Context(), id); err != nil || state.Present {
			t.Errorf("%+v, %v", state, err)
		}
		if es, err := j.Entries(t.Context()); err != nil || len(es) != 0 {
			t.Errorf("%v, %v", es, err)
		}
		_, err = c.Stop(t.Context(), id, 0)
		wantCode(t, err, berth.CodeIdentityMismatch) // it is nobody's any more
	})
}

func TestEngineIsContained(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d, withJournal(t, newJournal(t)))
		s := engineSpec(engineImage(t, c), "contained")
		s.Entrypoint, s.ReadOnlyRoot, s.Tmpfs, s.Ports = []string{"/bin/probe"}, true, []string{"/tmp"}, []Port{{8000, 0}}
		id := begin(t, d, c, s)
		var out []byte
		until(t, "what the container says of itself", func() bool {
			var err error
			if out, _, err = c.Output(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
			return len(out) > 0
		})
		var sees seen
		if err := json.Unmarshal(out, &sees); err != nil {
			t.Fatal(err)
		}
		if sees.UID != 1234 || sees.GID != 1235 || strings.Trim(sees.CapEff, "0") != "" || !sees.NoNewPrivs || sees.RootWrites ||
			sees.PidsMax != "4096" || sees.ShmBytes != 2<<30 || !strings.Contains(sees.PID1, "init") {
			t.Errorf("%+v", sees)
		}
		in, err := raw(t, d).ContainerInspect(t.Context(), id, moby.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		hc := in.Container.HostConfig
		// A network of its own would need one of Docker's ranges, and a VPN can take them all.
		if !hc.NetworkMode.IsDefault() && !hc.NetworkMode.IsBridge() {
			t.Errorf("it is in network %s", hc.NetworkMode)
		}
		if hc.Privileged || hc.RestartPolicy.Name != "no" || hc.IpcMode != "private" || len(hc.CapAdd) > 0 || hc.LogConfig.Config["max-size"] == "" {
			t.Errorf("%+v", hc)
		}
		for _, b := range hc.PortBindings {
			if len(b) != 1 || b[0].HostIP.String() != "127.0.0.1" {
				t.Errorf("published at %v", b)
			}
		}
	})
}

// What cannot be written down never runs.
func TestCreateWithoutAJournalLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		j := &brokenJournal{Journal: newJournal(t)}
		c := client(t, d, withJournal(t, j))
		s := engineSpec(engineImage(t, c), "unwritten")
		_, err := c.Create(within(t, time.Minute), s)
		if !errors.Is(err, errBroken) || j.writes != 1 {
			t.Fatalf("%v after %d writes", err, j.writes)
		}
		if n := containers(t, d); n != 0 {
			t.Errorf("%d containers are left", n)
		}
		if _, err := client(t, d).Create(t.Context(), s); err == nil {
			t.Error("a client without a journal made a container")
		}
	})
}

// deafConn is a connection over which a request to make a container goes out, or
// not, and no answer to it comes back.
type deafConn struct {
	net.Conn
	swallow bool // the request, too
	deaf    atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("POST ")) && bytes.Contains(b, []byte("/containers/create")) {
		c.deaf.Store(true)
		if c.swallow {
			_ = c.Conn.Close()
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// A container whose making was asked for, and the answer lost, is found by its
// token and removed; where it may come yet, the journal remembers it.
func TestCreateWithALostAnswer(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		for _, swallow := range []bool{false, true} {
			j := newJournal(t)
			lossy := func(ctx context.Context) (net.Conn, error) {
				conn, err := d.Dial(ctx)
				return &deafConn{Conn: conn, swallow: swallow}, err
			}
			image := engineImage(t, client(t, d))
			c := client(t, d, withJournal(t, j), func(cfg *Config) { cfg.Dial = lossy })
			if _, err := c.Create(within(t, time.Minute), engineSpec(image, "lost")); !answerLost(err) {
				t.Fatalf("%v", err)
			}
			if n := containers(t, d); n != 0 {
				t.Errorf("%d containers are left", n)
			}
			es, err := j.Entries(t.Context())
			if want := map[bool]int{true: 1}[swallow]; err != nil || len(es) != want {
				t.Fatalf("the journal has %+v, %v", es, err)
			}
			done, err := client(t, d, withJournal(t, j), func(cfg *Config) { cfg.Look = func(berth.Identity) process.Verdict { return process.Dead } }).Reconcile(within(t, time.Minute), nil)
			if err != nil || swallow && (len(done) != 1 || done[0].Outcome != OutcomeAbsent) {
				t.Errorf("%+v, %v", done, err)
			}
			if es, err := j.Entries(t.Context()); err != nil || len(es) != 0 {
				t.Errorf("the journal has %+v, %v", es, err)
			}
		}
	})
}

// Only what the journal knows is started, stopped or removed, whatever its labels
// say.
func TestForeignContainersAreNotTouched(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d, withJournal(t, newJournal(t)))
		image := engineImage(t, c)
		made, err := raw(t, d).ContainerCreate(t.Context(), moby.ContainerCreateOptions{Name: "foreign",
			Config: &container.Config{Image: image.Reference(), Labels: map[string]string{LabelPurpose: "engine", LabelInstance: "foreign"}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { forget(t, d, made.ID) })
		_, err = c.Stop(t.Context(), made.ID, 0)
		wantCode(t, err, berth.CodeIdentityMismatch)
		wantCode(t, c.Start(t.Context(), made.ID), berth.CodeIdentityMismatch)
		wantCode(t, c.Remove(t.Context(), made.ID), berth.CodeIdentityMismatch)
		if done, err := c.Reconcile(t.Context(), nil); err != nil || len(done) != 0 {
			t.Errorf("%v, %v", done, err)
		}
		_, err = c.Create(t.Context(), engineSpec(image, "foreign"))
		wantCode(t, err, berth.CodeConflict)
	})
}

func TestStartConflicts(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d, withJournal(t, newJournal(t)))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // a test's
		s := engineSpec(engineImage(t, c), "taken")
		s.Ports[0].Host = l.Addr().(*net.TCPAddr).Port
		id, err := c.Create(within(t, time.Minute), s)
		if err != nil {
			t.Fatal(err)
		}
		defer forget(t, d, id)
		wantReason(t, c.Start(within(t, time.Minute), id), berth.CodeConflict, "port_taken")
		s.Image = anImage
		s.Name = "absent"
		_, err = c.Create(within(t, time.Minute), s)
		wantCode(t, err, berth.CodeImageNotFound)
	})
}

// A crash of the engine is read from its state: status, exit and what it said.
func TestEngineCrash(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d, withJournal(t, newJournal(t)))
		s := engineSpec(engineImage(t, c), "crash")
		s.Env = []string{"LAB_CRASH_MS=50", "LAB_CRASH_CODE=42", "LAB_CRASH_TEXT=CUDA out of memory"}
		id := begin(t, d, c, s)
		var st State
		until(t, "the crash", func() bool {
			var err error
			if st, err = c.Inspect(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return !st.Running && !st.Finished.IsZero()
		})
		if st.Exit != 42 || st.Status != "exited" {
			t.Errorf("%+v", st)
		}
		if _, errs, err := c.Output(t.Context(), id, 0); err != nil || !strings.Contains(string(errs), "CUDA out of memory") {
			t.Errorf("%s, %v", errs, err)
		}
	})
}

func TestStopIsProvedOrSaidToBeUnproved(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d, withJournal(t, newJournal(t)))
		image := engineImage(t, c)
		// One that hears no TERM is killed, and confirmed.
		s := engineSpec(image, "stubborn")
		s.Entrypoint, s.Argv, s.Ports = []string{"/bin/probe"}, []string{"stubborn"}, nil
		id := begin(t, d, c, s)
		until(t, "the container that stops hearing", func() bool {
			out, _, err := c.Output(t.Context(), id, 0)
			return err == nil && len(out) > 0
		})
		stopped, err := c.Stop(within(t, time.Minute), id, time.Second)
		if err != nil || !stopped.Confirmed || stopped.How != StopExited || stopped.Exit != 137 {
			t.Errorf("%+v, %v", stopped, err)
		}
		// One that somebody else removed is absent.
		forget(t, d, id)
		stopped, err = c.Stop(within(t, time.Minute), id, time.Second)
		if err != nil || !stopped.Confirmed || stopped.How != StopAbsent {
			t.Errorf("%+v, %v", stopped, err)
		}
		if err := c.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
}

// No answer is never a stop: Docker is gone, and the container runs on.
func TestStopWithoutDockerIsUnconfirmed(t *testing.T) {
	d := lab.PrivateDocker(t, lab.Docker26, lab.Options{LiveRestore: true, GPUs: []string{lab.GPU0}})
	j := newJournal(t)
	c := client(t, d, withJournal(t, j))
	s := engineSpec(engineImage(t, c), "orphan")
	s.GPU = GPU{GPUCDI, lab.GPU0}
	id := begin(t, d, c, s)
	state, err := c.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	d.Stop(t)
	stopped, err := c.Stop(within(t, time.Minute), id, time.Second)
	if err != nil || stopped.Confirmed || stopped.Reason == "" {
		t.Errorf("%+v, %v", stopped, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", state.PID)); err != nil {
		t.Fatalf("the container did not outlive the daemon: %v", err)
	}
	// The next berth finds it, cannot confirm, and keeps it; then it can.
	next := client(t, d, withJournal(t, j), func(cfg *Config) { cfg.Look = func(berth.Identity) process.Verdict { return process.Dead } })
	done, err := next.Reconcile(within(t, time.Minute), nil)
	if err != nil || len(done) != 1 || done[0].Outcome != OutcomeKept || done[0].Reason == "" {
		t.Fatalf("%+v, %v", done, err)
	}
	if es, err := j.Entries(t.Context()); err != nil || len(es) != 1 {
		t.Fatalf("%v, %v", es, err)
	}
	d.Start(t)
	done, err = next.Reconcile(within(t, time.Minute), nil)
	if err != nil || len(done) != 1 || done[0].Outcome != OutcomeRemoved {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", state.PID)); err == nil {
		t.Error("it runs still")
	}
}

func TestReconcile(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		dead := berth.Identity{BootID: "another-boot", PID: 7, StartTime: 7}
		store := newStore(t, dead)
		old := client(t, d, func(cfg *Config) { cfg.Journal, cfg.Self = journalOf(t, store, "local"), dead })
		image := engineImage(t, old)
		made := map[string]string{}
		for _, name := range []string{"running", "adopted", "gone", "exited", "created", "nameless"} {
			s := engineSpec(image, name)
			if name == "nameless" { // its owner died before it could write down the id
				died := client(t, d, func(cfg *Config) { cfg.Journal, cfg.Self = forgetfulJournal{journalOf(t, store, "local")}, dead })
				if _, err := died.Create(within(t, time.Minute), s); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if name == "created" {
				id, err := old.Create(within(t, time.Minute), s)
				if err != nil {
					t.Fatal(err)
				}
				made[name] = id
				continue
			}
			made[name] = begin(t, d, old, s)
		}
		forget(t, d, made["gone"])
		if _, err := old.Stop(within(t, time.Minute), made["exited"], time.Second); err != nil {
			t.Fatal(err)
		}
		if err := journalOf(t, store, "local").Write(t.Context(), Entry{Token: "unmade", Name: "unmade", Purpose: PurposeEngine, Image: image}); err != nil {
			t.Fatal(err) // and one died before it asked Docker
		}
		mine := journalOf(t, store.Reopen(self(t)), "local")
		next := client(t, d, withJournal(t, mine))
		done, err := next.Reconcile(within(t, time.Minute), func(e Entry, s State) bool { return e.Name == "adopted" && s.Running })
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]Outcome{"running": OutcomeRemoved, "adopted": OutcomeAdopted, "gone": OutcomeAbsent, "exited": OutcomeRemoved, "created": OutcomeRemoved, "nameless": OutcomeRemoved, "unmade": OutcomeAbsent}
		for _, l := range done {
			if l.Outcome != want[l.Entry.Name] {
				t.Errorf("%s: %s (%s), want %s", l.Entry.Name, l.Outcome, l.Reason, want[l.Entry.Name])
			}
			delete(want, l.Entry.Name)
		}
		if len(want) > 0 {
			t.Errorf("nothing was said of %v", want)
		}
		es, err := mine.Entries(t.Context())
		if err != nil || len(es) != 1 || es[0].ID != made["adopted"] || es[0].Owner != self(t) {
			t.Errorf("the journal: %+v, %v", es, err)
		}
		if st, err := next.Inspect(t.Context(), made["adopted"]); err != nil || !st.Running {
			t.Errorf("%+v, %v", st, err)
		}
		// Now its owner lives: another round touches nothing.
		if done, err = next.Reconcile(within(t, time.Minute), nil); err != nil || len(done) != 1 || done[0].Outcome != OutcomeOwned {
			t.Errorf("%+v, %v", done, err)
		}
		if st, err := next.Inspect(t.Context(), made["adopted"]); err != nil || !st.Running {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

func TestImagesInUse(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		api := raw(t, d)
		reg := lab.NewRegistry(t)
		image := reg.Push(t, "use/me", lab.RandomImage(t, 1000))
		if users, err := c.ContainersUsing(t.Context(), image); err != nil || users != nil {
			t.Fatalf("%v, %v", users, err)
		}
		if err := c.RemoveImage(t.Context(), image); err != nil {
			t.Fatalf("what is not there is not removed already: %v", err)
		}
		if err := c.Pull(within(t, time.Minute), image, nil); err != nil {
			t.Fatal(err)
		}
		// Made by its tag, by its id and by its digest, and none of them runs.
		in, err := api.ImageInspect(t.Context(), image.Reference())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := api.ImageTag(t.Context(), moby.ImageTagOptions{Source: in.ID, Target: "somebody/else:tag"}); err != nil {
			t.Fatal(err)
		}
		var names []string
		for name, ref := range map[string]string{"by-tag": "somebody/else:tag", "by-id": in.ID, "by-digest": image.Reference()} {
			made, err := api.ContainerCreate(t.Context(), moby.ContainerCreateOptions{Name: name, Config: &container.Config{Image: ref, Cmd: []string{"/blob"}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { forget(t, d, made.ID) })
			names = append(names, name)
		}
		users, err := c.ContainersUsing(t.Context(), image)
		if err != nil || len(users) != 3 || slices.ContainsFunc(users, func(u User) bool { return u.State != "created" || !slices.Contains(names, u.Name) }) {
			t.Fatalf("%+v, %v", users, err)
		}
		if e := coded(t, c.RemoveImage(t.Context(), image), berth.CodeResourceInUse); !strings.Contains(e.Facts["containers"], "by-tag") {
			t.Errorf("%v", e.Facts)
		}
		for _, u := range users {
			forget(t, d, u.ID)
		}
		// The digest goes; the name that somebody else gave stays.
		for range 2 {
			if err := c.RemoveImage(t.Context(), image); err != nil {
				t.Fatal(err)
			}
		}
		if present, err := c.ImagePresent(t.Context(), image); err != nil || present {
			t.Errorf("present: %t, %v", present, err)
		}
		if _, err := api.ImageInspect(t.Context(), "somebody/else:tag"); err != nil {
			t.Errorf("somebody else's name went too: %v", err)
		}
	})
}

// A link must not lead to what is kept from containers.
func TestMountsAreResolved(t *testing.T) {
	d := lab.Docker(t, lab.Docker28)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/run", link); err != nil {
		t.Fatal(err)
	}
	c := client(t, d, withJournal(t, newJournal(t)), func(cfg *Config) {
		cfg.Resolve = func(_ context.Context, p string) (string, error) { return filepath.EvalSymlinks(p) }
	})
	s := engineSpec(engineImage(t, c), "linked")
	s.Mounts = []Mount{{link, "/x", true}}
	_, err := c.Create(within(t, time.Minute), s)
	wantCode(t, err, berth.CodeInvalidArgument)
}
