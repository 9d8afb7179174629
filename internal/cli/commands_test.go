package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

func TestPs(t *testing.T) {
	agent := session("busy-oar", berth.SessionRunning)
	agent.Agent = &berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedPermission}
	agent.Title = "evil\x1b]0;x\x07 title"
	ended := session("old-oar", berth.SessionExited)
	ended.Exit = &berth.Exit{Code: 3, Reason: berth.ExitExited}
	api := &fakeAPI{sessions: []berth.Session{agent, session("calm-heron", berth.SessionRunning), ended}}

	want := "" +
		"NAME        STATE    AGENT               AGE    SIZE   TITLE/COMMAND\n" +
		"busy-oar    running  blocked:permission  1h30m  80x24  evil ]0;x  title\n" +
		"calm-heron  running  -                   1h30m  80x24  sleep 60\n"
	if got := runCLI(t, api, "ps"); got.stdout != want {
		t.Errorf("got\n%swant\n%s", got.stdout, want)
	}
	if got := runCLI(t, api, "ps", "--all"); !strings.Contains(got.stdout, "old-oar     exited 3") {
		t.Errorf("got\n%s", got.stdout)
	}
	var list sessionList
	got := runCLI(t, api, "ps", "--json", "--all")
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || list.V != 1 || len(list.Sessions) != 3 {
		t.Errorf("got %s: %v", got.stdout, err)
	}
	if got := runCLI(t, &fakeAPI{}, "ps", "--json"); got.stdout != `{"v":1,"sessions":[]}`+"\n" {
		t.Errorf("an empty list is %q", got.stdout)
	}
}

func TestRunWithoutTerminalPrintsTheName(t *testing.T) {
	api := &fakeAPI{sessions: []berth.Session{session("calm-heron", berth.SessionRunning)}}
	vars := map[string]string{envSession: "s-0123456789abcdef", "FROM_HERE": "value"}
	env, out, errs := testEnv(t, api, vars, nil, "run", "-d", "--name", "calm-heron", "--env", "A=b=c", "--env", "FROM_HERE",
		"--withhold", "SECRET", "--size", "100x30", "--log", "0", "vim", "-d", "--json", "a b")
	if code := Run(t.Context(), env); code != 0 || out.String() != "calm-heron\n" || errs.String() != "" {
		t.Fatalf("got %d, %q, %q", code, out, errs)
	}
	spec := api.created[0]
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(spec.Argv) != "[vim -d --json a b]" || spec.Cwd != wd || spec.Env["A"] != "b=c" || spec.Env["FROM_HERE"] != "value" ||
		spec.Withhold[0] != "SECRET" || spec.Size != (berth.Size{Cols: 100, Rows: 30}) || spec.LogBytes == nil || *spec.LogBytes != 0 ||
		spec.Parent != "s-0123456789abcdef" || spec.Host != berth.LocalHost {
		t.Errorf("got %+v", spec)
	}
	if len(api.keys[0]) < 32 {
		t.Errorf("the key %q is too short to be unique", api.keys[0])
	}
}

// A request whose answer was lost is repeated with the same key, so that two
// programs never run where one was asked for.
func TestRunRepeatsWithTheSameKey(t *testing.T) {
	api := &fakeAPI{
		sessions:  []berth.Session{session("calm-heron", berth.SessionRunning)},
		createErr: []error{berth.Errorf(berth.CodeDaemonUnreachable, "cut")},
	}
	if got := runCLI(t, api, "run", "-d", "true"); got.code != 0 || len(api.keys) != 2 || api.keys[0] != api.keys[1] {
		t.Errorf("got %+v with keys %v", got, api.keys)
	}
	if got := runCLI(t, api, "run", "-d", "true"); got.code != 0 || api.keys[2] == api.keys[0] {
		t.Errorf("two invocations share a key: %+v, %v", got, api.keys)
	}
}

