package environment

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth"
)

// TestPlanGolden holds what is planned, and in which words, on each machine.
func TestPlanGolden(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range planCases {
		t.Run(c.name, func(t *testing.T) {
			in := goodInput()
			c.edit(&in)
			checkPlan(t, c.name, c.why, Judge(in))
		})
		seen[c.name+".txt"] = true
	}
	for _, c := range removalCases {
		t.Run(c.name, func(t *testing.T) {
			in := goodRemoval()
			c.edit(&in)
			checkPlan(t, c.name, c.why, JudgeRemoval(in))
		})
		seen[c.name+".txt"] = true
	}
	files, err := os.ReadDir("testdata/plans")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/plans/%s has no case", f.Name())
		}
	}
}

func checkPlan(t *testing.T, name, why string, p berth.Plan) {
	t.Helper()
	soundPlan(t, p)
	text := planText(why, p)
	file := filepath.Join("testdata/plans", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s says otherwise; run with -update and read the difference.\n--- is\n%s--- was\n%s", file, text, want)
	}
}

// soundPlan holds what is true of every plan.
func soundPlan(t *testing.T, p berth.Plan) {
	t.Helper()
	if !berth.ValidDigest(p.Digest) {
		t.Errorf("digest %q", p.Digest)
	}
	if p.Blockers == nil || p.Warnings == nil || p.Changes == nil || p.GPUs == nil {
		t.Error("a list is nil")
	}
	if !p.Availability.Valid() {
		t.Errorf("availability %q", p.Availability)
	}
	if !p.Feasible() && (len(p.Changes) > 0 || p.HostStep != nil || p.Availability == berth.Supported || p.Availability == berth.SetupRequired) {
		t.Error("a plan that cannot be carried out would do something")
	}
	elevated := slices.ContainsFunc(p.Changes, func(c berth.Change) bool { return c.Elevated })
	if elevated != p.Elevation || elevated != (p.HostStep != nil) || (p.HostStep == nil) != (p.Recipe == nil) {
		t.Errorf("elevated changes %v, elevation %v, host step %v, recipe %v", elevated, p.Elevation, p.HostStep, p.Recipe)
	}
	if h := p.HostStep; h != nil {
		want := slices.DeleteFunc(slices.Clone(componentOrder), func(c string) bool { return !slices.Contains(h.Components, c) })
		if !slices.Equal(want, h.Components) {
			t.Errorf("components %v are not in the recipe's order", h.Components)
		}
		if p.AdoptsExisting {
			t.Error("what is adopted is changed")
		}
	}
	for _, n := range slices.Concat(p.Blockers, p.Warnings) {
		if n.Message == "" || !strings.HasSuffix(n.Message, ".") && !strings.Contains(n.Message, "berth ") {
			t.Errorf("%s: %q is no sentence", n.Reason, n.Message)
		}
		for _, c := range n.Commands {
			if strings.ContainsAny(c, "\n\r\x00") {
				t.Errorf("%s: %q is no command", n.Reason, c)
			}
		}
	}
}

// planText is a plan as a person reviews it in a golden file.
func planText(why string, p berth.Plan) string {
	var b strings.Builder
	if why != "" {
		fmt.Fprintf(&b, "# %s\n", why)
	}
	fmt.Fprintf(&b, "%s %s %s: %s", p.Kind, p.Target.Host, orNone(p.Target.Engine), p.Availability)
	for _, flag := range []struct {
		on   bool
		name string
	}{{p.AdoptsExisting, "adopts"}, {p.Elevation, "elevation"}, {p.Relogin, "relogin"}, {p.Reboot, "reboot"}, {p.RetainModels, "retain_models"}} {
		if flag.on {
			fmt.Fprintf(&b, " +%s", flag.name)
		}
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "gpu %s · disk %s of %d at %s · download %d\n", orNone(p.GPU), yesNoUnknown(p.DiskSufficient), p.RequiredBytes, orNone(p.DiskPath), p.DownloadBytes)
	if h := p.HostStep; h != nil {
		fmt.Fprintf(&b, "host step %s (%s) as %s on %s %s %s %s: %s\n", p.Recipe.ID, p.Manifest, h.User, h.Distro, h.Version, h.Family, h.Arch, strings.Join(h.Components, " "))
	}
	for _, c := range p.Changes {
		mark := "·"
		if c.Elevated {
			mark = "!"
		}
		fmt.Fprintf(&b, "%s %s: %s — %s", mark, c.Code, c.Text, c.Why)
		if c.Bytes > 0 {
			fmt.Fprintf(&b, " (%d bytes)", c.Bytes)
		}
		b.WriteString(paramsText(c.Params) + "\n")
	}
	noteText(&b, "BLOCKED", p.Blockers)
	noteText(&b, "WARNING", p.Warnings)
	for _, n := range p.Notices {
		fmt.Fprintf(&b, "notice %s\n", n)
	}
	return b.String()
}

func noteText(b *strings.Builder, kind string, notes []berth.PlanNote) {
	for _, n := range notes {
		fmt.Fprintf(b, "%s %s%s\n    %s\n", kind, n.Reason, paramsText(n.Params), n.Message)
		for _, c := range n.Commands {
			fmt.Fprintf(b, "    $ %s\n", c)
		}
	}
}

func paramsText(params map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(params)) {
		fmt.Fprintf(&b, " %s=%q", k, params[k])
	}
	return b.String()
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// TestPlanReasonsAreAllShown holds that no blocker and no warning is without a
// golden text: one that nobody reads is one that nobody understands.
func TestPlanReasonsAreAllShown(t *testing.T) {
	have := map[string]bool{}
	for _, c := range planCases {
		in := goodInput()
		c.edit(&in)
		p := Judge(in)
		for _, n := range slices.Concat(p.Blockers, p.Warnings) {
			have[n.Reason] = true
		}
	}
	reasons := rootConstants(t, "BlockerReason", "WarningReason")
	if len(reasons) < 40 {
		t.Fatalf("only %d reasons were found: %v", len(reasons), reasons)
	}
	for _, r := range reasons {
		if !have[r] {
			t.Errorf("no case shows %s", r)
		}
	}
}

// TestPlanChangesAreAllShown is the same for the changes.
func TestPlanChangesAreAllShown(t *testing.T) {
	have := map[string]bool{}
	for _, c := range planCases {
		in := goodInput()
		c.edit(&in)
		for _, c := range Judge(in).Changes {
			have[string(c.Code)] = true
		}
	}
	for _, c := range removalCases {
		in := goodRemoval()
		c.edit(&in)
		for _, c := range JudgeRemoval(in).Changes {
			have[string(c.Code)] = true
		}
	}
	for _, c := range rootConstants(t, "ChangeCode") {
		if !have[c] {
			t.Errorf("no case shows %s", c)
		}
	}
}

// rootConstants are the values of the constants of those types in plan.go.
func rootConstants(t *testing.T, types ...string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../plan.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || !slices.Contains(types, id.Name) || len(spec.Values) != 1 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			value, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, value)
		}
		return true
	})
	return out
}
