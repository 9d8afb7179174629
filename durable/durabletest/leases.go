package durabletest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

// brief is a lease that is waited out; long is one that no test outlives.
const (
	brief = 20 * time.Millisecond
	long  = 30 * time.Minute
)

func acquire(t *testing.T, s durable.Store, name, principal string) berth.Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: name, Principal: principal, TTL: long})
	if err != nil {
		t.Fatalf("acquire %s for %s: %v", name, principal, err)
	}
	return l
}

func release(t *testing.T, s durable.Store, l berth.Lease) {
	t.Helper()
	if err := s.Release(t.Context(), l.Name, l.Principal, l.Epoch); err != nil {
		t.Fatal(err)
	}
}

// wantLeft wants a lease to last about as long as said.
func wantLeft(t *testing.T, l berth.Lease, want time.Duration) {
	t.Helper()
	if left := time.Until(l.ExpiresAt); left < want-time.Minute || left > want+time.Second {
		t.Fatalf("%s lasts %v from now, want %v", l.Name, left, want)
	}
}

func testLeaseLife(t *testing.T, s durable.Store) {
	_, err := s.Lease(t.Context(), "l")
	wantCode(t, err, berth.CodeNotFound)
	l, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", Label: "first", TTL: 2 * time.Minute})
	if err != nil || l.Name != "l" || l.Principal != "me" || l.Label != "first" || l.Epoch != 1 {
		t.Fatalf("acquired %+v, %v", l, err)
	}
	wantLeft(t, l, 2*time.Minute)
	l, err = s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", Label: "second", TTL: long})
	if err != nil || l.Epoch != 1 || l.Label != "second" {
		t.Fatalf("acquired again %+v, %v", l, err)
	}
	wantLeft(t, l, long)
	l, err = s.Renew(t.Context(), "l", "me", 1, berth.MaxLeaseTTL)
	if err != nil || l.Epoch != 1 || l.Label != "second" {
		t.Fatalf("renewed %+v, %v", l, err)
	}
	wantLeft(t, l, berth.MaxLeaseTTL)
	got, err := s.Lease(t.Context(), "l")
	if err != nil || got.Principal != "me" || got.Label != "second" || got.Epoch != 1 {
		t.Fatalf("read %+v, %v", got, err)
	}
	wantLeft(t, got, berth.MaxLeaseTTL)

	acquire(t, s, "a", "you")
	leases, err := s.Leases(t.Context())
	if err != nil || len(leases) != 2 || leases[0].Name != "a" || leases[1].Name != "l" {
		t.Fatalf("leases %+v, %v", leases, err)
	}
	release(t, s, l)
	_, err = s.Lease(t.Context(), "l")
	wantCode(t, err, berth.CodeNotFound)
	if leases, err = s.Leases(t.Context()); err != nil || len(leases) != 1 {
		t.Fatalf("leases %+v, %v", leases, err)
	}
	wantEvents(t, s, 0) // a lease that is given back does not expire
}

func testLeaseHeld(t *testing.T, s durable.Store) {
	mine := acquire(t, s, "l", "me")
	_, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "you", TTL: time.Minute})
	wantFact(t, err, berth.CodeHeld, "principal", "me")
	at, parseErr := time.Parse(time.RFC3339Nano, factOf(err, "expires_at"))
	if d := at.Sub(mine.ExpiresAt).Abs(); parseErr != nil || d > time.Minute {
		t.Fatalf("the refusal says that it expires %v from the truth, %v", d, parseErr)
	}
	for name, attempt := range map[string]func() error{
		"renew by another":             func() error { _, err := s.Renew(t.Context(), "l", "you", 1, long); return err },
		"renew with a later epoch":     func() error { _, err := s.Renew(t.Context(), "l", "me", 2, long); return err },
		"renew with no epoch":          func() error { _, err := s.Renew(t.Context(), "l", "me", 0, long); return err },
		"renew what was never held":    func() error { _, err := s.Renew(t.Context(), "other", "me", 1, long); return err },
		"release by another":           func() error { return s.Release(t.Context(), "l", "you", 1) },
		"release with a later epoch":   func() error { return s.Release(t.Context(), "l", "me", 2) },
		"release what was never held":  func() error { return s.Release(t.Context(), "other", "me", 1) },
		"release with the empty name":  func() error { return s.Release(t.Context(), "l", "", 1) },
		"release of nothing by nobody": func() error { return s.Release(t.Context(), "other", "", 0) },
	} {
		if err := attempt(); !errors.Is(err, berth.CodeFenced) {
			t.Errorf("%s: %v, want fenced", name, err)
		}
	}
	if l, err := s.Lease(t.Context(), "l"); err != nil || l.Principal != "me" || l.Epoch != 1 {
		t.Fatalf("the lease is now %+v, %v", l, err)
	}
}