func TestRunJSONIsTheSession(t *testing.T) {
	api := &fakeAPI{sessions: []berth.Session{session("calm-heron", berth.SessionRunning)}}
	got := runCLI(t, api, "run", "-d", "--json", "--", "true")
	var s struct {
		V int `json:"v"`
		berth.Session
	}
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil || s.V != 1 || s.Name != "calm-heron" {
		t.Errorf("got %s: %v", got.stdout, err)
	}
}

func TestAttachNeedsATerminal(t *testing.T) {
	if got := runCLI(t, &fakeAPI{}, "attach", "calm-heron"); got.code != berth.ExitUsage || !strings.Contains(got.stderr, "terminal") {
		t.Errorf("got %+v", got)
	}
}

// keptLog answers like a log of which the bytes from start on are kept.
func keptLog(data string, start uint64, limit int) func(berth.LogRequest) (berth.LogChunk, error) {
	return func(q berth.LogRequest) (berth.LogChunk, error) {
		from := q.From
		if q.FromStart {
			from = start
		}
		end := start + uint64(len(data))
		switch {
		case from < start:
			return berth.LogChunk{}, berth.Errorf(berth.CodeOffsetGone, "gone").WithFact("kept_from", fmt.Sprint(start))
		case from > end:
			return berth.LogChunk{}, berth.Errorf(berth.CodeInvalidOffset, "past the end")
		}
		rest := data[from-start:]
		return berth.LogChunk{Generation: 1, Offset: from, KeptFrom: start, End: end, Data: []byte(rest[:min(limit, len(rest))])}, nil
	}
}

func TestLogsAreTheBytes(t *testing.T) {
	data := "no newline at the end \x00\xff\x1b[31m"
	api := &fakeAPI{log: keptLog(data, 0, 5)}
	if got := runCLI(t, api, "logs", "x"); got.stdout != data || got.stderr != "" || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	api.log = keptLog(data, 100, 5)
	if got := runCLI(t, api, "logs", "x"); got.stdout != data || !strings.Contains(got.stderr, "the first 100 bytes") {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, api, "logs", "x", "--from", "110"); got.stdout != data[10:] || got.stderr != "" {
		t.Errorf("got %+v", got)
	}
	// What is asked for and gone is a gap, not a failure.
	if got := runCLI(t, api, "logs", "x", "--from", "40"); got.stdout != data || !strings.Contains(got.stderr, "60 bytes are missing") || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, api, "logs", "x", "--from", "1000"); got.code != berth.ExitUsage || got.stdout != "" {
		t.Errorf("got %+v", got)
	}
	s := session("x", berth.SessionRunning)
	s.Offsets = berth.Offsets{Start: 100, End: 100 + uint64(len(data))}
	api.sessions = []berth.Session{s}
	if got := runCLI(t, api, "logs", "x", "--tail", "3"); got.stdout != data[len(data)-3:] {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, api, "logs", "x", "--tail", "9999"); got.stdout != data {
		t.Errorf("got %+v", got)
	}
	got := runCLI(t, api, "logs", "x", "--json")
	var all []byte
	for _, line := range strings.Split(strings.TrimSpace(got.stdout), "\n") {
		var p logPiece
		if err := json.Unmarshal([]byte(line), &p); err != nil || p.V != 1 || p.Offset != 100+uint64(len(all)) {
			t.Fatalf("got %q: %v", line, err)
		}
		all = append(all, p.Data...)
	}
	if string(all) != data {
		t.Errorf("got %q", all)
	}
}

func TestLogsFollowTellsOfGaps(t *testing.T) {
	api := &fakeAPI{follow: []berth.LogChunk{
		{Generation: 1, Offset: 0, Data: []byte("one")}, {Generation: 1, Offset: 10, Data: []byte("two")},
	}}
	got := runCLI(t, api, "logs", "-f", "x")
	if got.stdout != "onetwo" || !strings.Contains(got.stderr, "7 bytes are missing here (offset 3 to 10)") || got.code != 0 {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, api, "logs", "-f", "-q", "x"); got.stderr != "" {
		t.Errorf("got %+v", got)
	}
}

