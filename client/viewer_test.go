package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
)

// seen is what a viewer's caller has put together.
type seen struct {
	data     []byte // output, with nothing for the gaps
	want     []byte // the program's output at the same places
	gaps     int
	breaks   int
	restored int
	repaint  string // last one
	exit     *berth.Exit
	hellos   []berth.ResumeKind
}

// watch reads a viewer to its end and checks each update against the program.
func watch(t tester, v *Viewer, out []byte) seen {
	t.Helper()
	var s seen
	next, begun := uint64(0), false
	for {
		u, err := v.Next()
		if errors.Is(err, io.EOF) {
			return s
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", next, err)
		}
		switch u.Kind {
		case UpdateHello:
			s.hellos = append(s.hellos, u.Hello.Resume)
			_ = v.Input([]byte(mark)) // a break shows at the next update
			if !begun {
				next, begun = u.Hello.Offset, true
			}
		case UpdateOutput:
			if u.Offset != next {
				t.Fatalf("output at %d, want %d", u.Offset, next)
			}
			next += uint64(u.Covers)
			s.data = append(s.data, u.Data...)
			s.want = append(s.want, withoutQueries(out[u.Offset:next])...)
		case UpdateGap:
			if u.Gap.From != next {
				t.Fatalf("gap from %d, want %d", u.Gap.From, next)
			}
			next = u.Gap.To
			s.gaps++
		case UpdateRepaint:
			s.repaint = string(u.Data)
			if !strings.HasPrefix(s.repaint, fmt.Sprintf("%d ", next)) {
				t.Fatalf("repaint %q at offset %d", s.repaint, next)
			}
		case UpdateDisconnected:
			s.breaks++
			if u.Err == nil {
				t.Fatal("no reason")
			}
		case UpdateReconnected:
			s.restored++
		case UpdateExit:
			s.exit = &u.Exit
			if next != uint64(len(out)) {
				t.Fatalf("exit at offset %d of %d", next, len(out))
			}
		}
	}
}

func (s seen) check(t tester) {
	t.Helper()
	if !bytes.Equal(s.data, s.want) {
		t.Fatalf("the output is not the program's: %d bytes, want %d", len(s.data), len(s.want))
	}
	if s.exit == nil || s.exit.Code != 7 {
		t.Fatalf("exit %+v", s.exit)
	}
	if s.breaks != s.restored {
		t.Fatalf("%d breaks, %d times restored", s.breaks, s.restored)
	}
	if !strings.HasSuffix(s.repaint, "2/2") {
		t.Fatalf("the screen was left half painted: %q", s.repaint)
	}
}

// The connection breaks behind every frame in turn, in every way; the output
// that the caller puts together is the program's, byte for byte, and the screen
// is painted in full.
func TestViewerBreaksAtEveryFrame(t *testing.T) {
	out := append(bytes.Repeat([]byte("abcdefg"), 6), query, query, 'z')
	for end := range endingsCount {
		for frames := range 14 {
			t.Run(fmt.Sprintf("%d/%d", end, frames), func(t *testing.T) {
				p := &peer{out: out, sizes: []int{5, 1, 9}, plans: []plan{{frames: frames, end: end}}}
				if frames == 0 && end == endRefused {
					t.Skip("a refused first attach is View's error")
				}
				if end == endRefused {
					p.plans = []plan{{frames: frames}, {end: endRefused}, {end: endRefused}}
				}
				c := serve(t, p)
				v, err := c.View(within(t, 20*time.Second), "a", berth.AttachRequest{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = v.Close() }()
				watch(t, v, out).check(t)
			})
		}
	}
}

func TestViewerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "out")
		p := &peer{
			out:   out,
			sizes: rapid.SliceOfN(rapid.IntRange(1, 60), 1, 5).Draw(t, "sizes"),
			keep:  uint64(rapid.IntRange(0, len(out)).Draw(t, "keep")),
			plans: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) plan {
				return plan{frames: rapid.IntRange(0, 9).Draw(t, "frames"), end: ending(rapid.IntRange(0, int(endingsCount)-1).Draw(t, "end"))}
			}), 0, 8).Draw(t, "plans"),
		}
		// A peer whose every frame is wrong is given up at some point.
		faults := 0
		for i := range p.plans {
			if e := p.plans[i].end; e == endDoubled || e == endSkipped {
				if faults++; faults > maxViolations {
					p.plans[i].end = endAbrupt
				}
			}
		}
		if len(p.plans) > 0 && p.plans[0].end == endRefused {
			p.plans[0].end = endAbrupt
		}
		c, stop := serveOn(t, p)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		v, err := c.View(ctx, "a", berth.AttachRequest{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = v.Close() }()
		watch(t, v, out).check(t)
	})
}

