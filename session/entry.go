package session

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/durable"
	"berth/guestapi"
)

// What a session's record looks like in the store.
const (
	recordKind   = "session"
	recordSchema = 1
	// namePrefix makes the busy key of a live session: the store lets one live
	// record have it, which is what makes names unique.
	namePrefix = "session-name/"
)

// entry is one session as the registry knows it: what the store has, what the
// guest showed last, and what follows from both. All fields but w are guarded
// by Registry.mu.
type entry struct {
	// w is held while the store is asked to change this record, so that one
	// record has one writer at a time. It is taken before Registry.mu.
	w sync.Mutex

	id, host, name string
	key            string // idempotency key; "" = none
	fingerprint    string

	stored   *berth.Session // as the store has it, Revision 0; nil = the store does not know it
	revision int64
	epoch    int64
	terminal bool   // the record can never be changed again
	bad      string // why the stored state could not be read, or ""

	seen  *guestapi.Session // what the guest showed last; nil = it shows none
	round int64             // the host's round in which it did
	gone  string            // why the session is lost, as the daemon found; "" = it is not

	creating  bool // a Create of this process is under way; nobody else may judge it
	createErr error
	removing  bool
	removed   bool // stays in the map until the guest forgot it too, so that a late event cannot bring it back

	agent       *berth.Agent // what is shown
	hook        *berth.Agent // what the last hook that said something said
	hold        ScreenHold
	screen      *berth.Agent // what the screen rules say, after the hold
	screenRead  uint64       // offset up to which the screen was looked at
	screenAt    time.Time    // when; monotonic
	screenAgain time.Time    // when the hold ends; zero = it holds nothing

	due        time.Time // when the store is to be brought up to date; zero = it is
	wrote      time.Time // last commit of anything
	wroteAgent time.Time // last commit of an agent's change
	writing    bool      // a commit runs
}

// record is the session without regard to whether its host can be reached now.
// Names and wishes are the store's, all else is the guest's, which sees it.
func (e *entry) record() berth.Session {
	var s berth.Session
	switch {
	case e.seen != nil:
		s = e.seen.Session
		if e.stored != nil && e.bad == "" {
			s.Parent, s.CreatedAt = e.stored.Parent, e.stored.CreatedAt
			s.EnvNames, s.Withheld = e.stored.EnvNames, e.stored.Withheld
			if s.AttachedAt.IsZero() {
				s.AttachedAt = e.stored.AttachedAt // a new guest has seen nobody yet
			}
			if s.State == berth.SessionLost && s.Exit == nil && s.State == e.stored.State {
				s.Exit = e.stored.Exit
			}
		}
	case e.stored != nil:
		s = *e.stored
	}
	s.ID, s.Host, s.Name, s.Revision = e.id, e.host, e.name, e.revision
	s.Agent = e.agent
	if e.gone != "" && s.State.Live() {
		s.State = berth.SessionLost
	}
	return cloneSession(s)
}

// target is what the store should have. now stamps the end of a session that
// the daemon found to be gone.
func (e *entry) target(now time.Time) berth.Session {
	s := e.record()
	s.Revision = 0
	if s.State == berth.SessionLost && s.Exit == nil {
		detail := e.gone
		if detail == "" {
			detail = "its host lost it"
		}
		// -1 is no exit status of any program: nobody can take it for success.
		s.Exit = &berth.Exit{Code: -1, Reason: berth.ExitEnded, Detail: detail, Offset: s.Offsets.End, At: now}
	}
	if !s.State.Live() {
		s.Agent = restingAgent(s.Agent)
	}
	if s.State == berth.SessionUnknown { // never stored
		s.State = berth.SessionRunning
	}
	return s
}

// weight says how soon a difference must be in the store.
type weight int

const (
	same  weight = iota
	soft         // title, directory, viewers, size: at most once a second
	agent        // the state of an agent: at once, but not faster than agentPace
	hard         // the state itself: at once
)

// Paces of commits for one session. They bound what a program that changes its
// title or its state in a loop can make the disk do.
const (
	softPace  = time.Second
	agentPace = 100 * time.Millisecond
)

// differ weighs the difference between what the store has and what it should
// have. Offsets and the size of the log move with every byte of output, so they
// never cause a commit; what is committed for another reason takes them along.
// It is called for every line of every guest, so it compares field by field; a
// test changes each field in turn to find one that was forgotten here.
func differ(a, b berth.Session) weight {
	switch {
	case a.ID != b.ID, a.Name != b.Name, a.Host != b.Host, a.Cwd != b.Cwd, a.Parent != b.Parent, !a.CreatedAt.Equal(b.CreatedAt),
		!slices.Equal(a.Argv, b.Argv), !slices.Equal(a.EnvNames, b.EnvNames), !slices.Equal(a.Withheld, b.Withheld),
		a.State != b.State, a.Generation != b.Generation, a.BootID != b.BootID, a.PID != b.PID, a.Contained != b.Contained,
		a.Log.Cap != b.Log.Cap, a.Log.Gap != b.Log.Gap, !sameExit(a.Exit, b.Exit):
		return hard
	case !sameAgent(a.Agent, b.Agent):
		return agent
	case a.Title != b.Title, a.CwdReported != b.CwdReported, a.Viewers != b.Viewers, !a.AttachedAt.Equal(b.AttachedAt),
		a.Size != b.Size, a.SizePolicy != b.SizePolicy:
		return soft
	}
	return same
}

