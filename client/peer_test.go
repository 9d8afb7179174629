package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"berth"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(squatterEnv); path != "" {
		os.Exit(squat(path)) //nolint:forbidigo // this is the squatter's main
	}
	goleak.VerifyTestMain(m)
}

// tester is what both testing.TB and rapid.T can do.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// serveOn serves h on a real unix socket and gives a client of it and the end of both.
func serveOn(t tester, h http.Handler) (c *Client, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	if c, err = New(Config{Socket: socket, Timeout: time.Minute, ThroughDaemon: true}); err != nil {
		t.Fatal(err)
	}
	c.pause = time.Microsecond
	return c, func() {
		_ = c.Close()
		_ = server.Close()
		serving.Wait()
		_ = os.RemoveAll(dir)
	}
}

func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	c, stop := serveOn(t, h)
	t.Cleanup(stop)
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), max(d, time.Minute)) // only a hang reaches it, also on a busy machine
	t.Cleanup(cancel)
	return ctx
}

func refuse(w http.ResponseWriter, err error) {
	p := berth.NewProblem(err)
	w.Header().Set("Content-Type", berth.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// ending is how a connection of the peer ends.
type ending int

const (
	endAbrupt  ending = iota // the connection is cut, as by kill -9
	endRestart               // closed with 1012
	endNormal                // closed with 1000, though the program lives
	endHalf                  // cut in the middle of a message
	endDoubled               // the last output frame comes twice: a fault of the peer
	endSkipped               // an output frame is left out: a fault of the peer
	endRefused               // 503 instead of the upgrade
	endingsCount
)

// plan is one connection: how many frames it lasts and how it ends.
type plan struct {
	frames int
	end    ending
}

// query marks a byte that the program wrote as part of a terminal query: it has
// an offset and is not sent.
const query = 0xff

// peer is a daemon with one session, true to the protocol but for its plans.
type peer struct {
	out   []byte // all output of the program
	sizes []int  // of the output frames, in turn
	keep  uint64 // first byte kept for those that come back
	plans []plan // of the first connections; later ones last

	mu       sync.Mutex
	attaches int
	requests []string
	sizesGot []berth.Size // of R frames
	inputs   []byte
	hidden   int
}

func (p *peer) next(r *http.Request) plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r.URL.RawQuery)
	p.attaches++
	if p.attaches <= len(p.plans) {
		return p.plans[p.attaches-1]
	}
	return plan{frames: 1 << 30}
}

// connection is one viewer of the peer.
type connection struct {
	*peer
	ws     *websocket.Conn
	left   int
	ending ending
	pos    uint64
	last   []byte // last output message
	repl   chan struct{}
	marked chan struct{} // closed by the first input, or the end of the viewer
}

// mark is the input that watch sends for each hello.
const mark = "!"

var errPlanned = errors.New("the plan of this connection is over")

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pl := p.next(r)
	if pl.end == endRefused && pl.frames < 1<<30 {
		refuse(w, berth.Errorf(berth.CodeDaemonStopping, "not now"))
		return
	}
	hello, err := p.hello(r)
	if err != nil {
		refuse(w, err)
		return
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c := &connection{peer: p, ws: ws, left: pl.frames, ending: pl.end, pos: hello.Offset, repl: make(chan struct{}, 1), marked: make(chan struct{})}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer func() { _ = ws.CloseNow() }()
	reading.Go(c.read)
	switch err := c.talk(hello); {
	case err == nil:
		_ = ws.Close(websocket.StatusNormalClosure, "session ended")
	case pl.end == endRestart:
		_ = ws.Close(websocket.StatusServiceRestart, "service restart")
	case pl.end == endNormal:
		_ = ws.Close(websocket.StatusNormalClosure, "")
	case pl.end == endHalf:
		if wr, err := ws.Writer(context.Background(), websocket.MessageBinary); err == nil {
			_, _ = wr.Write(berth.Frame{Type: berth.FrameOutput, Body: []byte("half")}.AppendMessage(nil))
		}
	case pl.end == endDoubled && c.last != nil:
		_ = ws.Write(context.Background(), websocket.MessageBinary, c.last)
	case pl.end == endSkipped:
		_ = ws.Write(context.Background(), websocket.MessageBinary, berth.Frame{
			Type: berth.FrameOutput, Body: berth.AppendOutput(nil, c.pos+1, 1, []byte("x")),
		}.AppendMessage(nil))
	}
}

