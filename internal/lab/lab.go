// Package lab gives tests real parts: Docker daemons of three generations, a
// registry with faults, images of small static programs, and GPUs that are not
// there. All of it lives under .lab/ of the repository and on loopback, and
// ends with the test process however that ends.
//
// A test that needs a part that this machine cannot have is skipped with the
// reason; with CI=true it fails.
package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// need skips the test, or fails it in CI.
func need(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("lab: "+format, args...)
	}
	t.Skipf("lab: "+format, args...)
}

// Root is the top of the repository, found from the working directory of the test.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("lab: no go.mod above the working directory")
		}
		dir = up
	}
}

// Dir is where the lab keeps what it makes.
func Dir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(Root(t), ".lab")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

var standin struct {
	sync.Mutex
	path string
}

// Standin is the path of the static program that all stand-ins and images are
// made of; it acts by the name that it is started by.
func Standin(t testing.TB) string {
	t.Helper()
	standin.Lock()
	defer standin.Unlock()
	if standin.path != "" {
		return standin.path
	}
	dir := filepath.Join(Dir(t), "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(dir, ".build-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a leftover is only litter
	out := filepath.Join(tmp, "standin")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "./internal/lab/testdata/standin")
	cmd.Dir = Root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("lab: build the stand-in: %v\n%s", err, b)
	}
	path := filepath.Join(dir, "standin")
	if err := os.Rename(out, path); err != nil { // several test processes build it at once
		t.Fatal(err)
	}
	standin.path = path
	return path
}
