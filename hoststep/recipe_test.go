package hoststep

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The recipe is frozen: whoever changes its data changes RecipeID and this line.
func TestRecipeIsPinned(t *testing.T) {
	const want = "linux-r2 sha256:9073aa37b2dc6e3ebf6cc19a31d432c1c50989d5d23246b52c900d6720d33583"
	if got := RecipeID + " " + RecipeDigest(); got != want {
		t.Errorf("the recipe's data changed:\n got %s\nwant %s", got, want)
	}
}

// No step of an apply can take a package away, replace one, or reach a shell,
// and no step at all can purge or force.
func TestNoCommandTakesAway(t *testing.T) {
	taking := []string{"remove", "purge", "autoremove", "upgrade", "update", "erase", "delete", "uninstall", "disable", "stop", "kill", "rm", "mv", "dd", "allowerasing", "swap", "distro-sync", "downgrade", "reinstall", "mask"}
	always := []string{"sh", "bash", "dash", "env", "sudo", "pkexec", "su", "xargs", "eval", "exec", "python", "perl", "curl", "purge", "autoremove", "upgrade", "force", "nodeps", "allow", "yes", "c"}
	exact := map[string]string{ // words that name the prohibition, or a harmless thing, whole
		"--no-remove": "apt must not remove", "--force-confdef": "", "Dpkg::Options::=--force-confold": "keep the person's file",
		"Dpkg::Options::=--force-confdef": "keep the person's file", "update": "apt-get update reads lists", "APT::Update::Error-Mode=any": "",
		"APT::Get::AutomaticRemove=false": "", "uname": "",
	}
	split := regexp.MustCompile(`[^a-z]+`)
	for _, c := range commands() {
		for i, word := range c.Argv {
			if _, ok := exact[word]; ok && (word != "update" || c.Name == "apt-refresh") {
				continue
			}
			words := split.Split(strings.ToLower(word), -1)
			for _, bad := range always {
				if slices.Contains(words, bad) {
					t.Errorf("%s holds %q", c.Name, word)
				}
			}
			for _, bad := range taking {
				if !c.Undo && slices.Contains(words, bad) {
					t.Errorf("%s, which an apply can start, holds %q", c.Name, word)
				}
			}
			if word == "-e" && !c.Undo || strings.Contains(word, "/") && i == 0 {
				t.Errorf("%s holds %q", c.Name, word)
			}
		}
		if c.Seconds <= 0 {
			t.Errorf("%s has no deadline", c.Name)
		}
	}
}

func TestUndoCommandsAreForUndoing(t *testing.T) {
	r := frozen()
	for _, c := range r.Commands {
		values := map[bool][]string{true: {"docker-ce"}, false: nil}[strings.Contains(strings.Join(c.Argv, " "), "{")]
		if _, err := r.fill(Apply, c.Name, values...); c.Undo && (err == nil || !strings.Contains(err.Error(), "undoing")) {
			t.Errorf("an apply can start %s: %v", c.Name, err)
		}
	}
}

func TestFill(t *testing.T) {
	r := frozen()
	for _, c := range []struct {
		action Action
		name   string
		values []string
		want   string // "" = refused
	}{
		{Apply, "passwd", []string{"ada"}, "getent passwd ada"},
		{Apply, "passwd", []string{"--help"}, ""},
		{Apply, "passwd", nil, ""},
		{Apply, "passwd", []string{"ada", "bob"}, ""},
		{Apply, "group", []string{"x"}, ""},
		{Apply, "nothing", nil, ""},
		{Apply, "apt-install", []string{"docker-ce", "containerd.io"}, "apt-get install -y --no-install-recommends --no-remove -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 docker-ce containerd.io"},
		{Apply, "apt-install", []string{"docker-ce", "bash"}, ""},
		{Apply, "apt-install", []string{"docker-ce-"}, ""}, // in apt's words: remove it
		{Apply, "apt-install", []string{"./evil.deb"}, ""},
		{Apply, "apt-install", nil, ""},
		{Apply, "dnf-install", []string{"@core"}, ""},
		{Apply, "apt-refresh", []string{"/etc/apt/sources.list.d/docker.list"}, "apt-get update -o Dir::Etc::sourcelist=/etc/apt/sources.list.d/docker.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any -o Acquire::Retries=3"},
		{Apply, "apt-refresh", []string{"/etc/apt/sources.list.d/../../../tmp/x.list"}, ""},
		{Apply, "apt-refresh", []string{"/tmp/x.list"}, ""},
		{Apply, "apt-refresh", []string{"/etc/apt/sources.list.d/a b.list"}, ""},
		{Apply, "dockerd-validate", []string{"/etc/docker/.daemon.json.berth-0123456789abcdef"}, "dockerd --validate --config-file=/etc/docker/.daemon.json.berth-0123456789abcdef"},
		{Apply, "dockerd-validate", []string{"/tmp/x"}, ""},
		{Apply, "apt-remove", []string{"docker-ce"}, ""},
		{Undo, "rpm-remove", []string{"docker-ce", "iptables"}, "rpm -e docker-ce iptables"},
		{Undo, "rpm-remove", []string{"--nodeps"}, ""},
		{Undo, "group-drop", []string{"ada\n"}, ""},
	} {
		got, err := r.fill(c.action, c.name, c.values...)
		if c.want == "" && err == nil || c.want != "" && strings.Join(got.Argv, " ") != c.want {
			t.Errorf("%s %q: %q %v", c.name, c.values, got.Argv, err)
		}
	}
}

