package durable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth"
	"berth/durable"
	"berth/durable/sqlite"
)

// dirVar makes the test binary the program of the campaign, on that directory.
const dirVar = "BERTH_TEST_CAMPAIGN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVar); dir != "" {
		if err := campaign(context.Background(), dir); err != nil {
			panic(err)
		}
		fmt.Println("done")
		return
	}
	goleak.VerifyTestMain(m)
}

// maker makes files, each of which can be made once only: what is done a second
// time fails.
type maker struct{ dir string }

func (m maker) path(act durable.Act[toyState], n int) string {
	return filepath.Join(m.dir, fmt.Sprintf("%s-%d", act.RecordID, n))
}

func (m maker) Perform(ctx context.Context, act durable.Act[toyState]) (toyEvent, error) {
	n := numberOf(act.Effect)
	if err := act.Own(ctx, filepath.Base(m.path(act, n))); err != nil {
		return toyEvent{}, err
	}
	f, err := os.OpenFile(m.path(act, n), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return toyEvent{}, err
	}
	return toyEvent{Kind: "made", N: n}, f.Close()
}

func (m maker) Inspect(_ context.Context, act durable.Act[toyState]) (durable.Finding, error) {
	if _, err := os.Stat(m.path(act, numberOf(act.Effect))); err != nil {
		return durable.Finding{Verdict: durable.VerdictAbsent}, nil
	}
	return durable.Finding{Verdict: durable.VerdictCompleted}, nil
}

func (m maker) Reconcile(_ context.Context, act durable.Act[toyState], _ *durable.Finding) (toyEvent, error) {
	e := toyEvent{Kind: "reconciled"}
	for {
		if _, err := os.Stat(m.path(act, e.N+1)); err != nil {
			return e, nil
		}
		e.N++
	}
}

// process is one of the two daemons that the program plays: their PIDs are made
// of its own, and they live as long as it does.
func process(ctx context.Context, dir string, i int) (*toyRunner, durable.Store, error) {
	s, err := sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(dir, berth.FileMachineStore), Shared: true,
		Owner: berth.Identity{BootID: "boot", PID: 2*os.Getpid() + i},
	})
	if err != nil {
		return nil, nil, err
	}
	r, err := durable.New(durable.Config[toyState, toyEvent]{
		Store: s, Machine: toyMachine(), Performer: maker{dir},
		Liveness: func(p berth.Identity) durable.Liveness {
			if unix.Kill(p.PID/2, 0) == nil {
				return durable.OwnerAlive
			}
			return durable.OwnerDead
		},
	})
	return r, s, err
}

// campaign goes on from whatever the last one left: an operation of two effects,
// a note and a refusal through the inbox, an archive.
func campaign(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, store, err := process(ctx, dir, 0)
	if err != nil {
		return err
	}
	b, _, err := process(ctx, dir, 1)
	if err != nil {
		return err
	}
	if archives, err := store.Archives(ctx, toyKind); err != nil || len(archives) > 0 {
		return err
	}
	if err := a.Recover(ctx); err != nil {
		return err
	}
	if _, _, err := a.Begin(ctx, request("a", 2)); err != nil {
		return err
	}
	for {
		s, err := a.Get(ctx, "a")
		if err != nil {
			return err
		}
		if s.State.Phase == "done" {
			break
		}
		if s.Record.Terminal {
			return fmt.Errorf("it ended as %+v", s.State)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("it does not end: %+v", s)
		}
	}
	if _, err := a.Feed(ctx, "a", durable.AnyRevision, toyEvent{Kind: "note"}); err != nil { // it is a's now, also after a kill
		return err
	}
	if _, err := b.Feed(ctx, "a", durable.AnyRevision, toyEvent{Kind: "note"}); err != nil {
		return err
	}
	if _, err := b.Feed(ctx, "a", durable.AnyRevision, toyEvent{Kind: "go"}); !errors.Is(err, berth.CodeConflict) {
		return fmt.Errorf("what the reducer refuses: %w", err)
	}
	_, err = a.Archive(ctx, durable.ArchiveRequest{})
	return errors.Join(err, a.Shutdown(ctx), b.Shutdown(ctx))
}

// Killed at each failpoint, once and at the second time too, the next process
// brings the operation to its end: nothing is lost, nothing is made twice, and
// all that is there is owned.
func TestFailpointCampaign(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program and kills it often")
	}
	binary := filepath.Join(t.TempDir(), "campaign")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "failpoints", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(dir, point string) (killed bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary)
		cmd.Env = append(os.Environ(), dirVar+"="+dir, durable.FailpointVar+"="+point)
		out, err := cmd.CombinedOutput()
		if err != nil && err.Error() != "signal: killed" || err == nil && !strings.HasSuffix(string(out), "done\n") {
			t.Fatalf("at %s: %v\n%s", point, err, out)
		}
		return err != nil
	}
	for _, name := range durable.FailpointNames {
		t.Run(name, func(t *testing.T) {
			for _, times := range []string{"", ":2"} {
				dir := t.TempDir()
				killed := run(dir, name+times)
				if !killed && times == "" { // one of a recovery: there must be something to recover
					dir = t.TempDir()
					if !run(dir, "after_perform") || !run(dir, name) {
						t.Fatalf("nothing comes to %s", name)
					}
				}
				if killed {
					run(dir, name) // and once more in what follows
				}
				if run(dir, "") {
					t.Fatal("killed without a failpoint")
				}
				wantCampaign(t, dir)
			}
		})
	}
}

func wantCampaign(t *testing.T, dir string) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, berth.FileMachineStore), Shared: true, Owner: person(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's
	archives, err := s.Archives(t.Context(), toyKind)
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives %+v, %v", archives, err)
	}
	kept, err := s.Archived(t.Context(), toyKind, archives[0].Stamp)
	if err != nil || len(kept) != 1 || !slices.Equal(kept[0].Owned, []string{"a-1", "a-2"}) || !strings.Contains(string(kept[0].Record.State), `"done"`) {
		t.Fatalf("archived %+v, %v", kept, err)
	}
	for _, e := range kept[0].Effects {
		if e.Status.Pending() {
			t.Errorf("the effect %s is %s", e.ID, e.Status)
		}
	}
	page, err := s.Events(t.Context(), 0, 0)
	if err != nil || len(page.Events) == 0 || page.Events[len(page.Events)-1].Seq != int64(len(page.Events)) {
		t.Errorf("%d events up to %d, %v", len(page.Events), page.Last, err)
	}
	for _, name := range []string{"a-1", "a-2"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}