func sameExit(a, b *berth.Exit) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.At, y.At = time.Time{}, time.Time{}
	return x == y && a.At.Equal(b.At)
}

// changeEvents are what readers are told of a change from stored to target.
func changeEvents(stored, target berth.Session) []durable.EventDraft {
	draft := func(kind berth.EventKind) []durable.EventDraft {
		return []durable.EventDraft{{Kind: kind, Subject: target.ID}}
	}
	switch {
	case stored.State != target.State && target.State == berth.SessionExited:
		return draft(berth.EventSessionExited)
	case stored.State != target.State && target.State == berth.SessionLost:
		return draft(berth.EventSessionLost)
	case !sameAgent(stored.Agent, target.Agent):
		out := draft(berth.EventSessionAgent)
		stored.Agent, target.Agent = nil, nil
		if differ(stored, target) != same {
			out = append(out, draft(berth.EventSessionChanged)...)
		}
		return out
	}
	return draft(berth.EventSessionChanged)
}

// encodeSession writes a state. A session has only types that encoding/json takes.
func encodeSession(s berth.Session) []byte {
	s.Revision = 0 // the record has it
	data, err := json.Marshal(s)
	if err != nil {
		panic("session: a session does not encode: " + err.Error())
	}
	return data
}

// decodeSession reads one; a word that is unknown is an error, never a guess.
func decodeSession(rec durable.Record) (berth.Session, error) {
	var s berth.Session
	if rec.Schema != recordSchema {
		return s, berth.Errorf(berth.CodeRecordUnreadable, "the record of session %s has schema %d, not %d", rec.ID, rec.Schema, recordSchema)
	}
	if err := json.Unmarshal(rec.State, &s); err != nil {
		return s, berth.Errorf(berth.CodeRecordUnreadable, "the record of session %s: %w", rec.ID, err)
	}
	if !s.State.Valid() || s.State == berth.SessionUnknown || s.ID != rec.ID || !berth.ValidName(s.Name) {
		return s, berth.Errorf(berth.CodeRecordUnreadable, "the record of session %s has state %q, id %q, name %q", rec.ID, s.State, s.ID, s.Name)
	}
	return s, nil
}

// loadEntry makes an entry of a record. A record that cannot be read becomes a
// lost session with that reason: it is shown, it can be removed, and when the
// guest shows the session the record is written anew.
func loadEntry(rec durable.Record) *entry {
	e := &entry{
		id: rec.ID, revision: rec.Revision, epoch: rec.Epoch, terminal: rec.Terminal,
		key: rec.IdempotencyKey, fingerprint: rec.Fingerprint,
	}
	s, err := decodeSession(rec)
	if err != nil {
		e.bad = err.Error()
		s = berth.Session{ID: rec.ID, Host: berth.LocalHost, State: berth.SessionLost, CreatedAt: rec.Created}
		s.Name = strings.TrimPrefix(rec.BusyKey, namePrefix)
		if !berth.ValidName(s.Name) {
			s.Name = fallbackName(rec.ID)
		}
		s.Exit = &berth.Exit{Code: -1, Reason: berth.ExitEnded, Detail: e.bad, At: rec.Updated}
	}
	e.host, e.name, e.agent = s.Host, s.Name, s.Agent
	if s.Agent != nil && s.Agent.Source == berth.AgentFromHook {
		e.hook = s.Agent
	}
	e.stored = &s
	return e
}

// fallbackName is a valid name for a session whose own cannot be used.
func fallbackName(id string) string {
	if berth.ValidName(id) {
		return id
	}
	return "session"
}

func cloneSession(s berth.Session) berth.Session {
	list := func(in []string) []string { return append([]string{}, in...) }
	s.Argv, s.EnvNames, s.Withheld = list(s.Argv), list(s.EnvNames), list(s.Withheld)
	if s.Exit != nil {
		x := *s.Exit
		s.Exit = &x
	}
	if s.Agent != nil {
		a := *s.Agent
		if a.Progress != nil {
			p := *a.Progress
			a.Progress = &p
		}
		s.Agent = &a
	}
	return s
}

// newestFirst is the order of lists. IDs begin with their time, so they decide
// between two of one instant.
func newestFirst(list []berth.Session) {
	slices.SortFunc(list, func(a, b berth.Session) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(b.ID, a.ID)
	})
}
