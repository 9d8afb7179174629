package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestExport writes a session as plain text and as a recording that plays at the
// speed at which it was made, also when the guest that saw it is gone.
func TestExport(t *testing.T) {
	h := newHouse(t)
	h.must("run", "-d", "--name", "show", "--size", "80x24", "--", "sh", "-c", `printf '\033[1mone\033[0m\n'; sleep 0.6; echo two; exit 5`)
	if _, _, code := h.run("wait", "show"); code != 5 {
		t.Fatalf("wait ends with %d", code)
	}
	h.killGuest()
	h.must("up")
	if text := h.must("export", "show", "--format", "text"); text != "one\ntwo\n" {
		t.Errorf("the text is %q", text)
	}
	lines := strings.Split(strings.TrimSpace(h.must("export", "show", "--format", "cast")), "\n")
	var output, exit string
	var seconds float64
	for _, l := range lines[1:] {
		var e []any
		h.decode(l, &e)
		seconds += e[0].(float64)
		switch e[1] {
		case "o":
			output += e[2].(string)
		case "x":
			exit = e[2].(string)
		}
	}
	if output != "\x1b[1mone\x1b[0m\r\ntwo\r\n" || exit != "5" {
		t.Errorf("the recording has %q and exit %q", output, exit)
	}
	if seconds < 0.4 || seconds > 60 {
		t.Errorf("it plays for %v s; the program took 0.6 s", seconds)
	}
	var header struct {
		Version int
		Term    struct{ Cols, Rows int }
	}
	if err := json.Unmarshal([]byte(lines[0]), &header); err != nil || header.Version != 3 || header.Term.Cols != 80 {
		t.Errorf("the header is %s, %v", lines[0], err)
	}
}
