package session

import (
	"errors"
	"slices"
	"strings"

	"berth"
)

// Guest is how the guest of a host stands.
func (r *Registry) Guest(host string) berth.GuestStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := berth.GuestStatus{Host: host}
	h := r.host(host)
	if h == nil {
		st.Error = "there is no such host"
		return st
	}
	st.Reachable = h.connected
	if h.info != nil && h.connected {
		st.PID, st.Version, st.Protocol = h.info.Identity.PID, h.info.Version, h.info.Protocol
		st.Features = slices.Clone(h.info.Features)
	}
	switch {
	case h.connected:
	case h.err != nil:
		st.Error = h.err.Error()
	default:
		st.Error = "it has not answered yet"
	}
	return st
}

// Problems are the standing conditions that the registry knows of: hosts that
// cannot be reached, guests of another version, sessions whose files or records
// cannot be read, live sessions whose output is not recorded. Sorted, never nil.
func (r *Registry) Problems() []berth.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []berth.Problem{}
	add := func(err *berth.Error) {
		e := berth.AsError(err)
		out = append(out, berth.Problem{Code: e.Code, Detail: e.Detail, Hint: e.Hint})
	}
	for _, h := range r.hosts {
		if h.err != nil {
			add(unreachable(h))
		}
		if h.connected && h.info != nil && (h.info.Version != berth.Version() || h.info.Protocol != berth.GuestProtocol) {
			add(berth.Errorf(berth.CodeGuestOutdated, "the guest of host %s is %s (protocol %d), this daemon is %s (protocol %d); its sessions go on",
				h.link.Name, CleanText(h.info.Version, 64), h.info.Protocol, berth.Version(), berth.GuestProtocol))
		}
		for id, detail := range h.bad {
			add(berth.Errorf(berth.CodeRecordUnreadable, "session %s on host %s: %s", CleanText(id, 64), h.link.Name, CleanText(detail, 512)).
				WithHint("berth rm --force " + CleanText(id, 64) + " removes it"))
		}
	}
	for _, e := range r.sessions {
		switch {
		case e.removed:
		case e.bad != "":
			add(berth.Errorf(berth.CodeRecordUnreadable, "%s", e.bad))
		case e.seen != nil && e.seen.State.Live() && e.seen.Log.Gap != "":
			add(berth.Errorf(berth.CodeLogGap, "the output of session %s is not recorded any more: %s", e.name, CleanText(e.seen.Log.Gap, 256)).
				WithHint("free some space; the program goes on"))
		}
	}
	slices.SortFunc(out, func(a, b berth.Problem) int {
		return strings.Compare(string(a.Code)+a.Detail, string(b.Code)+b.Detail)
	})
	return out
}

// unreachable gives the host's error the host's name, and keeps the code of what
// is wrong with the host where it says more than "unreachable".
func unreachable(h *hostState) *berth.Error {
	code, hint := berth.CodeHostUnreachable, ""
	var e *berth.Error
	if errors.As(h.err, &e) && e.Code != berth.CodeInternal {
		code, hint = e.Code, e.Hint
	}
	out := berth.Errorf(code, "host %s: %w", h.link.Name, h.err)
	out.Hint = hint
	return out
}
