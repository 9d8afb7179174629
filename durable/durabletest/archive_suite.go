package durabletest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/durable"
)

func archive(t *testing.T, s durable.Store, a durable.ArchiveRequest) durable.Archive {
	t.Helper()
	if a.Kind == "" {
		a.Kind = kind
	}
	made, err := s.Archive(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func testArchive(t *testing.T, s durable.Store) {
	if made := archive(t, s, durable.ArchiveRequest{Events: []durable.EventDraft{{Kind: "thing.archived", Subject: "all"}}}); made != (durable.Archive{}) {
		t.Fatalf("nothing was archived as %+v", made)
	}
	wantEvents(t, s, 0)
	b := durable.Begin{ID: "a", BusyKey: "x", Effects: plan("e"), IdempotencyKey: "key", Fingerprint: "print"}
	r := begin(t, s, b)
	if err := s.Own(t.Context(), kind, "a", 1, "two", "one"); err != nil {
		t.Fatal(err)
	}
	mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectDone, Result: []byte(`5`), Progress: &berth.Progress{Done: 2}})
	first := end(t, s, r)
	effects, err := s.Effects(t.Context(), kind, "a")
	if err != nil {
		t.Fatal(err)
	}
	second := begin(t, s, durable.Begin{ID: "b", BusyKey: "y", Terminal: true})
	begin(t, s, durable.Begin{Kind: "other", ID: "a"})

	made := archive(t, s, durable.ArchiveRequest{BusyKey: "x", Events: []durable.EventDraft{{Kind: "thing.archived", Subject: "all"}}})
	if made.Records != 1 || made.Stamp == "" {
		t.Fatalf("archived %+v", made)
	}
	wantEvents(t, s, 0, "thing.archived all 0")
	_, err = s.Get(t.Context(), kind, "a")
	wantCode(t, err, berth.CodeNotFound)
	wantRecord(t, s, second)
	got, err := s.Archived(t.Context(), kind, made.Stamp)
	want := []durable.ArchivedRecord{{Record: first, Effects: effects, Owned: []string{"two", "one"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("the archive has\n%+v, %v, want\n%+v", got, err, want)
	}
	b.Fingerprint, b.BusyKey = "another", ""
	again := end(t, s, begin(t, s, b)) // id and key are free, nothing is inherited
	wantEffects(t, s, "a", "0.1 e planned")

	later := archive(t, s, durable.ArchiveRequest{IDs: []string{"a", "nobody"}})
	last := archive(t, s, durable.ArchiveRequest{})
	if later.Records != 1 || last.Records != 1 || later.Stamp <= made.Stamp || last.Stamp <= later.Stamp {
		t.Fatalf("archived %+v, %+v after %+v", later, last, made)
	}
	got, err = s.Archived(t.Context(), kind, last.Stamp)
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Record, second) {
		t.Fatalf("the archive has %+v, %v", got, err)
	}
	got, err = s.Archived(t.Context(), kind, later.Stamp)
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Record, again) || got[0].Owned != nil {
		t.Fatalf("the archive has %+v, %v", got, err)
	}
	all, err := s.Archives(t.Context(), kind)
	if err != nil || !slices.Equal(all, []durable.Archive{made, later, last}) {
		t.Fatalf("archives %+v, %v", all, err)
	}
	if all, err := s.Archives(t.Context(), "other"); err != nil || all != nil {
		t.Fatalf("archives of another kind: %+v, %v", all, err)
	}
	_, err = s.Archived(t.Context(), kind, "never")
	wantCode(t, err, berth.CodeNotFound)
	if got := ids(t, s, durable.Query{}); got != "a" {
		t.Fatalf("left are %q", got)
	}
}

func testArchiveRefused(t *testing.T, s durable.Store) {
	for _, id := range []string{"a", "b", "c"} {
		begin(t, s, durable.Begin{ID: id, BusyKey: strings.ToUpper(id), Terminal: id != "b"})
	}
	for _, a := range []durable.ArchiveRequest{{Kind: kind}, {Kind: kind, BusyKey: "B"}, {Kind: kind, IDs: []string{"c", "b"}}} {
		_, err := s.Archive(t.Context(), a)
		wantFact(t, err, berth.CodeOperationLive, "holder", "b")
	}
	_, err := s.Archive(t.Context(), durable.ArchiveRequest{})
	wantCode(t, err, berth.CodeInvalidArgument)
	if got := ids(t, s, durable.Query{}); got != "c b a" {
		t.Fatalf("left are %q", got)
	}
	if made := archive(t, s, durable.ArchiveRequest{IDs: []string{"a", "c"}}); made.Records != 2 {
		t.Fatalf("archived %+v", made)
	}
	if made := archive(t, s, durable.ArchiveRequest{IDs: []string{}}); made.Records != 0 { // none is not any
		t.Fatalf("archived %+v", made)
	}
}