func testLeaseNeverShortens(t *testing.T, s durable.Store) {
	acquire(t, s, "l", "me")
	l, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	wantLeft(t, l, long)
	if l, err = s.Renew(t.Context(), "l", "me", 1, time.Second); err != nil {
		t.Fatal(err)
	}
	wantLeft(t, l, long)
}

func testLeaseExpires(t *testing.T, s durable.Store) {
	kept := acquire(t, s, "kept", "me")
	l, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", Label: "x", TTL: brief})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is over", func() bool {
		_, err := s.Lease(t.Context(), "l")
		return errors.Is(err, berth.CodeNotFound)
	})
	// Nobody took it, and still it is not held.
	_, err = s.Renew(t.Context(), "l", "me", l.Epoch, long)
	wantCode(t, err, berth.CodeFenced)
	wantCode(t, s.Release(t.Context(), "l", "me", l.Epoch), berth.CodeFenced)
	if leases, err := s.Leases(t.Context()); err != nil || len(leases) != 1 || leases[0].Name != "kept" {
		t.Fatalf("leases %+v, %v", leases, err)
	}
	over, err := s.Expire(t.Context())
	if err != nil || len(over) != 1 || over[0].Name != "l" || over[0].Principal != "me" || over[0].Label != "x" || over[0].Epoch != l.Epoch {
		t.Fatalf("expired %+v, %v", over, err)
	}
	wantEvents(t, s, 0, "lease.expired l 0")
	if over, err = s.Expire(t.Context()); err != nil || len(over) != 0 {
		t.Fatalf("expired again: %+v, %v", over, err)
	}
	wantEvents(t, s, 0, "lease.expired l 0")
	if again := acquire(t, s, "l", "me"); again.Epoch != l.Epoch+1 {
		t.Fatalf("its holder has the epoch %d again, it was %d", again.Epoch, l.Epoch)
	}
	if _, err := s.Renew(t.Context(), "kept", "me", kept.Epoch, long); err != nil {
		t.Fatal(err)
	}
}

// Whoever comes first after the end takes the lease, also before Expire saw it,
// and the end is told once.
func testLeaseTakenAfterExpiry(t *testing.T, s durable.Store) {
	old, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", TTL: brief})
	if err != nil {
		t.Fatal(err)
	}
	wake := s.Watch(t.Context())
	var l berth.Lease
	eventually(t, "another takes it", func() bool {
		l, err = s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "you", TTL: long})
		return err == nil
	})
	if l.Principal != "you" || l.Epoch != old.Epoch+1 {
		t.Fatalf("taken as %+v after %+v", l, old)
	}
	woken(t, wake)
	wantEvents(t, s, 0, "lease.expired l 0")
	_, err = s.Renew(t.Context(), "l", "me", old.Epoch, long)
	wantCode(t, err, berth.CodeFenced)
	_, err = s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", TTL: long})
	wantCode(t, err, berth.CodeHeld)
	if over, err := s.Expire(t.Context()); err != nil || len(over) != 0 {
		t.Fatalf("expired %+v, %v", over, err)
	}
	wantEvents(t, s, 0, "lease.expired l 0")
}

