package container

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	moby "github.com/moby/moby/client"
	"go.uber.org/goleak"

	"berth"
	"berth/internal/lab"
	"berth/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client makes a Client of a daemon, with short waits.
func client(t *testing.T, d *lab.Daemon, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Dial: d.Dial, PullBackoff: 20 * time.Millisecond, PullStall: 10 * time.Second, PullTries: 3}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// raw is Docker's own client, for what a user would do beside berth.
func raw(t *testing.T, d *lab.Daemon) *moby.Client {
	t.Helper()
	api, err := moby.New(moby.WithHost("unix://" + d.Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// each runs a test against every generation of Docker.
func each(t *testing.T, f func(t *testing.T, d *lab.Daemon)) {
	t.Helper()
	for _, g := range lab.Generations() {
		t.Run("docker"+string(g), func(t *testing.T) { f(t, lab.Docker(t, g)) })
	}
}

// within bounds what a test waits for.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wantCode(t *testing.T, err error, code berth.Code) {
	t.Helper()
	_ = coded(t, err, code)
}

// coded gives the error with its facts.
func coded(t *testing.T, err error, code berth.Code) *berth.Error {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
	var e *berth.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v carries no code", err)
	}
	return e
}

// until looks again and again at something that another process does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func wantReason(t *testing.T, err error, code berth.Code, reason string) {
	t.Helper()
	if e := coded(t, err, code); e.Facts["reason"] != reason {
		t.Fatalf("reason %q, want %q: %v", e.Facts["reason"], reason, err)
	}
}

func self(t *testing.T) berth.Identity {
	t.Helper()
	id, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// stubDial is for what never dials.
func stubDial(context.Context) (net.Conn, error) { return nil, net.ErrClosed }

func fixedNow() time.Time { return time.Unix(0, 0) }
