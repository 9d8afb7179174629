package sqlite

import (
	"context"
	"encoding/json"

	"berth"
	"berth/durable"
)

// aside is what an archived record had beside its row.
type aside struct {
	Effects []durable.Effect `json:"effects,omitempty"`
	Owned   []string         `json:"owned,omitempty"`
}

type placed struct {
	num int64
	rec durable.Record
}

func scanPlaced(row scanner) (p placed, err error) {
	p.rec, err = scanRecord(row, &p.num)
	return p, err
}

// Archive puts terminal records away, see durable.Store.
func (s *Store) Archive(ctx context.Context, a durable.ArchiveRequest) (made durable.Archive, err error) {
	if err := a.Validate(); err != nil {
		return durable.Archive{}, err
	}
	err = s.update(ctx, "archive "+a.Kind, func(t *txn) error {
		made, err = t.archive(a)
		return err
	})
	if err != nil {
		return durable.Archive{}, err
	}
	return made, nil
}

func (t *txn) archive(a durable.ArchiveRequest) (made durable.Archive, err error) {
	// The live ones first, of which there are few: a refusal is then quick.
	for _, terminal := range []bool{false, true} {
		rows, err := t.do.ofKind.QueryContext(t.ctx, a.Kind, terminal)
		all, err := scanAll(rows, err, scanPlaced)
		if err != nil {
			return made, err
		}
		for _, p := range all {
			if !a.Selects(p.rec) {
				continue
			}
			if err := p.rec.Archivable(); err != nil {
				return made, err
			}
			if made.Stamp == "" {
				var last string
				if err := t.do.lastStamp.QueryRowContext(t.ctx, a.Kind).Scan(&last); err != nil {
					return made, err
				}
				made.Stamp = durable.Stamp(t.now.Wall, last)
			}
			if err := t.putAway(made.Stamp, p); err != nil {
				return made, err
			}
			made.Records++
		}
	}
	if made.Records > 0 {
		_, err = t.publish(a.Events)
	}
	return made, err
}

func (t *txn) putAway(stamp string, p placed) error {
	r := p.rec
	rows, err := t.do.effects.QueryContext(t.ctx, r.Kind, r.ID)
	effects, err := scanAll(rows, err, scanEffect)
	if err != nil {
		return err
	}
	rows, err = t.do.owned.QueryContext(t.ctx, r.Kind, r.ID)
	owned, err := scanAll(rows, err, scanText)
	if err != nil {
		return err
	}
	body, err := json.Marshal(aside{effects, owned})
	if err != nil {
		return err
	}
	if err := t.one(t.do.archive, stamp, string(body), r.Kind, r.ID); err != nil {
		return err
	}
	return t.one(t.do.remove, r.Kind, r.ID, r.Revision, r.Epoch)
}

// Archives lists archives, see durable.Store.
func (s *Store) Archives(ctx context.Context, kind string) (all []durable.Archive, err error) {
	err = s.view(ctx, "list archives", func(ctx context.Context) error {
		rows, err := s.ask.archives.QueryContext(ctx, kind)
		all, err = scanAll(rows, err, func(row scanner) (a durable.Archive, err error) {
			return a, row.Scan(&a.Stamp, &a.Records)
		})
		return err
	})
	return all, err
}

// Archived reads one archive, see durable.Store.
func (s *Store) Archived(ctx context.Context, kind, stamp string) (all []durable.ArchivedRecord, err error) {
	err = s.view(ctx, "read the archive "+stamp, func(ctx context.Context) error {
		rows, err := s.ask.archived.QueryContext(ctx, kind, stamp)
		all, err = scanAll(rows, err, func(row scanner) (durable.ArchivedRecord, error) {
			var body string
			var beside aside
			r, err := scanRecord(row, &body)
			if err != nil {
				return durable.ArchivedRecord{}, err
			}
			if err := unpack(body, &beside); err != nil {
				return durable.ArchivedRecord{}, berth.Errorf(berth.CodeRecordUnreadable, "the archived %s %s: %w", r.Kind, r.ID, err)
			}
			return durable.ArchivedRecord{Record: r, Effects: beside.Effects, Owned: beside.Owned}, nil
		})
		return err
	})
	if err == nil && len(all) == 0 {
		return nil, durable.NotFound("archive of "+kind, stamp)
	}
	return all, err
}
