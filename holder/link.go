package holder

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/terminal"
)

// link is one connection of a guest. A stream has no queue of its own: it has a
// position in the output, so a reader that does not read costs nothing and
// slows nobody.
type link struct {
	fd      int
	in      []byte // received, not a whole frame yet
	big     []byte // what in is a part of, when it is mapped; see keep
	out     []byte // to be sent before anything else
	greeted bool
	waiting bool      // for the end of a kill
	askBy   time.Time // by when it must have made a request; zero = it has
	on      uint32    // what the loop waits for

	muted   bool // the other side reads no more; what it sent before is still taken
	stream  bool
	pos     uint64 // next byte of output to send
	told    bool   // the exit was put into out
	blocked bool   // the socket takes nothing now

	// A reader that keeps up with a flood would get a frame for each 4 KiB that
	// the terminal gives at a time; see hold.
	holdUntil time.Time
	windowAt  time.Time
	window    int
}

// A stream that was sent more than holdBytes within holdFor gets the next
// output after holdFor or when holdEnough of it is there: under a flood that is
// an eighth of the wakes and copies for both sides. Echo is far below and never waits.
const (
	holdFor    = time.Millisecond
	holdBytes  = 32 << 10
	holdEnough = 32 << 10
)

// accept takes connections; those of other users are closed at once.
func (k *keeper) accept(now time.Time) {
	for len(k.conns) < maxLinks {
		fd, _, err := unix.Accept4(k.fds.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == unix.EINTR || err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			return
		}
		if !peerAllowed(fd) || k.watchFD(fd, unix.EPOLLIN) != nil {
			_ = unix.Close(fd) // nothing was said
			continue
		}
		k.conns[fd] = &link{fd: fd, on: unix.EPOLLIN, askBy: now.Add(requestMax)}
	}
	k.acceptOff = true
	k.unwatch(k.fds.listener)
}

func (l *link) close(k *keeper) {
	if k.conns[l.fd] != l {
		return
	}
	delete(k.conns, l.fd)
	l.mute(k)
	l.release()
	_ = unix.Close(l.fd) // what was sent is with the kernel
	if k.acceptOff && k.fds.listener >= 0 {
		k.acceptOff = false
		k.rewatch(k.fds.listener, unix.EPOLLIN)
	}
}

// mute stops sending on a connection whose other side has closed. It may have
// sent input before that, so it is read to its end: somebody who types "exit"
// and goes at once has said "exit".
func (l *link) mute(k *keeper) {
	l.muted, l.blocked, l.out, l.holdUntil = true, false, nil, time.Time{}
	for i, s := range k.streams {
		if s == l {
			k.streams = append(k.streams[:i], k.streams[i+1:]...)
			break
		}
	}
	if len(k.streams) == 0 {
		k.scratch = nil
	}
}

// rearm sets what the loop waits for on the connection.
func (l *link) rearm(k *keeper) {
	var want uint32
	if (!l.stream || !k.inputFull) && len(l.out) <= maxUnsent {
		want |= unix.EPOLLIN
	}
	if len(l.out) > 0 || l.blocked {
		want |= unix.EPOLLOUT
	}
	if want != l.on {
		l.on = want
		k.rewatch(l.fd, want)
	}
}

