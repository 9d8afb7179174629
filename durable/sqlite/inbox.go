package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"berth"
	"berth/durable"
)

const selectMessages = `SELECT i.seq, r.kind, r.id, i.event, i.expected, i.sender, i.posted, i.outcome
	FROM inbox i JOIN records r ON r.num = i.record`

func scanMessage(row scanner) (durable.Message, error) {
	var m durable.Message
	var sender, outcome string
	var posted int64
	if err := row.Scan(&m.Seq, &m.Kind, &m.ID, &m.Event, &m.Expected, &sender, &posted, &outcome); err != nil {
		return durable.Message{}, err
	}
	m.Posted = instant(posted)
	if err := errors.Join(unpack(sender, &m.Sender), unpack(outcome, &m.Outcome)); err != nil {
		return durable.Message{}, berth.Errorf(berth.CodeRecordUnreadable, "the message %d: %w", m.Seq, err)
	}
	return m, nil
}

// Post puts an event into an inbox, see durable.Store.
func (s *Store) Post(ctx context.Context, p durable.Post) (seq int64, err error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	err = s.update(ctx, "post to "+p.Kind+" "+p.ID, func(t *txn) error {
		if _, err := t.load(p.Kind, p.ID); err != nil {
			return err
		}
		var waiting int
		if err := t.do.countWaiting.QueryRowContext(t.ctx, p.Kind, p.ID).Scan(&waiting); err != nil {
			return err
		}
		if waiting >= durable.MaxWaiting {
			return durable.InboxFull(p.Kind, p.ID)
		}
		t.wakes = true
		return t.do.post.QueryRowContext(t.ctx, p.Kind, p.ID, p.Event, p.Expected, t.owner, t.now.Wall.UnixNano()).Scan(&seq)
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// Inbox lists what waits for this process, see durable.Store.
func (s *Store) Inbox(ctx context.Context, kind string) (messages []durable.Message, err error) {
	err = s.view(ctx, "read the inbox", func(ctx context.Context) error {
		rows, err := s.ask.inbox.QueryContext(ctx, kind, s.owner, durable.MaxPage)
		messages, err = scanAll(rows, err, scanMessage)
		return err
	})
	return messages, err
}

// Message shows one message, see durable.Store.
func (s *Store) Message(ctx context.Context, seq int64) (m durable.Message, err error) {
	err = s.view(ctx, "read the inbox", func(ctx context.Context) error {
		m, err = scanMessage(s.ask.message.QueryRowContext(ctx, seq))
		if errors.Is(err, sql.ErrNoRows) {
			return durable.NoMessage(seq)
		}
		return err
	})
	return m, err
}

// Settle gives a message its outcome, see durable.Store.
func (s *Store) Settle(ctx context.Context, seq int64, o durable.Outcome) error {
	return s.update(ctx, "settle a message", func(t *txn) error { return t.settle(seq, nil, o) })
}

// settle needs the message to be one of r, where r is not nil.
func (t *txn) settle(seq int64, r *durable.Record, o durable.Outcome) error {
	m, err := scanMessage(t.do.message.QueryRowContext(t.ctx, seq))
	if errors.Is(err, sql.ErrNoRows) || err == nil && r != nil && (m.Kind != r.Kind || m.ID != r.ID) {
		return durable.NoMessage(seq)
	}
	if err != nil {
		return err
	}
	if m.Outcome != nil {
		return durable.SettledBefore(seq)
	}
	o.Settled = t.now.Wall
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	t.wakes = true
	return t.one(t.do.settle, string(text), seq)
}
