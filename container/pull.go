package container

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	moby "github.com/moby/moby/client"

	"berth"
)

// Bounds of a pull.
const (
	maxLine       = 1 << 20 // bytes of one message
	maxTries      = 50      // however much each brings
	maxPullWait   = 30 * time.Second
	progressEvery = 100 * time.Millisecond
)

// Pull brings the image to the daemon, by its digest. One that is there is not
// asked for, and the registry not spoken to.
//
// report gets the progress: bytes downloaded and unpacked of those known so far;
// neither they nor the total ever go down, also when a try has to be repeated.
// It is called from this goroutine, at most ten times a second, and must not
// block. Nil = nobody looks.
//
// A connection that is lost, and a stream that says nothing for too long, are
// taken up again with growing waits; what Docker has kept is not fetched twice.
// Codes: CodeImageNotFound, CodeDigestMismatch, CodeDiskFull,
// CodeRegistryUnreachable, CodeDockerUnreachable, CodePullFailed (fact "reason":
// auth_refused, rate_limited, stalled, lost, certificate, other), CodeInterrupted
// when ctx ends: what is left then is Docker's own cache.
func (c *Client) Pull(ctx context.Context, image berth.Image, report func(berth.Progress)) error {
	ref, err := refOf(image)
	if err != nil {
		return err
	}
	if present, err := c.ImagePresent(ctx, image); err != nil || present {
		return err
	}
	p := &pull{c: c, ref: ref, tally: newTally(), report: report}
	if err := p.run(ctx, image); err != nil {
		return err
	}
	p.show(p.tally.finish())
	return nil
}

// pull is one Pull.
type pull struct {
	c      *Client
	ref    string
	tally  *tally
	report func(berth.Progress)
	shown  time.Time
}

func (p *pull) show(progress berth.Progress) {
	if p.report != nil {
		p.report(progress)
	}
}

// run tries until the image is there, or a try fails for good, or too many in a
// row brought nothing.
func (p *pull) run(ctx context.Context, image berth.Image) error {
	idle := 0 // tries in a row that brought nothing new
	for try := 1; ; try++ {
		before := p.tally.best.Done + p.tally.best.DoneUnpack
		err := p.try(ctx)
		if err == nil {
			err = p.verify(ctx, image)
		}
		if ctx.Err() != nil {
			return berth.Errorf(berth.CodeInterrupted, "pull %s: %w", p.ref, context.Cause(ctx))
		}
		if err == nil {
			return nil
		}
		again, named := judgePull(err, p.ref)
		if p.tally.best.Done+p.tally.best.DoneUnpack > before {
			idle = 0
		}
		idle++
		if !again || idle >= p.c.cfg.PullTries || try >= maxTries {
			return named.WithFact("tries", strconv.Itoa(try))
		}
		wait := min(p.c.cfg.PullBackoff<<min(idle-1, 10), maxPullWait)
		p.c.cfg.Log.Info("a pull is taken up again", "image", p.ref, "try", try, "wait", wait, "err", err)
		note := p.tally.best
		note.Note = "the connection was lost; trying again"
		p.show(note)
		if !pause(ctx, wait) {
			return berth.Errorf(berth.CodeInterrupted, "pull %s: %w", p.ref, context.Cause(ctx))
		}
	}
}

// pause waits, and reports whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

var errStalled = errors.New("the pull said nothing for too long")

// try is one request. A stream that says nothing is cut by the stall timer,
// which makes Docker give the transfer up.
func (p *pull) try(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(p.c.cfg.PullStall, func() { cancel(errStalled) })
	defer stall.Stop()
	// Nobody but the daemon logs in to registries.
	stream, err := p.c.docker().ImagePull(ctx, p.ref, moby.ImagePullOptions{})
	if err == nil {
		err = p.read(stream, func() { stall.Reset(p.c.cfg.PullStall) })
		_ = stream.Close() // it was only read
	}
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// streamError is an error that Docker wrote into the stream.
type streamError struct {
	code    int
	message string
}

func (e *streamError) Error() string { return e.message }

// read takes a stream to its end.
func (p *pull) read(stream io.Reader, alive func()) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		alive()
		m, err := parseMessage(lines.Bytes())
		if err != nil {
			return err
		}
		if m.Error != "" || m.ErrorDetail != nil {
			e := &streamError{message: m.Error}
			if m.ErrorDetail != nil {
				e.code, e.message = m.ErrorDetail.Code, orElse(m.ErrorDetail.Message, m.Error)
			}
			return e
		}
		if p.tally.take(m) && p.due() {
			p.show(p.tally.best)
		}
	}
	p.show(p.tally.best)
	if err := lines.Err(); err != nil {
		return errors.Join(errLost, err)
	}
	return nil
}

// due spares whoever listens: a fast pull sends thousands of messages.
func (p *pull) due() bool {
	now := p.c.cfg.Now()
	if now.Sub(p.shown) < progressEvery {
		return false
	}
	p.shown = now
	return true
}

var errLost = errors.New("the connection was lost in the middle of the pull")

// parseMessage reads one line. An empty line is a message that says nothing.
func parseMessage(line []byte) (message, error) {
	var m message
	if len(line) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, errors.Join(errLost, err) // a line that was cut short
	}
	return m, nil
}

// verify asks whether what was pulled is there: the stream ends in the same way
// when the connection is cut between two messages.
func (p *pull) verify(ctx context.Context, image berth.Image) error {
	present, err := p.c.ImagePresent(ctx, image)
	if err != nil {
		return err
	}
	if !present {
		return errLost
	}
	return nil
}
