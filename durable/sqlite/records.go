package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"berth"
	"berth/durable"
)

const (
	recordColumns = `kind, id, revision, epoch, schema, state, owner, idempotency_key, fingerprint, busy_key, terminal, created, updated`
	recordFields  = 13
	selectRecord  = `SELECT ` + recordColumns + ` FROM records WHERE kind = ? AND id = ?`

	// maxPageBytes ends a page of large states early: 1,000 states of the
	// largest size would be a gigabyte.
	maxPageBytes = 8 << 20
)

// queries are those of the read pool.
type queries struct {
	record, exists, list, listKind, listLive, lastSeq, events, hold, holds *sql.Stmt

	effects, owned, inbox, message, archives, archived *sql.Stmt

	all prepared
}

func prepareQueries(ctx context.Context, db *sql.DB) (queries, error) {
	var q queries
	const page = ` AND num < ?4 AND (?3 = '' OR busy_key = ?3) ORDER BY num DESC LIMIT ?5`
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{
		{&q.record, selectRecord},
		// One statement for each index, so that none walks what it throws away:
		// ?1 = kind, ?2 = live.
		{&q.list, `SELECT num, ` + recordColumns + ` FROM records WHERE (?1 = '' OR kind = ?1) AND (?2 = 0 OR terminal = 0)` + page},
		{&q.listKind, `SELECT num, ` + recordColumns + ` FROM records INDEXED BY records_kind WHERE kind = ?1 AND ?2 = 0` + page},
		{&q.listLive, `SELECT num, ` + recordColumns + ` FROM records INDEXED BY records_live WHERE kind = ?1 AND ?2 = 1 AND terminal = 0` + page},
		{&q.exists, `SELECT 1 FROM records WHERE kind = ? AND id = ?`},
		{&q.effects, selectEffects + orderEffects},
		{&q.owned, selectOwned},
		{&q.inbox, selectMessages + ` WHERE i.outcome = '' AND r.kind = ? AND r.owner = ? ORDER BY i.seq LIMIT ?`},
		{&q.message, selectMessages + ` WHERE i.seq = ?`},
		{&q.archives, `SELECT stamp, COUNT(*) FROM archived WHERE kind = ? GROUP BY stamp ORDER BY stamp`},
		{&q.archived, `SELECT body, ` + recordColumns + ` FROM archived WHERE kind = ? AND stamp = ? ORDER BY num`},
		{&q.lastSeq, selectLastSeq},
		{&q.events, `SELECT seq, kind, subject, revision, at FROM events WHERE seq > ? ORDER BY seq LIMIT ?`},
		{&q.hold, selectHold},
		{&q.holds, selectHolds},
	} {
		stmt, err := db.PrepareContext(ctx, p.query)
		if err != nil {
			return q, fmt.Errorf("prepare %.40q: %w", p.query, err)
		}
		*p.to = stmt
		q.all = append(q.all, stmt)
	}
	return q, nil
}

// scanner is a row of either kind.
type scanner interface{ Scan(dest ...any) error }

// scanRecord reads recordColumns, and before them what goes into first.
func scanRecord(row scanner, first ...any) (durable.Record, error) {
	var r durable.Record
	var owner []byte
	var created, updated int64
	err := row.Scan(append(first, &r.Kind, &r.ID, &r.Revision, &r.Epoch, &r.Schema, &r.State, &owner,
		&r.IdempotencyKey, &r.Fingerprint, &r.BusyKey, &r.Terminal, &created, &updated)...)
	if err != nil {
		return durable.Record{}, err
	}
	if err := json.Unmarshal(owner, &r.Owner); err != nil {
		return durable.Record{}, berth.Errorf(berth.CodeRecordUnreadable, "the owner of %s %s: %w", r.Kind, r.ID, err)
	}
	r.Created, r.Updated = instant(created), instant(updated)
	return r, nil
}

