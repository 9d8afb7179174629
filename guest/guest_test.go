package guest

import (
	"strings"
	"testing"

	"berth"
)

func TestALife(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "printf 'hello\\n'; read x; echo got $x; exit 7")
	l.awaitScreen(id, "hello")
	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 90, Rows: 30}})
	if w.Hello.Resume != berth.ResumeFresh || w.Hello.Cols != 90 || w.Hello.Generation != 1 {
		t.Errorf("hello = %+v", w.Hello)
	}
	w.await("a repaint", func() bool { return strings.Contains(string(w.repaint), "hello") })
	w.send(berth.FrameInput, []byte("you\r"))
	w.awaitOutput("got you")
	w.awaitEnd()
	w.see(func() bool {
		if w.exit == nil || w.exit.Code != 7 || w.exit.Offset != w.next {
			t.Errorf("exit = %+v, the stream ended at %d", w.exit, w.next)
		}
		return true
	})
	s := l.awaitState(id, berth.SessionExited)
	if s.Exit == nil || s.Exit.Code != 7 || s.Offsets.End != s.Exit.Offset {
		t.Errorf("session = %+v", s)
	}
	if out := string(l.output(id)); !strings.Contains(out, "hello\r\n") || !strings.Contains(out, "got you") {
		t.Errorf("log = %q", out)
	}
	if err := l.client.Remove(t.Context(), id); err != nil {
		t.Errorf("remove: %v", err)
	}
	list, err := l.client.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("list = %v, %v", list, err)
	}
}