func TestWaitEndsWithTheProgramsCode(t *testing.T) {
	ended := session("x", berth.SessionExited)
	for _, c := range []struct {
		exit *berth.Exit
		want int
	}{
		{&berth.Exit{Code: 0, Reason: berth.ExitExited}, 0},
		{&berth.Exit{Code: 7, Reason: berth.ExitExited}, 7},
		{&berth.Exit{Code: 137, Signal: "SIGKILL", Reason: berth.ExitExited}, 137},
		{&berth.Exit{Code: 0, Reason: berth.ExitEnded, Detail: "the machine restarted"}, 1}, // never success
		{nil, 1},
	} {
		ended.Exit = c.exit
		api := &fakeAPI{wait: func(context.Context) (berth.Session, error) { return ended, nil }}
		if got := runCLI(t, api, "wait", "x"); got.code != c.want || got.stdout != "" {
			t.Errorf("%+v: got %+v", c.exit, got)
		}
		if got := runCLI(t, api, "wait", "--json", "x"); got.code != c.want || !strings.HasPrefix(got.stdout, `{"v":1,"id":`) {
			t.Errorf("%+v: got %+v", c.exit, got)
		}
	}
	api := &fakeAPI{wait: func(ctx context.Context) (berth.Session, error) {
		<-ctx.Done()
		return berth.Session{}, ctx.Err()
	}}
	if got := runCLI(t, api, "wait", "x", "--timeout", "10ms"); got.code != 1 || !strings.Contains(got.stderr, "still runs after 10ms") {
		t.Errorf("got %+v", got)
	}
}

func TestKillSaysWhatIsLeft(t *testing.T) {
	exit := &berth.Exit{Signal: "SIGHUP", Code: 129, Reason: berth.ExitExited}
	for _, c := range []struct {
		result berth.KillResult
		code   int
		stderr string
	}{
		{berth.KillResult{Exit: exit, Contained: true}, 0, ""},
		{berth.KillResult{Exit: exit}, 0, "had no cgroup of its own"},
		{berth.KillResult{Exit: exit, Survivors: []int{12, 13}}, 0, "still there (pid 12, 13)"},
		{berth.KillResult{Survivors: []int{12}}, 1, "still there after SIGKILL (pid 12)"},
	} {
		api := &fakeAPI{kill: func(string) (berth.KillResult, error) { return c.result, nil }}
		got := runCLI(t, api, "kill", "x")
		if got.code != c.code || !strings.Contains(got.stderr, c.stderr) || c.stderr == "" && got.stderr != "" {
			t.Errorf("%+v: got %+v", c.result, got)
		}
		if got := runCLI(t, api, "kill", "x", "--json"); !strings.HasPrefix(got.stdout, `{"v":1,"session":"x",`) || !strings.Contains(got.stdout, `"survivors":[`) {
			t.Errorf("got %+v", got)
		}
	}
}

// One bad name does not keep the others from being removed.
func TestRmGoesOn(t *testing.T) {
	var removed []string
	api := &fakeAPI{remove: func(ref string, _ bool) error {
		if strings.HasPrefix(ref, "no") {
			return berth.Errorf(berth.CodeNotFound, "there is no session %q", ref)
		}
		removed = append(removed, ref)
		return nil
	}}
	got := runCLI(t, api, "rm", "a", "no1", "b", "no2")
	if got.code != berth.ExitNotFound || got.stdout != "a\nb\n" || strings.Count(got.stderr, "berth: ") != 2 || fmt.Sprint(removed) != "[a b]" {
		t.Errorf("got %+v, removed %v", got, removed)
	}
	ended := session("old", berth.SessionExited)
	api.sessions = []berth.Session{session("live", berth.SessionRunning), ended}
	removed = nil
	if got := runCLI(t, api, "rm", "--all-ended", "--json"); got.stdout != `{"v":1,"removed":["old"]}`+"\n" || fmt.Sprint(removed) != "["+ended.ID+"]" {
		t.Errorf("got %+v, removed %v", got, removed)
	}
}

