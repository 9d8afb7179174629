package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/holder"
)

// faulty are real holders whose streams fail in ways that real ones do not show
// when they are asked to.
type faulty struct {
	realHolders
	cutAfter int64 // bytes after which a stream breaks off; 0 = never
	cuts     atomic.Int64
	gate     chan struct{} // a stream gives nothing until it is closed; nil = no gate
	noScreen atomic.Bool   // deposits come back damaged
}

func (f *faulty) Client(socket string) holderClient {
	return faultyClient{f.realHolders.Client(socket), f}
}

type faultyClient struct {
	holderClient
	f *faulty
}

func (c faultyClient) Stream(ctx context.Context, from uint64) (holderStream, error) {
	s, err := c.holderClient.Stream(ctx, from)
	if err != nil {
		return nil, err
	}
	return &faultyStream{holderStream: s, f: c.f, left: c.f.cutAfter}, nil
}

func (c faultyClient) Snapshot(ctx context.Context) (holder.Snapshot, error) {
	s, err := c.holderClient.Snapshot(ctx)
	if err == nil && c.f.noScreen.Load() {
		s.Screen = bytes.Repeat([]byte("damaged"), 100)
	}
	return s, err
}

type faultyStream struct {
	holderStream
	f    *faulty
	left int64
}

func (s *faultyStream) Next() (holder.Item, error) {
	if s.f.cutAfter > 0 && s.left <= 0 {
		s.f.cuts.Add(1)
		return holder.Item{}, io.EOF
	}
	if s.f.gate != nil {
		<-s.f.gate
	}
	item, err := s.holderStream.Next()
	s.left -= int64(len(item.Data))
	return item, err
}

func TestAStreamThatIsCutIsReadOn(t *testing.T) {
	l := newLab(t)
	f := &faulty{cutAfter: 100_000}
	cfg := l.config()
	cfg.holders = f
	l.startWith(cfg)
	const lines = 40_000
	id := l.program("count", fmt.Sprint(lines), "slow")
	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	l.type_(id, "\r")
	w.awaitOutput("all lines\r\n")
	w.see(func() bool {
		if want := expected(lines)[w.Hello.Offset:]; !bytes.Equal(w.output, want) {
			t.Errorf("the viewer got %d bytes, want %d, or they are not the same", len(w.output), len(want))
		}
		return true
	})
	if f.cuts.Load() == 0 {
		t.Error("nothing was cut")
	}
	l.type_(id, "\r") // input finds the new stream
	l.awaitState(id, berth.SessionExited)
}

func TestAScreenThatLagsSkimsAndDrawsTheEnd(t *testing.T) {
	l := newLab(t)
	f := &faulty{gate: make(chan struct{})}
	cfg := l.config()
	cfg.holders = f
	l.startWith(cfg)
	id := l.run("sh", "-c", `printf '\033[?2004h\033]0;skimmed\007'; seq 1 1500000; echo END; read x`) // 11.9 MB
	socket := filepath.Join(l.runtime(), berth.DirHolders, id+".sock")
	eventually(t, "the end of the output", func() bool {
		info, err := holder.NewClient(socket).Info(t.Context())
		if err != nil || info.End < skimAbove+drawBelow {
			return false
		}
		p := make([]byte, 16)
		n, err := holder.NewClient(socket).ReadLog(t.Context(), info.End-5, p)
		return err == nil && string(p[:n]) == "END\r\n"
	})
	close(f.gate)
	scr := l.awaitScreen(id, "END")
	if scr.Title != "skimmed" || !bytes.Contains(scr.ANSI, []byte("\x1b[?2004h")) {
		t.Errorf("modes and title were not carried over: %q %q", scr.Title, scr.ANSI)
	}
	if text := strings.Join(scr.Lines, "\n"); !strings.Contains(text, "1499999\n1500000\nEND") {
		t.Errorf("the end is drawn as %q", text)
	}
	if s := l.session(id); s.Skipped == 0 || s.Skipped > s.Offsets.End-drawBelow/2 {
		t.Errorf("%d of %d bytes were skipped", s.Skipped, s.Offsets.End)
	}
}

func TestADamagedDepositIsDrawnAgain(t *testing.T) {
	l := newLab(t)
	f := &faulty{}
	cfg := l.config()
	cfg.holders = f
	l.startWith(cfg)
	id := l.run("sh", "-c", `printf 'one\ntwo\n'; read x`)
	before := l.awaitScreen(id, "two")
	l.stop()
	f.noScreen.Store(true)
	l.startWith(cfg)
	if after := l.awaitScreen(id, "two"); !bytes.Equal(before.ANSI, after.ANSI) {
		t.Errorf("before %q, after %q", before.ANSI, after.ANSI)
	}
}

// An idle session costs one goroutine that waits for its holder's output, and
// where this guest started the holder one more that waits to reap it.
func TestIdleSessionsCostLittle(t *testing.T) {
	l := newLab(t)
	l.start()
	first := l.run("sh", "-c", "read x")
	l.awaitState(first, berth.SessionRunning)
	settled := func() int {
		last, same := 0, 0
		for same < 20 {
			<-time.After(10 * time.Millisecond)
			if n := runtime.NumGoroutine(); n == last {
				same++
			} else {
				last, same = n, 0
			}
		}
		return last
	}
	before := settled()
	const n = 20
	for range n {
		l.run("sh", "-c", "echo idle; read x")
	}
	if grown := settled() - before; grown > 2*n+2 {
		buf := make([]byte, 1<<20)
		t.Errorf("%d idle sessions cost %d goroutines\n%s", n, grown, buf[:runtime.Stack(buf, true)])
	}
}

func TestTheRequestIsBounded(t *testing.T) {
	l := newLab(t)
	l.start()
	r := l.request("true", strings.Repeat("x", berth.MaxRequest))
	if _, err := l.client.Create(t.Context(), r); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("a request of more than %d bytes: %v", berth.MaxRequest, err)
	}
	id := l.run("sh", "-c", "stty raw -echo; echo on; sleep 60")
	l.awaitOutput(id, "on")
	if err := l.client.Input(t.Context(), id, berth.InputRequest{Data: make([]byte, berth.MaxInput+1)}); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("input of more than %d bytes: %v", berth.MaxInput, err)
	}
	// A program that does not read holds up who types, and nobody else.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.client.Input(ctx, id, berth.InputRequest{Data: bytes.Repeat([]byte("y"), berth.MaxInput)}); !errors.Is(err, berth.CodeTimeout) {
		t.Errorf("1 MiB for a program that reads nothing: %v", err)
	}
	if _, err := l.client.Kill(t.Context(), id); err != nil {
		t.Errorf("kill: %v", err)
	}
}
