package hoststep

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLedger(t *testing.T) {
	sys := system{t.TempDir()}
	l, err := openLedger(sys)
	must(t, err)
	if _, err := openLedger(sys); !errors.Is(err, errBusy) {
		t.Errorf("two hold the lock: %v", err)
	}
	if _, err := l.append(Change{Kind: ChangePackage, Name: "a"}, Change{Kind: ChangeFile, Path: "/f", After: "1"}); err != nil {
		t.Fatal(err)
	}
	l.close()
	// A power cut tears the last line.
	path := sys.path(ChangesPath)
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append(data, `{"v":1,"seq":3,"ki`...), 0o600))
	l, err = openLedger(sys)
	must(t, err)
	defer l.close()
	if _, err := l.append(Change{Kind: ChangePackage, Name: "a", After: "2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.append(Change{Kind: ChangeFile, Path: "/f", Undoes: 2}); err != nil {
		t.Fatal(err)
	}
	data, err = l.load()
	must(t, err)
	inForce, damaged, err := ParseChanges(data)
	if err != nil || damaged != 1 || len(inForce) != 1 || inForce[0].Name != "a" || inForce[0].After != "2" || inForce[0].Seq != 3 {
		t.Errorf("%+v %d %v", inForce, damaged, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Error(info.Mode(), err)
	}
	if _, _, err := ParseChanges(make([]byte, MaxChanges+1)); err == nil {
		t.Error("a record without a bound")
	}
}

// A link in the record's place is not followed.
func TestLedgerIsNoLink(t *testing.T) {
	sys := system{t.TempDir()}
	must(t, os.MkdirAll(sys.path(LedgerDir), 0o755))
	victim := filepath.Join(sys.root, "victim")
	must(t, os.WriteFile(victim, nil, 0o600))
	must(t, os.Symlink(victim, sys.path(ChangesPath)))
	if l, err := openLedger(sys); err == nil {
		l.close()
		t.Error("the link was followed")
	}
}

func TestPlanUndo(t *testing.T) {
	file := Change{Seq: 1, Component: DockerEngine, Kind: ChangeFile, Path: "/etc/apt/keyrings/docker.asc", After: "h1", Step: "install_key.docker"}
	pkg := Change{Seq: 2, Component: DockerEngine, Kind: ChangePackage, Name: "docker-ce", After: "1", Step: "install_packages.docker"}
	dep := Change{Seq: 3, Component: DockerEngine, Kind: ChangePackage, Name: "iptables", Before: "1", After: "2", Step: "install_packages.docker"}
	key := Change{Seq: 4, Component: EnableCDI, Kind: ChangeJSON, Path: daemonJSON, Name: "features.cdi", Value: "true"}
	unit := Change{Seq: 5, Component: DockerService, Kind: ChangeService, Name: "docker.service", Before: "disabled", After: "enabled"}
	group := Change{Seq: 6, Component: DockerGroup, Kind: ChangeGroup, Name: "docker", Value: "ada"}
	all := []Change{file, pkg, dep, key, unit, group}
	as := func() *UndoFacts {
		return &UndoFacts{
			Files: map[string]string{file.Path: "h1"}, Keys: map[string]string{daemonJSON + " features.cdi": "true"},
			Packages: map[string]string{"docker-ce": "3", "iptables": "2"}, NeededBy: map[string][]string{"docker-ce": nil},
			Services: map[string]string{"docker.service": "enabled"}, Members: map[string]bool{"docker ada": true},
		}
	}
	untouched := as()
	if got, want := undoLine(PlanUndo(all, nil, untouched)), "6 remove_member, 5 disable_service, 4 remove_key, 3 nothing, 2 remove_package, 1 remove_file"; got != want {
		t.Errorf("%s", got)
	}
	if got, want := undoLine(PlanUndo(all, nil, nil)), "6 remove_member, 5 disable_service, 4 remove_key, 3 nothing, 2 remove_package, 1 remove_file"; got != want {
		t.Errorf("without facts: %s", got)
	}
	if got := undoLine(PlanUndo(all, []Component{EnableCDI}, untouched)); got != "4 remove_key" {
		t.Errorf("one component: %s", got)
	}
	for name, c := range map[string]struct {
		change func(*UndoFacts)
		of     []Component
		want   string
	}{
		"file changed":       {func(f *UndoFacts) { f.Files[file.Path] = "h2" }, nil, "1 nothing: changed since"},
		"file gone":          {func(f *UndoFacts) { f.Files[file.Path] = "" }, nil, "1 gone"},
		"file unknown":       {func(f *UndoFacts) { delete(f.Files, file.Path) }, nil, "1 nothing: could not be looked at"},
		"key changed":        {func(f *UndoFacts) { f.Keys[daemonJSON+" features.cdi"] = "false" }, nil, "4 nothing: changed since"},
		"key gone":           {func(f *UndoFacts) { f.Keys[daemonJSON+" features.cdi"] = "" }, nil, "4 gone"},
		"package needed":     {func(f *UndoFacts) { f.NeededBy["docker-ce"] = []string{"other"} }, nil, "2 nothing: needed by other"},
		"its source is kept": {func(f *UndoFacts) { f.NeededBy["docker-ce"] = []string{"other"} }, nil, "1 nothing: kept up to date"},
		"package gone":       {func(f *UndoFacts) { f.Packages["docker-ce"] = "" }, nil, "2 gone"},
		"containers run":     {func(f *UndoFacts) { f.Running = 1 }, []Component{DockerEngine}, "2 nothing: containers run"},
		"they may stop":      {func(f *UndoFacts) { f.Running = 1 }, []Component{DockerEngine, DockerRestart}, "2 remove_package"},
		"service off":        {func(f *UndoFacts) { f.Services["docker.service"] = "disabled" }, nil, "5 gone"},
		"left the group":     {func(f *UndoFacts) { f.Members["docker ada"] = false }, nil, "6 gone"},
		"group unknown":      {func(f *UndoFacts) { delete(f.Members, "docker ada") }, nil, "6 nothing: could not be looked at"},
	} {
		facts := as()
		c.change(facts)
		number, want, _ := strings.Cut(c.want, " ")
		i := slices.IndexFunc(PlanUndo(all, c.of, facts), func(i UndoItem) bool { return encode(t, i.Change.Seq) == number })
		item := PlanUndo(all, c.of, facts)[i]
		action, reason, _ := strings.Cut(want, ": ")
		ok := string(item.Action) == action && strings.Contains(item.Reason, reason) && !item.Gone
		if action == "gone" {
			ok = item.Gone && item.Action == UndoNothing
		}
		if !ok {
			t.Errorf("%s: %+v", name, item)
		}
	}
}

func undoLine(items []UndoItem) string {
	var all []string
	for _, i := range items {
		seq, _ := json.Marshal(i.Change.Seq)
		all = append(all, string(seq)+" "+string(i.Action))
	}
	return strings.Join(all, ", ")
}

// An undo on Fedora asks rpm as a whole, and believes its refusal.
func TestUndoOnFedora(t *testing.T) {
	for name, needed := range map[string]bool{"free": false, "needed": true} {
		f := newFake(t)
		f.rpms["docker-ce"] = "1-1"
		l, err := openLedger(system{f.root})
		must(t, err)
		_, err = l.append(Change{Component: DockerEngine, Step: "install_packages.docker", Kind: ChangePackage, Name: "docker-ce"})
		must(t, err)
		l.close()
		f.answer = func(argv string) (outcome, bool) {
			switch {
			case argv == "rpm -e --test docker-ce" && needed:
				return outcome{code: 1, stderr: "docker-ce is needed by (installed) other-1-1"}, true
			case argv == "rpm -e docker-ce":
				delete(f.rpms, "docker-ce")
				return outcome{}, true
			}
			return outcome{}, false
		}
		r := f.do(request(Undo, DockerEngine))
		if r.Outcome != Completed || (len(r.Left) == 1) != needed || (f.rpms["docker-ce"] != "") != needed {
			t.Errorf("%s: %+v %q", name, r, f.calls)
		}
	}
}

// Only what was agreed to is taken back: a line that came after the plan was shown
// stays, and so does what more containers use than the plan said.
func TestUndoOfWhatWasAgreedTo(t *testing.T) {
	f := newFake(t)
	f.file(daemonJSON, `{}`)
	f.do(request(Apply, NVIDIARuntime, EnableCDI))
	req := request(Undo, NVIDIARuntime, EnableCDI)
	req.Parameters.Changes = []int64{1} // the runtime
	req.ParametersDigest = ParametersDigest(req.Parameters)
	r := f.do(req)
	if r.Outcome != Completed || len(r.Left) != 1 || !strings.Contains(r.Left[0].Reason, "not agreed to") || !strings.Contains(f.read(daemonJSON), "cdi") || strings.Contains(f.read(daemonJSON), "nvidia") {
		t.Errorf("%+v\n%s", r, f.read(daemonJSON))
	}
	f.answer = func(argv string) (outcome, bool) {
		return outcome{stdout: `{"ServerVersion":"28.0.0","ContainersRunning":20}`}, strings.HasPrefix(argv, "docker ")
	}
	more := request(Apply, EnableCDI, DockerRestart)
	more.Parameters.Stops = 2
	more.ParametersDigest = ParametersDigest(more.Parameters)
	if r := f.do(more); r.Outcome != OutcomeFailed || !strings.Contains(r.Error, "20 containers run") {
		t.Errorf("%+v", r)
	}
	if slices.ContainsFunc(f.calls, func(c string) bool { return c == "systemctl restart docker.service" }) {
		t.Error("Docker was restarted")
	}
}

// Keys go one by one out of a file that somebody else went on editing.
func TestDropKeys(t *testing.T) {
	f := newFake(t)
	f.file(daemonJSON, `{"features":{"cdi":false},"debug":true}`)
	f.do(request(Apply, NVIDIARuntime, EnableCDI))
	edited := strings.Replace(f.read(daemonJSON), `"debug": true`, `"debug": false`, 1)
	f.file(daemonJSON, edited)
	if r := f.do(request(Undo, NVIDIARuntime, EnableCDI)); r.Outcome != Completed || len(r.Left) != 0 {
		t.Errorf("%+v", r)
	}
	if got := f.read(daemonJSON); got != "{\n  \"features\": {\n    \"cdi\": false\n  },\n  \"debug\": false\n}\n" {
		t.Error(got)
	}
}

func FuzzParseChanges(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":1,"kind":"file","path":"/x"}` + "\n" + `{"v":1,"seq":2,"kind":"file","undoes":1}` + "\n{"))
	f.Add([]byte(`{"v":1,"seq":1,"kind":"package","name":"a"}` + "\n" + `{"v":1,"seq":1,"kind":"package","name":"a","before":"1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		inForce, _, err := ParseChanges(data)
		if err != nil {
			return
		}
		for i, c := range inForce {
			if slices.ContainsFunc(inForce[:i], c.same) || c.Undoes != 0 {
				t.Fatalf("twice: %+v", c)
			}
		}
		PlanUndo(inForce, nil, nil)
		PlanUndo(inForce, Components, &UndoFacts{})
	})
}
