package holder

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"time"

	"berth"
)

// The wire between a guest and a holder, both ways:
//
//	frame = u32 length of the rest, big endian | u8 type | body
//
// The body of most frames is a list of fields, tag | length | bytes, with tag
// and length as uvarints. A reader passes over tags that it does not know, and
// a holder answers a type that it does not know with an error, so a guest may be
// newer than the holders that it finds: that is the rule, not the exception.
//
// The guest's first frame is a hello with its version, followed without waiting
// by a request; the holder's first frame is its hello.
const wireVersion = 1

// Types of frames from the guest.
const (
	opHello    = 'H'
	opInfo     = 'i'
	opResize   = 'r'
	opSignal   = 's'
	opKill     = 'k'
	opDeposit  = 'd'
	opSnapshot = 'n'
	opReadLog  = 'l'
	opQuit     = 'q'
	opStream   = 't'
	opInput    = 'I' // on a stream; the body is the bytes
)

// Types of frames from the holder.
const (
	reHello  = 'H'
	reOK     = 'a'
	reError  = 'e'
	reOutput = 'O' // u64 offset | u64 end | bytes
	reGap    = 'G' // u64 from | u64 to
	reExit   = 'X'
)

// Bounds. maxBody is the largest body of any frame: a snapshot and its fields.
const (
	maxSnapshot = 8 << 20
	maxBody     = maxSnapshot + 4096
	maxInput    = 64 << 10 // body of one input frame
	maxRequest  = 4096     // body of any other request than a deposit
	maxOutput   = 64 << 10 // bytes of output in one frame
	maxRead     = 64 << 10 // bytes of output in one answer to opReadLog
	frameHeader = 5
	outputExtra = 16 // offset and end before the bytes
)

// Tags of fields. A number is never used again for something else.
const (
	tagVersion = iota + 1
	tagCode
	tagDetail
	tagKeptFrom
	tagGeneration
	tagCols
	tagRows
	tagSignal
	tagOffset
	tagLimit
	tagData
	tagStart
	tagEnd
	tagLogFrom
	tagLogSize
	tagLogGap
	tagExitCode
	tagExitSignal
	tagExitReason
	tagExitDetail
	tagExitOffset
	tagExitAt // Unix nanoseconds
	tagExitSurvivors
	tagContained
	tagSurvivor // one field for each
	tagBootID
	tagHolderPID
	tagHolderStart
	tagHolderInode
	tagProgramPID
	tagProgramStart
	tagProgramInode
	tagStartedAt // Unix nanoseconds
	tagCgroup
	tagLogBytes
	tagID
	tagArg // one field for each
	tagEnv // one field for each
	tagCwd
	tagRingBytes
	tagKillGrace // nanoseconds
	tagDrainQuiet
	tagFact // one field for each: "key=value"
	tagHint
)

var errFrame = errors.New("a malformed frame")

// beginFrame appends the header of a frame whose length endFrame fills in.
func beginFrame(b []byte, typ byte) []byte { return append(b, 0, 0, 0, 0, typ) }

// endFrame fills in the length of the frame that begins at b[at].
func endFrame(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// frame makes a whole frame.
func frame(typ byte, body []byte) []byte {
	b := make([]byte, 0, frameHeader+len(body))
	return endFrame(append(beginFrame(b, typ), body...), 0)
}

// cutFrame takes the first frame off b. ok is false when it is not whole yet.
// limit says how large a body of a type may be; a larger one is errFrame.
func cutFrame(b []byte, limit func(typ byte) int) (typ byte, body, rest []byte, ok bool, err error) {
	if len(b) < frameHeader {
		return 0, nil, b, false, nil
	}
	n := binary.BigEndian.Uint32(b)
	typ = b[4]
	if n < 1 || uint64(n)-1 > uint64(limit(typ)) {
		return 0, nil, nil, false, errFrame
	}
	total := 4 + int(n)
	if len(b) < total {
		return 0, nil, b, false, nil
	}
	return typ, b[frameHeader:total], b[total:], true, nil
}

// readFrame reads one frame; the body is appended to buf[:0].
func readFrame(r io.Reader, buf []byte, limit int) (typ byte, body []byte, err error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[:])
	if n < 1 || uint64(n)-1 > uint64(limit) {
		return 0, nil, errFrame
	}
	size := int(n) - 1
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	body = buf[:size]
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return h[4], body, nil
}

func addBytes(b []byte, tag uint64, v []byte) []byte {
	b = binary.AppendUvarint(b, tag)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func addString(b []byte, tag uint64, v string) []byte {
	if v == "" {
		return b
	}
	b = binary.AppendUvarint(b, tag)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func addInt(b []byte, tag, v uint64) []byte {
	var n [binary.MaxVarintLen64]byte
	return addBytes(b, tag, binary.AppendUvarint(n[:0], v))
}

// field is one decoded field. Its bytes are those of the frame.
type field struct {
	tag uint64
	val []byte
}

func (f field) int() uint64 {
	v, n := binary.Uvarint(f.val)
	if n != len(f.val) {
		return 0
	}
	return v
}

func (f field) str() string { return string(f.val) }

// eachField calls f for every field of a body.
func eachField(body []byte, f func(field)) error {
	for len(body) > 0 {
		tag, n := binary.Uvarint(body)
		if n <= 0 {
			return errFrame
		}
		body = body[n:]
		size, n := binary.Uvarint(body)
		if n <= 0 || size > uint64(len(body)-n) {
			return errFrame
		}
		f(field{tag, body[n : n+int(size)]})
		body = body[n+int(size):]
	}
	return nil
}

func addExit(b []byte, e berth.Exit) []byte {
	b = addInt(b, tagExitCode, uint64(e.Code))
	b = addString(b, tagExitSignal, e.Signal)
	b = addString(b, tagExitReason, string(e.Reason))
	b = addString(b, tagExitDetail, e.Detail)
	b = addInt(b, tagExitOffset, e.Offset)
	b = addInt(b, tagExitAt, uint64(e.At.UnixNano()))
	return addInt(b, tagExitSurvivors, uint64(e.Survivors))
}

// exitField takes a field into e; false when it is none of an exit.
func exitField(e *berth.Exit, f field) bool {
	switch f.tag {
	case tagExitCode:
		e.Code = int(f.int())
	case tagExitSignal:
		e.Signal = f.str()
	case tagExitReason:
		e.Reason = berth.ExitReason(f.str())
	case tagExitDetail:
		e.Detail = f.str()
	case tagExitOffset:
		e.Offset = f.int()
	case tagExitAt:
		e.At = time.Unix(0, int64(f.int())).UTC()
	case tagExitSurvivors:
		e.Survivors = int(f.int())
	default:
		return false
	}
	return true
}

func addError(b []byte, e *berth.Error) []byte {
	b = addString(b, tagCode, string(e.Code))
	b = addString(b, tagDetail, e.Detail)
	b = addString(b, tagHint, e.Hint)
	for k, v := range e.Facts {
		b = addString(b, tagFact, k+"="+v)
	}
	return b
}

func decodeError(body []byte) error {
	e := &berth.Error{Code: berth.CodeInternal}
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagCode:
			e.Code = berth.Code(f.str())
		case tagDetail:
			e.Detail = f.str()
		case tagHint:
			e.Hint = f.str()
		case tagFact:
			if k, v, ok := strings.Cut(f.str(), "="); ok {
				e = e.WithFact(k, v)
			}
		}
	})
	if err != nil {
		return err
	}
	return e
}
