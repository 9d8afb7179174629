package holder

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"berth"
)

func TestCodecRoundTrip(t *testing.T) {
	at := time.Unix(1_700_000_000, 123).UTC()
	exit := berth.Exit{Code: 137, Signal: "SIGKILL", Reason: berth.ExitExited, Detail: "d", Offset: 1 << 40, At: at, Survivors: 2}
	run := Running{
		Holder:     berth.Identity{BootID: "b", PID: 10, StartTime: 11, PidfdInode: 12},
		Program:    berth.Identity{BootID: "b", PID: 20, StartTime: 21, PidfdInode: 22},
		Generation: 3, StartedAt: at, Cgroup: "/c", LogBytes: 7,
	}
	info := Info{Running: run, Size: berth.Size{Cols: 1, Rows: 2}, Start: 3, End: 4, LogFrom: 5, LogSize: 6, LogGap: "gap", Exit: &exit}
	if got, err := decodeInfo(addInfo(nil, info)); err != nil || !reflect.DeepEqual(got, info) {
		t.Errorf("info: %+v, %v", got, err)
	}
	kill := KillResult{Exit: &exit, Contained: true, Survivors: []int{1, 2}}
	if got, err := decodeKill(addKill(nil, kill)); err != nil || !reflect.DeepEqual(got, kill) {
		t.Errorf("kill: %+v, %v", got, err)
	}
	spec := Spec{
		ID: "s-1", Generation: 2, Argv: []string{"a", ""}, Env: []string{"A=b", "C="}, Cwd: "/", Size: berth.Size{Cols: 80, Rows: 24},
		LogBytes: 1, RingBytes: 2, KillGrace: 3, DrainQuiet: 4,
	}
	if got, err := decodeSpec(encodeSpec(spec)); err != nil || !reflect.DeepEqual(got, spec) {
		t.Errorf("spec: %+v, %v", got, err)
	}
	e := berth.Errorf(berth.CodeOffsetGone, "gone").WithFact("kept_from", "9").WithHint("h")
	if got := decodeError(addError(nil, e)); !reflect.DeepEqual(got, e) {
		t.Errorf("error: %+v", got)
	}
	snap := Snapshot{Generation: 1, Offset: 2, Screen: []byte("abc")}
	if got, ok := decodeSnapshot(encodeSnapshot(snap)); !ok || !reflect.DeepEqual(got, snap) {
		t.Errorf("snapshot: %+v", got)
	}
}

// TestRecords: what is written by hand is read by encoding/json.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	run := Running{
		Holder:     berth.Identity{BootID: "b\"\\\x01\x7f", PID: 10, StartTime: 11},
		Program:    berth.Identity{BootID: "ü", PID: 20, StartTime: 21, PidfdInode: 22},
		Generation: 3, StartedAt: time.Unix(1_700_000_000, 123).UTC(), Cgroup: "/sys/fs/cgroup/a b", LogBytes: 7,
	}
	exit := berth.Exit{Code: 1, Signal: "", Reason: berth.ExitEnded, Detail: "the \"machine\"", Offset: 1 << 60, At: run.StartedAt, Survivors: 3}
	write := func(name string, b []byte) {
		if err := berth.WriteFile(dir+"/"+name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(berth.FileIdentity, run.appendJSON(nil))
	write(berth.FileExit, appendExit(nil, exit))
	if got, err := ReadRunning(dir); err != nil || got != run {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ReadExit(dir); err != nil || got != exit {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frame(opHello, addInt(nil, tagVersion, 1)))
	f.Add(append(frame(opHello, nil), frame(opReadLog, addInt(addInt(nil, tagOffset, 5), tagLimit, 9))...))
	f.Add(frame(opDeposit, addSnapshot(nil, Snapshot{Generation: 1, Offset: 2, Screen: []byte("x")})))
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'I'})
	f.Add([]byte{0, 0, 0, 3, 'i', 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &link{}
		rest := data
		for {
			typ, body, next, ok, err := cutFrame(rest, l.limit)
			if err != nil || !ok {
				break
			}
			if len(next) >= len(rest) || len(body) > l.limit(typ) {
				t.Fatal("a frame that takes nothing, or too much")
			}
			rest = next
			// Whatever a body is, every decoder takes it or refuses it.
			_, _ = decodeInfo(body)
			_, _ = decodeKill(body)
			_, _ = decodeSpec(body)
			_, _ = snapshotFields(body)
			_ = decodeError(body)
			_, _, _ = decodeItem(typ, body)
		}
		// The two readers of frames agree.
		typ, body, _, ok, err := cutFrame(data, func(byte) int { return 100 })
		typ2, body2, err2 := readFrame(bytes.NewReader(data), nil, 100)
		if ok != (err2 == nil) || ok && (typ != typ2 || !bytes.Equal(body, body2)) {
			t.Fatalf("%v %v, %v %v", ok, err, body2, err2)
		}
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(Running{Generation: 1, Program: berth.Identity{PID: 1, BootID: "b"}, Holder: berth.Identity{PID: 1}}.appendJSON(nil))
	f.Add(appendExit(nil, berth.Exit{Reason: berth.ExitExited}))
	f.Add(encodeSnapshot(Snapshot{Generation: 1, Offset: 2, Screen: []byte("x")}))
	f.Add([]byte("{"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, name := range []string{berth.FileIdentity, berth.FileExit, berth.FileSnapshot} {
			if err := berth.WriteFileNoSync(dir+"/"+name, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := ReadRunning(dir); err == nil && (r.Program.PID <= 0 || r.Program.BootID == "") {
			t.Errorf("a record that names no process: %+v", r)
		}
		if e, err := ReadExit(dir); err == nil && e.Reason == "" {
			t.Errorf("an exit without a reason: %+v", e)
		}
		if s, err := ReadSnapshot(dir); err == nil && !bytes.Equal(encodeSnapshot(s), data) {
			t.Error("a snapshot that is not what was written")
		}
	})
}
