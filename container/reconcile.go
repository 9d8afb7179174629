package container

import (
	"context"
	"errors"
	"strconv"
	"time"

	"berth"
	"berth/process"
)

// Outcome is what became of a journalled container when it was reconciled.
type Outcome string

// The outcomes.
const (
	OutcomeOwned   Outcome = "owned"   // its owner lives, or may live: not touched
	OutcomeAdopted Outcome = "adopted" // its owner is dead, and it is ours now, running
	OutcomeAbsent  Outcome = "absent"  // there is no such container: forgotten
	OutcomeRemoved Outcome = "removed" // stopped, confirmed and removed
	OutcomeKept    Outcome = "kept"    // nobody could confirm that it stopped: it may hold its card
)

// Leftover is one container that the journal knows.
type Leftover struct {
	Entry   Entry
	Outcome Outcome
	Reason  string // of what was kept or is owned; else ""
}

// Bounds of one container's part of a Reconcile.
const (
	reconcileGrace  = 5 * time.Second
	reconcileWithin = 20 * time.Second
)

// Reconcile goes through the journal: what is not there is forgotten; what a
// dead owner left is offered to adopt, else stopped, confirmed and removed. What
// cannot be confirmed is kept and reported. A living owner's containers are not
// touched, but for those of this process that an earlier Reconcile had to keep.
// The order is that of their making. It fails only when the journal cannot be
// read or ctx ends; then it answers what it did.
//
// adopt is asked for a running engine's container of a dead owner, and answers
// whether it should run on as ours; nil = none should.
func (c *Client) Reconcile(ctx context.Context, adopt func(Entry, State) bool) ([]Leftover, error) {
	if c.cfg.Journal == nil {
		return nil, berth.Errorf(berth.CodeInternal, "container: this client has no journal")
	}
	entries, err := c.cfg.Journal.Entries(ctx)
	if err != nil {
		return nil, err
	}
	var done []Leftover
	for _, e := range entries {
		if ctx.Err() != nil {
			return done, failed(ctx.Err(), "reconcile containers")
		}
		one, cancel := context.WithTimeout(ctx, reconcileWithin)
		l := c.reconcile(one, e, adopt)
		cancel()
		c.setKept(e.Token, l.Outcome == OutcomeKept)
		if l.Outcome != OutcomeOwned {
			c.cfg.Log.Info("container reconciled", "container", l.Entry.ID, "name", e.Name, "outcome", l.Outcome, "reason", l.Reason)
		}
		done = append(done, l)
	}
	return done, nil
}

func (c *Client) reconcile(ctx context.Context, e Entry, adopt func(Entry, State) bool) Leftover {
	l := Leftover{Entry: e}
	kept := func(reason string) Leftover {
		l.Outcome, l.Reason = OutcomeKept, reason
		return l
	}
	mine := e.Owner == c.cfg.Self && c.isKept(e.Token)
	if !mine {
		if v := c.cfg.Look(e.Owner); v != process.Dead {
			l.Outcome, l.Reason = OutcomeOwned, "its owner is "+string(v)
			return l
		}
	}
	e, s, err := c.find(ctx, e)
	if err != nil {
		return kept(err.Error())
	}
	l.Entry = e
	if !mine {
		// From here on it is ours to end, and nobody else's: of two daemons that find
		// it, one wins.
		err := c.cfg.Journal.Claim(ctx, e)
		if errors.Is(err, berth.CodeConflict) || errors.Is(err, berth.CodeFenced) || errors.Is(err, berth.CodeRevisionMismatch) {
			l.Outcome, l.Reason = OutcomeOwned, "another took it: "+err.Error()
			return l
		}
		if err != nil {
			return kept(err.Error())
		}
		l.Entry.Owner = c.cfg.Self
	}
	if s.Present && s.Running && e.Purpose == PurposeEngine && adopt != nil && adopt(e, s) {
		l.Outcome = OutcomeAdopted
		return l
	}
	l.Outcome = OutcomeAbsent
	if s.Present {
		if stopped := c.stop(ctx, e.ID, reconcileGrace); !stopped.Confirmed {
			return kept(stopped.Reason)
		}
		l.Outcome = OutcomeRemoved
	}
	if err := c.remove(ctx, e); err != nil {
		return kept(err.Error())
	}
	return l
}

// find looks for the container of an entry. Where its owner died before it knew
// the id, it is known by its token; there may be none.
func (c *Client) find(ctx context.Context, e Entry) (Entry, State, error) {
	if e.ID == "" {
		var err error
		if e.ID, err = c.withToken(ctx, e.Token); err != nil || e.ID == "" {
			return e, State{}, err
		}
	}
	s, err := c.Inspect(ctx, e.ID)
	return e, s, err
}

// isKept and setKept remember, for this process, what a Reconcile had to leave.
func (c *Client) isKept(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept[token]
}

func (c *Client) setKept(token string, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept {
		c.kept[token] = true
	} else {
		delete(c.kept, token)
	}
}

func portNumber(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n > 0 && n <= 65535
}

func tailOf(lines int) string {
	if lines <= 0 {
		return "all"
	}
	return strconv.Itoa(lines)
}
