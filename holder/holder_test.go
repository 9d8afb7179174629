package holder_test

import (
	"strings"
	"testing"
)

func TestOutputAndExit(t *testing.T) {
	s := start(t, "sh", "-c", "read x; echo got $x; stty size; exit 7")
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Program != s.run.Program || info.Holder != s.run.Holder || info.Size.Cols != 100 || info.Exit != nil {
		t.Errorf("info: %+v", info)
	}
	st, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // only input goes through it
	if err := st.Input([]byte("abc\n")); err != nil {
		t.Fatal(err)
	}
	data, gaps, exit := s.collect(0)
	if want := "abc\r\ngot abc\r\n30 100\r\n"; string(data) != want || gaps != 0 {
		t.Errorf("got %q, %d gaps, want %q", data, gaps, want)
	}
	if exit.Code != 7 || exit.Signal != "" || exit.Offset != uint64(len(data)) || exit.Survivors != 0 {
		t.Errorf("exit: %+v", exit)
	}
	if onDisk := s.waitExit(); onDisk != exit {
		t.Errorf("on disk %+v, told %+v", onDisk, exit)
	}
	s.waitGone()
	if !strings.Contains(s.run.Cgroup, "berth-") {
		t.Log("no cgroup here")
	}
}
