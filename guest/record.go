package guest

import (
	"encoding/json"
	"path/filepath"
	"time"

	"berth"
	"berth/guestapi"
)

// record is session.json: what was asked for. It has no value of a variable.
// It is written once before the holder is started, and again when a viewer
// changed the size policy or the last viewer left.
type record struct {
	Schema     int              `json:"schema"`
	ID         string           `json:"id"`
	Name       string           `json:"name"`
	Argv       []string         `json:"argv"`
	Cwd        string           `json:"cwd"`
	EnvNames   []string         `json:"env_names"`
	Withheld   []string         `json:"withheld"`
	Size       berth.Size       `json:"size"` // asked for at the start
	SizePolicy berth.SizePolicy `json:"size_policy"`
	LogBytes   int64            `json:"log_bytes"`
	RingBytes  int64            `json:"ring_bytes"`
	Generation int              `json:"generation"`
	BootID     string           `json:"boot_id"` // of the host when it was asked for
	Parent     string           `json:"parent,omitempty"`
	CreatedAt  time.Time        `json:"created_at"`
	AttachedAt time.Time        `json:"attached_at,omitzero"`
}

// recordSchema rises when an older guest would misread the file.
const recordSchema = 1

// maxRecord bounds the file: argv may have 1 MiB, and JSON escapes it up to six-fold.
const maxRecord = 8 << 20

func newRecord(r guestapi.CreateSession, bootID string, now time.Time) record {
	rec := record{
		Schema: recordSchema, ID: r.ID, Name: r.Name, Argv: r.Argv, Cwd: r.Cwd,
		EnvNames: orEmpty(r.EnvNames), Withheld: orEmpty(r.Withheld),
		Size: r.Size, SizePolicy: r.SizePolicy, LogBytes: r.LogBytes, RingBytes: r.RingBytes,
		Generation: 1, BootID: bootID, Parent: r.Parent, CreatedAt: r.CreatedAt.UTC(),
	}
	if rec.Size == (berth.Size{}) {
		rec.Size = berth.DefaultSize
	}
	if rec.SizePolicy == "" {
		rec.SizePolicy = berth.SizeLatest
	}
	if rec.RingBytes == 0 {
		rec.RingBytes = defaultRing
	}
	if r.CreatedAt.IsZero() {
		rec.CreatedAt = now.UTC()
	}
	return rec
}

// defaultRing is the holder's memory ring where the caller said none.
const defaultRing = 256 << 10

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (r record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return berth.Errorf(berth.CodeInternal, "encode the record of session %s: %w", r.ID, err)
	}
	return berth.WriteFile(filepath.Join(dir, berth.FileSpec), append(data, '\n'), 0o600)
}

// readRecord reads session.json of the session id in dir. A missing file
// satisfies errors.Is(err, fs.ErrNotExist); a damaged one is CodeRecordUnreadable.
func readRecord(dir, id string) (record, error) {
	path := filepath.Join(dir, berth.FileSpec)
	data, err := berth.ReadFile(path, maxRecord)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, berth.Errorf(berth.CodeRecordUnreadable, "%s: %w", path, err)
	}
	switch {
	case r.Schema != recordSchema:
		return record{}, berth.Errorf(berth.CodeRecordUnreadable, "%s has schema %d, this guest reads %d", path, r.Schema, recordSchema)
	case r.ID != id:
		return record{}, berth.Errorf(berth.CodeRecordUnreadable, "%s is the record of %q", path, r.ID)
	case len(r.Argv) == 0, r.Generation < 1, !r.Size.Valid(), !r.SizePolicy.Valid():
		return record{}, berth.Errorf(berth.CodeRecordUnreadable, "%s lacks what a session must have, or has a value that is not allowed", path)
	}
	r.EnvNames, r.Withheld = orEmpty(r.EnvNames), orEmpty(r.Withheld)
	return r, nil
}
