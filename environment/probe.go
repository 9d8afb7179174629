package environment

import (
	"context"
	"fmt"
	"sync"

	"berth"
)

// Prober looks at one host for many callers.
type Prober struct {
	cfg ProbeConfig

	mu      sync.Mutex
	now     *look          // that a caller may join; nil = none
	looks   map[*look]bool // all that run
	closed  bool
	running sync.WaitGroup
}

// look is one probe that runs, and who waits for it.
type look struct {
	done    chan struct{} // closed when facts and err are there
	facts   berth.Facts
	err     error
	waiting int // under the prober's lock
	cancel  context.CancelFunc
}

// NewProber makes a prober. Close it when nobody asks any more.
func NewProber(cfg ProbeConfig) (*Prober, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Prober{cfg: cfg, looks: map[*look]bool{}}, nil
}

// Probe gives the facts of a probe that ends after the call: one that runs is
// joined, one that has settled is never used again. Callers share the facts and
// do not change them. A probe goes on while anyone waits for it; ctx bounds
// this caller only.
func (p *Prober) Probe(ctx context.Context) (berth.Facts, error) { return p.probe(ctx, true) }

// ProbeAfter is Probe, but the probe also begins after the call. What was just
// changed on the host is verified by it: a probe that was already under way may
// have looked before the change.
func (p *Prober) ProbeAfter(ctx context.Context) (berth.Facts, error) { return p.probe(ctx, false) }

func (p *Prober) probe(ctx context.Context, join bool) (berth.Facts, error) {
	l, err := p.enter(join)
	if err != nil {
		return berth.Facts{}, err
	}
	defer p.leave(l)
	select {
	case <-l.done:
		return l.facts, l.err
	case <-ctx.Done():
		return berth.Facts{}, fmt.Errorf("probe: %w", ctx.Err())
	}
}

func (p *Prober) enter(join bool) (*look, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, berth.Errorf(berth.CodeDaemonStopping, "this prober is closed")
	}
	if p.now != nil && join {
		p.now.waiting++
		return p.now, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &look{done: make(chan struct{}), waiting: 1, cancel: cancel}
	p.now, p.looks[l] = l, true
	p.running.Go(func() {
		facts, err := Probe(ctx, p.cfg)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.looks, l)
		if p.now == l {
			p.now = nil
		}
		cancel()
		l.facts, l.err = facts, err
		close(l.done)
	})
	return l, nil
}

// leave ends a probe for which nobody waits any more. It cannot be joined from
// then on: a later caller must not get its broken end.
func (p *Prober) leave(l *look) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.waiting--; l.waiting > 0 {
		return
	}
	l.cancel()
	if p.now == l {
		p.now = nil
	}
}

// Close refuses further callers, breaks running probes off and waits until none
// is left.
func (p *Prober) Close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.looks {
		l.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
}
