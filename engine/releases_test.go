package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth"
)

func newStoreIn(t testing.TB, dir string) *Releases {
	t.Helper()
	s, err := NewReleases(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newStore(t testing.TB) *Releases {
	t.Helper()
	return newStoreIn(t, filepath.Join(t.TempDir(), "releases"))
}

func changed(t testing.TB, id string, change func(doc map[string]any)) []byte {
	t.Helper()
	doc := sample()
	doc["id"] = id
	if change != nil {
		change(doc)
	}
	return document(t, doc)
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{}, {Dir: "relative", Log: slog.Default()}, {Dir: "/x"}} {
		if _, err := NewReleases(cfg); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestAddIsKeptAndImmutable(t *testing.T) {
	s := newStore(t)
	view, added, err := s.Add(changed(t, "toy-1.0-r1", nil))
	if err != nil || !added || view.ID != "toy-1.0-r1" || view.Embedded {
		t.Fatalf("%+v %v %v", view, added, err)
	}
	// Other spaces and another order are the same content.
	var spaced bytes.Buffer
	spaced.WriteString(" \n")
	spaced.Write(bytes.ReplaceAll(changed(t, "toy-1.0-r1", nil), []byte(`,"`), []byte(",\n \"")))
	if _, added, err := s.Add(spaced.Bytes()); err != nil || added {
		t.Errorf("the same again: %v %v", added, err)
	}
	if _, _, err := s.Add(changed(t, "toy-1.0-r1", func(d map[string]any) { d["port"] = 8001 })); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("other content: %v", err)
	}
	if _, _, err := s.Add([]byte("{}")); !errors.Is(err, berth.CodeReleaseInvalid) {
		t.Errorf("not a release: %v", err)
	}
	other := newStoreIn(t, s.cfg.Dir) // the next daemon
	got, err := other.Get("toy-1.0-r1")
	if err != nil || got.Port != 8000 || !same(got, view.Release) {
		t.Errorf("%+v %v", got, err)
	}
	info, err := os.Stat(s.path("toy-1.0-r1"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

func TestEmbeddedIDsAreTaken(t *testing.T) {
	s := newStore(t)
	id := "vllm-0.31.0-r1"
	data, err := embedded.ReadFile("releases/" + id + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if view, added, err := s.Add(data); err != nil || added || !view.Embedded {
		t.Errorf("the same: %v %v %v", view.Embedded, added, err)
	}
	if _, _, err := s.Add(changed(t, id, nil)); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("other content: %v", err)
	}
	// An earlier program had another release of that id, and somebody may have
	// consented to it: neither is taken for the other.
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(id), changed(t, id, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(id); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("%v", err)
	}
}

// Daemons that add at once agree on one content: nobody overwrites another's.
func TestAddAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "releases")
	const n = 8
	var adding sync.WaitGroup
	var mu sync.Mutex
	winners, losers := map[int]bool{}, 0
	for i := range n {
		s := newStoreIn(t, dir)
		doc := changed(t, "toy-1.0-r1", func(d map[string]any) { d["port"] = 9000 + i })
		adding.Go(func() {
			_, added, err := s.Add(doc)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && added:
				winners[9000+i] = true
			case errors.Is(err, berth.CodeConflict):
				losers++
			default:
				t.Errorf("%d: %v %v", i, added, err)
			}
		})
	}
	adding.Wait()
	r, err := newStoreIn(t, dir).Get("toy-1.0-r1")
	if err != nil || len(winners) != 1 || losers != n-1 || !winners[r.Port] {
		t.Errorf("%v, winners %v, losers %d, %v", r.Port, winners, losers, err)
	}
}

func TestDamagedFilesAreNamedAndLeftOut(t *testing.T) {
	s := newStore(t)
	if _, _, err := s.Add(changed(t, "toy-1.0-r1", nil)); err != nil {
		t.Fatal(err)
	}
	before := len(s.List())
	for name, data := range map[string][]byte{
		"cut.json": []byte("{"), "other.json": changed(t, "toy-9", nil), "large.json": make([]byte, MaxDocument+1), "..json": nil, "x.txt": nil,
	} {
		if err := os.WriteFile(filepath.Join(s.cfg.Dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(s.cfg.Dir, "folder.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"cut", "other", "large", "folder"} {
		if _, err := s.Get(id); !errors.Is(err, berth.CodeRecordUnreadable) || berth.AsError(err).Facts["path"] != s.path(id) {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, id := range []string{"none", "", "../toy-1.0-r1", "TOY"} {
		if _, err := s.Get(id); !errors.Is(err, berth.CodeReleaseNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if got := len(s.List()); got != before {
		t.Errorf("%d releases, before %d", got, before)
	}
	if _, _, err := s.Add(changed(t, "cut", nil)); !errors.Is(err, berth.CodeRecordUnreadable) {
		t.Errorf("a damaged file is overwritten: %v", err)
	}
}

// What a daemon that was killed half way left behind goes with the next Add.
func TestAddClearsLeftovers(t *testing.T) {
	s := newStore(t)
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(s.cfg.Dir, ".toy.json.tmp-123")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Add(changed(t, "toy-1.0-r1", nil)); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
}

func TestLatest(t *testing.T) {
	s := newStore(t)
	add := func(id, version string, change func(map[string]any)) {
		t.Helper()
		if _, _, err := s.Add(changed(t, id, func(d map[string]any) {
			d["version"] = version
			if change != nil {
				change(d)
			}
		})); err != nil {
			t.Fatal(err)
		}
	}
	cpu := func(d map[string]any) {
		for _, key := range []string{"min_compute_capability", "min_driver", "check_images", "formats", "models"} {
			delete(d, key)
		}
	}
	arm := func(d map[string]any) {
		for _, key := range []string{"images", "check_images"} {
			d[key] = map[string]any{"linux/arm64": d[key].(map[string]any)["linux/amd64"]}
		}
	}
	add("toy-0.9-r1", "0.9", nil)
	add("toy-0.10-r9", "0.10", nil)
	add("toy-0.10-r10", "0.10", nil)
	add("toy-0.10-cpu-r11", "0.10", cpu)
	add("toy-0.11-arm-r1", "0.11", arm)
	for _, c := range []struct{ engine, platform, want string }{
		{"toy", "linux/amd64", "toy-0.10-r10"},
		{"toy", "linux/arm64", "toy-0.11-arm-r1"},
		{"llama.cpp", "linux/amd64", "llama.cpp-2026-cuda-r1"},
		{"vllm", "linux/arm64", "vllm-0.31.0-r1"},
	} {
		if r, err := s.Latest(c.engine, c.platform); err != nil || r.ID != c.want {
			t.Errorf("%s on %s: %s, %v", c.engine, c.platform, r.ID, err)
		}
	}
	for engine, want := range map[string]string{"toy": "toy-0.10-cpu-r11", "llama.cpp": "llama.cpp-2026-cpu-r1"} {
		if r, err := s.LatestForCPU(engine, "linux/amd64"); err != nil || r.ID != want {
			t.Errorf("%s for the CPU: %s, %v", engine, r.ID, err)
		}
	}
	if _, err := s.LatestForCPU("vllm", "linux/amd64"); !errors.Is(err, berth.CodeReleaseNotFound) {
		t.Errorf("vllm for the CPU: %v", err)
	}
	for _, c := range [][2]string{{"none", "linux/amd64"}, {"llama.cpp", "linux/arm64"}, {"toy", "windows/amd64"}} {
		if _, err := s.Latest(c[0], c[1]); !errors.Is(err, berth.CodeReleaseNotFound) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestFetch(t *testing.T) {
	doc := changed(t, "toy-1.0-r1", nil)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) }))
	defer plain.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/down", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) })
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, MaxDocument+1)) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("{"))
	})
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	s := newStore(t)
	s.cfg.Transport = server.Client().Transport
	defer server.Client().CloseIdleConnections()

	file := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(file, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{server.URL + "/ok", server.URL + "/moved", "file://" + file} {
		data, err := s.Fetch(t.Context(), source)
		if err != nil || !bytes.Equal(data, doc) {
			t.Errorf("%s: %d bytes, %v", source, len(data), err)
		}
	}
	for source, want := range map[string]berth.Code{
		plain.URL: berth.CodeInvalidArgument, "ftp://x/y": berth.CodeInvalidArgument, "file://host/x": berth.CodeInvalidArgument,
		"https://user:hunter2@x/": berth.CodeInvalidArgument, "https:x": berth.CodeInvalidArgument, "::": berth.CodeInvalidArgument, "": berth.CodeInvalidArgument,
		server.URL + "/none": berth.CodeReleaseNotFound, server.URL + "/down": berth.CodeReleaseNotFound, server.URL + "/file": berth.CodeReleaseNotFound,
		server.URL + "/loop": berth.CodeReleaseNotFound, server.URL + "/cut": berth.CodeReleaseNotFound, server.URL + "/large": berth.CodeTooLarge,
		"file://" + file + ".none": berth.CodeReleaseNotFound,
	} {
		if _, err := s.Fetch(t.Context(), source); !errors.Is(err, want) || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Fetch(ctx, server.URL+"/ok"); !errors.Is(err, berth.CodeInterrupted) {
		t.Errorf("given up: %v", err)
	}
	if got := s.addedIDs(); len(got) != 0 {
		t.Errorf("a fetch keeps what it got: %v", got)
	}
}
