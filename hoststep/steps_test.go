package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fake is a Fedora 43 of which each program's answer is written down.
type fake struct {
	t       *testing.T
	root    string
	calls   []string
	answer  func(argv string) (outcome, bool) // before the table below
	fetched []byte
	rpms    map[string]string
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, root: t.TempDir(), rpms: map[string]string{}}
	f.file(osRelease, "NAME=Fedora\nID=fedora\nVERSION_ID=43\n")
	return f
}

func (f *fake) file(path, content string) {
	f.t.Helper()
	path = filepath.Join(f.root, path)
	must(f.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(f.t, os.WriteFile(path, []byte(content), 0o644))
}

func (f *fake) read(path string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.root, path))
	must(f.t, err)
	return string(data)
}

func (f *fake) machine() machine {
	return machine{root: f.root, recipe: frozen(), exec: f.run, now: func() time.Time { return time.Unix(1000, 0) }, tick: time.Millisecond, wait: time.Second,
		fetch: func(context.Context, string) ([]byte, error) { return f.fetched, nil }}
}

func (f *fake) run(_ context.Context, c command) (outcome, error) {
	argv := strings.Join(c.Argv, " ")
	f.calls = append(f.calls, argv)
	if f.answer != nil {
		if o, ok := f.answer(argv); ok {
			return o, nil
		}
	}
	last := c.Argv[len(c.Argv)-1]
	switch {
	case argv == "uname -m":
		return outcome{stdout: "x86_64\n"}, nil
	case strings.HasPrefix(argv, "rpm -q --queryformat"):
		if v := f.rpms[last]; v != "" {
			return outcome{stdout: v + "\n"}, nil
		}
		return outcome{code: 1, stdout: "package " + last + " is not installed\n"}, nil
	case strings.HasPrefix(argv, "rpm -qa"):
		var b strings.Builder
		for name, v := range f.rpms {
			fmt.Fprintf(&b, "%s\t%s\tinstalled\n", name, v)
		}
		return outcome{stdout: b.String()}, nil
	case strings.HasPrefix(argv, "dnf -y --setopt=install_weak_deps=False install "):
		for _, name := range c.Argv[4:] {
			f.rpms[name] = "1-1"
		}
		return outcome{}, nil
	case strings.HasPrefix(argv, "docker "):
		return outcome{code: 1, stderr: "Cannot connect"}, nil
	}
	return outcome{}, nil
}

// apply runs a request past the folder, which has tests of its own.
func (f *fake) do(req Request) Result {
	f.t.Helper()
	if req.Action == Undo && len(req.Parameters.Changes) == 0 { // all that is in force
		data, _ := os.ReadFile(filepath.Join(f.root, ChangesPath))
		changes, _, err := ParseChanges(data)
		must(f.t, err)
		for _, c := range changes {
			req.Parameters.Changes = append(req.Parameters.Changes, c.Seq)
		}
		req.ParametersDigest = ParametersDigest(req.Parameters)
	}
	result := Result{StepID: req.StepID, Steps: []StepResult{}}
	f.machine().perform(context.Background(), []byte(encode(f.t, req)), ada, quiet{f.t.Output()}, &result)
	return result
}

func TestDNF(t *testing.T) {
	f := newFake(t)
	f.rpms["bash"] = "5-1"
	f.file("/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce", armor(keyPackets("docker")))
	m := f.machine()
	r := frozen()
	pin := func(r *recipe) { // the key is the test's own
		k, err := parseKeys(keyPackets("docker"))
		must(t, err)
		for i := range r.Distributions {
			r.Distributions[i].Docker.Fingerprints = k.fingerprints
		}
	}
	pin(&r)
	m.recipe = r
	req := request(Apply, DockerEngine)
	req.Recipe = Recipe{r.ID, digestOf(r)}
	result := Result{StepID: req.StepID}
	m.perform(context.Background(), []byte(encode(t, req)), ada, quiet{t.Output()}, &result)
	if result.Outcome != Completed {
		t.Fatalf("%+v", result)
	}
	var changing []string
	for _, c := range f.calls {
		if strings.HasPrefix(c, "dnf") {
			changing = append(changing, c)
		}
	}
	want := []string{
		"dnf -y --repo=docker-ce-stable makecache",
		"dnf --quiet repoquery --latest-limit=1 --obsoletes docker-ce",
		"dnf --quiet repoquery --latest-limit=1 --obsoletes docker-ce-cli",
		"dnf --quiet repoquery --latest-limit=1 --obsoletes containerd.io",
		"dnf --setopt=install_weak_deps=False --assumeno install docker-ce docker-ce-cli containerd.io",
		"dnf -y --setopt=install_weak_deps=False install docker-ce docker-ce-cli containerd.io",
	}
	if !slices.Equal(changing, want) {
		t.Errorf("%q", changing)
	}
	if repo := f.read("/etc/yum.repos.d/docker-ce.repo"); !strings.Contains(repo, "https://download.docker.com/linux/fedora/43/x86_64/stable") || !strings.Contains(repo, "gpgcheck=1") {
		t.Error(repo)
	}
	inForce, _, err := ParseChanges([]byte(f.read(ChangesPath)))
	if err != nil || len(inForce) != 4 {
		t.Errorf("%+v %v", inForce, err)
	}
}

