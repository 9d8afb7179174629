package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
)

// A home that machines share: what one of them has installed is not the other's.
func TestAnotherMachinesDirectory(t *testing.T) {
	dir, id := t.TempDir(), filepath.Join(t.TempDir(), "machine-id")
	be := func(text string) {
		t.Helper()
		if err := os.WriteFile(id, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for _, step := range []struct {
		id string
		ok bool
	}{{"", true}, {a + "\n", true}, {a, true}, {b, false}, {"uninitialized", true}, {a, true}} {
		be(step.id)
		if err := sameMachine(dir, id); (err == nil) != step.ok || err != nil && !errors.Is(err, berth.CodeStateDir) {
			t.Errorf("%q: %v", step.id, err)
		}
	}
	if err := sameMachine(dir, id+"-none"); err != nil {
		t.Errorf("a machine without an id: %v", err)
	}
}
