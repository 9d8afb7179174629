package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"berth"
	"berth/holder"
	"berth/terminal"
	"berth/terminal/screen"
)

// ended records how a session ended, tells everybody and lets go of what only a
// live session needs. It may be called once.
func (s *session) ended(state berth.SessionState, exit berth.Exit) {
	s.mu.Lock()
	s.state, s.exit = state, &exit
	if state == berth.SessionExited {
		s.end = max(s.end, exit.Offset)
	}
	s.stopTimers()
	s.mu.Unlock()
	// The holder may be gone already; then the older deposit and the log give
	// the same screen.
	ctx, cancel := context.WithTimeout(s.g.work, holderTimeout)
	defer cancel()
	if err := s.deposit(ctx); err != nil {
		s.log.Debug("the last screen was not deposited", "error", err)
	}
	s.lookAtLog(ctx)

	s.mu.Lock()
	s.releaseHeldBack()
	s.live = nil
	for v := range s.viewers {
		v.exited = true
		v.wake()
	}
	if len(s.viewers) == 0 {
		s.scr = nil // it is rebuilt when somebody asks
	}
	s.wakeWaiters()
	s.mu.Unlock()
	s.input.end()
	s.g.relays.close(s.id)
	closeOnce(s.settled)
	closeOnce(s.ready)
	s.changed(true)
}

// releaseHeldBack accounts for a sequence that the program began and never
// finished, so that a viewer's offset ends where the output ends. mu is held.
func (s *session) releaseHeldBack() {
	if s.live == nil || s.liveAt >= s.pos {
		return
	}
	f := frame{buf: make([]byte, berth.OutputHead), from: s.liveAt, to: s.pos}
	berth.SealOutput(f.buf, f.from, uint32(f.to-f.from)) //nolint:gosec // the filter holds back a bounded number
	s.liveAt = f.to
	for v := range s.viewers {
		if v.live {
			v.q.push(f)
		}
	}
}

// lostExit is the exit of a session whose holder left none.
func (s *session) lostExit() berth.Exit {
	s.mu.Lock()
	boot := s.rec.BootID
	if s.running.Program.BootID != "" {
		boot = s.running.Program.BootID
	}
	started := s.running.Program.PID != 0
	end := s.end
	s.mu.Unlock()
	detail := "the holder was killed"
	switch {
	case boot != s.g.bootID:
		detail = "the machine restarted"
	case !started:
		detail = "never started"
	case s.remains():
		detail += "; some of its processes are still there"
	}
	return berth.Exit{Reason: berth.ExitEnded, Detail: detail, Offset: end, At: s.lastSign()}
}

// remains looks whether the session's cgroup still has processes. Nothing is
// killed unasked: who outlived a holder may be doing work that is wanted.
func (s *session) remains() bool {
	s.mu.Lock()
	cgroup := s.running.Cgroup
	s.mu.Unlock()
	if cgroup == "" {
		return false
	}
	procs, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	return err == nil && len(procs) > 0
}