func TestDNFObsoletesAreNamed(t *testing.T) {
	f := newFake(t)
	f.rpms["docker-common"] = "1-1"
	f.answer = func(argv string) (outcome, bool) {
		return outcome{stdout: "docker-common < 2\n/usr/bin/x\n"}, strings.HasSuffix(argv, "--obsoletes containerd.io")
	}
	f.file("/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce", "x")
	r := &run{recipe: frozen(), req: request(Apply, DockerEngine), exec: f.run, sys: system{f.root}}
	r.host, _ = r.recipe.distribution("fedora", "43", "x86_64")
	f.file(r.host.Docker.SourcePath, r.host.Docker.SourceText)
	if err := r.dnfRefresh(t.Context(), r.host.Docker, r.host.Docker.Packages); err == nil || !strings.Contains(err.Error(), "docker-common 1-1") {
		t.Error(err)
	}
}

// Nothing that is there is brought to another version, or goes, along the way.
func TestNothingIsUpgraded(t *testing.T) {
	apt := "Reading package lists...\nInst containerd.io [1.6.9-1] (1.7.27-1 Docker:bookworm [amd64])\nInst docker-ce (5:28.5-1 Docker:bookworm [amd64])\nRemv runc [1.1.5]\nConf docker-ce (5:28.5-1 Docker:bookworm [amd64])\n"
	if got := aptTouched(apt); !slices.Equal(got, []touched{{"containerd.io", "from 1.6.9-1 to 1.7.27-1"}, {"runc", "1.1.5 would go"}}) {
		t.Errorf("%+v", got)
	}
	dnf := `Package            Arch    Version    Repository         Size
Installing:
 docker-ce         x86_64  28.5-1     docker-ce-stable   26 M
Upgrading:
 containerd.io     x86_64  1.7.27-1   docker-ce-stable   35 M
   replacing containerd.io x86_64 1.6.9-1
 a-very-long-name-of-a-package-that-takes-the-whole-line
                   x86_64  2-1        fedora             1 M
Removing dependent packages:
 podman            x86_64  5.0-1      @fedora            60 M

Transaction Summary:
 Installing:        1 package
`
	want := []touched{{"containerd.io", "would be upgraded"}, {"a-very-long-name-of-a-package-that-takes-the-whole-line", "would be upgraded"}, {"podman", "would go"}}
	if got := dnfTouched(dnf); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	f := newFake(t)
	f.answer = func(argv string) (outcome, bool) {
		return outcome{code: 1, stdout: dnf}, strings.Contains(argv, "--assumeno")
	}
	f.file("/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce", "x")
	r := &run{recipe: frozen(), req: request(Apply, DockerEngine), exec: f.run, sys: system{f.root}}
	r.host, _ = r.recipe.distribution("fedora", "43", "x86_64")
	f.file(r.host.Docker.SourcePath, r.host.Docker.SourceText)
	if err := r.installPackages(t.Context(), r.host.Docker, r.host.Docker.Packages); err == nil || !strings.Contains(err.Error(), "containerd.io would be upgraded") {
		t.Error(err)
	}
	if slices.ContainsFunc(f.calls, func(c string) bool { return strings.HasPrefix(c, "dnf -y --setopt") }) {
		t.Errorf("it was installed all the same: %q", f.calls)
	}
}

