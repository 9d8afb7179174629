package durable

import (
	"context"
	"sync"
	"time"

	"berth"
)

// performance is an effect that is being performed.
type performance struct {
	effect Effect
	ctx    context.Context
	cancel context.CancelFunc

	signal chan struct{} // one: there is progress to show
	done   chan struct{} // closed by end
	shown  sync.WaitGroup

	mu   sync.Mutex
	last *berth.Progress
	left map[string]bool // stages that are over
}

func newPerformance(ctx context.Context, e Effect) *performance {
	p := &performance{effect: e, signal: make(chan struct{}, 1), done: make(chan struct{}), left: map[string]bool{}}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// report keeps progress and never waits. It never goes back: what is behind the
// last one of the same stage is lifted to it, a stage that is over stays over.
func (p *performance) report(next berth.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left[next.Stage] {
		return
	}
	if p.last != nil && p.last.Stage == next.Stage {
		next.Done = max(next.Done, p.last.Done)
		next.DoneUnpack = max(next.DoneUnpack, p.last.DoneUnpack)
		if next.Total > 0 {
			next.Total = max(next.Total, p.last.Total)
		}
	} else if p.last != nil {
		p.left[p.last.Stage] = true
	}
	p.last = &next
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// progress is a copy of the last one; nil = none.
func (p *performance) progress() *berth.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return nil
	}
	last := *p.last
	return &last
}

// merge puts the live progress into a list of effects.
func (p *performance) merge(pending []Effect) {
	for i := range pending {
		if pending[i].ID == p.effect.ID {
			if live := p.progress(); live != nil {
				pending[i].Progress = live
			}
		}
	}
}

func (p *performance) among(pending []Effect) bool {
	for _, e := range pending {
		if e.ID == p.effect.ID {
			return true
		}
	}
	return false
}

// publish shows the first report at once and later ones at most every
// ProgressEvery, the newest in the end, until the effect has ended.
func (p *performance) publish(show func()) {
	p.shown.Go(func() {
		pause := time.NewTimer(0)
		defer pause.Stop()
		for {
			select {
			case <-pause.C:
			case <-p.done:
				return
			}
			select {
			case <-p.signal:
			case <-p.done:
				return
			}
			show()
			pause.Reset(ProgressEvery)
		}
	})
}

// end is called when the effect has returned.
func (p *performance) end() {
	close(p.done)
	p.shown.Wait()
	p.cancel()
}
