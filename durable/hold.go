package durable

import (
	"strconv"
	"time"

	"berth"
)

// Moment is a reading of a store's clocks.
type Moment struct {
	Wall time.Time // for people: created, updated, expires_at
	// BootID and Boot are the boot of the machine and the time since then on
	// CLOCK_BOOTTIME. It counts the time asleep, and no change of the wall
	// clock moves it.
	BootID string
	Boot   time.Duration
}

// Hold is a lease as a store keeps it. A name that was leased once keeps its
// Hold after the end, without a principal: its epoch must never come again.
type Hold struct {
	Name, Principal, Label string
	Epoch                  int64
	BootID                 string        // of the boot in which Until counts
	Until                  time.Duration // Moment.Boot at which it is over
	Ended                  time.Time     // when the name became free; zero while it is taken
}

// Validate checks what can be checked without the store.
func (r LeaseRequest) Validate() error {
	if err := validNames(named{"name of the lease", r.Name}, named{"principal", r.Principal}); err != nil {
		return err
	}
	if err := validKeys(named{"label", r.Label}); err != nil {
		return err
	}
	if r.TTL <= 0 || r.TTL > berth.MaxLeaseTTL {
		return berth.Errorf(berth.CodeInvalidArgument, "a lease lasts from 1ns to %s, not %s", berth.MaxLeaseTTL, r.TTL)
	}
	return nil
}

// Taken reports whether somebody has it, be it over or not.
func (h Hold) Taken() bool { return h.Principal != "" }

// Live reports whether it is held now. A hold of another boot is over: its time
// cannot be counted any more, and with the machine its holder on that machine
// went too; a holder elsewhere acquires again and gets a new epoch. One that
// seems to last longer than any lease may is from a machine whose clock was put
// back under a running boot (a restored snapshot), and is over as well.
func (h Hold) Live(now Moment) bool {
	left := h.Until - now.Boot
	return h.Taken() && h.BootID == now.BootID && left > 0 && left <= berth.MaxLeaseTTL
}

// HeldWith reports whether it is held now by that epoch.
func (h Hold) HeldWith(epoch int64, now Moment) bool { return h.Live(now) && h.Epoch == epoch }

// Lease is what others see of it.
func (h Hold) Lease(now Moment) berth.Lease {
	expires := now.Wall
	if h.BootID == now.BootID {
		expires = now.Wall.Add(h.Until - now.Boot)
	}
	return berth.Lease{Name: h.Name, Principal: h.Principal, Label: h.Label, Epoch: h.Epoch, ExpiresAt: expires}
}

// Acquire gives the hold that r makes of h, or CodeHeld. A name without a hold
// passes Hold{Epoch: the highest epoch that the store ever forgot}.
func (h Hold) Acquire(r LeaseRequest, now Moment) (Hold, error) {
	if !h.Live(now) {
		return Hold{Name: r.Name, Principal: r.Principal, Label: r.Label, Epoch: h.Epoch + 1, BootID: now.BootID, Until: now.Boot + r.TTL}, nil
	}
	if h.Principal != r.Principal {
		l := h.Lease(now)
		return Hold{}, berth.Errorf(berth.CodeHeld, "%s holds the lease %s until %s", l.Principal, l.Name, l.ExpiresAt.Format(time.RFC3339)).
			WithFact("principal", l.Principal).WithFact("expires_at", l.ExpiresAt.Format(time.RFC3339Nano))
	}
	h.Label = r.Label
	h.Until = max(h.Until, now.Boot+r.TTL)
	return h, nil
}

// Renew gives the hold with its new end, or CodeFenced.
func (h Hold) Renew(name, principal string, epoch int64, ttl time.Duration, now Moment) (Hold, error) {
	if !h.HeldWith(epoch, now) || h.Principal != principal {
		return Hold{}, Fenced(name, epoch, h)
	}
	h.Until = max(h.Until, now.Boot+ttl)
	return h, nil
}

// End is the hold after its end, by whatever cause: the epoch alone is kept.
func (h Hold) End(now Moment) Hold { return Hold{Name: h.Name, Epoch: h.Epoch, Ended: now.Wall} }

// Fenced is the refusal of a write under a lease that is not held with epoch.
func Fenced(name string, epoch int64, now Hold) error {
	return berth.Errorf(berth.CodeFenced, "the lease %s is not held with epoch %d", name, epoch).
		WithFact("lease", name).WithFact("current_epoch", strconv.FormatInt(now.Epoch, 10))
}