func FuzzTouched(f *testing.F) {
	f.Add("Inst a [1] (2 x)\nUpgrading:\n b x86_64 2\n")
	f.Fuzz(func(t *testing.T, out string) {
		for _, p := range append(aptTouched(out), dnfTouched(out)...) {
			if p.name == "" || p.what == "" || strings.ContainsAny(p.name, " \n") {
				t.Errorf("%+v", p)
			}
		}
	})
}

// A step that takes long shows that it goes on.
func TestLongStepsShowLife(t *testing.T) {
	var out bytes.Buffer
	goesOn := make(chan struct{})
	said := &until{text: "still doing it, for", then: func() { close(goesOn) }}
	r := &run{say: &inTurn{w: io.MultiWriter(&out, said)}, now: time.Now, beat: time.Millisecond}
	done := false
	result, err := r.one(t.Context(), step{"s", "doing it",
		func(*run, context.Context) (bool, string, error) { return done, "", nil },
		func(*run, context.Context) error { <-goesOn; done = true; return nil }})
	if err != nil || result.Status != Applied {
		t.Errorf("%+v %v\n%s", result, err, &out)
	}
}

// An answer that is not exactly "not installed" is not taken for it.
func TestNotInstalledInItsOwnWords(t *testing.T) {
	for _, c := range []struct {
		family  string
		answer  outcome
		version string
		ok      bool
	}{
		{"dnf", outcome{code: 1, stdout: "package p is not installed\n"}, "", true},
		{"dnf", outcome{code: 1, stderr: "error: rpmdb: cannot open"}, "", false},
		{"dnf", outcome{code: 0, stdout: "1-1\n2-1\n"}, "1-1", true},
		{"apt", outcome{code: 1, stderr: "dpkg-query: no packages found matching p\n"}, "", true},
		{"apt", outcome{code: 1, stderr: "dpkg-query: error: parsing file"}, "", false},
		{"apt", outcome{code: 2}, "", false},
		{"apt", outcome{stdout: "installed\t1.0\n"}, "1.0", true},
		{"apt", outcome{stdout: "triggers-pending\t1.0\n"}, "1.0", true},
		{"apt", outcome{stdout: "config-files\t1.0\n"}, "", true},
		{"apt", outcome{stdout: "half-configured\t1.0\n"}, "", false},
	} {
		r := &run{recipe: frozen(), req: request(Apply, DockerEngine), host: distribution{Family: c.family},
			exec: func(context.Context, command) (outcome, error) { return c.answer, nil }}
		if got, err := r.installed(t.Context(), "p"); got != c.version || (err == nil) != c.ok {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
}

func TestFirstFailureStops(t *testing.T) {
	f := newFake(t)
	f.fetched = []byte("<html>not a key</html>")
	r := f.do(request(Apply, DockerEngine, DockerService, DockerGroup))
	var got []string
	for _, s := range r.Steps {
		got = append(got, s.ID+" "+string(s.Status))
	}
	want := []string{"package_conflicts satisfied", "install_key.docker failed", "write_source.docker not_run", "install_packages.docker not_run", "docker_service not_run", "docker_group not_run"}
	if !slices.Equal(got, want) || r.ErrorCode != ErrorFailed {
		t.Errorf("%q %+v", got, r)
	}
}

// What a program claims is not what counts: the check after it is.
func TestClaimIsNotBelieved(t *testing.T) {
	f := newFake(t)
	f.answer = func(argv string) (outcome, bool) {
		return outcome{stdout: "disabled\n", code: 1}, strings.HasPrefix(argv, "systemctl is-")
	}
	r := f.do(request(Apply, DockerService))
	if r.Outcome != OutcomeFailed || r.Steps[0].Status != Failed || !slices.Contains(f.calls, "systemctl enable --now docker.service") {
		t.Errorf("%+v", r)
	}
}

func TestKeptKeyOfSomebodyElse(t *testing.T) {
	f := newFake(t)
	f.file("/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce", armor(keyPackets("another")))
	r := f.do(request(Apply, DockerEngine))
	if r.Steps[1].Status != Failed || f.read("/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce") != armor(keyPackets("another")) {
		t.Errorf("%+v", r.Steps)
	}
}

func TestGroup(t *testing.T) {
	for name, c := range map[string]struct {
		passwd, group string
		code          int
		status        StepStatus
	}{
		"member":           {"ada:x:1234:1234::/home/ada:/bin/sh", "docker:x:999:bob,ada", 0, Satisfied},
		"primary group":    {"ada:x:1234:999::/home/ada:/bin/sh", "docker:x:999:", 0, Satisfied},
		"of another uid":   {"ada:x:1235:1234::/home/ada:/bin/sh", "docker:x:999:ada", 0, Failed},
		"root by its uid":  {"ada:x:0:0::/root:/bin/sh", "docker:x:999:", 0, Failed},
		"another's record": {"bob:x:1234:1::/:/bin/sh", "docker:x:999:", 0, Failed},
		"no group":         {"ada:x:1234:1234::/home/ada:/bin/sh", "", 2, Failed},
		"longer name":      {"ada:x:1234:1234::/home/ada:/bin/sh", "docker:x:999:adam", 0, Failed}, // added in vain: still not there
	} {
		f := newFake(t)
		f.answer = func(argv string) (outcome, bool) {
			switch argv {
			case "getent passwd ada":
				return outcome{stdout: c.passwd + "\n"}, true
			case "getent group docker":
				return outcome{code: c.code, stdout: c.group + "\n"}, true
			}
			return outcome{}, false
		}
		r := f.do(request(Apply, DockerGroup))
		if r.Steps[0].Status != c.status {
			t.Errorf("%s: %+v", name, r.Steps[0])
		}
		if added := slices.Contains(f.calls, "usermod -aG docker ada"); added != (name == "longer name") {
			t.Errorf("%s: usermod ran: %v", name, added)
		}
	}
}

func TestDaemonJSON(t *testing.T) {
	docker := func(o string) func(string) (outcome, bool) {
		return func(argv string) (outcome, bool) { return outcome{stdout: o}, strings.HasPrefix(argv, "docker ") }
	}
	for name, c := range map[string]struct {
		before string // "-" = no file
		info   string
		status StepStatus
		after  string
	}{
		"no file":            {"-", "", Applied, "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n"},
		"empty file":         {" \n", "", Applied, "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n"},
		"keeps the rest":     {`{"z":1.50,"features":{"b":{}},"a":"<>"}`, "", Applied, "{\n  \"z\": 1.50,\n  \"features\": {\n    \"b\": {},\n    \"cdi\": true\n  },\n  \"a\": \"<>\"\n}\n"},
		"there":              {`{"features":{"cdi":true}}`, "", Satisfied, `{"features":{"cdi":true}}`},
		"off":                {`{"features":{"cdi":false}}`, "", Applied, "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n"},
		"in the daemon":      {"-", `{"ServerVersion":"28","CDISpecDirs":["/etc/cdi"]}`, Satisfied, "-"},
		"invalid":            {`{"features":`, "", Failed, `{"features":`},
		"a key twice":        {`{"a":1,"a":2}`, "", Failed, `{"a":1,"a":2}`},
		"not an object":      {`{"features":[]}`, "", Failed, `{"features":[]}`},
		"not an object here": {`[]`, "", Failed, `[]`},
	} {
		f := newFake(t)
		f.answer = docker(c.info)
		if c.before != "-" {
			f.file(daemonJSON, c.before)
		}
		r := f.do(request(Apply, EnableCDI))
		after := "-"
		if data, err := os.ReadFile(filepath.Join(f.root, daemonJSON)); err == nil {
			after = string(data)
		}
		if r.Steps[0].Status != c.status || after != c.after {
			t.Errorf("%s: %+v\n%s", name, r.Steps[0], after)
		}
		if entries, _ := os.ReadDir(filepath.Join(f.root, "/etc/docker")); len(entries) > 1 {
			t.Errorf("%s: litter %v", name, entries)
		}
	}
}

// Configuration management keeps the file elsewhere: it is not replaced by ours.
func TestDaemonJSONThatIsALink(t *testing.T) {
	f := newFake(t)
	f.file("/etc/docker/real.json", "{}")
	must(t, os.Symlink("real.json", filepath.Join(f.root, daemonJSON)))
	r := f.do(request(Apply, NVIDIARuntime))
	if r.Steps[0].Status != Failed || f.read("/etc/docker/real.json") != "{}" {
		t.Errorf("%+v", r.Steps[0])
	}
	if info, err := os.Lstat(filepath.Join(f.root, daemonJSON)); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Error(info, err)
	}
}

// A dockerd from before --validate is no reason to fail; the restart shows.
func TestOldDockerdCannotValidate(t *testing.T) {
	f := newFake(t)
	f.answer = func(argv string) (outcome, bool) {
		return outcome{code: 125, stderr: "unknown flag: --validate\nSee 'dockerd --help'."}, strings.HasPrefix(argv, "dockerd")
	}
	if r := f.do(request(Apply, NVIDIARuntime)); r.Steps[0].Status != Applied {
		t.Errorf("%+v", r.Steps[0])
	}
}

func TestRestartIsForANewerHook(t *testing.T) {
	f := newFake(t)
	f.answer = func(argv string) (outcome, bool) {
		return outcome{stdout: `{"ServerVersion":"20.10"}`}, strings.HasPrefix(argv, "docker ")
	}
	f.file(dockerPID, "1")
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(filepath.Join(f.root, dockerPID), old, old))
	if r := f.do(request(Apply, DockerRestart)); r.Steps[0].Status != Satisfied {
		t.Errorf("restarted for nothing: %+v", r.Steps)
	}
	f.file("/usr/bin/nvidia-container-runtime-hook", "")
	f.do(request(Apply, DockerRestart))
	if !slices.Contains(f.calls, "systemctl restart docker.service") {
		t.Errorf("not restarted: %q", f.calls)
	}
}

