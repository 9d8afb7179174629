package berth_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"berth"
)

// TestDiskDocument finds each file name of paths.go in docs/disk.md.
func TestDiskDocument(t *testing.T) {
	doc, err := os.ReadFile("docs/disk.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "paths.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) == 0 {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		name, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		names++
		if !strings.Contains(string(doc), name+"`") && !strings.Contains(string(doc), "`"+name+"/`") && !strings.Contains(string(doc), "/"+name+"/`") {
			t.Errorf("docs/disk.md has no row for %s (%s)", spec.Names[0].Name, name)
		}
		return true
	})
	if names < 15 {
		t.Fatalf("only %d names were found in paths.go", names)
	}
}

func TestResolvePaths(t *testing.T) {
	for name, tc := range map[string]struct {
		flags berth.Paths
		env   map[string]string
		want  berth.Paths
	}{
		"home alone":              {env: nil, want: berth.Paths{State: "/home/u/.local/state/berth", Runtime: "/home/u/.local/state/berth/run", Config: "/home/u/.config/berth/config.toml", Machine: "/home/u/.local/state/berth/machine"}},
		"XDG":                     {env: map[string]string{"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CONFIG_HOME": "/c"}, want: berth.Paths{State: "/s/berth", Runtime: "/r/berth", Config: "/c/berth/config.toml", Machine: "/s/berth/machine"}},
		"relative XDG is ignored": {env: map[string]string{"XDG_STATE_HOME": "s"}, want: berth.Paths{State: "/home/u/.local/state/berth", Runtime: "/home/u/.local/state/berth/run", Config: "/home/u/.config/berth/config.toml", Machine: "/home/u/.local/state/berth/machine"}},
		"environment beats XDG":   {env: map[string]string{"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "BERTH_STATE_DIR": "/bs", "BERTH_RUNTIME_DIR": "/br", "BERTH_CONFIG": "/bc"}, want: berth.Paths{State: "/bs", Runtime: "/br", Config: "/bc", Machine: "/s/berth/machine"}},
		"flags beat environment":  {flags: berth.Paths{State: "/fs", Runtime: "/fr", Config: "/fc"}, env: map[string]string{"BERTH_STATE_DIR": "/bs", "BERTH_RUNTIME_DIR": "/br"}, want: berth.Paths{State: "/fs", Runtime: "/fr", Config: "/fc", Machine: "/home/u/.local/state/berth/machine"}},
		// Two berths with two state directories would otherwise meet on one socket.
		"a given state directory keeps its own sockets": {flags: berth.Paths{State: "/fs"}, env: map[string]string{"XDG_RUNTIME_DIR": "/r"}, want: berth.Paths{State: "/fs", Runtime: "/fs/run", Config: "/home/u/.config/berth/config.toml", Machine: "/home/u/.local/state/berth/machine"}},
		// Two daemons of one user must see each other's operations.
		"a given state directory shares the machine": {flags: berth.Paths{State: "/fs"}, env: map[string]string{"XDG_STATE_HOME": "/s"}, want: berth.Paths{State: "/fs", Runtime: "/fs/run", Config: "/home/u/.config/berth/config.toml", Machine: "/s/berth/machine"}},
		"machine directory of the environment":       {env: map[string]string{"BERTH_MACHINE_DIR": "/bm", "XDG_STATE_HOME": "/s"}, want: berth.Paths{State: "/s/berth", Runtime: "/s/berth/run", Config: "/home/u/.config/berth/config.toml", Machine: "/bm"}},
		"machine directory of the flags":             {flags: berth.Paths{Machine: "/fm"}, env: map[string]string{"BERTH_MACHINE_DIR": "/bm"}, want: berth.Paths{State: "/home/u/.local/state/berth", Runtime: "/home/u/.local/state/berth/run", Config: "/home/u/.config/berth/config.toml", Machine: "/fm"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := berth.ResolvePaths(tc.flags, func(k string) string { return tc.env[k] }, "/home/u")
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
	if _, err := berth.ResolvePaths(berth.Paths{}, func(string) string { return "" }, ""); err == nil {
		t.Error("no directory at all was accepted")
	}
}