func instant(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// load reads a record inside a transaction.
func (t *txn) load(kind, id string) (durable.Record, error) {
	r, err := scanRecord(t.do.record.QueryRowContext(t.ctx, kind, id))
	if errors.Is(err, sql.ErrNoRows) {
		return r, durable.NotFound(kind, id)
	}
	return r, err
}

// busy refuses a busy key that another live record holds.
func (t *txn) busy(r durable.Record) error {
	if !r.HoldsBusy() {
		return nil
	}
	var kind, id string
	err := t.do.byBusy.QueryRowContext(t.ctx, r.BusyKey).Scan(&kind, &id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && kind == r.Kind && id == r.ID {
		return nil
	}
	if err != nil {
		return err
	}
	return durable.Busy(r.BusyKey, kind, id)
}

// Begin makes a record, see durable.Store.
func (s *Store) Begin(ctx context.Context, b durable.Begin) (rec durable.Record, created bool, err error) {
	if err := b.Validate(); err != nil {
		return durable.Record{}, false, err
	}
	err = s.update(ctx, "begin "+b.Kind+" "+b.ID, func(t *txn) error {
		rec, created, err = t.begin(b, s.cfg.Owner)
		return err
	})
	if err != nil {
		return durable.Record{}, false, err
	}
	return rec, created, nil
}

func (t *txn) begin(b durable.Begin, owner berth.Identity) (durable.Record, bool, error) {
	old, err := scanRecord(t.do.byKey.QueryRowContext(t.ctx, b.Kind, b.IdempotencyKey))
	if err == nil {
		return old, false, b.Repeats(old)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return old, false, err
	}
	if _, err := t.load(b.Kind, b.ID); err == nil {
		return old, false, durable.Exists(b.Kind, b.ID)
	} else if !errors.Is(err, berth.CodeNotFound) {
		return old, false, err
	}
	r := b.Record(owner, t.now.Wall)
	r.State = append([]byte(nil), b.State...)
	if err := t.busy(r); err != nil {
		return old, false, err
	}
	err = t.one(t.do.insert, r.Kind, r.ID, r.Revision, r.Epoch, r.Schema, r.State, t.owner,
		r.IdempotencyKey, r.Fingerprint, r.BusyKey, r.Terminal, r.Created.UnixNano(), r.Updated.UnixNano())
	if err != nil {
		return old, false, err
	}
	if err := t.plan(r, durable.Planned(b.Effects, r.Revision)); err != nil {
		return old, false, err
	}
	_, err = t.publish(durable.EventsOf(r, b.Events))
	return r, true, err
}

// Change replaces the state of a record, see durable.Store.
func (s *Store) Change(ctx context.Context, c durable.Change) (rec durable.Record, err error) {
	if err := c.Validate(); err != nil {
		return durable.Record{}, err
	}
	err = s.update(ctx, "change "+c.Kind+" "+c.ID, func(t *txn) error {
		rec, err = t.change(c, s.cfg.Owner)
		return err
	})
	if err != nil {
		return durable.Record{}, err
	}
	return rec, nil
}

func (t *txn) change(c durable.Change, owner berth.Identity) (durable.Record, error) {
	cur, err := t.load(c.Kind, c.ID)
	if err != nil {
		return cur, err
	}
	next, err := c.Apply(cur, owner, t.now.Wall)
	if err != nil {
		return cur, err
	}
	next.State = append([]byte(nil), c.State...)
	if err := t.busy(next); err != nil {
		return cur, err
	}
	err = t.one(t.do.change, next.Revision, next.Epoch, next.Schema, next.State, t.owner, next.BusyKey, next.Terminal, next.Updated.UnixNano(),
		cur.Kind, cur.ID, cur.Revision, cur.Epoch, cur.Terminal)
	if err != nil {
		return cur, err
	}
	if err := t.ledger(c.Ledger, next); err != nil {
		return cur, err
	}
	if c.Message != 0 {
		if err := t.settle(c.Message, &next, durable.Outcome{Revision: next.Revision}); err != nil {
			return cur, err
		}
	}
	_, err = t.publish(durable.EventsOf(next, c.Events))
	return next, err
}

// Remove forgets a terminal record, see durable.Store.
func (s *Store) Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...durable.EventDraft) error {
	if err := durable.ValidateRemoval(kind, id, events); err != nil {
		return err
	}
	return s.update(ctx, "remove "+kind+" "+id, func(t *txn) error {
		cur, err := t.load(kind, id)
		if err != nil {
			return err
		}
		if err := cur.Removable(revision, epoch); err != nil {
			return err
		}
		if err := t.one(t.do.remove, kind, id, revision, epoch); err != nil {
			return err
		}
		_, err = t.publish(durable.EventsOf(cur, events))
		return err
	})
}

// TakeOver makes this process the owner, see durable.Store.
func (s *Store) TakeOver(ctx context.Context, kind, id string, revision, epoch int64) (rec durable.Record, err error) {
	if err := durable.ValidateRemoval(kind, id, nil); err != nil {
		return durable.Record{}, err
	}
	err = s.update(ctx, "take over "+kind+" "+id, func(t *txn) error {
		cur, err := t.load(kind, id)
		if err != nil {
			return err
		}
		if rec, err = cur.TakenOver(revision, epoch, s.cfg.Owner, t.now.Wall); err != nil {
			return err
		}
		return t.one(t.do.takeOver, rec.Epoch, t.owner, rec.Updated.UnixNano(), kind, id, revision, epoch)
	})
	if err != nil {
		return durable.Record{}, err
	}
	return rec, nil
}

// Get reads a record, see durable.Store.
func (s *Store) Get(ctx context.Context, kind, id string) (rec durable.Record, err error) {
	err = s.view(ctx, "read "+kind+" "+id, func(ctx context.Context) error {
		rec, err = scanRecord(s.ask.record.QueryRowContext(ctx, kind, id))
		if errors.Is(err, sql.ErrNoRows) {
			return durable.NotFound(kind, id)
		}
		return err
	})
	return rec, err
}

// List reads a page of records, see durable.Store. A page also ends after 8 MiB
// of states.
func (s *Store) List(ctx context.Context, q durable.Query) (page durable.Page, err error) {
	before := int64(1<<63 - 1)
	if q.After != "" {
		if before, err = strconv.ParseInt(q.After, 10, 64); err != nil || before < 0 {
			return page, berth.Errorf(berth.CodeInvalidArgument, "the cursor %q is not one of a list", q.After)
		}
	}
	limit := durable.PageSize(q.Limit)
	stmt := s.ask.list
	switch {
	case q.Kind != "" && q.Live:
		stmt = s.ask.listLive
	case q.Kind != "":
		stmt = s.ask.listKind
	}
	err = s.view(ctx, "list "+q.Kind, func(ctx context.Context) error {
		rows, err := stmt.QueryContext(ctx, q.Kind, q.Live, q.BusyKey, before, limit+1)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err has it
		page, err = readPage(rows, limit)
		return err
	})
	return page, err
}

func readPage(rows *sql.Rows, limit int) (page durable.Page, err error) {
	var num int64 // of the last record in page
	size := 0
	for rows.Next() {
		if len(page.Records) == limit || size > maxPageBytes {
			page.Next = strconv.FormatInt(num, 10)
			return page, nil
		}
		r, err := scanRecord(rows, &num)
		if err != nil {
			return durable.Page{}, err
		}
		size += len(r.State)
		page.Records = append(page.Records, r)
	}
	return page, rows.Err()
}

// view runs a read. Its context does not end the query: reads are short, and a
// connection whose query was broken off is thrown away.
func (s *Store) view(ctx context.Context, what string, fn func(context.Context) error) error {
	if err := s.usable(ctx, what); err != nil {
		return err
	}
	return s.classify(what, fn(context.WithoutCancel(ctx)))
}
