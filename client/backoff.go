package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"berth"
)

// The waits between two attempts: the first is short, since a daemon that was
// killed is back within a second, and the last is short enough that a person
// does not notice that the daemon came back before us.
const (
	backoffFirst = 20 * time.Millisecond
	backoffLast  = time.Second
)

// backoff spaces attempts. There is no budget: a session that lives is worth
// an attempt a second for ever, and a budget would end a viewer while its
// laptop sleeps.
type backoff struct {
	first time.Duration // 0 = backoffFirst; tests shorten it
	next  time.Duration
}

// reset makes the next wait short again.
func (b *backoff) reset() { b.next = 0 }

// step gives the next wait: doubled each time, with jitter of half of it so
// that many viewers do not come back in one instant.
func (b *backoff) step() time.Duration {
	if b.next == 0 {
		if b.next = b.first; b.next == 0 {
			b.next = backoffFirst
		}
	}
	d := b.next/2 + rand.N(b.next/2+1) //nolint:gosec // spreads load, guards nothing
	b.next = min(b.next*2, backoffLast)
	return d
}

// wait waits one step. It fails only when ctx ends, with CodeInterrupted or,
// after a deadline, CodeTimeout.
func (b *backoff) wait(ctx context.Context) error {
	t := time.NewTimer(b.step())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// contextError gives the ended context's reason as an Error.
func contextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return berth.Errorf(berth.CodeTimeout, "the time that was given is over: %w", ctx.Err())
	}
	return berth.Errorf(berth.CodeInterrupted, "the call was given up: %w", ctx.Err())
}