func TestDistributions(t *testing.T) {
	r := frozen()
	suites := map[string]string{}
	for _, d := range r.Distributions {
		for _, v := range []vendor{d.Docker, d.NVIDIA} {
			if !strings.HasPrefix(v.KeyURL, "https://") || len(v.Fingerprints) == 0 || len(v.Fingerprints[0]) != 40 || !strings.Contains(v.SourceText, v.KeyPath) ||
				!strings.Contains(v.SourceText, v.SourceMark) || !strings.Contains(v.SourceText, "https://") || strings.Contains(v.SourceText, "$") {
				t.Errorf("%s %s: %+v", d.ID, d.Version, v)
			}
		}
		suites[d.ID+" "+d.Version] = d.Docker.SourceText
		if family, ok := Qualified(d.ID, d.Version, d.Arch); !ok || family != d.Family {
			t.Errorf("%s %s", d.ID, d.Version)
		}
	}
	for name, want := range map[string]string{
		"ubuntu 22.04": "/ubuntu jammy stable", "ubuntu 24.04": "/ubuntu noble stable", "ubuntu 26.04": "/ubuntu resolute stable",
		"debian 12": "/debian bookworm stable", "debian 13": "/debian trixie stable", "fedora 43": "/fedora/43/", "fedora 44": "/fedora/44/",
	} {
		if !strings.Contains(suites[name], want) {
			t.Errorf("%s: %s", name, suites[name])
		}
	}
	if len(suites) != 7 || len(r.Distributions) != 14 {
		t.Errorf("%d of %d", len(suites), len(r.Distributions))
	}
	if _, ok := Qualified("debian", "11", "x86_64"); ok {
		t.Error("Debian 11 is not qualified")
	}
}

func TestFetch(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("plain")) }))
	defer plain.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/key", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("key")) })
	mux.Handle("/moved", http.RedirectHandler("/key", http.StatusFound))
	mux.Handle("/plain", http.RedirectHandler(plain.URL, http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, MaxKey+1)) })
	s := httptest.NewTLSServer(mux)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	get := httpsFetch(&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}})
	for path, want := range map[string]string{"/key": "key", "/moved": "key", "/plain": "", "/loop": "", "/large": "", "/missing": ""} {
		if got, err := get(t.Context(), s.URL+path); string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %.20q %v", path, got, err)
		}
	}
	if _, err := get(t.Context(), plain.URL); !errors.Is(err, errPlain) {
		t.Error(err)
	}
	unknown := httpsFetch(&http.Transport{DisableKeepAlives: true})
	if _, err := unknown(t.Context(), s.URL+"/key"); err == nil {
		t.Error("a certificate of nobody's was taken")
	}
}

func TestExecute(t *testing.T) {
	t.Setenv("LD_PRELOAD_TEST", "x")
	o, err := execute(t.Context(), command{Argv: []string{"env"}, Seconds: 10})
	if err != nil || strings.TrimSpace(o.stdout) != strings.Join(environment, "\n") {
		t.Errorf("%q %v", o.stdout, err)
	}
	if o, err := execute(t.Context(), command{Argv: []string{"false"}, Seconds: 10}); err != nil || o.code != 1 {
		t.Errorf("%+v %v", o, err)
	}
	if _, err := execute(t.Context(), command{Argv: []string{"no-such-program"}, Seconds: 10}); !errors.Is(err, errAbsent) {
		t.Error(err)
	}
	if _, err := execute(t.Context(), command{Argv: []string{"../../tmp/evil"}, Seconds: 10}); err == nil {
		t.Error("a path was taken for a name")
	}
	// TERM comes first: this program says goodbye at it.
	o, err = execute(t.Context(), command{Argv: []string{"sh", "-c", `trap 'echo bye; exit 3' TERM; sleep 60 & wait`}, Seconds: 1})
	if !errors.Is(err, context.DeadlineExceeded) || strings.TrimSpace(o.stdout) != "bye" {
		t.Errorf("%+v %v", o, err)
	}
	// An interrupt does not cut a package installation in two.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o, err := execute(ctx, command{Argv: []string{"true"}, Seconds: 10, Finish: true}); err != nil || o.code != 0 {
		t.Errorf("%+v %v", o, err)
	}
	if _, err := execute(ctx, command{Argv: []string{"sleep", "60"}, Seconds: 60}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFindRefusesWhatOthersCanWrite(t *testing.T) {
	needRoot(t)
	path := "/usr/bin/berth-hoststep-test-" + random()
	must(t, os.WriteFile(path, nil, 0o755))
	defer os.Remove(path) //nolint:errcheck // it was made above
	name := path[len("/usr/bin/"):]
	if got, err := find(name); err != nil || got != path {
		t.Error(got, err)
	}
	must(t, os.Chmod(path, 0o775))
	if _, err := find(name); err == nil {
		t.Error("a program that its group can write was found")
	}
	must(t, os.Chmod(path, 0o755))
	must(t, os.Chown(path, ada, ada))
	if _, err := find(name); err == nil {
		t.Error("a program of a user's was found")
	}
}

func TestTail(t *testing.T) {
	k := &tail{limit: 10}
	for range 100 {
		_, _ = k.Write([]byte("0123456"))
	}
	if len(k.data) > 15 || !strings.HasSuffix(string(k.data), "0123456") {
		t.Errorf("%q", k.data)
	}
	if got := plainTail("\x1b[31mé\xff\t\n"+strings.Repeat("a", 5), 6); got != "\naaaaa" && got != "aaaaa" {
		t.Errorf("%q", got)
	}
}
