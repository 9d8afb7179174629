package server

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
)

// apiVersion is the "v" of every document.
const apiVersion = 1

// The documents: one record is the record with "v":1.
type (
	statusDocument struct {
		V int `json:"v"`
		berth.Status
	}
	versionDocument struct {
		V int `json:"v"`
		berth.VersionInfo
	}
	sessionDocument struct {
		V int `json:"v"`
		berth.Session
	}
	screenDocument struct {
		V int `json:"v"`
		berth.Screen
	}
	killDocument struct {
		V int `json:"v"`
		berth.KillResult
	}
	directDocument struct {
		V int `json:"v"`
		berth.DirectAttach
	}
	sessionList struct {
		V        int             `json:"v"`
		Sessions []berth.Session `json:"sessions"`
		Next     string          `json:"next,omitempty" doc:"cursor of the next page; absent on the last one"`
	}
	shutdownDocument struct {
		V        int  `json:"v"`
		Stopping bool `json:"stopping"`
	}
)

// page cuts one page out of all sessions: newest first, behind the cursor. The
// cursor names the last session of the page before, and not a count, so that
// sessions that come and go between two pages neither shift nor repeat a row.
func page(all []berth.Session, cursor string, limit int) (sessionList, error) {
	out := sessionList{V: apiVersion, Sessions: []berth.Session{}}
	last := ""
	if cursor != "" {
		data, err := base64.RawURLEncoding.DecodeString(cursor)
		if last = string(data); err != nil || !berth.ValidID(berth.SessionID, last) {
			return out, berth.Errorf(berth.CodeInvalidArgument, "the cursor %q is not one that this list gave", cursor).
				WithHint("begin again without a cursor")
		}
	}
	// Identifiers sort by the time at which they were made.
	slices.SortFunc(all, func(a, b berth.Session) int { return strings.Compare(b.ID, a.ID) })
	for _, s := range all {
		if last != "" && s.ID >= last {
			continue
		}
		if len(out.Sessions) == limit {
			out.Next = base64.RawURLEncoding.EncodeToString([]byte(out.Sessions[limit-1].ID))
			break
		}
		out.Sessions = append(out.Sessions, whole(s))
	}
	return out, nil
}

// whole makes every list of a record a list: a script that loops over null fails.
func whole(s berth.Session) berth.Session {
	for _, list := range []*[]string{&s.Argv, &s.EnvNames, &s.Withheld} {
		if *list == nil {
			*list = []string{}
		}
	}
	return s
}

// parseStates reads "running,exited".
func parseStates(text string) ([]berth.SessionState, error) {
	if text == "" {
		return nil, nil
	}
	var states []berth.SessionState
	for part := range strings.SplitSeq(text, ",") {
		state := berth.SessionState(part)
		if !state.Valid() {
			return nil, berth.Errorf(berth.CodeInvalidArgument, "%q is not a state of a session", part).
				WithHint("use starting, running, exited, lost or unknown, with commas between")
		}
		states = append(states, state)
	}
	return states, nil
}

// etag writes a revision as an entity tag.
func etag(revision int64) string { return strconv.Quote(strconv.FormatInt(revision, 10)) }

// parseMatch reads If-Match: absent and * are any revision.
func parseMatch(text string) (int64, error) {
	if text == "" || text == "*" {
		return 0, nil
	}
	n, err := strconv.ParseInt(strings.Trim(text, `"`), 10, 64)
	if err != nil || n <= 0 { // 0 would read as "any" below: a guard must not vanish
		return 0, berth.Errorf(berth.CodeInvalidArgument, "If-Match %q is not the ETag of a record", text)
	}
	return n, nil
}

// Bounds of the calls that wait.
const (
	defaultWait = 25 * time.Second
	maxWait     = time.Minute
)

// waitFor reads a number of milliseconds; 0 = the default.
func waitFor(ms int64, def time.Duration) time.Duration {
	if ms <= 0 {
		return def
	}
	return min(time.Duration(ms)*time.Millisecond, maxWait)
}