// A unit that failed, or was started, too often is started no more: that is
// forgotten first, or the second attempt fails for the reason of the first.
func TestLimitIsForgottenBeforeAStart(t *testing.T) {
	const forget = "systemctl reset-failed docker.service docker.socket"
	for component, start := range map[Component]string{DockerService: "systemctl enable --now docker.service", DockerRestart: "systemctl restart docker.service"} {
		f := newFake(t)
		f.answer = func(argv string) (outcome, bool) {
			return outcome{stdout: `{"ServerVersion":"20.10"}`}, strings.HasPrefix(argv, "docker ")
		}
		f.file(dockerPID, "1")
		old := time.Now().Add(-time.Hour)
		must(t, os.Chtimes(filepath.Join(f.root, dockerPID), old, old))
		f.file("/usr/bin/nvidia-container-runtime-hook", "")
		f.do(request(Apply, component))
		if i := slices.Index(f.calls, start); i < 1 || f.calls[i-1] != forget {
			t.Errorf("%s: %q", component, f.calls)
		}
	}
}

// A specification of another driver, or of another card, is written again: that a
// card is listed says nothing of the ones that are there.
func TestMisfitCDIIsWrittenAgain(t *testing.T) {
	const card = "GPU-11111111-2222-3333-4444-555555555555"
	spec := func(driver string) string {
		return "kind: nvidia.com/gpu\n- hostPath: /usr/lib/libcuda.so." + driver + "\n"
	}
	for name, c := range map[string]struct {
		path, driver string // of the specification that is there
		listed       []string
		status       StepStatus
	}{
		"fits":              {cdiSpec, "580.95.05", []string{"0", card, "all"}, Satisfied},
		"of another driver": {cdiSpec, "570.10.01", []string{"0", card, "all"}, Applied},
		"a stale one":       {"/etc/cdi/nvidia.yaml", "570.10.01", []string{"0", card, "all"}, Applied},
		"of another card":   {cdiSpec, "580.95.05", []string{"GPU-99999999-2222-3333-4444-555555555555"}, Applied},
		"instances":         {cdiSpec, "580.95.05", []string{"MIG-aaaaaaaa-2222-3333-4444-555555555555"}, Satisfied},
		"none":              {"/etc/cdi/other.yaml", "580.95.05", nil, Applied},
	} {
		f := newFake(t)
		f.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
		f.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA\nGPU UUID: \t "+card+"\n")
		f.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-????????-????-????-????-????????????\n")
		f.file(c.path, spec(c.driver))
		listed := c.listed
		f.answer = func(argv string) (outcome, bool) {
			switch argv {
			case "nvidia-ctk cdi list":
				var b strings.Builder
				for _, n := range listed {
					fmt.Fprintf(&b, "nvidia.com/gpu=%s\n", n)
				}
				return outcome{stdout: b.String()}, true
			case "nvidia-ctk cdi generate --output=" + cdiSpec:
				f.file(cdiSpec, spec("580.95.05"))
				listed = []string{"0", card, "all"}
				return outcome{}, true
			}
			return outcome{stdout: "enabled\n"}, strings.HasPrefix(argv, "systemctl is-enabled nvidia")
		}
		r := f.do(request(Apply, NVIDIACDI))
		if r.Steps[0].Status != c.status {
			t.Errorf("%s: %+v", name, r.Steps[0])
		}
		if again := f.do(request(Apply, NVIDIACDI)); again.Steps[0].Status != Satisfied {
			t.Errorf("%s, a second time: %+v", name, again.Steps[0])
		}
	}
}

