package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"berth/durable"
)

// statements are those of the writer's connection, prepared once: preparing
// costs as much as running them.
type statements struct {
	begin, commit, rollback, version *sql.Stmt

	record, byKey, byBusy, insert, change, takeOver, remove *sql.Stmt

	effect, effects, pending, planEffect, putEffect, pruneEffects, own, owned, countOwned *sql.Stmt

	post, message, settle, countWaiting, pruneInbox, ofKind, lastStamp, archive *sql.Stmt

	nextSeq, lastSeq, addEvent, pruneEvents, pruneBound *sql.Stmt

	hold, putHold, over, epochFloor, raiseFloor, forgetNames *sql.Stmt

	all prepared
}

// prepared are statements to be closed before their connection: one that is
// left keeps the connection open inside SQLite, and the log is not folded in.
type prepared []*sql.Stmt

func (p prepared) close() error {
	var errs []error
	for _, stmt := range p {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(errs...)
}

func prepareStatements(ctx context.Context, conn *sql.Conn) (statements, error) {
	var d statements
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{
		// IMMEDIATE takes the write lock at once: a transaction that read first
		// and then wants to write cannot wait for a lock, it fails.
		{&d.begin, `BEGIN IMMEDIATE`},
		{&d.commit, `COMMIT`},
		{&d.rollback, `ROLLBACK`},
		{&d.version, `PRAGMA user_version`},
		{&d.record, selectRecord},
		{&d.byKey, `SELECT ` + recordColumns + ` FROM records WHERE kind = ? AND idempotency_key = ? AND idempotency_key <> ''`},
		{&d.byBusy, `SELECT kind, id FROM records WHERE busy_key = ? AND busy_key <> '' AND terminal = 0`},
		{&d.insert, `INSERT INTO records (` + recordColumns + `) VALUES (` + strings.Repeat("?, ", recordFields-1) + `?)`},
		{&d.change, `UPDATE records SET revision = ?, epoch = ?, schema = ?, state = ?, owner = ?, busy_key = ?, terminal = ?, updated = ?
			WHERE kind = ? AND id = ? AND revision = ? AND epoch = ? AND terminal = ?`},
		{&d.takeOver, `UPDATE records SET epoch = ?, owner = ?, updated = ?
			WHERE kind = ? AND id = ? AND revision = ? AND epoch = ? AND terminal = 0`},
		{&d.remove, `DELETE FROM records WHERE kind = ? AND id = ? AND revision = ? AND epoch = ? AND terminal = 1`},
		{&d.effects, selectEffects + orderEffects},
		{&d.effect, selectEffects + ` AND revision = ? AND n = ?`},
		{&d.pending, selectEffects + ` AND status IN ('planned', 'started', 'unknown')` + orderEffects},
		{&d.planEffect, `INSERT INTO effects (record, ` + effectColumns + `) VALUES (` + numOf + `, ?, ?, ?, ?, ?, '', '', '', NULL)`},
		{&d.putEffect, `UPDATE effects SET status = ?, performer = ?, progress = ?, error = ?, result = ? WHERE record = ` + numOf + ` AND revision = ? AND n = ?`},
		{&d.pruneEffects, `DELETE FROM effects WHERE record = ` + numOf + ` AND revision < ? AND status IN ('done', 'failed', 'superseded')`},
		{&d.own, `INSERT INTO owned (record, resource) VALUES (` + numOf + `, ?) ON CONFLICT DO NOTHING`},
		{&d.owned, selectOwned},
		{&d.countOwned, `SELECT COUNT(*) FROM owned WHERE record = ` + numOf},
		{&d.post, `INSERT INTO inbox (record, event, expected, sender, posted, outcome) VALUES (` + numOf + `, ?, ?, ?, ?, '') RETURNING seq`},
		{&d.message, selectMessages + ` WHERE i.seq = ?`},
		{&d.settle, `UPDATE inbox SET outcome = ? WHERE seq = ? AND outcome = ''`},
		{&d.countWaiting, `SELECT COUNT(*) FROM inbox WHERE record = ` + numOf + ` AND outcome = ''`},
		{&d.pruneInbox, `DELETE FROM inbox WHERE posted < ?`},
		{&d.ofKind, `SELECT num, ` + recordColumns + ` FROM records WHERE kind = ? AND terminal = ? ORDER BY num`},
		{&d.lastStamp, `SELECT COALESCE(MAX(stamp), '') FROM archived WHERE kind = ?`},
		{&d.archive, `INSERT INTO archived (stamp, body, num, ` + recordColumns + `) SELECT ?, ?, num, ` + recordColumns + ` FROM records WHERE kind = ? AND id = ?`},
		{&d.nextSeq, `UPDATE counters SET value = value + ? WHERE name = 'event_seq' RETURNING value`},
		{&d.lastSeq, selectLastSeq},
		{&d.addEvent, `INSERT INTO events (seq, kind, subject, revision, at) VALUES (?, ?, ?, ?, ?)`},
		// The first event that is young enough; all before it may go.
		{&d.pruneBound, `SELECT COALESCE((SELECT seq FROM events WHERE at >= ? ORDER BY seq LIMIT 1), (SELECT value + 1 FROM counters WHERE name = 'event_seq'))`},
		{&d.pruneEvents, `DELETE FROM events WHERE seq < ? AND seq < (SELECT MIN(seq) FROM events) + ?`},
		{&d.hold, selectHold},
		{&d.putHold, `INSERT INTO leases (` + holdColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET principal = excluded.principal, label = excluded.label, epoch = excluded.epoch,
			boot_id = excluded.boot_id, until = excluded.until, ended = excluded.ended`},
		{&d.over, selectHolds},
		{&d.epochFloor, `SELECT value FROM counters WHERE name = 'lease_epoch'`},
		{&d.raiseFloor, `UPDATE counters SET value = MAX(value, (SELECT COALESCE(MAX(epoch), 0) FROM leases WHERE principal = '' AND ended < ?)) WHERE name = 'lease_epoch'`},
		{&d.forgetNames, `DELETE FROM leases WHERE principal = '' AND ended < ?`},
	} {
		stmt, err := conn.PrepareContext(ctx, p.query)
		if err != nil {
			return d, fmt.Errorf("prepare %.40q: %w", p.query, err)
		}
		*p.to = stmt
		d.all = append(d.all, stmt)
	}
	return d, nil
}

// txn is one transaction of the writer.
type txn struct {
	// ctx has the values of the caller's context but not its end: a statement
	// that is broken off would leave open whether the commit took effect, and
	// the driver throws the connection away after it.
	ctx   context.Context
	now   durable.Moment
	do    statements
	owner string
	// wakes is set when there is something to wake the watchers for.
	wakes bool
}

// update runs fn in one transaction, which is committed exactly if fn gives no
// error. ctx counts until it begins.
func (s *Store) update(ctx context.Context, what string, fn func(*txn) error) error {
	if err := s.usable(ctx, what); err != nil {
		return err
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return stopped(what, ctx.Err())
	}
	defer func() { s.turn <- struct{}{} }()
	if err := s.usable(ctx, what); err != nil { // it may have changed while waiting
		return err
	}
	t := &txn{ctx: context.WithoutCancel(ctx), now: s.now(), do: s.do, owner: s.owner}
	if err := s.transact(t, fn); err != nil {
		return s.classify(what, err)
	}
	if t.wakes {
		s.watch.wake()
	}
	return nil
}

func (s *Store) transact(t *txn, fn func(*txn) error) error {
	if _, err := s.do.begin.ExecContext(t.ctx); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	var err error
	if s.cfg.Shared {
		err = t.stillOurs(s.cfg.Path, s.known)
	}
	if err == nil {
		err = fn(t)
	}
	if err == nil {
		if _, err = s.do.commit.ExecContext(t.ctx); err == nil {
			return nil
		}
		err = fmt.Errorf("commit: %w", err)
	}
	if _, rollErr := s.do.rollback.ExecContext(t.ctx); rollErr != nil && !isFatal(err) {
		// The connection would stay in the transaction. After an error of the
		// disk SQLite may have ended it itself, and the store stops anyway.
		return s.fail("roll back", errors.Join(rollErr, err))
	}
	return err
}

// one runs a statement that changes exactly one row under its guard. The guard
// was looked at before in the same transaction, so another count is a fault.
func (t *txn) one(stmt *sql.Stmt, args ...any) error {
	res, err := stmt.ExecContext(t.ctx, args...)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("a guarded write changed %d rows", n)
	}
	return nil
}
