package berth_test

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"berth"
)

var update = flag.Bool("update", false, "write the golden files again")

// TestErrorsDocument keeps docs/errors.md equal to the catalogue.
func TestErrorsDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Errors\n\nGenerated from the catalogue in the root package; `make golden` writes it again.\n\n" +
		"Every error has a code. It is in `code` of the problem document (RFC 9457) that the API answers and\n" +
		"that `--json` prints to stderr, and `errors.Is(err, berth.CodeX)` finds it in Go. The hint is the one\n" +
		"next step; an error with a better one of its own gives that.\n\n" +
		"| code | HTTP | exit | meaning | hint |\n| --- | --- | --- | --- | --- |\n")
	for _, e := range berth.CatalogueEntries() {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s | %s |\n", e.Code, e.Status, e.Exit, e.Meaning, e.Hint)
	}
	const path = "docs/errors.md"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Fatalf("%s is not what the catalogue says; run: make golden", path)
	}
}

// TestCatalogueIsComplete finds every code that the source declares.
func TestCatalogueIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "catalogue.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Code") {
			return true
		}
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if seen[code] {
			t.Errorf("code %q is declared twice", code)
		}
		seen[code] = true
		e, ok := berth.Catalogue(berth.Code(code))
		if !ok {
			t.Errorf("code %q has no line in the catalogue", code)
		} else if e.Meaning == "" || e.Status < 400 || e.Status > 599 {
			t.Errorf("code %q has an empty line in the catalogue", code)
		}
		return true
	})
	if len(seen) != len(berth.CatalogueEntries()) {
		t.Errorf("%d codes are declared, %d are in the catalogue", len(seen), len(berth.CatalogueEntries()))
	}
}

func TestErrorKeepsItsCodeAndCause(t *testing.T) {
	cause := errors.New("no such device")
	err := fmt.Errorf("start session: %w", berth.Errorf(berth.CodeStartFailed, "open a terminal: %w", cause))
	if !errors.Is(err, berth.CodeStartFailed) || errors.Is(err, berth.CodeNotFound) {
		t.Error("the code is lost")
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
	if e := berth.AsError(err); e.Detail != "start session: open a terminal: no such device" {
		t.Errorf("the detail is %q", e.Detail)
	}
	if e := berth.AsError(cause); e.Code != berth.CodeInternal || berth.ExitCode(cause) != berth.ExitFailed {
		t.Errorf("an error without a code became %q", e.Code)
	}
}