func testLeaseEpochsNeverComeAgain(t *testing.T, s durable.Store) {
	for i := range int64(5) {
		l := acquire(t, s, "l", fmt.Sprintf("p%d", i%2))
		if l.Epoch != i+1 {
			t.Fatalf("hold %d has the epoch %d", i+1, l.Epoch)
		}
		release(t, s, l)
	}
}

func testLeaseRefusals(t *testing.T, s durable.Store) {
	ok := durable.LeaseRequest{Name: "l", Principal: "me", TTL: time.Minute}
	for name, spoil := range map[string]func(*durable.LeaseRequest){
		"no name":          func(r *durable.LeaseRequest) { r.Name = "" },
		"no principal":     func(r *durable.LeaseRequest) { r.Principal = "" },
		"no time":          func(r *durable.LeaseRequest) { r.TTL = 0 },
		"a negative time":  func(r *durable.LeaseRequest) { r.TTL = -1 },
		"a time too long":  func(r *durable.LeaseRequest) { r.TTL = berth.MaxLeaseTTL + 1 },
		"a label too long": func(r *durable.LeaseRequest) { r.Label = strings.Repeat("x", durable.MaxKey+1) },
	} {
		r := ok
		spoil(&r)
		if _, err := s.Acquire(t.Context(), r); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v, want invalid_argument", name, err)
		}
	}
	acquire(t, s, "l", "me")
	_, err := s.Renew(t.Context(), "l", "me", 1, berth.MaxLeaseTTL+1)
	wantCode(t, err, berth.CodeInvalidArgument)
}

func testLeaseOneWinner(t *testing.T, s durable.Store) {
	for round := range 20 {
		name := fmt.Sprintf("l%d", round)
		won := make([]bool, 8)
		var wg sync.WaitGroup
		for c := range won {
			wg.Go(func() {
				_, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: name, Principal: fmt.Sprintf("p%d", c), TTL: long})
				won[c] = err == nil
				if err != nil && !errors.Is(err, berth.CodeHeld) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		wins := 0
		for _, w := range won {
			if w {
				wins++
			}
		}
		if wins != 1 {
			t.Fatalf("%s has %d holders", name, wins)
		}
	}
}

func testGuarded(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	fenced := func(lease string, epoch int64) {
		t.Helper()
		_, err := s.Guarded(t.Context(), lease, epoch, next(r, `"stale"`))
		wantCode(t, err, berth.CodeFenced)
		wantRecord(t, s, r)
	}
	fenced("l", 0)
	fenced("l", 1)
	l := acquire(t, s, "l", "me")
	fenced("l", 0)
	fenced("l", 2)
	fenced("other", 1)
	c := next(r, `1`)
	c.Events = []durable.EventDraft{{Kind: "thing.changed"}}
	r, err := s.Guarded(t.Context(), "l", l.Epoch, c)
	if err != nil || r.Revision != 1 {
		t.Fatalf("changed to %+v, %v", r, err)
	}
	wantRecord(t, s, r)
	wantEvents(t, s, 0, "thing.changed a 1")
	_, err = s.Guarded(t.Context(), "l", l.Epoch, c) // the lease does not replace the record's guard
	wantStale(t, err, berth.CodeRevisionMismatch, r)
	release(t, s, l)
	fenced("l", l.Epoch)

	brieflyHeld, err := s.Acquire(t.Context(), durable.LeaseRequest{Name: "l", Principal: "me", TTL: brief})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is over", func() bool {
		_, err := s.Lease(t.Context(), "l")
		return errors.Is(err, berth.CodeNotFound)
	})
	fenced("l", brieflyHeld.Epoch) // over, though nobody took it
	you := acquire(t, s, "l", "you")
	fenced("l", brieflyHeld.Epoch)
	if r, err = s.Guarded(t.Context(), "l", you.Epoch, next(r, `2`)); err != nil {
		t.Fatal(err)
	}
	wantRecord(t, s, r)
}

