package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"berth"
	"berth/guestapi"
	"berth/holder"
	"berth/terminal/screen"
)

// When a screen is deposited. Every deposit makes the next guest read less and
// answer better; none of them is needed for the log, which is the truth.
const (
	depositEvery = 2 * time.Second       // at most, while output comes
	depositSoon  = 50 * time.Millisecond // after an answer to a query, a resize or a hook line
	depositLeast = 250 * time.Millisecond
	depositBytes = 4 << 20 // of output since the last; less where the log is smaller
)

// depositState is when the next deposit of a session is due. Session.mu guards it.
type depositState struct {
	timer   *time.Timer // nil = none is due
	at      time.Time   // when timer fires
	running bool        // one is on its way; the next is due after it
	again   bool        // with running: something came since
	last    time.Time
	bytes   int64 // of output since the last
}

// dirty notes n bytes of output, or something that should not wait, and sees
// that a deposit comes. mu is held.
func (s *session) dirty(n int, soon bool) {
	d := &s.depositing
	d.bytes += int64(n)
	wait := depositEvery
	if soon {
		wait = depositSoon
	}
	if d.bytes >= s.depositBytes() {
		wait = 0
	}
	now := s.g.now()
	at := now.Add(wait)
	if earliest := d.last.Add(depositLeast); at.Before(earliest) && !soon {
		at = earliest
	}
	switch {
	case d.running:
		d.again = true
	case d.timer == nil:
		d.at = at
		d.timer = time.AfterFunc(at.Sub(now), func() { s.g.spawn(s.depositNow) })
	case at.Before(d.at) && d.timer.Stop():
		d.at = at
		d.timer.Reset(at.Sub(now))
	}
}

// depositBytes keeps the deposit well inside what the holder keeps.
func (s *session) depositBytes() int64 {
	kept := max(s.rec.LogBytes, s.rec.RingBytes)
	return min(depositBytes, max(kept/4, 64<<10))
}

// depositNow is what the timer does.
func (s *session) depositNow() {
	s.mu.Lock()
	s.depositing.timer = nil
	if s.depositing.running {
		s.depositing.again = true
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.g.work, holderTimeout)
	defer cancel()
	if err := s.deposit(ctx); err != nil && !errors.Is(err, holder.ErrGone) { // the stream tells of its end
		s.log.Warn("the screen could not be deposited", "error", err)
	}
	s.refresh(ctx)
	s.changed(false)
}

// deposit leaves the screen with the holder.
func (s *session) deposit(ctx context.Context) error {
	s.mu.Lock()
	if s.scr == nil || s.depositing.running {
		s.mu.Unlock()
		return nil
	}
	d := &s.depositing
	d.running, d.again, d.bytes, d.last = true, false, 0, s.g.now()
	snap, err := s.encodeDeposit()
	s.mu.Unlock()
	if err == nil {
		err = s.holder.Deposit(ctx, snap)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.running = false
	if d.again && s.state.Live() {
		s.dirty(0, false)
	}
	return err
}

// stopTimers is called with mu held, at the end of the session or the guest.
func (s *session) stopTimers() {
	for _, t := range []**time.Timer{&s.depositing.timer, &s.resizing, &s.stating} {
		if *t != nil {
			(*t).Stop()
			*t = nil
		}
	}
}

// deposit is what a guest leaves with the holder: the screen, and what the
// guest itself knows that no byte of output after the offset says again.
type deposit struct {
	offset uint64
	meta   depositMeta
	screen *screen.Screen
}

type depositMeta struct {
	Tail         []byte             `json:"tail,omitempty"` // the screen's pending bytes
	Skipped      uint64             `json:"skipped,omitempty"`
	Agent        *berth.Agent       `json:"agent,omitempty"`
	Hook         *guestapi.HookLine `json:"hook,omitempty"`
	HooksDropped int64              `json:"hooks_dropped,omitempty"`
	Title        string             `json:"title,omitempty"`
	Cwd          string             `json:"cwd,omitempty"`
}

// depositMagic opens the format: magic, u32 length of the JSON, the JSON, the screen.
const depositMagic = "berth-screen-1\n"

// encodeDeposit is called with mu held.
func (s *session) encodeDeposit() (holder.Snapshot, error) {
	meta, err := json.Marshal(depositMeta{
		Tail: s.tail, Skipped: s.skipped, Agent: s.agent, Hook: s.hook,
		HooksDropped: s.hookDrops, Title: s.title, Cwd: s.cwd,
	})
	if err != nil {
		return holder.Snapshot{}, berth.Errorf(berth.CodeInternal, "encode a deposit: %w", err)
	}
	model := s.scr.Snapshot()
	data := make([]byte, 0, len(depositMagic)+4+len(meta)+len(model))
	data = append(data, depositMagic...)
	data = binary.BigEndian.AppendUint32(data, uint32(len(meta))) //nolint:gosec // a hook line of 1 MiB at most
	data = append(data, meta...)
	data = append(data, model...)
	return holder.Snapshot{Generation: s.rec.Generation, Offset: s.pos, Screen: data}, nil
}

// splitDeposit separates what the guest wrote from the screen.
func splitDeposit(data []byte) (meta depositMeta, model []byte, err error) {
	damaged := func(what string) error {
		return berth.Errorf(berth.CodeRecordUnreadable, "a deposited screen %s", what)
	}
	head := len(depositMagic) + 4
	if len(data) < head || string(data[:len(depositMagic)]) != depositMagic {
		return meta, nil, damaged("does not begin as one")
	}
	n := binary.BigEndian.Uint32(data[len(depositMagic):])
	if uint64(n) > uint64(len(data)-head) {
		return meta, nil, damaged("is cut off")
	}
	if err := json.Unmarshal(data[head:head+int(n)], &meta); err != nil {
		return meta, nil, damaged("has damaged JSON")
	}
	return meta, data[head+int(n):], nil
}

func decodeDeposit(snap holder.Snapshot, opts screen.Options) (deposit, error) {
	meta, model, err := splitDeposit(snap.Screen)
	if err != nil {
		return deposit{}, err
	}
	scr, err := screen.Restore(model, opts)
	if err != nil {
		return deposit{}, err
	}
	return deposit{offset: snap.Offset, meta: meta, screen: scr}, nil
}