// Without the lock nothing is done: two helpers never meet.
func TestOneAtATime(t *testing.T) {
	f := newFake(t)
	other, err := openLedger(system{f.root})
	must(t, err)
	defer other.close()
	m := f.machine()
	m.wait = 20 * time.Millisecond
	var result Result
	result.StepID = "step-1"
	m.perform(t.Context(), []byte(encode(t, request(Apply, DockerService))), ada, quiet{t.Output()}, &result)
	if result.Outcome != OutcomeFailed || len(f.calls) != 1 {
		t.Errorf("%+v %q", result, f.calls)
	}
}

func TestInterruptedBeforeAStep(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("ctrl-c"))
	result := Result{StepID: "step-1"}
	f.machine().perform(ctx, []byte(encode(t, request(Apply, DockerService))), ada, quiet{t.Output()}, &result)
	if result.Outcome != OutcomeFailed || result.Steps[0].Status != Failed || slices.Contains(f.calls, "systemctl enable --now docker.service") {
		t.Errorf("%+v %q", result, f.calls)
	}
}

func TestParseResult(t *testing.T) {
	good := Result{Schema: 1, StepID: "s", Outcome: Completed, Steps: []StepResult{{ID: "x", Status: Applied}}, LogTail: strings.Repeat("x", 2*maxLog)}
	if r, err := ParseResult([]byte(encode(t, good))); err != nil || len(r.LogTail) != maxLog {
		t.Error(len(r.LogTail), err)
	}
	for _, change := range []func(*Result){
		func(r *Result) { r.Schema = 2 }, func(r *Result) { r.Outcome = "fine" }, func(r *Result) { r.Action = "x" },
		func(r *Result) { r.Steps = []StepResult{{Status: "done"}} }, func(r *Result) { r.Error = strings.Repeat("x", MaxResult) },
	} {
		bad := good
		change(&bad)
		if _, err := ParseResult([]byte(encode(t, bad))); err == nil {
			t.Errorf("%.200s", encode(t, bad))
		}
	}
}

