package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/durable"
)

// body is the state of a benchmark's record: 512 bytes.
func body() []byte {
	b := []byte(`"`)
	for len(b) < 511 {
		b = append(b, 'x')
	}
	return append(b, '"')
}

func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.Context(), Config{Path: filepath.Join(b.TempDir(), berth.FileStore), Owner: testOwner})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func benchRecord(b *testing.B, s *Store, id string) durable.Record {
	b.Helper()
	r, _, err := s.Begin(b.Context(), durable.Begin{Kind: "thing", ID: id, State: body()})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// syncs is what the disk allows: n times one page appended and synced, as the
// log of a commit is.
func syncs(f *os.File, n int) error {
	page := make([]byte, 4096)
	for range n {
		if _, err := f.Write(page); err != nil {
			return err
		}
		if err := unix.Fsync(int(f.Fd())); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkDurable is a compare-and-swap of a record with an event, on the disk
// when it returns. Its rounds alternate with as many bare fsyncs of the same
// disk, so that other work of the machine falls on both: "of-floor" 1 = as fast
// as the disk allows one writer.
func BenchmarkDurable(b *testing.B) {
	for _, events := range []int{0, 1} {
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("clients=%d/events=%d", clients, events), func(b *testing.B) { benchChanges(b, clients, events) })
		}
	}
}

func benchChanges(b *testing.B, clients, events int) {
	const perRound = 64
	s := benchStore(b)
	f, err := os.OpenFile(filepath.Join(filepath.Dir(s.cfg.Path), "floor"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // a benchmark's
	records := make([]durable.Record, clients)
	for i := range records {
		records[i] = benchRecord(b, s, fmt.Sprint(i))
	}
	drafts := make([]durable.EventDraft, events)
	for i := range drafts {
		drafts[i] = durable.EventDraft{Kind: "thing.changed"}
	}
	state := body()
	var inStore, inFloor time.Duration
	ops := 0
	for b.Loop() {
		start := time.Now()
		var running sync.WaitGroup
		for i := range records {
			running.Go(func() {
				for range perRound / clients {
					r := records[i]
					var err error
					if records[i], err = s.Change(b.Context(), durable.Change{Kind: r.Kind, ID: r.ID, Revision: r.Revision, Epoch: r.Epoch, State: state, Events: drafts}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		middle := time.Now()
		if err := syncs(f, perRound); err != nil {
			b.Fatal(err)
		}
		inStore += middle.Sub(start)
		inFloor += time.Since(middle)
		ops += perRound
	}
	b.ReportMetric(0, "ns/op") // of a round: says nothing
	b.ReportMetric(float64(ops)/inStore.Seconds(), "op/s")
	b.ReportMetric(float64(ops)/inFloor.Seconds(), "fsync/s")
	b.ReportMetric(inFloor.Seconds()/inStore.Seconds(), "of-floor")
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	benchRecord(b, s, "a")
	for b.Loop() {
		if _, err := s.Get(b.Context(), "thing", "a"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEventsNone(b *testing.B) { // what a follower asks after a wake-up that another one took
	s := benchStore(b)
	for b.Loop() {
		if _, err := s.Events(b.Context(), 0, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is the store's part of a daemon's start after a kill.
func BenchmarkOpen(b *testing.B) {
	s := benchStore(b)
	for i := range 1000 {
		benchRecord(b, s, fmt.Sprint(i))
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(b.Context(), s.cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Close()
		b.StartTimer()
	}
}
