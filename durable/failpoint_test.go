package durable_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/durable"
)

// The list of the failpoints is what a crash campaign walks: one that is missing
// there is never crashed at, one that is only there proves nothing.
func TestFailpointsAreListed(t *testing.T) {
	found := map[string]int{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "Failpoint(") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if name != "Failpoint" {
				return true
			}
			arg, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a failpoint whose name is not written out", path)
				return true
			}
			point, err := strconv.Unquote(arg.Value)
			if err != nil {
				t.Error(err)
			}
			found[point]++
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := slices.Sorted(slices.Values(durable.FailpointNames))
	if called := slices.Sorted(maps.Keys(found)); !slices.Equal(called, listed) {
		t.Errorf("called are %q, listed %q", called, listed)
	}
	for name, n := range found {
		if n > 1 {
			t.Errorf("%s is called at %d places: a crash there is not one crash", name, n)
		}
	}
}

// With the tag the process ends by SIGKILL at the n-th hit, and not before.
func TestFailpointKills(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "main.go")
	source := `package main

import "berth/durable"

func main() {
	durable.Failpoint("other")
	for range 3 {
		durable.Failpoint("here")
		println("passed")
	}
}
`
	if err := os.WriteFile(program, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		tags, point string
		passed      int
		killed      bool
	}{
		{"failpoints", "", 3, false}, {"failpoints", "here", 0, true}, {"failpoints", "here:3", 2, true},
		{"failpoints", "here:4", 3, false}, {"failpoints", "elsewhere", 3, false}, {"", "here", 3, false},
	} {
		binary := filepath.Join(dir, "program"+test.tags)
		if _, err := os.Stat(binary); err != nil {
			if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", test.tags, "-o", binary, program).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		cmd := exec.CommandContext(t.Context(), binary)
		cmd.Env = append(os.Environ(), durable.FailpointVar+"="+test.point)
		out, err := cmd.CombinedOutput()
		if passed := strings.Count(string(out), "passed"); passed != test.passed || (err != nil) != test.killed {
			t.Errorf("%+v: passed %d times, %v", test, passed, err)
		}
		if test.killed && (err == nil || err.Error() != "signal: killed") {
			t.Errorf("%+v: it ended by %v", test, err)
		}
	}
}