// A connection that is cut is not one that ended: io.EOF is said behind the
// exit alone.
func TestCutAttachIsNoEnd(t *testing.T) {
	for _, end := range []ending{endAbrupt, endHalf, endRestart} {
		c := serve(t, &peer{out: []byte("0123456789"), sizes: []int{5}, plans: []plan{{frames: 4, end: end}}})
		conn, err := c.Attach(within(t, 5*time.Second), "a", berth.AttachRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = conn.Read()
		}
		if errors.Is(err, io.EOF) || !transient(err) {
			t.Errorf("ending %d: %v", end, err)
		}
		_ = conn.Close()
	}
}

// What is typed while nobody hears it is refused, and never typed later.
func TestInputWhileDisconnectedIsDropped(t *testing.T) {
	p := &peer{out: []byte("0123456789"), sizes: []int{5}, plans: []plan{{frames: 4}}}
	c := serve(t, p)
	v, err := c.View(within(t, 10*time.Second), "a", berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	for {
		u, err := v.Next()
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == UpdateDisconnected {
			break
		}
	}
	if err := v.Input([]byte("rm -rf\r")); !errors.Is(err, berth.CodeDaemonUnreachable) {
		t.Errorf("%v", err)
	}
	hidden := false
	if err := errors.Join(v.Resize(berth.Size{Cols: 120, Rows: 40}), v.Focus(berth.ViewerFocus{Focused: &hidden})); err != nil {
		t.Errorf("%v", err)
	}
	for {
		u, err := v.Next()
		if err != nil {
			t.Fatal(err)
		}
		if u.Kind == UpdateExit {
			break
		}
		if u.Kind == UpdateHello {
			if err := v.Input([]byte("now")); err != nil {
				t.Error(err)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if string(p.inputs) != "now" {
		t.Errorf("the program got %q", p.inputs)
	}
	if last := p.requests[len(p.requests)-1]; !strings.Contains(last, "cols=120") || !strings.Contains(last, "offset=5") || !strings.Contains(last, "generation=1") {
		t.Errorf("asked %s", last)
	}
	if err := v.Input([]byte("x")); !errors.Is(err, berth.CodeSessionEnded) {
		t.Errorf("after the end: %v", err)
	}
}

func TestViewerStopsOnDefiniteErrors(t *testing.T) {
	for _, code := range []berth.Code{berth.CodeNotFound, berth.CodeSessionLost, berth.CodeInvalidOffset, berth.CodeUnauthorized} {
		t.Run(string(code), func(t *testing.T) {
			p := &peer{out: []byte("x"), sizes: []int{1}, plans: []plan{{frames: 3}}}
			first := true
			c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !first {
					refuse(w, berth.Errorf(code, "gone"))
					return
				}
				first = false
				p.ServeHTTP(w, r)
			}))
			v, err := c.View(within(t, 10*time.Second), "a", berth.AttachRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = v.Close() }()
			for err == nil {
				_, err = v.Next()
			}
			if !errors.Is(err, code) {
				t.Errorf("%v", err)
			}
			if _, again := v.Next(); !errors.Is(again, code) {
				t.Errorf("the second time: %v", again)
			}
		})
	}
}

// A daemon that breaks the protocol each time is not asked for ever.
func TestViewerGivesUpOnNonsense(t *testing.T) {
	p := &peer{out: []byte("0123456789"), sizes: []int{5}, plans: []plan{{frames: 4}}}
	for range 20 {
		p.plans = append(p.plans, plan{frames: 1, end: endSkipped})
	}
	c := serve(t, p)
	v, err := c.View(within(t, 10*time.Second), "a", berth.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	for err == nil {
		_, err = v.Next()
	}
	if !errors.Is(err, berth.CodeInternal) {
		t.Errorf("%v", err)
	}
}

func TestCloseEndsNext(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	p := &peer{out: []byte("x"), sizes: []int{1}}
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/sessions/down/attach" {
			p.mu.Lock()
			n := p.attaches
			p.mu.Unlock()
			if n > 0 {
				refuse(w, berth.Errorf(berth.CodeDaemonStopping, "not now"))
				return
			}
		}
		p.ServeHTTP(w, r)
	}))
	for name, plans := range map[string][]plan{"down": {{frames: 3}}, "up": {{frames: 1 << 20}}} {
		t.Run(name, func(t *testing.T) {
			p.mu.Lock()
			p.plans, p.attaches = plans, 0
			p.mu.Unlock()
			v, err := c.View(context.Background(), name, berth.AttachRequest{})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(20*time.Millisecond, func() { _ = v.Close() })
			for err == nil {
				_, err = v.Next()
			}
			if !errors.Is(err, berth.CodeInterrupted) && !errors.Is(err, io.EOF) {
				t.Errorf("%v", err)
			}
		})
	}
}

