package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"berth"
	"berth/durable"
)

const (
	numOf         = `(SELECT num FROM records WHERE kind = ? AND id = ?)`
	effectColumns = `revision, n, kind, data, status, performer, progress, error, result`
	selectEffects = `SELECT ` + effectColumns + ` FROM effects WHERE record = ` + numOf
	orderEffects  = ` ORDER BY revision, n`
	selectOwned   = `SELECT resource FROM owned WHERE record = ` + numOf + ` ORDER BY num`
)

func scanEffect(row scanner) (durable.Effect, error) {
	var e durable.Effect
	var n int
	var data, result []byte
	var performer, progress string
	if err := row.Scan(&e.Revision, &n, &e.Kind, &data, &e.Status, &performer, &progress, &e.Error, &result); err != nil {
		return durable.Effect{}, err
	}
	e.ID, e.Data, e.Result = durable.EffectID(e.Revision, n), data, result
	if err := errors.Join(unpack(performer, &e.Performer), unpack(progress, &e.Progress)); err != nil {
		return durable.Effect{}, berth.Errorf(berth.CodeRecordUnreadable, "the effect %s of a record: %w", e.ID, err)
	}
	return e, nil
}

// unpack reads JSON; "" leaves to as it is.
func unpack(text string, to any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), to)
}

// pack writes JSON of what there is; absent = "".
func pack(v any, there bool) (string, error) {
	if !there {
		return "", nil
	}
	text, err := json.Marshal(v)
	return string(text), err
}

func scanAll[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) (all []T, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has it
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

func scanText(row scanner) (text string, err error) { return text, row.Scan(&text) }

func (t *txn) pending(r durable.Record) ([]durable.Effect, error) {
	rows, err := t.do.pending.QueryContext(t.ctx, r.Kind, r.ID)
	return scanAll(rows, err, scanEffect)
}

// plan adds effects to the ledger of r, and forgets those that ended long ago.
func (t *txn) plan(r durable.Record, effects []durable.Effect) error {
	for _, e := range effects {
		revision, n, err := durable.ParseEffectID(e.ID)
		if err != nil {
			return err
		}
		if err := t.one(t.do.planEffect, r.Kind, r.ID, revision, n, e.Kind, []byte(e.Data), string(e.Status)); err != nil {
			return err
		}
	}
	if len(effects) == 0 || r.Revision <= durable.EffectsKept {
		return nil
	}
	_, err := t.do.pruneEffects.ExecContext(t.ctx, r.Kind, r.ID, r.Revision-durable.EffectsKept)
	return err
}

// put writes what became of an effect.
func (t *txn) putEffect(r durable.Record, e durable.Effect) error {
	revision, n, err := durable.ParseEffectID(e.ID)
	if err != nil {
		return err
	}
	performer, err1 := pack(e.Performer, e.Performer != berth.Identity{})
	progress, err2 := pack(e.Progress, e.Progress != nil)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return t.one(t.do.putEffect, string(e.Status), performer, progress, e.Error, []byte(e.Result), r.Kind, r.ID, revision, n)
}

// ledger does what a change says of the effects.
func (t *txn) ledger(l *durable.LedgerChange, next durable.Record) error {
	if l == nil {
		return nil
	}
	pending, err := t.pending(next)
	if err != nil {
		return err
	}
	changed, planned, err := l.Apply(pending, next)
	if err != nil {
		return err
	}
	for _, e := range changed {
		if err := t.putEffect(next, e); err != nil {
			return err
		}
	}
	return t.plan(next, planned)
}

// Effects reads a ledger, see durable.Store.
func (s *Store) Effects(ctx context.Context, kind, id string) (effects []durable.Effect, err error) {
	err = s.viewOf(ctx, kind, id, func(ctx context.Context) error {
		rows, err := s.ask.effects.QueryContext(ctx, kind, id)
		effects, err = scanAll(rows, err, scanEffect)
		return err
	})
	return effects, err
}

// viewOf is a read of what belongs to a record: nothing there may mean that the
// record is not.
func (s *Store) viewOf(ctx context.Context, kind, id string, fn func(context.Context) error) error {
	return s.view(ctx, "read "+kind+" "+id, func(ctx context.Context) error {
		var one int
		err := s.ask.exists.QueryRowContext(ctx, kind, id).Scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			return durable.NotFound(kind, id)
		}
		if err != nil {
			return err
		}
		return fn(ctx)
	})
}

// MarkEffect moves an effect, see durable.Store.
func (s *Store) MarkEffect(ctx context.Context, kind, id string, epoch int64, m durable.EffectMark) (e durable.Effect, err error) {
	if err := m.Validate(); err != nil {
		return durable.Effect{}, err
	}
	err = s.update(ctx, "mark an effect of "+kind+" "+id, func(t *txn) error {
		r, err := t.performs(kind, id, epoch, s.cfg.Owner)
		if err != nil {
			return err
		}
		revision, n, err := durable.ParseEffectID(m.ID)
		if err != nil {
			return err
		}
		old, err := scanEffect(t.do.effect.QueryRowContext(t.ctx, kind, id, revision, n))
		if errors.Is(err, sql.ErrNoRows) {
			return durable.NotPending(kind, id, m.ID)
		}
		if err != nil {
			return err
		}
		if e, err = old.Marked(m, s.cfg.Owner); err != nil {
			return err
		}
		return t.putEffect(r, e)
	})
	if err != nil {
		return durable.Effect{}, err
	}
	return e, nil
}

// performs loads a record for a write that belongs to its owner.
func (t *txn) performs(kind, id string, epoch int64, owner berth.Identity) (durable.Record, error) {
	r, err := t.load(kind, id)
	if err != nil {
		return r, err
	}
	return r, r.Performs(epoch, owner)
}

// Own adds resource ids, see durable.Store.
func (s *Store) Own(ctx context.Context, kind, id string, epoch int64, resources ...string) error {
	if err := durable.ValidateOwn(kind, id, resources); err != nil {
		return err
	}
	return s.update(ctx, "own for "+kind+" "+id, func(t *txn) error {
		if _, err := t.performs(kind, id, epoch, s.cfg.Owner); err != nil {
			return err
		}
		for _, resource := range resources {
			if _, err := t.do.own.ExecContext(t.ctx, kind, id, resource); err != nil {
				return err
			}
		}
		var n int
		if err := t.do.countOwned.QueryRowContext(t.ctx, kind, id).Scan(&n); err != nil {
			return err
		}
		if n > durable.MaxOwned {
			return durable.OwnsTooMuch(kind, id)
		}
		return nil
	})
}

// Owned lists resource ids, see durable.Store.
func (s *Store) Owned(ctx context.Context, kind, id string) (owned []string, err error) {
	err = s.viewOf(ctx, kind, id, func(ctx context.Context) error {
		rows, err := s.ask.owned.QueryContext(ctx, kind, id)
		owned, err = scanAll(rows, err, scanText)
		return err
	})
	return owned, err
}
