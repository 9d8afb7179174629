package daemon

import (
	"os"
	"strings"
	"testing"
)

// The example in docs/config.md is what the program reads.
func TestConfigDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```toml\n")
	example, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("no example")
	}
	s, err := ParseSettings([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultSettings()
	if s.Sessions != want.Sessions || s.Docker != want.Docker || s.Store != want.Store || s.API.address() != "" {
		t.Errorf("the example does not show the defaults: %+v", s)
	}
}
