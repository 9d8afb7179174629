package berth

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
)

// FrameType is the first byte of an attach frame.
//
// On a WebSocket one binary message is one frame: the type byte and a body. On
// a byte stream the same comes behind a four-byte big-endian length of both.
//
// Bodies: I and P are raw bytes; O is u64 offset, u32 covers (big-endian) and
// bytes; all others are JSON.
type FrameType byte

// From the client.
const (
	FrameInput  FrameType = 'I' // bytes for the program
	FrameResize FrameType = 'R' // Size: the viewer's terminal
	FrameSignal FrameType = 'S' // SignalRequest
	FrameFocus  FrameType = 'F' // ViewerFocus
)

// From the server.
const (
	FrameHello   FrameType = 'H' // AttachHello, always first
	FrameRepaint FrameType = 'P' // sequences that rebuild the screen; they have no offsets
	FrameOutput  FrameType = 'O' // output
	FrameGap     FrameType = 'G' // OutputGap: output that this viewer is not sent; a repaint follows
	FrameExit    FrameType = 'X' // Exit; the last frame
	FrameState   FrameType = 'T' // ViewerState
)

// A viewer that can reach the guest's own socket asks it for an attach over
// HTTP/1.1 with "Upgrade: berth-attach". After the answer the connection carries
// frames in both directions as on a byte stream; closing it ends the viewer.
const (
	DirectUpgrade = "berth-attach"
	DirectAnswer  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + DirectUpgrade + "\r\n\r\n"
)

// DirectAttach says where a session's guest can be reached without the daemon:
// it answers GET /v1/sessions/{ref}/direct for sessions of this machine.
type DirectAttach struct {
	Session string `json:"session"` // id
	Socket  string `json:"socket"`  // path of the guest's unix socket
}

// MaxFrame bounds type and body together, in both directions; in bytes.
const MaxFrame = 1 << 20

// Frame is one message. Body is only valid until the next read.
type Frame struct {
	Type FrameType
	Body []byte
}

// ResumeKind says how an attach connects to what the client already had.
type ResumeKind string

// The kinds of resume.
const (
	ResumeFresh      ResumeKind = "fresh"              // a repaint follows, then live output
	ResumeExact      ResumeKind = "exact"              // output continues at the asked offset
	ResumeGap        ResumeKind = "gap"                // a gap, then a repaint, then live output
	ResumeGeneration ResumeKind = "generation_changed" // the program was started again: repaint
)

// Valid reports whether the kind is one of the above.
func (k ResumeKind) Valid() bool {
	return k == ResumeFresh || k == ResumeExact || k == ResumeGap || k == ResumeGeneration
}

// AttachRequest is what a viewer asks for, as query parameters of attach:
// generation, offset, cols, rows, read_only, size_policy, ssh_auth_sock.
type AttachRequest struct {
	Generation int     // 0 = fresh attach
	Offset     *uint64 // nil = fresh attach; else the first byte not yet seen
	Size       Size    // of the viewer's terminal; zero = it has none and never resizes
	ReadOnly   bool
	SizePolicy SizePolicy // "" = leave the session's
	// SSHAuthSock is the path of the viewer's SSH agent on the guest's machine,
	// or "" when it lends none.
	SSHAuthSock string
}

// Query gives the request as query parameters of attach.
func (r AttachRequest) Query() url.Values {
	q := url.Values{}
	if r.Generation != 0 {
		q.Set("generation", strconv.Itoa(r.Generation))
	}
	if r.Offset != nil {
		q.Set("offset", strconv.FormatUint(*r.Offset, 10))
	}
	if r.Size != (Size{}) {
		q.Set("cols", strconv.Itoa(r.Size.Cols))
		q.Set("rows", strconv.Itoa(r.Size.Rows))
	}
	if r.ReadOnly {
		q.Set("read_only", "true")
	}
	if r.SizePolicy != "" {
		q.Set("size_policy", string(r.SizePolicy))
	}
	if r.SSHAuthSock != "" {
		q.Set("ssh_auth_sock", r.SSHAuthSock)
	}
	return q
}

// AttachHello is the first frame from the server.
type AttachHello struct {
	Session    string     `json:"session"`
	Viewer     string     `json:"viewer"`
	Generation int        `json:"generation"`
	BootID     string     `json:"boot_id"`
	Offset     uint64     `json:"offset"` // the first output frame begins here
	End        uint64     `json:"end"`
	KeptFrom   uint64     `json:"kept_from"`
	Cols       int        `json:"cols"`
	Rows       int        `json:"rows"`
	Resume     ResumeKind `json:"resume"`
	Gap        *OutputGap `json:"gap,omitempty"`           // with ResumeGap
	PrevExit   *Exit      `json:"previous_exit,omitempty"` // with ResumeGeneration, where it is known
}

// OutputGap is a range of output that is not sent: bytes From to To-1.
type OutputGap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// ViewerFocus tells of the viewer itself.
type ViewerFocus struct {
	Focused *bool `json:"focused,omitempty"` // false = hidden: it does not decide the size
	Refresh bool  `json:"refresh,omitempty"` // ask for a gap-free repaint now
}

// ViewerState is sent when something beside the output changed.
type ViewerState struct {
	Title   string `json:"title"`
	Agent   *Agent `json:"agent,omitempty"`
	Size    Size   `json:"size"` // of the session
	Viewers int    `json:"viewers"`
}

