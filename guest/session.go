package guest

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/guestapi"
	"berth/holder"
	"berth/terminal/screen"
)

// session is one session of this guest, live or ended.
type session struct {
	g      *Guest
	id     string
	dir    string
	log    *slog.Logger
	holder holderClient
	input  *inputQueue
	// writing is held by the one POST input that is being queued.
	writing chan struct{}

	// settled is closed when the session has left SessionStarting or its start
	// has failed; startErr is valid after.
	settled  chan struct{}
	startErr error
	// ready is closed when the screen is rebuilt and output is being read, or
	// the session has ended.
	ready chan struct{}

	mu          sync.Mutex
	rec         record
	state       berth.SessionState
	running     holder.Running
	exit        *berth.Exit
	size        berth.Size
	logInfo     berth.LogInfo
	kept        uint64 // first byte of output that can still be read, as last seen
	pos         uint64 // the screen has read up to here
	end         uint64 // end of the output, as last heard
	skipped     uint64
	skimming    bool
	quietTill   uint64 // queries before this offset were an earlier guest's to answer
	trailing    trailingQueries
	scr         *screen.Screen // nil before ready and after the end
	tail        []byte         // the last screen.Pending() bytes of output
	title       string
	cwd         string
	agent       *berth.Agent
	statedAgent *berth.Agent // the agent that viewers have been told of
	hook        *guestapi.HookLine
	hookDrops   int64
	seq         int64 // of the newest view

	viewers    map[*viewer]struct{}
	live       *screen.Filter         // of the viewers' stream; nil = nobody looks
	liveAt     uint64                 // offset up to which live has given out
	latest     atomic.Pointer[viewer] // who typed or attached last; a hint that spares a lock
	activity   uint64                 // counts what viewers do, for SizeLatest
	resizing   *time.Timer            // nil = no resize is due
	stating    *time.Timer            // nil = no state frame is due
	depositing depositState
	saving     sync.Mutex    // held while session.json is written again
	removed    bool          // saving guards it
	progress   chan struct{} // closed at the next output or end; nil = nobody waits
	published  time.Time     // when output was last told to the event readers
}

func (g *Guest) newSession(rec record, dir string) *session {
	s := &session{
		g: g, id: rec.ID, dir: dir, rec: rec,
		log:     g.log.With("session", rec.ID),
		holder:  g.holders.Client(g.holderSocket(rec.ID)),
		settled: make(chan struct{}),
		ready:   make(chan struct{}),
		writing: make(chan struct{}, 1),
		state:   berth.SessionStarting,
		size:    rec.Size,
		logInfo: berth.LogInfo{Cap: rec.LogBytes},
		viewers: map[*viewer]struct{}{},
	}
	s.input = &inputQueue{
		spawn: g.spawn,
		pause: g.pause,
		lost: func(left int, err error) {
			s.log.Warn("input was not written", "error", err, "waiting", left)
		},
	}
	return s
}

// screenOptions are the same for a new and for a restored screen.
func (s *session) screenOptions() screen.Options {
	return screen.Options{Name: "berth", Version: berth.Version(), OnReport: s.onReport}
}

// onReport is called by Feed and Skim, so with mu held.
func (s *session) onReport(r screen.Report) {
	if r.Child != "" {
		return // a helper of the agent, not the agent
	}
	if r.Cleared {
		s.agent = nil
		return
	}
	since := s.g.now().UTC()
	if s.agent != nil && s.agent.State == r.State && s.agent.Kind == r.Kind {
		since = s.agent.Since
	}
	s.agent = &berth.Agent{
		State: r.State, Kind: r.Kind, Message: r.Message, Progress: r.Progress,
		Source: berth.AgentFromOSC, Since: since,
	}
}

// view is the session as it goes on the wire. mu is held.
func (s *session) view() guestapi.Session {
	s.seq = max(s.seq+1, time.Now().UnixNano())
	v := guestapi.Session{
		Seq: s.seq,
		Session: berth.Session{
			ID: s.id, Name: s.rec.Name, Argv: s.rec.Argv, Cwd: s.rec.Cwd,
			EnvNames: s.rec.EnvNames, Withheld: s.rec.Withheld,
			Size: s.size, SizePolicy: s.rec.SizePolicy, State: s.state,
			Generation: s.rec.Generation, BootID: s.rec.BootID,
			Offsets: berth.Offsets{Start: s.kept, End: s.end}, Log: s.logInfo,
			Title: s.title, CwdReported: s.cwd, Viewers: len(s.viewers),
			Contained: s.running.Cgroup != "",
			CreatedAt: s.rec.CreatedAt, AttachedAt: s.rec.AttachedAt, Parent: s.rec.Parent,
		},
		Hook: s.hook, HooksDropped: s.hookDrops, ScreenAt: s.pos, Skipped: s.skipped,
	}
	if s.running.Program.BootID != "" {
		v.BootID = s.running.Program.BootID
	}
	if s.state == berth.SessionRunning {
		v.PID = s.running.Program.PID
	}
	if s.exit != nil {
		exit := *s.exit
		v.Exit = &exit
	}
	if s.agent != nil {
		agent := *s.agent
		v.Agent = &agent
	}
	return v
}

// snapshotView is view for a caller without the lock.
func (s *session) snapshotView() guestapi.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view()
}

// freshView asks the holder first, so that offsets and log are of now.
func (s *session) freshView(ctx context.Context) guestapi.Session {
	if s.isLive() {
		s.refresh(ctx)
	}
	return s.snapshotView()
}

// refresh takes over what the holder says of its log. A holder that does not
// answer changes nothing: its stream says what became of it.
func (s *session) refresh(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	info, err := s.holder.Info(ctx)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeInfo(info)
	return true
}

// takeInfo is called with mu held.
func (s *session) takeInfo(info holder.Info) {
	s.kept = info.Start
	s.end = max(s.end, info.End)
	s.logInfo = berth.LogInfo{KeptFrom: info.LogFrom, Bytes: info.LogSize, Cap: info.Running.LogBytes, Gap: info.LogGap}
}

func (s *session) isLive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Live()
}

// changed tells the readers of events. A change of state goes at once.
func (s *session) changed(urgent bool) { s.g.hub.mark(s.id, urgent) }

// waitSettled waits until the session has started, and fails where it did not.
func (s *session) waitSettled(ctx context.Context) error {
	select {
	case <-s.settled:
		return s.startErr
	case <-ctx.Done():
		return ctx.Err()
	case <-s.g.stopping:
		return errStopping()
	}
}

// waitReady waits until there is a screen or the session has ended.
func (s *session) waitReady(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.g.stopping:
		return errStopping()
	}
}

// nextProgress gives a channel that is closed at the next output or at the end.
// mu is held.
func (s *session) nextProgress() <-chan struct{} {
	if s.progress == nil {
		s.progress = make(chan struct{})
	}
	return s.progress
}

// wakeWaiters is called with mu held.
func (s *session) wakeWaiters() {
	if s.progress != nil {
		close(s.progress)
		s.progress = nil
	}
}

func errStopping() error {
	return berth.Errorf(berth.CodeDaemonStopping, "the guest is stopping; its sessions go on")
}

// holderTimeout bounds a call to a holder that answers from memory.
const holderTimeout = 5 * time.Second
