package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"berth"
	"berth/durable"
)

const (
	holdColumns = `name, principal, label, epoch, boot_id, until, ended`
	selectHold  = `SELECT ` + holdColumns + ` FROM leases WHERE name = ?`
	selectHolds = `SELECT ` + holdColumns + ` FROM leases INDEXED BY leases_taken WHERE principal <> '' ORDER BY name`
)

func scanHold(row scanner) (durable.Hold, error) {
	var h durable.Hold
	var until, ended int64
	if err := row.Scan(&h.Name, &h.Principal, &h.Label, &h.Epoch, &h.BootID, &until, &ended); err != nil {
		return durable.Hold{}, err
	}
	h.Until = time.Duration(until)
	if ended != 0 {
		h.Ended = instant(ended)
	}
	return h, nil
}

func scanHolds(rows *sql.Rows, err error) ([]durable.Hold, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has it
	var holds []durable.Hold
	for rows.Next() {
		h, err := scanHold(rows)
		if err != nil {
			return nil, err
		}
		holds = append(holds, h)
	}
	return holds, rows.Err()
}

// hold reads a lease inside a transaction; a name that is not known has the
// epoch above which its first one must be.
func (t *txn) hold(name string) (durable.Hold, error) {
	h, err := scanHold(t.do.hold.QueryRowContext(t.ctx, name))
	if !errors.Is(err, sql.ErrNoRows) {
		return h, err
	}
	h = durable.Hold{Name: name}
	return h, t.do.epochFloor.QueryRowContext(t.ctx).Scan(&h.Epoch)
}

func (t *txn) put(h durable.Hold) error {
	var ended int64
	if !h.Ended.IsZero() {
		ended = h.Ended.UnixNano()
	}
	return t.one(t.do.putHold, h.Name, h.Principal, h.Label, h.Epoch, h.BootID, int64(h.Until), ended)
}

// expired publishes the end of a lease that is over.
func (t *txn) expired(h durable.Hold) error {
	_, err := t.publish([]durable.EventDraft{{Kind: berth.EventLeaseExpired, Subject: h.Name}})
	return err
}

// Acquire takes or renews a lease, see durable.Store.
func (s *Store) Acquire(ctx context.Context, r durable.LeaseRequest) (lease berth.Lease, err error) {
	if err := r.Validate(); err != nil {
		return berth.Lease{}, err
	}
	err = s.update(ctx, "acquire the lease "+r.Name, func(t *txn) error {
		old, err := t.hold(r.Name)
		if err != nil {
			return err
		}
		next, err := old.Acquire(r, t.now)
		if err != nil {
			return err
		}
		if old.Taken() && next.Epoch != old.Epoch {
			if err := t.expired(old); err != nil {
				return err
			}
		}
		lease = next.Lease(t.now)
		return t.put(next)
	})
	if err != nil {
		return berth.Lease{}, err
	}
	return lease, nil
}

// Renew extends a lease, see durable.Store.
func (s *Store) Renew(ctx context.Context, name, principal string, epoch int64, ttl time.Duration) (lease berth.Lease, err error) {
	if err := (durable.LeaseRequest{Name: name, Principal: principal, TTL: ttl}).Validate(); err != nil {
		return berth.Lease{}, err
	}
	err = s.update(ctx, "renew the lease "+name, func(t *txn) error {
		old, err := t.hold(name)
		if err != nil {
			return err
		}
		next, err := old.Renew(name, principal, epoch, ttl, t.now)
		if err != nil {
			return err
		}
		lease = next.Lease(t.now)
		return t.put(next)
	})
	if err != nil {
		return berth.Lease{}, err
	}
	return lease, nil
}

// Release ends a lease, see durable.Store.
func (s *Store) Release(ctx context.Context, name, principal string, epoch int64) error {
	return s.update(ctx, "release the lease "+name, func(t *txn) error {
		old, err := t.hold(name)
		if err != nil {
			return err
		}
		if _, err := old.Renew(name, principal, epoch, 0, t.now); err != nil {
			return err
		}
		return t.put(old.End(t.now))
	})
}

// Lease shows a lease, see durable.Store.
func (s *Store) Lease(ctx context.Context, name string) (lease berth.Lease, err error) {
	err = s.view(ctx, "read the lease "+name, func(ctx context.Context) error {
		h, err := scanHold(s.ask.hold.QueryRowContext(ctx, name))
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		now := s.now()
		if !h.Live(now) {
			return durable.NotFound("lease", name)
		}
		lease = h.Lease(now)
		return nil
	})
	return lease, err
}

// Leases shows the leases that are held, see durable.Store.
func (s *Store) Leases(ctx context.Context) (leases []berth.Lease, err error) {
	err = s.view(ctx, "list leases", func(ctx context.Context) error {
		holds, err := scanHolds(s.ask.holds.QueryContext(ctx))
		now := s.now()
		for _, h := range holds {
			if h.Live(now) {
				leases = append(leases, h.Lease(now))
			}
		}
		return err
	})
	return leases, err
}

// Expire ends leases that are over, see durable.Store.
func (s *Store) Expire(ctx context.Context) (over []berth.Lease, err error) {
	// It is asked often and has seldom anything to do: look without the
	// writer's turn first.
	due := false
	err = s.view(ctx, "list leases", func(ctx context.Context) error {
		holds, err := scanHolds(s.ask.holds.QueryContext(ctx))
		now := s.now()
		for _, h := range holds {
			due = due || !h.Live(now)
		}
		return err
	})
	if err != nil || !due {
		return nil, err
	}
	err = s.update(ctx, "expire leases", func(t *txn) error {
		over = nil
		holds, err := scanHolds(t.do.over.QueryContext(t.ctx))
		if err != nil {
			return err
		}
		for _, h := range holds {
			if h.Live(t.now) {
				continue
			}
			if err := errors.Join(t.expired(h), t.put(h.End(t.now))); err != nil {
				return err
			}
			over = append(over, h.Lease(t.now))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return over, nil
}

// Guarded is Change under a lease, see durable.Store. The lease is looked at in
// the transaction of the change: between the look and the write nobody can take
// it over, and time passes only for the length of one commit.
func (s *Store) Guarded(ctx context.Context, lease string, epoch int64, c durable.Change) (rec durable.Record, err error) {
	if err := c.Validate(); err != nil {
		return durable.Record{}, err
	}
	err = s.update(ctx, "change "+c.Kind+" "+c.ID, func(t *txn) error {
		h, err := t.hold(lease)
		if err != nil {
			return err
		}
		if !h.HeldWith(epoch, t.now) {
			return durable.Fenced(lease, epoch, h)
		}
		rec, err = t.change(c, s.cfg.Owner)
		return err
	})
	if err != nil {
		return durable.Record{}, err
	}
	return rec, nil
}
