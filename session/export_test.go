package session

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/guestapi"
	"berth/terminal/screen"
)

// The recording plays at the speed at which it was made: output up to a mark
// comes at the mark's time, a cut character comes whole, a query leaves no event
// but its time is not lost.
func TestCastKeepsTheTimes(t *testing.T) {
	var b strings.Builder
	at := time.UnixMilli(10_000).UTC()
	c := &castExporter{w: &b, filter: screen.NewFilter(true),
		session: berth.Session{Size: berth.Size{Cols: 80, Rows: 24}, CreatedAt: at, Title: "make"},
		clock:   castClock{marks: guestapi.Times{Marks: [][2]int64{{2, 10_000}, {4, 10_150}, {7, 10_400}, {9, 11_400}}}.Marks},
	}
	must(t, c.begin())
	must(t, c.output(0, []byte("hi"+"a\xc3"+"\xa9"))) // é is cut by a mark
	must(t, c.output(5, []byte("\x1b[c"+"zz")))       // a query, cut by a mark
	must(t, c.end(&berth.Exit{Code: 3, At: time.UnixMilli(12_000)}))
	want := `{"version":3,"term":{"cols":80,"rows":24,"type":"xterm-256color"},"timestamp":10,"title":"make"}
[0,"o","hi"]
[0.15,"o","a"]
[0.25,"o","é"]
[1,"o","z"]
[0,"o","z"]
[0.6,"x","3"]
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestCastWithoutTimes(t *testing.T) {
	var b strings.Builder
	c := &castExporter{w: &b, filter: screen.NewFilter(true), session: berth.Session{Size: berth.DefaultSize, CreatedAt: time.UnixMilli(0)}}
	must(t, c.output(0, []byte("all at once")))
	must(t, c.end(nil))
	if b.String() != "[0,\"o\",\"all at once\"]\n" {
		t.Errorf("got %s", b.String())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