func (l *link) event(k *keeper, events uint32, now time.Time) {
	if events&unix.EPOLLOUT != 0 {
		l.blocked = false
		l.flush(k)
		if l.told && len(l.out) == 0 {
			l.close(k)
			return
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		if !l.read(k, now) {
			l.close(k)
			return
		}
	}
	if k.conns[l.fd] == l {
		l.rearm(k)
	}
}

// read takes what came; false when the connection is over. A malformed frame
// ends this connection and nothing else.
func (l *link) read(k *keeper, now time.Time) bool {
	n, err := unix.Read(l.fd, k.readBuf[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return true
	}
	if err != nil || n == 0 {
		return false
	}
	data := k.readBuf[:n]
	if len(l.in) > 0 {
		l.in = append(l.in, data...)
		data = l.in
	}
	all := len(data)
	for {
		typ, body, rest, ok, err := cutFrame(data, l.limit)
		if err != nil {
			return false
		}
		if !ok {
			break
		}
		data = rest
		if !l.frame(k, typ, body, now) {
			return false
		}
	}
	l.keep(data, all)
	l.flush(k)
	return true
}

// keep keeps what is not a whole frame yet. A large one, which is a deposit,
// gets memory of its own outside the heap, to be given back at once: the heap
// would keep megabytes for hours, in a process that needs hundreds of kilobytes.
func (l *link) keep(data []byte, all int) {
	if len(data) == 0 {
		l.release()
		return
	}
	if len(l.in) > 0 && len(data) == all {
		return // nothing was taken; it is where it should be
	}
	old := l.big
	l.in, l.big = nil, nil
	if len(data) >= frameHeader {
		// The length was checked against the bound of its type.
		if total := 4 + int(binary.BigEndian.Uint32(data)); total > bigFrame {
			size := bigHead + total + len(keeper{}.readBuf)
			big, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err == nil { // else it is the heap's after all
				l.big, l.in = big, big[bigHead:bigHead]
			}
		}
	}
	l.in = append(l.in, data...)
	if old != nil {
		_ = unix.Munmap(old) // it was mapped here, and data was a part of it
	}
}

// bigHead is left free before a large frame, so that a snapshot's header can
// be put before its screen without a copy; see deposit.
const (
	bigFrame = 4 << 10
	bigHead  = snapshotHeader
)

// received gives the memory that the frame at hand lies in; nil = the heap's.
func (l *link) received(k *keeper) []byte {
	switch {
	case l.big != nil:
		return l.big
	case l.in == nil:
		return k.readBuf[:]
	}
	return nil
}

// release gives up what was received.
func (l *link) release() {
	l.in = nil
	if l.big != nil {
		_ = unix.Munmap(l.big) // it was mapped by keep
		l.big = nil
	}
}

// limit bounds the body of a frame by its type.
func (l *link) limit(typ byte) int {
	switch {
	case typ == opDeposit && !l.stream:
		return maxBody
	case typ == opInput && l.stream:
		return maxInput
	}
	return maxRequest
}

// frame handles one frame; false ends the connection.
func (l *link) frame(k *keeper, typ byte, body []byte, now time.Time) bool {
	if !l.greeted {
		if typ != opHello || eachField(body, func(field) {}) != nil {
			return false
		}
		l.greeted = true
		l.reply(reHello, addInt(nil, tagVersion, wireVersion))
		return true
	}
	l.askBy = time.Time{}
	if l.stream {
		if typ == opInput {
			k.addInput(body)
		}
		return true // what a newer guest may say on a stream is passed over
	}
	if l.waiting {
		return false // its request is not answered yet
	}
	return l.request(k, typ, body, now)
}

func (l *link) reply(typ byte, body []byte) {
	at := len(l.out)
	l.out = endFrame(append(beginFrame(l.out, typ), body...), at)
}

func (l *link) fail(err error) {
	l.reply(reError, addError(nil, berth.AsError(err)))
}

// flush sends what is in out.
func (l *link) flush(k *keeper) {
	for len(l.out) > 0 {
		n, err := k.gather.send(l.fd, l.out)
		if err != nil || l.muted {
			l.mute(k)
			return
		}
		if n == 0 {
			l.blocked = true
			return
		}
		l.out = l.out[n:]
	}
	l.out = nil
}

// serve brings every stream forward as far as its socket takes it.
func (k *keeper) serve(now time.Time) {
	for i := len(k.streams) - 1; i >= 0; i-- { // from behind, since one that fails is taken out
		l := k.streams[i]
		for l.advance(k, now) {
		}
		if k.conns[l.fd] == l {
			l.rearm(k)
		}
	}
}

// advance sends one frame of output; false when there is nothing to do now.
func (l *link) advance(k *keeper, now time.Time) bool {
	if l.blocked || l.muted || len(l.out) > 0 {
		return false
	}
	end := k.log.End()
	if l.pos == end {
		l.holdUntil = time.Time{}
		if k.exit != nil && !l.told {
			l.told = true
			l.reply(reExit, addExit(nil, *k.exit))
			l.flush(k)
			if len(l.out) == 0 { // the exit is the last item
				l.close(k)
			}
		}
		return false
	}
	if k.exit == nil && l.hold(int(min(end-l.pos, holdEnough)), now) {
		return false
	}
	a, b := k.log.Pieces(l.pos, maxOutput)
	if len(a) == 0 {
		var ok bool
		if a, ok = l.older(k, end); !ok {
			return !l.muted && len(l.out) == 0
		}
	}
	return l.output(k, a, b, end)
}

// hold reports whether the output should wait for more to come.
func (l *link) hold(have int, now time.Time) bool {
	if now.Sub(l.windowAt) >= holdFor {
		l.windowAt, l.window = now, 0
	}
	if l.window < holdBytes || have >= holdEnough {
		l.holdUntil = time.Time{}
		l.window += have
		return false
	}
	l.holdUntil = l.windowAt.Add(holdFor)
	return true
}

// older brings output that has left the ring from the disk; where it is not
// kept, the stream is told of the gap. ok is false when there is nothing to send.
func (l *link) older(k *keeper, end uint64) (data []byte, ok bool) {
	if k.scratch == nil {
		k.scratch = make([]byte, maxOutput)
	}
	n, err := k.log.ReadAt(k.scratch, l.pos)
	if n > 0 {
		return k.scratch[:n], true
	}
	to := k.log.State().Start
	var gap *terminal.GapError
	if errors.As(err, &gap) && gap.To > l.pos {
		to = gap.To
	}
	if to <= l.pos || to > end { // the disk does not give what it should have
		to = end
	}
	var body [16]byte
	binary.BigEndian.PutUint64(body[:], l.pos)
	binary.BigEndian.PutUint64(body[8:], to)
	l.pos = to
	l.reply(reGap, body[:])
	l.flush(k)
	return nil, false
}

// output sends a frame with the pieces; what the socket does not take is
// copied, since the ring moves on.
func (l *link) output(k *keeper, a, b []byte, end uint64) bool {
	h := k.header[:0]
	h = beginFrame(h, reOutput)
	h = binary.BigEndian.AppendUint64(h, l.pos)
	h = binary.BigEndian.AppendUint64(h, end)
	binary.BigEndian.PutUint32(h, uint32(len(h)-4+len(a)+len(b)))
	sent, err := k.gather.send(l.fd, h, a, b)
	if err != nil {
		l.mute(k)
		return false
	}
	if sent == 0 {
		l.blocked = true
		return false
	}
	l.pos += uint64(len(a) + len(b))
	for _, p := range [][]byte{h, a, b} {
		if sent >= len(p) {
			sent -= len(p)
			continue
		}
		l.out = append(l.out, p[sent:]...)
		sent = 0
	}
	l.blocked = len(l.out) > 0
	return !l.blocked
}

// owed reports whether the connection still waits for something at the end.
func (l *link) owed(k *keeper) bool {
	return !l.muted && (len(l.out) > 0 || l.waiting || l.stream && !l.told)
}

// readLog answers opReadLog.
func (l *link) readLog(k *keeper, from uint64, limit int) {
	end := k.log.End()
	if from > end {
		l.fail(errPastEnd(from, end))
		return
	}
	at := len(l.out)
	out := beginFrame(l.out, reOK)
	p := make([]byte, min(uint64(max(limit, 0)), maxRead, end-from))
	n, err := k.log.ReadAt(p, from)
	var gap *terminal.GapError
	switch {
	case errors.As(err, &gap):
		l.fail(berth.Errorf(berth.CodeOffsetGone, "the output at offset %d is no longer kept; it begins again at %d", from, gap.To).
			WithFact("kept_from", decimal(gap.To)))
	case err != nil:
		l.fail(err)
	default:
		l.out = endFrame(append(out, p[:n]...), at)
	}
}

func errPastEnd(offset, end uint64) error {
	return berth.Errorf(berth.CodeInvalidOffset, "offset %d is past the end of the output at %d", offset, end).WithFact("end", decimal(end))
}
