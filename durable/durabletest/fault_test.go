package durabletest

import (
	"testing"
	"time"

	"berth"
	"berth/durable"
)

func TestFaultConforms(t *testing.T) {
	Run(t, func(*testing.T) durable.Store { return NewFault(FaultConfig{}) })
}

func TestFaultPrunes(t *testing.T) {
	RunPrune(t, 20, time.Hour, func(*testing.T) (durable.Store, func(time.Duration)) {
		c := NewClock()
		return NewFault(FaultConfig{EventsKept: 20, EventsKeptFor: time.Hour, Now: c.Now, Boottime: c.Boottime}), c.Pass
	})
}

func TestFaultFailsOnDemand(t *testing.T) {
	for _, test := range []struct {
		effect Effect
		at     int
		want   int64 // revision after the restart
	}{
		{NotWritten, 1, 0}, {Written, 1, 1}, {NotWritten, 3, 2}, {Written, 3, 3},
	} {
		f := NewFault(FaultConfig{})
		r := begin(t, f, durable.Begin{ID: "a"})
		if f.Writes() != 1 {
			t.Fatalf("%d writes after the first", f.Writes())
		}
		wake := f.Watch(t.Context())
		f.FailWrite(test.at, test.effect)
		for i := 1; ; i++ {
			_, refused := f.Change(t.Context(), durable.Change{Kind: kind, ID: "a", Revision: 99, Epoch: 1, State: []byte(`{}`)})
			wantCode(t, refused, berth.CodeRevisionMismatch) // a refusal is no write
			c := next(r, `{}`)
			c.Events = []durable.EventDraft{{Kind: "thing.changed"}}
			got, err := f.Change(t.Context(), c)
			if i < test.at {
				if err != nil {
					t.Fatal(err)
				}
				r = got
				continue
			}
			wantCode(t, err, berth.CodeStoreFailed)
			break
		}
		<-f.Failed()
		WantRefused(t, f, berth.CodeStoreFailed)
		owner := berth.Identity{BootID: "another", PID: 7}
		again := f.Reopen(owner)
		ended(t, wake)
		got, err := again.Get(t.Context(), kind, "a")
		if err != nil || got.Revision != test.want {
			t.Fatalf("%+v: after the restart the revision is %d, %v", test, got.Revision, err)
		}
		page, err := again.Events(t.Context(), 0, 0)
		if err != nil || page.Last != test.want {
			t.Fatalf("%+v: after the restart there are %d events, %v", test, page.Last, err)
		}
		if taken, err := again.TakeOver(t.Context(), kind, "a", got.Revision, got.Epoch); err != nil || taken.Owner != owner {
			t.Fatalf("taken over as %+v, %v", taken, err)
		}
	}
}

func TestFaultLeasesEndWithTheBoot(t *testing.T) {
	f := NewFault(FaultConfig{})
	l := acquire(t, f, "l", "me")
	same := f.Reopen(berth.Identity{BootID: f.cfg.Owner.BootID, PID: 2})
	if _, err := same.Renew(t.Context(), "l", "me", l.Epoch, long); err != nil {
		t.Fatal(err)
	}
	other := same.Reopen(berth.Identity{BootID: "another", PID: 2})
	_, err := other.Renew(t.Context(), "l", "me", l.Epoch, long)
	wantCode(t, err, berth.CodeFenced)
	if again := acquire(t, other, "l", "me"); again.Epoch != l.Epoch+1 {
		t.Fatalf("epoch %d after %d", again.Epoch, l.Epoch)
	}
}
