package environment

import (
	"context"
	"sync"

	"berth"
)

// watch waits until the machine shows that a wait is over. It outlasts a host
// that does not answer: that is what a restart looks like.
func (h *provisioner) watch(ctx context.Context, k effectKind, s opState) (opEvent, error) {
	for {
		facts, err := h.look(ctx, true)
		if err == nil && over(k, s, facts) {
			return opEvent{Kind: evWaitOver}, nil
		}
		if err := h.pause(ctx); err != nil {
			return opEvent{}, err
		}
	}
}

// over decides whether what an operation waits for has happened.
func over(k effectKind, s opState, f berth.Facts) bool {
	if k == effWatchReboot {
		return f.BootID != "" && f.BootID != s.BootID
	}
	// A look that learnt nothing says nothing: what is over is seen to be so.
	u := f.User
	left := !u.GroupConfigured && !factUnknown(&f, FactUser) && !factUnknown(&f, FactGroupConfigured)
	return u.GroupEffective || f.Docker.Reachable || left
}

// nudges wake the waits of a host before their time.
type nudges struct {
	wake sync.Mutex
	ch   chan struct{} // closed by a nudge; nil = nobody waits
}

func (n *nudges) nudged() <-chan struct{} {
	n.wake.Lock()
	defer n.wake.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *nudges) nudge() {
	n.wake.Lock()
	defer n.wake.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}