func FuzzParseResult(f *testing.F) {
	good, _ := json.Marshal(Result{Schema: 1, Outcome: Completed})
	f.Add(good)
	f.Add([]byte(`{"schema":1,"outcome":"failed","steps":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := ParseResult(data); err == nil && (r.Schema != Schema || len(r.LogTail) > maxLog) {
			t.Fatalf("%+v", r)
		}
	})
}

// A repository that a person added under another name is used as it is: a second
// file for it, with another key, would stop apt altogether.
func TestSourceOfAnotherName(t *testing.T) {
	r := &run{recipe: frozen(), sys: system{t.TempDir()}}
	r.host, _ = r.recipe.distribution("debian", "12", "x86_64")
	v := r.host.Docker
	write := func(name, content string) {
		path := r.sys.path(aptParts + "/" + name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
	write("other.list", "# deb https://download.docker.com/linux/debian bookworm stable\ndeb https://example.org x y\n")
	write("off.sources", "Enabled: no\nURIs: https://download.docker.com/linux/debian\n")
	write("bad name.list", "deb https://download.docker.com/linux/debian bookworm stable\n") // apt ignores it too
	if got, err := r.source(v); got != "" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	write("mine.sources", "Types: deb\nURIs: https://download.docker.com/linux/debian\nSigned-By: /etc/apt/keyrings/mine.gpg\n")
	if got, err := r.source(v); got != aptParts+"/mine.sources" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if done, _, err := r.keyThere(v, nil); !done || err != nil {
		t.Error(done, err)
	}
	write("docker.list", v.SourceText) // ours comes first
	if got, err := r.source(v); got != v.SourcePath || err != nil {
		t.Errorf("%q %v", got, err)
	}
}
