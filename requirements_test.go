package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// testName is `package.Test` or `package.Test/case` in docs/requirements-setup.md.
var testName = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([a-z0-9_-]+))?`")

// casesOf are the tests whose cases are files, and where those are.
var casesOf = map[string]string{
	"environment.TestPlanGolden":          "environment/testdata/plans/%.txt",
	"environment.TestFactsSayWhatMatters": "environment/testdata/facts/%/machine.txtar",
}

// TestRequirementsTable finds each file, test and case that the table of demands
// names: a table of tests that are no longer there shows nothing.
func TestRequirementsTable(t *testing.T) {
	doc, err := os.ReadFile("docs/requirements-setup.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]map[string]bool{}
	rows := 0
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.Contains(line, "---") || strings.TrimSpace(cells[1]) == "#" {
			continue
		}
		rows++
		if n := strings.TrimSpace(cells[1]); n != strconv.Itoa(rows) {
			t.Errorf("row %d has the number %s", rows, n)
		}
		for _, file := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[3], -1) {
			if _, err := os.Stat(file[1]); err != nil {
				t.Errorf("row %d: %v", rows, err)
			}
		}
		named := testName.FindAllStringSubmatch(cells[4], -1)
		if ticks := strings.Count(cells[4], "`"); ticks != 2*len(named) {
			t.Errorf("row %d names something that is no test: %s", rows, cells[4])
		}
		if len(named) == 0 && !strings.HasPrefix(strings.TrimSpace(cells[4]), "not yet: ") {
			t.Errorf("row %d names no test and does not say why", rows)
		}
		for _, n := range named {
			dir, test, of := n[1], n[2], n[3]
			if tests[dir] == nil {
				tests[dir] = testsIn(t, dir)
			}
			if !tests[dir][test] {
				t.Errorf("row %d: there is no %s.%s", rows, dir, test)
			}
			pattern, files := casesOf[dir+"."+test]
			if files != (of != "") {
				t.Errorf("row %d: %s.%s is named with the case %q", rows, dir, test, of)
			} else if files {
				if _, err := os.Stat(strings.Replace(pattern, "%", of, 1)); err != nil {
					t.Errorf("row %d: %v", rows, err)
				}
			}
		}
	}
	if rows < 50 {
		t.Fatalf("only %d rows were found", rows)
	}
}

// testsIn are the names of the tests of a package.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Errorf("%v", &fs.PathError{Op: "look for tests", Path: dir, Err: fs.ErrNotExist})
	}
	found := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
	}
	return found
}
