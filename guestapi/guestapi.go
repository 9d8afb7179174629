// Package guestapi is what both ends of the guest protocol share: the wire
// types, the attach frames and the client. docs/protocol.md is its prose.
//
// The protocol is HTTP/2 cleartext over any byte stream. Unknown JSON fields
// are ignored by both ends, and whatever is new is a named feature that a
// client asks for before it uses it.
package guestapi

import (
	"encoding/json"
	"time"

	"berth"
)

// Features that a guest may have.
const (
	FeatureSessions = "sessions"  // create, list, attach, log, screen, input, resize, signal, kill, delete
	FeatureEvents   = "events"    // GET /v1/events
	FeatureHooks    = "hooks"     // relay socket with hook lines
	FeatureSSHAgent = "ssh-agent" // SSH_AUTH_SOCK relay to a viewer's agent
	FeatureRetire   = "retire"    // POST /v1/retire: deposit all screens and exit
	FeatureTimes    = "times"     // GET /v1/sessions/{id}/times
	FeatureDirect   = "direct"    // attach over a connection of its own: see berth.DirectUpgrade
)

// AttachContentType is the type of an attach stream, both ways.
const AttachContentType = "application/vnd.berth.frames"

// Bounds that both ends enforce.
const (
	MaxHookLine = 1 << 20 // bytes of one line on a relay socket
)

// Info answers GET /v1/info: who the guest is and what it can do.
type Info struct {
	Version    string         `json:"version"`
	Build      string         `json:"build"`
	Protocol   int            `json:"protocol"`
	Features   []string       `json:"features"`
	Identity   berth.Identity `json:"identity"`
	BootID     string         `json:"boot_id"`
	UptimeMS   int64          `json:"uptime_ms"` // of the host
	Now        time.Time      `json:"now"`
	Unreadable []Unreadable   `json:"unreadable"` // session directories that cannot be read; never nil
}

// Unreadable is a session whose files are damaged. It is shown, not hidden, and
// does not stop the others.
type Unreadable struct {
	ID     string `json:"id"`
	Detail string `json:"detail"` // names the file
}

// CreateSession is the body of POST /v1/sessions. The caller chose the ID and
// the whole environment; asking again with the same ID answers the session that
// is there and starts nothing.
type CreateSession struct {
	ID         string           `json:"id"`
	Name       string           `json:"name"`
	Argv       []string         `json:"argv"`
	Cwd        string           `json:"cwd"`
	Env        []string         `json:"env"`       // NAME=VALUE; the guest adds BERTH_SESSION, BERTH_SOCKET, SSH_AUTH_SOCK
	EnvNames   []string         `json:"env_names"` // names to show in the record
	Withheld   []string         `json:"withheld"`
	Size       berth.Size       `json:"size"`
	SizePolicy berth.SizePolicy `json:"size_policy"`
	LogBytes   int64            `json:"log_bytes"`  // 0 = no log on disk
	RingBytes  int64            `json:"ring_bytes"` // memory ring of the holder
	Parent     string           `json:"parent,omitempty"`
	CreatedAt  time.Time        `json:"created_at"`
}

// Session is a session as its guest sees it. Host and Revision of the embedded
// record are left zero: they are the daemon's to fill.
type Session struct {
	berth.Session
	// Hook is the last valid hook line; nil = none came yet.
	Hook *HookLine `json:"hook,omitempty"`
	// HooksDropped counts lines that were too long, malformed or for another session.
	HooksDropped int64 `json:"hooks_dropped,omitempty"`
	// ScreenAt is the offset up to which the screen model has read. It lags
	// Offsets.End during a flood.
	ScreenAt uint64 `json:"screen_at"`
	// Skipped counts bytes that the screen model skimmed instead of drawing.
	Skipped uint64 `json:"skipped,omitempty"`
	// Seq orders the views of one session that one guest gives: the answer of a
	// call and a line of the event stream can overtake each other. It rises with
	// each view, also over a restart of the guest while the clock does not step
	// back; 0 = an older guest, which gives none.
	Seq int64 `json:"seq,omitempty"`
}

// SessionList answers GET /v1/sessions.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// Times answers GET times: pairs of an offset and Unix milliseconds, in order.
// The output before the offset was there at that time. Output that is not on
// disk has none.
type Times struct {
	Marks [][2]int64 `json:"marks"`
}

// HookLine is one event on a relay socket, as newline-delimited JSON.
type HookLine struct {
	Session string          `json:"session"`
	Event   string          `json:"event"`
	Payload json.RawMessage `json:"payload,omitempty"`
	At      time.Time       `json:"at,omitzero"` // set by the guest
}

// Event is one line of GET /v1/events (newline-delimited JSON). The first line
// is Hello, then comes every session, then Synced, then changes as they happen;
// several quick changes of one session may come as one. Blank lines are heartbeats.
type Event struct {
	Hello   *Info    `json:"hello,omitempty"`
	Session *Session `json:"session,omitempty"`
	Synced  bool     `json:"synced,omitempty"`
	Removed string   `json:"removed,omitempty"` // id
}