// frameHead is the length before a frame on a byte stream.
const frameHead = 4

// outputHeader is the offset and the length covered, before the bytes.
const outputHeader = 12

// AppendOutput appends the body of an output frame to dst. Covers is how many
// bytes of the program's output the data stands for: queries are left out, so
// it may be larger than len(data). The next frame's offset is offset+covers.
func AppendOutput(dst []byte, offset uint64, covers uint32, data []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, offset)
	dst = binary.BigEndian.AppendUint32(dst, covers)
	return append(dst, data...)
}

// OutputHead is the room that an output frame needs before its bytes on a byte
// stream: length, type, offset, covers.
const OutputHead = frameHead + 1 + outputHeader

// SealOutput fills in the first OutputHead bytes of frame, which then is a whole
// output frame as it goes on a byte stream. The bytes of output stand behind
// the head already, so that the hot path copies them once.
func SealOutput(frame []byte, offset uint64, covers uint32) {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-frameHead)) //nolint:gosec // MaxFrame fits
	frame[frameHead] = byte(FrameOutput)
	binary.BigEndian.PutUint64(frame[frameHead+1:], offset)
	binary.BigEndian.PutUint32(frame[frameHead+9:], covers)
}

// ParseOutput reads the body of an output frame. Data is part of body.
func ParseOutput(body []byte) (offset uint64, covers uint32, data []byte, err error) {
	if len(body) < outputHeader {
		return 0, 0, nil, Errorf(CodeInvalidArgument, "an output frame of %d bytes has no header", len(body))
	}
	offset, covers = binary.BigEndian.Uint64(body), binary.BigEndian.Uint32(body[8:])
	if offset+uint64(covers) < offset {
		return 0, 0, nil, Errorf(CodeInvalidArgument, "an output frame ends after the last possible offset")
	}
	return offset, covers, body[outputHeader:], nil
}

// JSONFrame makes a frame of a value that encoding/json takes without error.
func JSONFrame(t FrameType, v any) (Frame, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return Frame{}, fmt.Errorf("encode frame %c: %w", t, err)
	}
	return Frame{Type: t, Body: body}, nil
}

// Decode reads a JSON body.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Body, v); err != nil {
		return Errorf(CodeInvalidArgument, "frame %q: %w", byte(f.Type), err)
	}
	return nil
}

// ParseFrame reads one WebSocket message. The body is part of msg.
func ParseFrame(msg []byte) (Frame, error) {
	if len(msg) == 0 || len(msg) > MaxFrame {
		return Frame{}, Errorf(CodeInvalidArgument, "a frame of %d bytes is outside 1 to %d", len(msg), MaxFrame)
	}
	return Frame{Type: FrameType(msg[0]), Body: msg[1:]}, nil
}

// ReadMessage appends what r gives until its end to buf, which grows as needed
// and may be nil: one WebSocket message, into a buffer that the next one uses
// again. The caller has bounded r.
func ReadMessage(buf []byte, r io.Reader) ([]byte, error) {
	if cap(buf) == 0 {
		buf = make([]byte, 0, firstMessage)
	}
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

// firstMessage is the first size of a buffer for messages: a thousand viewers
// who only type need no more.
const firstMessage = 1 << 10

// AppendMessage appends the frame as a WebSocket message.
func (f Frame) AppendMessage(dst []byte) []byte {
	return append(append(dst, byte(f.Type)), f.Body...)
}

// AppendStream appends the frame as it goes on a byte stream.
func (f Frame) AppendStream(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.Body)+1)) //nolint:gosec // MaxFrame fits
	return f.AppendMessage(dst)
}

// FrameReader reads frames from a byte stream.
type FrameReader struct {
	r   *bufio.Reader
	buf []byte
}

// NewFrameReader reads frames from r.
func NewFrameReader(r io.Reader) *FrameReader {
	return &FrameReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// Next reads one frame. Its body is valid until the next call. The error is
// io.EOF at a clean end, io.ErrUnexpectedEOF inside a frame, and
// CodeInvalidArgument for a length out of bounds, after which the stream is lost.
func (fr *FrameReader) Next() (Frame, error) {
	head, err := fr.r.Peek(frameHead) // not ReadFull into an array: that would allocate for each frame
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) && len(head) > 0:
		return Frame{}, io.ErrUnexpectedEOF
	default:
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head)
	if n == 0 || n > MaxFrame {
		return Frame{}, Errorf(CodeInvalidArgument, "a frame of %d bytes is outside 1 to %d", n, MaxFrame)
	}
	_, _ = fr.r.Discard(frameHead) // Peek has just read them
	if cap(fr.buf) < int(n) {
		fr.buf = make([]byte, n)
	}
	fr.buf = fr.buf[:n]
	if _, err := io.ReadFull(fr.r, fr.buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return ParseFrame(fr.buf)
}

// Ready reports whether Next would return at once, because a whole frame or the
// head of an impossible one has been read already. A frame that is larger than
// the reader's buffer is never ready: the answer may be false, never wrongly true.
func (fr *FrameReader) Ready() bool {
	have := fr.r.Buffered()
	if have < frameHead {
		return false
	}
	head, err := fr.r.Peek(frameHead)
	if err != nil {
		return false
	}
	n := binary.BigEndian.Uint32(head)
	return n == 0 || n > MaxFrame || have-frameHead >= int(n)
}
