package session

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"berth"
	"berth/durable/durabletest"
	"berth/guestapi"
)

// A flood makes the guest tell of a session again and again, and lists are
// asked for by every dashboard: both must stay far from a millisecond.
func BenchmarkRegistry(b *testing.B) {
	g := newFakeGuest()
	r, err := New(Config{
		Store: durabletest.NewFault(durabletest.FaultConfig{}), Hosts: []HostLink{{Name: berth.LocalHost, Ensure: g.ensure, Guest: g}},
		Defaults: Defaults{RingBytes: 256 << 10, SizePolicy: berth.SizeLatest}, Home: "/", Now: time.Now, Random: &repeat{every: 1},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	var last guestapi.Session
	for range 1000 {
		id, err := berth.NewID(berth.SessionID, time.Now(), r.cfg.Random)
		if err != nil {
			b.Fatal(err)
		}
		g.add(id, "n"+id[2:], berth.SessionRunning)
		last = g.sessions[id]
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-r.Synced()
	b.Run("list-1000", func(b *testing.B) {
		for b.Loop() {
			if _, err := r.List(ctx, berth.SessionFilter{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("see", func(b *testing.B) {
		for b.Loop() {
			last.Offsets.End++
			r.event(ctx, r.hosts[0], guestapi.Event{Session: &last})
		}
	})
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