// lastSign is when the session last wrote to its directory: the best there is
// for the end of one that left no record, and the same in each later guest.
func (s *session) lastSign() time.Time {
	var last time.Time
	for _, name := range []string{"", berth.FileSpec, berth.FileIdentity, berth.FileSnapshot, berth.DirOutput} {
		if info, err := os.Stat(filepath.Join(s.dir, name)); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last.UTC()
}

// lookAtLog takes over what is kept of the output.
func (s *session) lookAtLog(ctx context.Context) {
	if s.lingers() && s.refresh(ctx) {
		return
	}
	out, err := s.openOutput()
	if err != nil {
		s.log.Error("the log cannot be read", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || out.Bytes() == 0 {
		s.kept = s.end // nothing is kept, be it much or nothing that was written
		return
	}
	s.kept = out.Start()
	s.end = max(s.end, out.End())
	s.logInfo = berth.LogInfo{KeptFrom: s.kept, Bytes: out.Bytes(), Cap: s.rec.LogBytes, Gap: s.logInfo.Gap}
	if out.End() < s.end && s.logInfo.Gap == "" {
		s.logInfo.Gap = "the recording stopped before the end"
	}
}

func (s *session) openOutput() (*terminal.Output, error) {
	return terminal.OpenOutput(filepath.Join(s.dir, berth.DirOutput))
}

// lingers reports whether a holder still keeps the session: while it lives, and
// after the end where there is no log on disk.
func (s *session) lingers() bool {
	alive, err := s.g.holders.Alive(s.dir)
	return err == nil && alive
}

// readLog reads output from wherever it is kept. CodeOffsetGone with the fact
// "kept_from" says where reading can go on, CodeInvalidOffset that the offset is
// past the end; 0 is the end.
func (s *session) readLog(ctx context.Context, from uint64, p []byte) (int, error) {
	if s.isLive() || s.lingers() {
		n, err := s.holder.ReadLog(ctx, from, p)
		if !errors.Is(err, holder.ErrGone) {
			return n, err
		}
	}
	out, err := s.openOutput()
	if err != nil {
		return 0, err
	}
	n, err := out.ReadAt(p, from)
	var gap *terminal.GapError
	switch {
	case errors.As(err, &gap):
		return 0, offsetGone(from, gap.To)
	case errors.Is(err, io.EOF), errors.Is(err, terminal.ErrPastEnd):
		if end := s.lastEnd(); from < end {
			return 0, offsetGone(from, end) // the recording stopped before the end
		} else if from > end {
			return 0, invalidOffset(from, end)
		}
		return 0, nil
	}
	return n, err
}

func offsetGone(from, next uint64) error {
	return berth.Errorf(berth.CodeOffsetGone, "the output from %d to %d is not kept", from, next).
		WithFact("kept_from", strconv.FormatUint(next, 10))
}

// lastScreen is the screen of an ended session, drawn again from the newest
// deposit and the output after it. The caller owns it.
func (s *session) lastScreen(ctx context.Context) (*screen.Screen, error) {
	s.mu.Lock()
	size, kept, end := s.size, s.kept, s.end
	s.mu.Unlock()
	opts := screen.Options{Name: "berth", Version: berth.Version()}
	dep := deposit{offset: kept}
	snap, err := s.g.holders.ReadSnapshot(s.dir)
	if err != nil && s.lingers() {
		snap, err = s.holder.Snapshot(ctx)
	}
	if err == nil {
		if dep, err = decodeDeposit(snap, opts); err != nil {
			s.log.Error("the deposited screen cannot be read; drawing from the first byte kept", "error", err)
		}
	}
	if dep.screen == nil {
		dep = deposit{screen: screen.New(size, opts), offset: kept}
	}
	at := max(dep.offset, kept)
	if end-min(end, at) > skimAbove {
		at = end - skimAbove
	}
	buf := make([]byte, catchUpRead)
	for at < end {
		n, err := s.readLog(ctx, at, buf[:min(uint64(len(buf)), end-at)])
		if next, gone := keptFrom(err); gone && next > at && next < end {
			at = next
			continue
		}
		if err != nil || n == 0 {
			s.log.Warn("the end of the output cannot be drawn", "from", at, "error", err)
			break
		}
		if lag := end - at; lag > drawBelow && at == kept {
			dep.screen.Skim(buf[:n])
		} else {
			dep.screen.Feed(buf[:n])
		}
		at += uint64(n) //nolint:gosec // n > 0
	}
	return dep.screen, nil
}

// keptFrom reads where output goes on behind what is not kept.
func keptFrom(err error) (uint64, bool) {
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeOffsetGone {
		return 0, false
	}
	next, err := strconv.ParseUint(e.Facts["kept_from"], 10, 64)
	return next, err == nil
}

// checkEnded judges the offset before the first frame.
func (a *attachment) checkEnded() error {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.req.Offset != nil && a.req.Generation == a.s.rec.Generation && *a.req.Offset > a.s.end {
		return invalidOffset(*a.req.Offset, a.s.end)
	}
	return nil
}

// serveEnded is attach to a session that has ended: what the client has not
// seen, or the last screen, and then how it ended.
func (a *attachment) serveEnded(ctx context.Context) error {
	s := a.s
	s.mu.Lock()
	hello := s.hello(a.v.id)
	kept, end, exit := s.kept, s.end, *s.exit
	generation := s.rec.Generation
	s.mu.Unlock()
	switch {
	case a.req.Generation == 0 || a.req.Offset == nil:
	case a.req.Generation != generation:
		hello.Resume = berth.ResumeGeneration
	case *a.req.Offset < kept:
		hello.Resume, hello.Gap = berth.ResumeGap, &berth.OutputGap{From: *a.req.Offset, To: end}
	default:
		hello.Resume, hello.Offset = berth.ResumeExact, *a.req.Offset
	}
	if err := a.json(berth.FrameHello, hello); err != nil {
		return err
	}
	if err := a.showEnded(ctx, hello, end); err != nil {
		return err
	}
	if err := a.json(berth.FrameExit, exit); err != nil {
		return err
	}
	return a.flush()
}

// showEnded writes what the client has not seen, or the last screen.
func (a *attachment) showEnded(ctx context.Context, hello berth.AttachHello, end uint64) error {
	if hello.Resume == berth.ResumeExact {
		sent, err := a.fromLog(ctx, screen.NewFilter(true), hello.Offset, end)
		if !errors.Is(err, berth.CodeOffsetGone) {
			return err
		}
		if err := a.json(berth.FrameGap, berth.OutputGap{From: sent, To: end}); err != nil {
			return err
		}
	}
	scr, err := a.s.lastScreen(ctx)
	if err != nil {
		return err
	}
	return a.paint(ctx, picture{data: scr.RepaintFor(nil, a.viewSize(scr.Size()))})
}
