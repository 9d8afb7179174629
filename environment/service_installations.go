package environment

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"berth"
	"berth/durable"
)

const installationSchema = 1

// installations are the records of what is set up. The operation on a host that
// holds its busy key is the only one that writes them.
type installations struct{ store durable.Store }

func installationKey(t berth.Target) string { return t.Host + "/" + t.Engine }

func decodeInstalled(rec durable.Record) (berth.Installation, error) {
	var in berth.Installation
	if rec.Schema != installationSchema {
		return in, berth.Errorf(berth.CodeRecordUnreadable, "installation %s has the schema %d, not %d", rec.ID, rec.Schema, installationSchema)
	}
	if err := json.Unmarshal(rec.State, &in); err != nil {
		return in, berth.Errorf(berth.CodeRecordUnreadable, "installation %s: %w", rec.ID, err)
	}
	if !in.Status.Valid() {
		return in, berth.Errorf(berth.CodeRecordUnreadable, "installation %s has the status %.40q", rec.ID, in.Status)
	}
	in.Revision = rec.Revision
	return in, nil
}

// get reads one; nil, nil = there is none. The record comes along even when it
// only is the rest of a removal that broke off.
func (s installations) get(ctx context.Context, t berth.Target) (*berth.Installation, *durable.Record, error) {
	rec, err := s.store.Get(ctx, KindInstallation, installationKey(t))
	switch {
	case err != nil && berth.AsError(err).Code == berth.CodeNotFound:
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	case rec.Terminal:
		return nil, &rec, nil
	}
	in, err := decodeInstalled(rec)
	if err != nil {
		return nil, nil, err
	}
	return &in, &rec, nil
}

// on lists those of a host by engine; "" = of all hosts.
func (s installations) on(ctx context.Context, host string) ([]berth.Installation, error) {
	list := []berth.Installation{}
	q := durable.Query{Kind: KindInstallation, Live: true}
	for {
		page, err := s.store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			in, err := decodeInstalled(rec)
			if err != nil {
				return nil, err
			}
			if host == "" || in.Host == host {
				list = append(list, in)
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	slices.SortFunc(list, func(a, b berth.Installation) int {
		return strings.Compare(a.Host+"/"+a.Engine, b.Host+"/"+b.Engine)
	})
	return list, nil
}

// beside lists the other engines' on the same host.
func (s installations) beside(ctx context.Context, t berth.Target) ([]berth.Installation, error) {
	list, err := s.on(ctx, t.Host)
	return slices.DeleteFunc(list, func(i berth.Installation) bool { return i.Engine == t.Engine }), err
}

// put records an installation where rec was read (nil = nothing was there).
func (s installations) put(ctx context.Context, in berth.Installation, rec *durable.Record) error {
	if rec != nil && rec.Terminal {
		if err := s.forget(ctx, *rec); err != nil {
			return err
		}
		rec = nil
	}
	if rec != nil {
		_, err := s.change(ctx, in, *rec)
		return err
	}
	state, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, _, err = s.store.Begin(ctx, durable.Begin{
		Kind: KindInstallation, ID: installationKey(berth.Target{Host: in.Host, Engine: in.Engine}),
		Schema: installationSchema, State: state, Events: environmentChanged(in.Host),
	})
	return err
}

// change writes one that is there, if it still is as it was read.
func (s installations) change(ctx context.Context, in berth.Installation, rec durable.Record) (*durable.Record, error) {
	state, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	next, err := s.store.Change(ctx, durable.Change{
		Kind: rec.Kind, ID: rec.ID, Revision: rec.Revision, Epoch: rec.Epoch,
		Schema: installationSchema, State: state, Events: environmentChanged(in.Host),
	})
	return &next, err
}

// remove ends a record and forgets it. Between the two it counts as gone.
func (s installations) remove(ctx context.Context, rec durable.Record) error {
	ended, err := s.store.Change(ctx, durable.Change{
		Kind: rec.Kind, ID: rec.ID, Revision: rec.Revision, Epoch: rec.Epoch,
		Schema: rec.Schema, State: rec.State, Terminal: true,
	})
	if err != nil {
		return err
	}
	return s.forget(ctx, ended)
}

func (s installations) forget(ctx context.Context, rec durable.Record) error {
	err := s.store.Remove(ctx, rec.Kind, rec.ID, rec.Revision, rec.Epoch, environmentChanged(hostOfKey(rec.ID))...)
	if err != nil && berth.AsError(err).Code == berth.CodeNotFound {
		return nil
	}
	return err
}

func hostOfKey(id string) string {
	host, _, _ := strings.Cut(id, "/")
	return host
}

func environmentChanged(host string) []durable.EventDraft {
	return []durable.EventDraft{{Kind: berth.EventEnvironmentChanged, Subject: host}}
}
