package durable

import (
	"time"

	"berth"
)

// stampLayout sorts as text in the order of time.
const stampLayout = "20060102T150405.000000000Z"

// ArchiveRequest selects the records of a kind to put away. All that it selects
// must have ended.
type ArchiveRequest struct {
	Kind    string
	BusyKey string   // "" = any
	IDs     []string // nil = any; those of other records, or of none, select nothing
	Events  []EventDraft
}

// Archive names what was put away together.
type Archive struct {
	Stamp   string // UTC, sorts by time; "" = nothing was there to put away
	Records int
}

// ArchivedRecord is a record as it was put away.
type ArchivedRecord struct {
	Record  Record
	Effects []Effect
	Owned   []string
}

// Validate checks what can be checked without the store.
func (a ArchiveRequest) Validate() error {
	if err := validNames(named{"kind", a.Kind}); err != nil {
		return err
	}
	return validDrafts(a.Events, false)
}

// Selects reports whether r is among those asked for.
func (a ArchiveRequest) Selects(r Record) bool {
	if r.Kind != a.Kind || a.BusyKey != "" && r.BusyKey != a.BusyKey {
		return false
	}
	if a.IDs == nil {
		return true
	}
	for _, id := range a.IDs {
		if id == r.ID {
			return true
		}
	}
	return false
}

// Archivable is nil when r may be put away.
func (r Record) Archivable() error {
	if r.Terminal {
		return nil
	}
	return berth.Errorf(berth.CodeOperationLive, "%s %s has not ended", r.Kind, r.ID).WithFact("holder", r.ID)
}

// Stamp names an archive made at now; the last one of that kind was named last,
// and no later one sorts before it, also after the clock was put back.
func Stamp(now time.Time, last string) string {
	s := now.UTC().Format(stampLayout)
	if s > last {
		return s
	}
	if t, err := time.Parse(stampLayout, last); err == nil {
		return t.Add(1).Format(stampLayout)
	}
	return last + "+"
}
