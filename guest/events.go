package guest

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"berth/guestapi"
)

const (
	// gather is how long changes of one session are gathered into one line.
	gather = 50 * time.Millisecond
	// heartbeat is how often a quiet stream carries a blank line, so that both
	// ends notice a dead connection.
	heartbeat = 15 * time.Second
	// readerGrace is how long one write may take before a reader is cut.
	readerGrace = 30 * time.Second
)

// hub tells the readers of events which sessions changed. It carries ids and
// not records: a reader asks for the record when it writes, so a slow one costs
// a set of ids, at most one for each session, and always gets the newest state.
type hub struct {
	g       *Guest
	mu      sync.Mutex
	readers map[*eventReader]struct{}
}

type eventReader struct {
	changed map[string]struct{}
	urgent  bool
	wake    chan struct{} // holds at most one
}

func newHub(g *Guest) *hub { return &hub{g: g, readers: map[*eventReader]struct{}{}} }

// mark notes that a session changed. It never blocks and may be called under
// any lock of a session.
func (h *hub) mark(id string, urgent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		r.changed[id] = struct{}{}
		r.urgent = r.urgent || urgent
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

func (h *hub) join() *eventReader {
	r := &eventReader{changed: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readers[r] = struct{}{}
	return r
}

func (h *hub) leave(r *eventReader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.readers, r)
}

// take gives the changed sessions, or only says whether one of them is urgent.
func (h *hub) take(r *eventReader, onlyUrgent bool) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if onlyUrgent && !r.urgent {
		return nil
	}
	ids := make([]string, 0, len(r.changed))
	for id := range r.changed {
		ids = append(ids, id)
	}
	clear(r.changed)
	r.urgent = false
	return ids
}

// events is GET /v1/events.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	reader := s.g.hub.join() // before the list: nothing between is missed
	defer s.g.hub.leave(reader)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out := &eventWriter{w: w, control: http.NewResponseController(w), enc: json.NewEncoder(w)}
	info := s.g.info()
	s.g.mu.Lock()
	all := s.g.list()
	s.g.mu.Unlock()
	err := out.line(guestapi.Event{Hello: &info})
	for _, session := range all {
		if err == nil {
			view := session.snapshotView()
			err = out.line(guestapi.Event{Session: &view})
		}
	}
	if err == nil {
		err = out.line(guestapi.Event{Synced: true})
	}
	if err == nil {
		err = out.flush()
	}
	if err == nil {
		err = s.follow(r, reader, out)
	}
	if err != nil && r.Context().Err() == nil {
		s.g.log.Info("a reader of events was let go", "reason", err)
	}
}

// follow writes changes until the client, the guest or the connection ends.
func (s *server) follow(r *http.Request, reader *eventReader, out *eventWriter) error {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var due <-chan time.Time // nil = no change waits
	for {
		var ids []string
		select {
		case <-reader.wake:
			ids = s.g.hub.take(reader, true)
			if ids == nil && due == nil {
				due = time.After(gather)
			}
		case <-due:
			due = nil
			ids = s.g.hub.take(reader, false)
		case <-beat.C:
			if err := out.blank(); err != nil {
				return err
			}
		case <-s.g.stopping:
			return nil
		case <-r.Context().Done():
			return nil
		}
		if len(ids) == 0 {
			continue
		}
		for _, id := range ids {
			if err := out.line(s.g.eventOf(id)); err != nil {
				return err
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

func (g *Guest) eventOf(id string) guestapi.Event {
	g.mu.Lock()
	s := g.sessions[id]
	g.mu.Unlock()
	if s == nil {
		return guestapi.Event{Removed: id}
	}
	view := s.snapshotView()
	return guestapi.Event{Session: &view}
}

// eventWriter writes lines with a deadline each.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	enc     *json.Encoder
}

func (e *eventWriter) line(v guestapi.Event) error {
	if err := e.control.SetWriteDeadline(time.Now().Add(readerGrace)); err != nil {
		return err
	}
	return e.enc.Encode(v)
}

func (e *eventWriter) blank() error {
	if err := e.control.SetWriteDeadline(time.Now().Add(readerGrace)); err != nil {
		return err
	}
	if _, err := e.w.Write([]byte("\n")); err != nil {
		return err
	}
	return e.control.Flush()
}

func (e *eventWriter) flush() error { return e.control.Flush() }
