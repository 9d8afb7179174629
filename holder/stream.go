package holder

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"berth"
)

// Stream is one connection. Next is for one goroutine, Input for one other.
type Stream struct {
	conn *clientConn
	in   []byte // read and not yet given out: in[at:]
	at   int
	out  []byte // of Input, kept to be used again
}

// streamBuffer holds a frame of the largest size, so that one read brings
// several small ones or a whole large one.
const streamBuffer = frameHeader + outputExtra + maxOutput

// Stream follows the output from an offset and takes input. The context ends
// the attempt to connect, not the stream: Close does that. Errors:
// CodeInvalidOffset past the end. An offset that is no longer kept is no error:
// the first item is a gap.
func (c *Client) Stream(ctx context.Context, from uint64) (*Stream, error) {
	conn, err := dial(ctx, c.socket)
	if err != nil {
		return nil, err
	}
	s := &Stream{conn: conn, in: make([]byte, 0, streamBuffer)}
	err = conn.request(opStream, addInt(nil, tagOffset, from))
	if err == nil {
		var typ byte
		var body []byte
		if typ, body, err = readFrame(conn.f, nil, maxRequest); err == nil && typ != reOK {
			err = errFrame
			if typ == reError {
				err = decodeError(body)
			}
		}
	}
	if !conn.stop() && err == nil {
		err = ctx.Err() // the context ended first: the connection's deadline is set
	}
	if err != nil {
		_ = conn.f.Close() // the first failure is the one to report
		var be *berth.Error
		if errors.As(err, &be) {
			return nil, err
		}
		return nil, callError(ctx, err)
	}
	return s, nil
}

// Next gives the next item; io.EOF when the holder is gone.
func (s *Stream) Next() (Item, error) {
	for {
		typ, body, rest, ok, err := cutFrame(s.in[s.at:], func(byte) int { return outputExtra + maxOutput })
		if err != nil {
			return Item{}, err
		}
		if !ok {
			if err := s.fill(); err != nil {
				return Item{}, err
			}
			continue
		}
		s.at = len(s.in) - len(rest)
		if item, known, err := decodeItem(typ, body); known || err != nil {
			return item, err
		}
	}
}

// fill reads more; what was not given out moves to the front first.
func (s *Stream) fill() error {
	if s.at > 0 {
		s.in = s.in[:copy(s.in, s.in[s.at:])]
		s.at = 0
	}
	n, err := s.conn.f.Read(s.in[len(s.in):cap(s.in)])
	s.in = s.in[:len(s.in)+n]
	if n > 0 {
		return nil
	}
	if err == nil || errors.Is(err, os.ErrClosed) || isGone(err) {
		return io.EOF
	}
	return err
}

func isGone(err error) bool { return errors.Is(callError(context.Background(), err), ErrGone) }

// decodeItem passes over frames that a newer holder may send.
func decodeItem(typ byte, body []byte) (item Item, known bool, err error) {
	switch typ {
	case reOutput:
		if len(body) < outputExtra {
			return Item{}, false, errFrame
		}
		return Item{
			Kind: KindOutput, Offset: binary.BigEndian.Uint64(body), End: binary.BigEndian.Uint64(body[8:]),
			Data: body[outputExtra:],
		}, true, nil
	case reGap:
		if len(body) != 16 {
			return Item{}, false, errFrame
		}
		return Item{Kind: KindGap, From: binary.BigEndian.Uint64(body), To: binary.BigEndian.Uint64(body[8:])}, true, nil
	case reExit:
		item.Kind = KindExit
		if err := eachField(body, func(f field) { exitField(&item.Exit, f) }); err != nil {
			return Item{}, false, err
		}
		item.Offset, item.End = item.Exit.Offset, item.Exit.Offset
		return item, true, nil
	}
	return Item{}, false, nil
}

// Input writes to the program; it blocks while the program does not read.
func (s *Stream) Input(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxInput)
		s.out = endFrame(append(beginFrame(s.out[:0], opInput), p[:n]...), 0)
		if _, err := s.conn.f.Write(s.out); err != nil {
			if isGone(err) || errors.Is(err, os.ErrClosed) {
				return ErrGone
			}
			return err
		}
		p = p[n:]
	}
	if cap(s.out) > 8<<10 {
		s.out = nil // a paste came; a key does not need its buffer
	}
	return nil
}

// Close ends the stream and lets a blocked call return.
func (s *Stream) Close() error { return s.conn.f.Close() }