// hello answers a request as the protocol says.
func (p *peer) hello(r *http.Request) (berth.AttachHello, error) {
	h := berth.AttachHello{Session: "s-1", Generation: 1, Resume: berth.ResumeFresh, End: uint64(len(p.out)), KeptFrom: p.keep}
	text := r.URL.Query().Get("offset")
	if text == "" {
		return h, nil
	}
	from, err := strconv.ParseUint(text, 10, 64)
	if err != nil || from > uint64(len(p.out)) {
		return h, berth.Errorf(berth.CodeInvalidOffset, "offset %s", text)
	}
	h.Offset, h.Resume = from, berth.ResumeExact
	if from < p.keep {
		h.Offset, h.Resume = p.keep, berth.ResumeGap
		h.Gap = &berth.OutputGap{From: from, To: p.keep}
	}
	return h, nil
}

func (c *connection) read() {
	var once sync.Once
	mark := func() { once.Do(func() { close(c.marked) }) }
	defer mark()
	for {
		_, msg, err := c.ws.Read(context.Background())
		if err != nil {
			return
		}
		f, err := berth.ParseFrame(msg)
		if err != nil {
			return
		}
		c.mu.Lock()
		switch f.Type {
		case berth.FrameResize:
			var size berth.Size
			_ = f.Decode(&size)
			c.sizesGot = append(c.sizesGot, size)
		case berth.FrameInput:
			c.inputs = append(c.inputs, f.Body...)
			mark()
		case berth.FrameFocus:
			var focus berth.ViewerFocus
			_ = f.Decode(&focus)
			if focus.Refresh {
				c.repl <- struct{}{}
			}
			if focus.Focused != nil && !*focus.Focused {
				c.hidden++
			}
		}
		c.mu.Unlock()
	}
}

func (c *connection) send(f berth.Frame) error {
	if c.left == 0 {
		return errPlanned
	}
	c.left--
	return c.ws.Write(context.Background(), websocket.MessageBinary, f.AppendMessage(nil))
}

// talk sends everything from the hello to the exit.
func (c *connection) talk(h berth.AttachHello) error {
	f, err := berth.JSONFrame(berth.FrameHello, h)
	if err != nil {
		return err
	}
	if err := c.send(f); err != nil {
		return err
	}
	if h.Gap != nil { // a daemon may say it again
		if f, err = berth.JSONFrame(berth.FrameGap, h.Gap); err != nil {
			return err
		}
		if err := c.send(f); err != nil {
			return err
		}
	}
	if h.Resume != berth.ResumeExact {
		if err := c.repaint(); err != nil {
			return err
		}
	}
	for i := 0; c.pos < uint64(len(c.out)); i++ {
		if err := c.output(c.sizes[i%len(c.sizes)]); err != nil {
			return err
		}
	}
	if h.Resume == berth.ResumeExact {
		c.refresh()
	}
	if f, err = berth.JSONFrame(berth.FrameExit, berth.Exit{Code: 7, Offset: c.pos}); err != nil {
		return err
	}
	return c.send(f)
}

// refresh answers a wish for a repaint. It comes before the mark that watch
// sends for each hello, so that there is no time to guess.
func (c *connection) refresh() {
	<-c.marked
	select {
	case <-c.repl:
		_ = c.repaint() // the plan's end shows at the next frame
	default:
	}
}

// repaint sends the screen in two parts, each with the offset that it stands for.
func (c *connection) repaint() error {
	for _, part := range []string{"1/2", "2/2"} {
		if err := c.send(berth.Frame{Type: berth.FrameRepaint, Body: fmt.Appendf(nil, "%d %s", c.pos, part)}); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) output(size int) error {
	covered := c.out[c.pos:min(uint64(len(c.out)), c.pos+uint64(size))]
	f := berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, c.pos, uint32(len(covered)), withoutQueries(covered))}
	if err := c.send(f); err != nil {
		return err
	}
	c.last = f.AppendMessage(nil)
	c.pos += uint64(len(covered))
	return nil
}

func withoutQueries(p []byte) []byte {
	out := []byte{}
	for _, b := range p {
		if b != query {
			out = append(out, b)
		}
	}
	return out
}

// shortDir is a directory for a socket: t.TempDir can be too long for one.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a directory in the temporary one
	return dir
}