// everyMethod calls each once, with arguments that would succeed.
func everyMethod(ctx context.Context, s durable.Store, r durable.Record, l berth.Lease) map[string]error {
	errs := map[string]error{}
	_, _, errs["Begin"] = s.Begin(ctx, durable.Begin{Kind: kind, ID: "new", State: []byte(`{}`)})
	_, errs["Change"] = s.Change(ctx, next(r, `1`))
	_, errs["TakeOver"] = s.TakeOver(ctx, r.Kind, r.ID, r.Revision, r.Epoch)
	errs["Remove"] = s.Remove(ctx, r.Kind, "ended", 0, 1)
	_, errs["Get"] = s.Get(ctx, r.Kind, r.ID)
	_, errs["List"] = s.List(ctx, durable.Query{})
	_, errs["Publish"] = s.Publish(ctx, durable.EventDraft{Kind: "thing.seen", Subject: "x"})
	_, errs["Publish nothing"] = s.Publish(ctx)
	_, errs["Events"] = s.Events(ctx, 0, 0)
	_, errs["Prune"] = s.Prune(ctx)
	_, errs["Acquire"] = s.Acquire(ctx, durable.LeaseRequest{Name: "new", Principal: "me", TTL: long})
	_, errs["Renew"] = s.Renew(ctx, l.Name, l.Principal, l.Epoch, long)
	errs["Release"] = s.Release(ctx, l.Name, l.Principal, l.Epoch)
	_, errs["Lease"] = s.Lease(ctx, l.Name)
	_, errs["Leases"] = s.Leases(ctx)
	_, errs["Expire"] = s.Expire(ctx)
	_, errs["Guarded"] = s.Guarded(ctx, l.Name, l.Epoch, next(r, `1`))
	return errs
}

// WantRefused wants every method of s to fail with the code; other packages'
// tests use it for a store that has failed.
func WantRefused(t *testing.T, s durable.Store, code berth.Code) {
	t.Helper()
	r := durable.Record{Kind: kind, ID: "a", Epoch: 1}
	for name, err := range everyMethod(t.Context(), s, r, berth.Lease{Name: "l", Principal: "me", Epoch: 1}) {
		if !errors.Is(err, code) {
			t.Errorf("%s: %v, want %s", name, err, code)
		}
	}
}

func testCancelledContext(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	begin(t, s, durable.Begin{ID: "ended", Terminal: true})
	l := acquire(t, s, "l", "me")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, test := range []struct {
		ctx   context.Context
		code  berth.Code
		cause error
	}{{cancelled, berth.CodeInterrupted, context.Canceled}, {late, berth.CodeTimeout, context.DeadlineExceeded}} {
		for name, err := range everyMethod(test.ctx, s, r, l) {
			if !errors.Is(err, test.code) || !errors.Is(err, test.cause) {
				t.Errorf("%s: %v, want %s", name, err, test.code)
			}
		}
	}
	// Nothing happened, and the store goes on.
	select {
	case <-s.Failed():
		t.Fatal("a caller that went away failed the store")
	default:
	}
	wantRecord(t, s, r)
	wantEvents(t, s, 0)
	if got := ids(t, s, durable.Query{}); got != "ended a" {
		t.Fatalf("the store has %q", got)
	}
	if got, err := s.Leases(t.Context()); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Epoch, l.Epoch) {
		t.Fatalf("leases %+v, %v", got, err)
	}
	for name, err := range everyMethod(t.Context(), s, r, l) {
		if err != nil && name != "TakeOver" && name != "Lease" && name != "Guarded" { // others of the list came first
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testClosed(t *testing.T, s durable.Store) {
	begin(t, s, durable.Begin{ID: "a"})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	WantRefused(t, s, berth.CodeDaemonStopping)
	select {
	case <-s.Failed():
		t.Fatal("closing failed the store")
	default:
	}
}