func TestSend(t *testing.T) {
	api := &fakeAPI{}
	env, _, errs := testEnv(t, api, nil, strings.NewReader("from stdin\n"), "send", "x", "-", "--enter")
	if code := Run(t.Context(), env); code != 0 {
		t.Fatal(errs.String())
	}
	if in := api.input[0]; string(in.Data) != "from stdin\n" || !in.Paste || !in.Enter {
		t.Errorf("got %+v", in)
	}
	if got := runCLI(t, api, "send", "x", "--raw", "--", "--enter"); got.code != 0 || string(api.input[1].Data) != "--enter" || api.input[1].Paste {
		t.Errorf("got %+v, %+v", got, api.input[1])
	}
	if got := runCLI(t, api, "send", "x", "--enter"); got.code != 0 || len(api.input[2].Data) != 0 || !api.input[2].Enter {
		t.Errorf("got %+v", got)
	}
	env, _, errs = testEnv(t, api, nil, bytes.NewReader(make([]byte, berth.MaxInput+1)), "send", "x", "-")
	if code := Run(t.Context(), env); code != berth.ExitUsage || len(api.input) != 3 {
		t.Errorf("got %d, %s", code, errs)
	}
}

func TestScreenIsTextAlone(t *testing.T) {
	api := &fakeAPI{screen: berth.Screen{Lines: []string{"one", "", "tw\x1bo", "", ""}, ANSI: []byte("\x1b[H")}}
	if got := runCLI(t, api, "screen", "x"); got.stdout != "one\n\ntw o\n" {
		t.Errorf("got %q", got.stdout)
	}
	if got := runCLI(t, api, "screen", "x", "--ansi"); got.stdout != "\x1b[H" {
		t.Errorf("got %q", got.stdout)
	}
	if got := runCLI(t, api, "screen", "x", "--json"); !strings.HasPrefix(got.stdout, `{"v":1,"generation":0,`) {
		t.Errorf("got %q", got.stdout)
	}
}

func TestEvents(t *testing.T) {
	api := &fakeAPI{events: []berth.Event{
		{Kind: berth.EventGap, From: 1, To: 5}, {Seq: 5, Kind: berth.EventSessionCreated, Subject: "s-1", Revision: 2, At: testNow},
	}}
	got := runCLI(t, api, "events", "--json")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"v":1`) || !strings.Contains(lines[1], `"kind":"session.created"`) {
		t.Errorf("got %+v", got)
	}
	got = runCLI(t, api, "events")
	if !strings.Contains(got.stdout, "session.created  s-1  rev 2\n") || !strings.Contains(got.stderr, "the events 1 to 4 are no longer kept") {
		t.Errorf("got %+v", got)
	}
}

func TestExportFileIsWholeOrNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.cast")
	if got := runCLI(t, &fakeAPI{}, "export", "x", "-o", path); got.code != 0 {
		t.Fatalf("got %+v", got)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "cast" {
		t.Errorf("got %q, %v", data, err)
	}
	if got := runCLI(t, &fakeAPI{err: berth.Errorf(berth.CodeNotFound, "no")}, "export", "x", "-o", path); got.code != berth.ExitNotFound {
		t.Errorf("got %+v", got)
	}
	left, err := filepath.Glob(path + "*")
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestStatusShape(t *testing.T) {
	s := berth.Status{
		Daemon: berth.Daemon{PID: 7, Version: "1", StartedAt: testNow.Add(-time.Hour)}, Guest: berth.GuestStatus{Error: "away"},
		Problems: []berth.Problem{{Code: berth.CodeListenerTaken, Detail: "taken", Hint: "end it"}},
	}
	api := &fakeAPI{status: func() (berth.Status, error) { return s, nil }}
	got := runCLI(t, api, "status", "--json")
	var doc map[string]json.RawMessage
	if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"v", "daemon", "guest", "sessions", "problems", "listeners"} {
		if doc[key] == nil {
			t.Errorf("no %q in %s", key, got.stdout)
		}
	}
	got = runCLI(t, api, "status")
	for _, part := range []string{"pid 7", "up 1h00m", "not reachable: away", "taken (listener_taken)", "hint: end it"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("no %q in\n%s", part, got.stdout)
		}
	}
}
