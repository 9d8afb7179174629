package holder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
)

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// ask is what the fields of any request can say.
type ask struct {
	cols, rows, signal, limit int
	offset                    uint64
}

// request answers one request; false ends the connection.
func (l *link) request(k *keeper, typ byte, body []byte, now time.Time) bool {
	var a ask
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagCols:
			a.cols = int(f.int())
		case tagRows:
			a.rows = int(f.int())
		case tagSignal:
			a.signal = int(f.int())
		case tagLimit:
			a.limit = int(min(f.int(), maxRead))
		case tagOffset:
			a.offset = f.int()
		}
	})
	if err != nil {
		return false
	}
	switch typ {
	case opInfo:
		l.reply(reOK, addInfo(nil, k.info()))
	case opResize:
		l.answer(k.resize(berth.Size{Cols: a.cols, Rows: a.rows}))
	case opSignal:
		l.answer(k.signal(unix.Signal(a.signal)))
	case opKill:
		l.waiting = true
		k.startKill(now)
	case opDeposit:
		l.answer(k.deposit(body, l.received(k)))
	case opSnapshot:
		l.snapshot(k)
	case opReadLog:
		l.readLog(k, a.offset, a.limit)
	case opQuit:
		l.answer(k.askedToQuit(now))
	case opStream:
		l.begin(k, a.offset)
	default:
		l.fail(berth.Errorf(berth.CodeGuestOutdated, "unknown op %q: this holder is older than what asks it", string(rune(typ))))
	}
	return true
}

func (l *link) answer(err error) {
	if err != nil {
		l.fail(err)
		return
	}
	l.reply(reOK, nil)
}

// begin makes the connection a stream.
func (l *link) begin(k *keeper, from uint64) {
	if end := k.log.End(); from > end {
		l.fail(errPastEnd(from, end))
		return
	}
	l.stream, l.pos = true, from
	k.streams = append(k.streams, l)
	l.reply(reOK, nil)
}

func (k *keeper) info() Info {
	s := k.log.State()
	return Info{
		Running: k.record, Size: k.pty.Size(), Start: s.Start, End: s.End,
		LogFrom: s.DiskFrom, LogSize: s.DiskSize, LogGap: s.Gap, Exit: k.exit,
	}
}

func errEnded() error {
	return berth.Errorf(berth.CodeSessionEnded, "the program has ended")
}

func (k *keeper) resize(size berth.Size) error {
	if k.exit != nil {
		return errEnded()
	}
	return k.pty.SetSize(size)
}

// signal signals the foreground process group, or else the program's own.
func (k *keeper) signal(sig unix.Signal) error {
	if _, err := process.ParseSignal(strconv.Itoa(int(sig))); err != nil {
		return err
	}
	if !k.leaderAt.IsZero() {
		return errEnded()
	}
	group := k.pty.Foreground()
	if group == 0 || !k.ownGroup(group) {
		group = k.leader
	}
	err := unix.Kill(-group, sig)
	if errors.Is(err, unix.ESRCH) && group == k.leader {
		err = unix.Kill(k.leader, sig) // the program has moved to a group of another; it is not reaped, so it is itself
	}
	if err != nil {
		return fmt.Errorf("signal process group %d: %w", group, err)
	}
	return nil
}

// ownGroup reports whether a process group belongs to the program's session. A
// group keeps its number from use by others as long as it has a member.
func (k *keeper) ownGroup(group int) bool {
	if sid, err := unix.Getsid(group); err == nil {
		return sid == k.leader
	}
	for _, m := range process.InSession(k.leader) { // the group's own leader has ended
		if m.Group == group {
			return true
		}
	}
	return false
}

// deposit keeps a newer snapshot: on disk where there is a log, since it is of
// use only together with the bytes after it, else in memory.
func (k *keeper) deposit(body, received []byte) error {
	s, err := snapshotFields(body)
	switch {
	case err != nil:
		return berth.Errorf(berth.CodeInvalidArgument, "the snapshot is malformed")
	case len(s.Screen) > maxSnapshot:
		return berth.Errorf(berth.CodeTooLarge, "a snapshot of %d bytes is more than %d", len(s.Screen), maxSnapshot)
	case s.Generation != k.spec.Generation:
		return berth.Errorf(berth.CodeGenerationChanged, "the snapshot is of generation %d, the program of %d", s.Generation, k.spec.Generation)
	case s.Offset > k.log.End():
		return errPastEnd(s.Offset, k.log.End())
	case k.snap != nil && s.Offset < k.snap.Offset:
		return nil
	}
	kept := Snapshot{Generation: s.Generation, Offset: s.Offset}
	if k.spec.LogBytes > 0 {
		if err := berth.WriteFileNoSync(filepath.Join(k.dir, berth.FileSnapshot), snapshotFile(s, received), 0o600); err != nil {
			return err
		}
	} else {
		kept.Screen = append([]byte(nil), s.Screen...)
	}
	k.snap = &kept
	return nil
}

// snapshotFile gives the bytes of the file. The header is put right before the
// screen, over fields that were read already: the heap would keep a copy.
func snapshotFile(s Snapshot, received []byte) []byte {
	at := cap(received) - cap(s.Screen) // both end where the memory ends
	if received == nil || at < snapshotHeader || at > len(received)-len(s.Screen) {
		return encodeSnapshot(s)
	}
	appendSnapshotHeader(received[at-snapshotHeader:at-snapshotHeader], s)
	return received[at-snapshotHeader : at+len(s.Screen)]
}

// snapshot answers opSnapshot.
func (l *link) snapshot(k *keeper) {
	if k.snap == nil {
		l.fail(berth.Errorf(berth.CodeNotFound, "no screen was deposited"))
		return
	}
	s := *k.snap
	if k.spec.LogBytes > 0 {
		var err error
		if s, err = ReadSnapshot(k.dir); err != nil {
			l.fail(err)
			return
		}
	}
	l.reply(reOK, addSnapshot(nil, s))
}

// askedToQuit ends a holder that stayed after the program's end.
func (k *keeper) askedToQuit(now time.Time) error {
	if k.exit == nil {
		return berth.Errorf(berth.CodeSessionLive, "the program still runs")
	}
	if k.unrecorded { // a last try: the disk may have room again
		if err := berth.WriteFile(filepath.Join(k.dir, berth.FileExit), appendExit(nil, *k.exit), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, "the exit record could not be written:", err)
		}
	}
	k.retire(now)
	return nil
}