// The exact continuation of an earlier viewer, as after a restart of the client.
func TestViewFromAPosition(t *testing.T) {
	p := &peer{out: []byte("0123456789"), sizes: []int{3}}
	c := serve(t, p)
	offset := uint64(4)
	v, err := c.View(within(t, 10*time.Second), "a", berth.AttachRequest{Generation: 1, Offset: &offset})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	if s := watch(t, v, p.out); string(s.data) != "456789" || s.hellos[0] != berth.ResumeExact {
		t.Errorf("%q %v", s.data, s.hellos)
	}
	if gen, at := v.Position(); gen != 1 || at != 10 {
		t.Errorf("%d %d", gen, at)
	}
}

// The program was started again while the viewer was away.
func TestViewerFollowsIntoANewGeneration(t *testing.T) {
	v := &Viewer{generation: 1, offset: 100}
	f, err := berth.JSONFrame(berth.FrameHello, berth.AttachHello{
		Generation: 2, Offset: 7, Resume: berth.ResumeGeneration, PrevExit: &berth.Exit{Code: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	u, err := v.take(f)
	if err != nil || u.Hello.PrevExit == nil || v.generation != 2 || v.offset != 7 || !v.repaintOwed || len(v.queued) != 0 {
		t.Errorf("%+v %v %+v", u, err, v)
	}
}

// FuzzTake feeds frames of a hostile daemon: an error, or an update, no more.
func FuzzTake(f *testing.F) {
	for _, seed := range []string{
		`H{"generation":1,"resume":"fresh","offset":3}`, `H{"generation":1,"resume":"exact"}`, "O", "O\x00\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff\xffx",
		`G{"from":3,"to":1}`, `G{"from":3,"to":18446744073709551615}`, `X{`, `T{"agent":null}`, "P", "?", "",
	} {
		f.Add([]byte(seed), uint64(3))
	}
	f.Fuzz(func(t *testing.T, msg []byte, offset uint64) {
		frame, err := berth.ParseFrame(msg)
		if err != nil {
			return
		}
		v := &Viewer{generation: 1, offset: offset, greeted: true, ctx: context.Background(), cancel: func() {}}
		u, err := v.take(frame)
		if err != nil && !errors.As(err, new(*violationError)) {
			t.Fatalf("%v", err)
		}
		if err == nil && u.Kind == UpdateOutput && v.offset-offset != uint64(u.Covers) {
			t.Fatalf("offset %d after %d", v.offset, offset)
		}
		if err == nil && u.Kind != UpdateHello && v.offset < offset && u.Kind != UpdateOutput {
			t.Fatalf("went back from %d to %d", offset, v.offset)
		}
	})
}
