package container

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"berth"
	"berth/durable"
)

// Purpose is what a container of ours is for.
type Purpose string

// The purposes.
const (
	PurposeEngine Purpose = "engine"
	PurposeCheck  Purpose = "check" // made, read and removed by RunOnce
)

// Valid reports whether the purpose is one of the above.
func (p Purpose) Valid() bool { return p == PurposeEngine || p == PurposeCheck }

// Entry is one container of ours, as the journal remembers it. It is written
// before Docker is asked to make the container, so that no crash in between makes
// one that nobody knows.
type Entry struct {
	// Token is drawn for this container and is its LabelToken: what has it was
	// made for this entry.
	Token    string      `json:"token"`
	ID       string      `json:"id,omitempty"` // Docker's, 64 hex digits; "" = not known to be made
	Host     string      `json:"host"`
	Name     string      `json:"name,omitempty"`
	Purpose  Purpose     `json:"purpose"`
	Engine   string      `json:"engine,omitempty"`
	Instance string      `json:"instance,omitempty"`
	Image    berth.Image `json:"image"`
	GPU      string      `json:"gpu,omitempty"` // UUID; "" = none
	// Owner and Created are stamped by the journal.
	Owner   berth.Identity `json:"-"`
	Created time.Time      `json:"-"`
}

// Journal remembers which containers are ours. Only those are ever stopped.
type Journal interface {
	// Write remembers a container that is about to be made, durably, before it
	// returns. The caller's process is its owner.
	Write(ctx context.Context, e Entry) error
	// Made adds Docker's id to what was written.
	Made(ctx context.Context, token, id string) error
	// Entries lists all.
	Entries(ctx context.Context) ([]Entry, error)
	// Claim makes the caller's process the owner of an entry as it was read. Of
	// several that try, one wins; the others get CodeFenced or CodeConflict.
	Claim(ctx context.Context, e Entry) error
	// Drop forgets an entry; what is not there is forgotten already.
	Drop(ctx context.Context, token string) error
}

// Records is the part of a durable.Store that a StoreJournal needs.
type Records interface {
	Begin(ctx context.Context, b durable.Begin) (durable.Record, bool, error)
	Change(ctx context.Context, c durable.Change) (durable.Record, error)
	Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...durable.EventDraft) error
	TakeOver(ctx context.Context, kind, id string, revision, epoch int64) (durable.Record, error)
	Get(ctx context.Context, kind, id string) (durable.Record, error)
	List(ctx context.Context, q durable.Query) (durable.Page, error)
}

// RecordKind is the kind of a StoreJournal's records; their id is the token.
const RecordKind = "container"

const (
	recordSchema = 2
	// schemaByID is of records that were written once the container was there:
	// their id is the container's, and stands for the token.
	schemaByID = 1
)

// StoreJournal keeps the journal of one host in a durable store, which several
// daemons of a machine may share.
type StoreJournal struct {
	store Records
	host  string
}

// NewStoreJournal makes the journal of a host.
func NewStoreJournal(store Records, host string) (*StoreJournal, error) {
	if store == nil || host == "" {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "container: a journal needs a store and a host")
	}
	return &StoreJournal{store: store, host: host}, nil
}

// Write remembers a container.
func (j *StoreJournal) Write(ctx context.Context, e Entry) error {
	e.Host = j.host
	state, err := json.Marshal(e)
	if err != nil {
		return berth.Errorf(berth.CodeInternal, "journal container %s: %w", e.Token, err)
	}
	_, _, err = j.store.Begin(ctx, durable.Begin{Kind: RecordKind, ID: e.Token, Schema: recordSchema, State: state})
	return err
}

// Made adds Docker's id.
func (j *StoreJournal) Made(ctx context.Context, token, id string) error {
	r, err := j.store.Get(ctx, RecordKind, token)
	if err != nil {
		return err
	}
	e, err := decodeEntry(r)
	if err != nil {
		return err
	}
	e.ID = id
	state, err := json.Marshal(e)
	if err != nil {
		return berth.Errorf(berth.CodeInternal, "journal container %s: %w", id, err)
	}
	_, err = j.store.Change(ctx, durable.Change{Kind: RecordKind, ID: token, Revision: r.Revision, Epoch: r.Epoch, Schema: recordSchema, State: state})
	return err
}

// Entries lists the containers of this host. A record that is not understood is
// CodeRecordUnreadable: what may be ours is not passed over.
func (j *StoreJournal) Entries(ctx context.Context) ([]Entry, error) {
	var entries []Entry
	for q := (durable.Query{Kind: RecordKind, Live: true}); ; {
		page, err := j.store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			e, err := decodeEntry(r)
			if err != nil {
				return nil, err
			}
			if e.Host == j.host {
				entries = append(entries, e)
			}
		}
		if page.Next == "" {
			slices.SortFunc(entries, func(a, b Entry) int { return a.Created.Compare(b.Created) })
			return entries, nil
		}
		q.After = page.Next
	}
}

func decodeEntry(r durable.Record) (Entry, error) {
	bad := func(format string, args ...any) (Entry, error) {
		return Entry{}, berth.Errorf(berth.CodeRecordUnreadable, "container record %s: "+format, append([]any{r.ID}, args...)...)
	}
	if r.Schema != recordSchema && r.Schema != schemaByID {
		return bad("schema %d is not known", r.Schema)
	}
	var e Entry
	if err := json.Unmarshal(r.State, &e); err != nil {
		return bad("%w", err)
	}
	if r.Schema == schemaByID {
		e.Token = e.ID
	}
	if e.Token != r.ID || !e.Purpose.Valid() || e.Host == "" {
		return bad("it contradicts itself")
	}
	e.Owner, e.Created = r.Owner, r.Created
	return e, nil
}

// Claim takes an entry over from an owner that is dead.
func (j *StoreJournal) Claim(ctx context.Context, e Entry) error {
	r, err := j.store.Get(ctx, RecordKind, e.Token)
	if err != nil {
		return err
	}
	if r.Owner != e.Owner || r.Terminal {
		return berth.Errorf(berth.CodeConflict, "container %s was claimed by another", orElse(e.ID, e.Token))
	}
	_, err = j.store.TakeOver(ctx, RecordKind, r.ID, r.Revision, r.Epoch)
	return err
}

// Drop forgets a container.
func (j *StoreJournal) Drop(ctx context.Context, token string) error {
	r, err := j.store.Get(ctx, RecordKind, token)
	if errors.Is(err, berth.CodeNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !r.Terminal {
		if r, err = j.store.Change(ctx, durable.Change{Kind: RecordKind, ID: token, Revision: r.Revision, Epoch: r.Epoch,
			Schema: r.Schema, State: r.State, Terminal: true}); err != nil {
			return err
		}
	}
	// A terminal record is no entry any more, whether or not this succeeds.
	err = j.store.Remove(ctx, RecordKind, token, r.Revision, r.Epoch)
	if errors.Is(err, berth.CodeNotFound) {
		return nil
	}
	return err
}
