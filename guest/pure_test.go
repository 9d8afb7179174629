package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"berth"
	"berth/guestapi"
	"berth/terminal/screen"
)

func TestDecideSize(t *testing.T) {
	size := func(c, r int) berth.Size { return berth.Size{Cols: c, Rows: r} }
	now := size(80, 24)
	voter := func(s berth.Size, active uint64) sizeVoter { return sizeVoter{size: s, active: active} }
	for name, c := range map[string]struct {
		policy berth.SizePolicy
		voters []sizeVoter
		want   berth.Size
	}{
		"nobody":                 {berth.SizeLatest, nil, now},
		"latest":                 {berth.SizeLatest, []sizeVoter{voter(size(100, 30), 2), voter(size(50, 10), 1)}, size(100, 30)},
		"latest, other order":    {berth.SizeLatest, []sizeVoter{voter(size(50, 10), 1), voter(size(100, 30), 2)}, size(100, 30)},
		"latest is hidden":       {berth.SizeLatest, []sizeVoter{{size: size(100, 30), active: 2, hidden: true}, voter(size(50, 10), 1)}, size(50, 10)},
		"latest only looks":      {berth.SizeLatest, []sizeVoter{{size: size(100, 30), active: 2, readOnly: true}, voter(size(50, 10), 1)}, size(50, 10)},
		"latest has no terminal": {berth.SizeLatest, []sizeVoter{voter(berth.Size{}, 2), voter(size(50, 10), 1)}, size(50, 10)},
		"all hidden":             {berth.SizeLatest, []sizeVoter{{size: size(100, 30), hidden: true}}, now},
		"smallest":               {berth.SizeSmallest, []sizeVoter{voter(size(100, 20), 1), voter(size(60, 50), 2)}, size(60, 20)},
		"smallest may grow":      {berth.SizeSmallest, []sizeVoter{voter(size(200, 90), 1)}, size(200, 90)},
		"smallest, nobody":       {berth.SizeSmallest, []sizeVoter{{size: size(9, 9), readOnly: true}}, now},
		"fixed":                  {berth.SizeFixed, []sizeVoter{voter(size(100, 20), 1)}, now},
	} {
		if got := decideSize(c.policy, now, c.voters); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func mkFrame(from uint64, n int) frame {
	return frame{buf: make([]byte, n), from: from, to: from + uint64(n)}
}

func TestTheQueueIsBoundedAndSaysWhatIsLost(t *testing.T) {
	var q outQueue
	at := uint64(1000)
	for !q.behind {
		q.push(mkFrame(at, 10_000))
		at += 10_000
		if q.bytes > queueLimit {
			t.Fatalf("%d bytes wait, the bound is %d", q.bytes, queueLimit)
		}
	}
	if q.gapFrom != 1000 || !q.empty() || q.bytes != 0 {
		t.Errorf("gap from %d with %d bytes left, want 1000 and none", q.gapFrom, q.bytes)
	}
	q.push(mkFrame(at, 10))
	if !q.empty() {
		t.Error("a viewer that is behind is queued for")
	}
}

// A program that prints one byte at a time makes a million frames of a few
// bytes: their cost beside the bytes is bounded too.
func TestTinyFramesCountForWhatTheyCost(t *testing.T) {
	var q outQueue
	n := 0
	for ; !q.behind; n++ {
		q.push(mkFrame(uint64(n), 1))
	}
	if n > queueLimit/frameCost {
		t.Errorf("%d frames of a byte fit", n)
	}
}

func TestTheQueueKeepsOrder(t *testing.T) {
	var q outQueue
	rnd := rand.New(rand.NewPCG(1, 2))
	var pushed, taken uint64
	var batch []frame
	for range 20_000 {
		if rnd.IntN(3) > 0 {
			n := 1 + rnd.IntN(2000)
			q.push(mkFrame(pushed, n))
			pushed += uint64(n)
		} else {
			batch = q.take(batch[:0])
			bytes := 0
			for _, f := range batch {
				if f.from != taken {
					t.Fatalf("took %d, want %d", f.from, taken)
				}
				taken = f.to
				bytes += f.cost()
			}
			if bytes > batchLimit+2100 {
				t.Fatalf("took %d bytes at once", bytes)
			}
		}
		if q.behind {
			if q.gapFrom != taken {
				t.Fatalf("the gap begins at %d, %d was taken", q.gapFrom, taken)
			}
			q, pushed = outQueue{}, taken
		}
	}
}

// testQueue is an input queue whose program reads when it is told to.
func testQueue(sink func([]byte) error) (*inputQueue, *sync.WaitGroup) {
	var wg sync.WaitGroup
	q := &inputQueue{
		spawn: func(f func()) bool { wg.Go(f); return true },
		pause: func(d time.Duration) bool { <-time.After(d); return true },
		lost:  func(int, error) {},
	}
	q.connect(sink)
	return q, &wg
}

func TestInputWaitsAndNothingIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan struct{})
		var got []byte
		q, wg := testQueue(func(p []byte) error {
			<-read
			got = append(got, p...)
			return nil
		})
		var want []byte
		done := make(chan error, 1)
		text := bytes.Repeat([]byte("0123456789abcdef"), 64<<10/4)
		want = append(want, text...)
		go func() { done <- q.push(t.Context(), text, false) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal(err, "256 KiB were queued for a program that reads nothing")
		default:
		}
		if q.bytes > inputLimit {
			t.Errorf("%d bytes wait, the bound is %d", q.bytes, inputLimit)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := q.push(ctx, []byte("x"), false); !errors.Is(err, context.Canceled) {
			t.Errorf("a second one: %v", err)
		}
		for q.reply([]byte("answer")) {
			want = want[:len(want):len(want)]
		}
		if q.bytes > inputLimit+replyLimit {
			t.Errorf("answers took the queue to %d bytes", q.bytes)
		}
		close(read)
		if err := <-done; err != nil {
			t.Error(err)
		}
		wg.Wait()
		if typed := bytes.ReplaceAll(got, []byte("answer"), nil); !bytes.Equal(typed, want) {
			t.Errorf("%d bytes came, want %d, or they are not the same", len(typed), len(want))
		}
	})
}

func TestEnterIsAWriteOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes []string
		var at []time.Time
		q, wg := testQueue(func(p []byte) error {
			writes, at = append(writes, string(p)), append(at, time.Now())
			return nil
		})
		if err := errors.Join(q.push(t.Context(), []byte("text"), false), q.push(t.Context(), []byte("\r"), true)); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if !slices.Equal(writes, []string{"text", "\r"}) || at[1].Sub(at[0]) < enterGap {
			t.Errorf("writes %q %v apart", writes, at[1].Sub(at[0]))
		}
	})
}

func TestAFailedWriteIsNotRepeated(t *testing.T) {
	fail := true
	var got []byte
	sink := func(p []byte) error {
		if fail {
			return io.ErrClosedPipe
		}
		got = append(got, p...)
		return nil
	}
	q, wg := testQueue(nil)
	_ = q.push(t.Context(), []byte("a"), true) // two pieces, since it is alone
	_ = q.push(t.Context(), []byte("b"), true)
	q.connect(sink)
	wg.Wait()
	fail = false
	q.connect(sink)
	wg.Wait()
	if string(got) != "b" {
		t.Errorf("got %q, want b: what failed half-way must not come twice", got)
	}
	q.end()
	if err := q.push(t.Context(), []byte("x"), false); !errors.Is(err, berth.CodeSessionEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// herdr #1764, and row upon row of others: a prompt that contains the end mark
// would go on as typed text.
func TestPaste(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"plain":                        "\x1b[200~plain\x1b[201~",
		"a\x1b[201~b":                  "\x1b[200~ab\x1b[201~",
		"a\x1b[20\x1b[201~1~b":         "\x1b[200~ab\x1b[201~",
		"\x1b[200~\x1b[20\x1b[200~0~x": "\x1b[200~x\x1b[201~",
	} {
		if got := string(pasted([]byte(in), true)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := string(pasted([]byte("a\x1b[201~b"), false)); got != "ab" {
		t.Errorf("without mode 2004: %q", got)
	}
}

func TestLinesThatAreTooLongArePassedOver(t *testing.T) {
	in := "one\n" + strings.Repeat("x", 100_000) + "\n\ntwo\n" + strings.Repeat("y", 64) + "\nlast"
	for name, r := range map[string]io.Reader{"at once": strings.NewReader(in), "by bytes": iotest.OneByteReader(strings.NewReader(in))} {
		l := newLineReader(r, 64)
		var got []string
		for {
			line, err := l.next()
			if errors.Is(err, errLineTooLong) {
				got = append(got, "long")
				continue
			}
			if err != nil {
				break
			}
			got = append(got, string(line))
		}
		want := []string{"one", "long", "", "two", strings.Repeat("y", 64), "last"}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestParseHook(t *testing.T) {
	const id = "s-0123456789abcdef"
	for line, ok := range map[string]bool{
		`{"session":"` + id + `","event":"Stop","payload":{"a":1}}`: true,
		`{"session":"` + id + `","event":"Stop"}`:                   true,
		`{"session":"s-0123456789abcdeg","event":"Stop"}`:           false,
		`{"session":"` + id + `","event":""}`:                       false,
		`{"session":"` + id + `","event":"a\u001b[2J"}`:             false,
		`{"session":"` + id + `","event":"Stop"} x`:                 false,
		"{\"session\":\"" + id + "\",\"event\":\"\xff\"}":           false,
		`[]`: false,
		``:   false,
	} {
		hook, got := parseHook([]byte(line), id)
		if got != ok {
			t.Errorf("%s: %v, want %v", line, got, ok)
		}
		if got && hook.Event != "Stop" {
			t.Errorf("%s: %+v", line, hook)
		}
	}
	big := `{"session":"` + id + `","event":"E","payload":"` + strings.Repeat("p", keptPayload) + `"}`
	if hook, ok := parseHook([]byte(big), id); !ok || hook.Payload != nil {
		t.Errorf("a large payload: %v, %d bytes kept", ok, len(hook.Payload))
	}
}

func FuzzHookLines(f *testing.F) {
	const id = "s-0123456789abcdef"
	f.Add([]byte(`{"session":"` + id + `","event":"Stop","payload":{"a":1}}` + "\n{}\n"))
	f.Add([]byte("\n\n\x00\xff\n" + strings.Repeat("z", 300)))
	f.Fuzz(func(t *testing.T, in []byte) {
		l := newLineReader(bytes.NewReader(in), 200)
		for range len(in) + 1 {
			line, err := l.next()
			if errors.Is(err, errLineTooLong) {
				continue
			}
			if err != nil {
				return
			}
			if len(line) > 200 || bytes.ContainsRune(line, '\n') {
				t.Fatalf("a line of %d bytes: %q", len(line), line)
			}
			if hook, ok := parseHook(line, id); ok && (hook.Session != id || hook.Event == "" || !hook.At.IsZero()) {
				t.Fatalf("took %+v of %q", hook, line)
			}
		}
		t.Fatal("the reader does not end")
	})
}

func FuzzSplitDeposit(f *testing.F) {
	f.Add([]byte(depositMagic + "\x00\x00\x00\x02{}screen"))
	f.Add([]byte(depositMagic + "\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, model, err := splitDeposit(in)
		if err != nil && !errors.Is(err, berth.CodeRecordUnreadable) {
			t.Fatal(err)
		}
		if err == nil && len(model) > len(in) {
			t.Fatal("more came out than went in")
		}
	})
}

func FuzzValidateCreate(f *testing.F) {
	f.Add("s-0123456789abcdef", "name", "sh", "/", "A=b", 80, 24, int64(0))
	f.Add("../../etc", "", "", "rel", "=", -1, 1<<30, int64(-1))
	f.Fuzz(func(t *testing.T, id, name, arg, cwd, env string, cols, rows int, log int64) {
		r := guestapi.CreateSession{
			ID: id, Name: name, Argv: []string{arg}, Cwd: cwd, Env: []string{env},
			Size: berth.Size{Cols: cols, Rows: rows}, LogBytes: log,
		}
		err := validateCreate(r)
		if err != nil {
			if !errors.Is(err, berth.CodeInvalidArgument) {
				t.Fatalf("%v has not its code", err)
			}
			return
		}
		if !berth.ValidID(berth.SessionID, id) || strings.ContainsAny(id, "/\x00") || !berth.ValidName(name) {
			t.Fatalf("id %q or name %q passed", id, name)
		}
	})
}

// A viewer that joins gets the repaint of the screen and then the frames of the
// filter, so the screen must not wait with more bytes than the filter does: they
// would be in neither. (With fewer it may: such bytes come in the frame.)
func TestScreenNeverHoldsMoreThanTheFilter(t *testing.T) {
	pieces := []string{
		"text", "äö", "日本", "\x1b[31m", "\x1b[?1049h", "\x1b[c", "\x1b]0;title\x07", "\x1b]52;c;aGk=\x1b\\", "\x1b[38;2;1;2;3m",
		"\x1bP$qm\x1b\\", "\x1b_app\x1b\\", "\x1b]11;?\x07", "\x1b(0", "\x1b7", "\r\n", "\xff\xfe", "\xe2\x82", "\x1b[", "\x1b]", "\x1b", "\x18",
		"\x1b[6n", "e\u0301", "👩\u200d👧", "\x1b]7501;state=idle\x1b\\", strings.Repeat("\x1b]0;"+strings.Repeat("t", 3000), 1), "\x07",
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		s := screen.New(berth.Size{Cols: 40, Rows: 10}, screen.Options{})
		f := screen.NewFilter(false)
		var fed, covered int
		var trace []string
		for range 40 {
			p := pieces[rnd.IntN(len(pieces))]
			if cut := rnd.IntN(len(p) + 1); rnd.IntN(2) == 0 {
				p = p[:cut]
			}
			trace = append(trace, p)
			s.Feed([]byte(p))
			_, covers := f.Append(nil, []byte(p))
			fed, covered = fed+len(p), covered+covers
			if covered != fed-f.Pending() {
				t.Fatalf("%q: covered %d of %d, pending %d", trace, covered, fed, f.Pending())
			}
			if s.Pending() > f.Pending() {
				t.Fatalf("%q: the screen waits with %d bytes, the filter with %d", trace, s.Pending(), f.Pending())
			}
		}
	}
}

// Both doors of berth answer errors in one form.
func TestAProblemIsTheRootsProblem(t *testing.T) {
	w := httptest.NewRecorder()
	err := berth.Errorf(berth.CodeOffsetGone, "gone").WithFact("kept_from", "7")
	writeProblem(w, err)
	var got berth.ProblemDocument
	if jerr := json.Unmarshal(w.Body.Bytes(), &got); jerr != nil {
		t.Fatal(jerr)
	}
	if want := berth.NewProblem(err); !reflect.DeepEqual(got, want) || got.Type != "urn:berth:problem:offset_gone" || w.Code != want.Status {
		t.Errorf("the guest answers %+v, want %+v", got, want)
	}
	if ct := w.Header().Get("Content-Type"); ct != berth.ProblemType {
		t.Errorf("content type %q", ct)
	}
}
