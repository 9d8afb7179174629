package environment

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"berth"
)

// parts gives the texts of all fixtures whose names have the suffix: seeds for
// fuzzing, and examples of what must be read.
func parts(t testing.TB, has ...string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "facts", "*", "machine.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures", err)
	}
	var texts []string
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(data).Files {
			if slices.ContainsFunc(has, func(h string) bool { return strings.Contains(f.Name, h) }) {
				texts = append(texts, string(f.Data))
			}
		}
	}
	if len(texts) == 0 {
		t.Fatalf("no fixture has a part %v", has)
	}
	return texts
}

func seed(f *testing.F, has ...string) {
	for _, text := range parts(f, has...) {
		f.Add([]byte(text))
	}
	f.Add([]byte(""))
	f.Add([]byte("\xff\x00"))
}

func FuzzSMIQuery(f *testing.F) {
	seed(f, "--query-gpu")
	f.Add([]byte("GPU-1, a, b, c, d, e, f, g, h\nGPU-2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, fields := range [][]string{smiFields, smiOldFields} {
			cards, err := parseSMI(string(data), fields)
			if err != nil {
				return
			}
			for _, c := range cards {
				if c.MemoryBytes < 0 || c.FreeBytes < 0 || c.UnifiedMemory && c.MemoryBytes != 0 || !gpuUUID.MatchString(c.UUID) {
					t.Errorf("%+v", c)
				}
				if c.MemoryBytes == 0 && c.memoryKnown && !c.UnifiedMemory && !strings.Contains(string(data), "0") {
					t.Errorf("no memory out of nothing: %+v", c)
				}
			}
		}
	})
}

func FuzzSMIList(f *testing.F) {
	seed(f, "nvidia-smi -L")
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := parseSMIList(string(data))
		if err == nil && slices.ContainsFunc(found, func(i migInstance) bool { return i.parent == "" || i.bytes < 0 || i.uuid == "" }) {
			t.Errorf("%+v", found)
		}
	})
}

func FuzzSMIProcesses(f *testing.F) {
	seed(f, "--query-compute-apps")
	f.Fuzz(func(t *testing.T, data []byte) {
		found, _ := parseSMIProcesses(string(data))
		for uuid, list := range found {
			for _, p := range list {
				if p.PID <= 0 || p.UsedBytes < 0 || uuid == "" {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}

func FuzzDockerInfo(f *testing.F) {
	seed(f, "docker/info", "docker/version", "docker/networks")
	f.Fuzz(func(t *testing.T, data []byte) {
		var d berth.DockerFacts
		_ = applyVersion(&d, data)
		_, _ = parseNetworks(data)
		if _, err := applyInfo(&d, data); err == nil && d.Version == "" {
			t.Error("an answer without a version was taken for one")
		}
		if _, err := json.Marshal(d); err != nil {
			t.Error(err)
		}
	})
}

func FuzzCDISpec(f *testing.F) {
	for _, text := range parts(f, "/cdi/") {
		f.Add("a.yaml", []byte(text))
		f.Add("a.json", []byte(text))
	}
	f.Add("a.yaml", []byte("kind: a/b\ndevices:\n- name: \"0\"\n  containerEdits: {deviceNodes: [{path: /dev/x}]}\n"))
	f.Add("a.json", []byte(`{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"mounts":[{"hostPath":"/a","containerPath":"/a"}]}}]}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		s, err := parseSpec(name, data)
		if err != nil {
			if !errors.Is(err, errInvalid) {
				t.Errorf("an error of another kind: %v", err)
			}
			return
		}
		_ = s.driver()
		for _, p := range s.paths {
			if !filepath.IsAbs(p) || strings.Contains(p, "/../") {
				t.Errorf("path %q", p)
			}
		}
		if len(s.devices) == 0 || s.kind == "" {
			t.Errorf("%+v", s)
		}
	})
}

func FuzzOSRelease(f *testing.F) {
	seed(f, "os-release")
	f.Add([]byte("ID='x'\nNAME=\"a\\\"b\"\nVERSION_ID=\"1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseOSRelease(data)
		if err == nil && (r.id == "" || r.family() == "") {
			t.Errorf("%+v", r)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	seed(f, "/proc/net/route")
	f.Fuzz(func(t *testing.T, data []byte) {
		routes, err := parseRoutes(data)
		if err != nil && !errors.Is(err, errInvalid) {
			t.Error(err)
		}
		for _, r := range routes {
			if !strings.Contains(r.Destination, "/") {
				t.Errorf("%+v", r)
			}
		}
	})
}

func FuzzDaemonJSON(f *testing.F) {
	seed(f, "daemon.json")
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Add([]byte(`{"features":{"cdi":true}} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := parseDaemonJSON(data)
		if err == nil && len(strings.TrimSpace(strings.TrimPrefix(string(data), "\xef\xbb\xbf"))) > 0 && !json.Valid([]byte(strings.TrimPrefix(strings.TrimSpace(string(data)), "\xef\xbb\xbf"))) {
			t.Error("what is no JSON passed")
		}
		for k, v := range keys {
			if !json.Valid([]byte(v)) {
				t.Errorf("%s: %q", k, v)
			}
		}
		_ = configuredPools(keys)
	})
}

func FuzzGroups(f *testing.F) {
	seed(f, "/etc/group", "/etc/passwd", "/usr/bin/id")
	f.Fuzz(func(t *testing.T, data []byte) {
		groups, _ := parseGroups(data)
		for name, g := range groups {
			if name == "" || g.gid < 0 || slices.Contains(g.members, "") {
				t.Errorf("%q %+v", name, g)
			}
		}
		_ = homeOf(data, 1000)
		if who, err := parseID(string(data)); err == nil && (who.uid < 0 || len(who.gids) == 0) {
			t.Errorf("%+v", who)
		}
	})
}

func FuzzLocks(f *testing.F) {
	seed(f, "/proc/locks", "meminfo", "config.toml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if pids := lockHolders(string(data)); len(pids) > maxHolders {
			t.Errorf("%d holders", len(pids))
		}
		if m, err := parseMeminfo(string(data)); err == nil && m.TotalBytes <= 0 {
			t.Errorf("%+v", m)
		}
		_, _ = parseContainerdRoot(data)
	})
}

// The reader takes YAML as nvidia-ctk and people write it, and refuses the rest
// instead of half reading it.
func TestDecodeYAML(t *testing.T) {
	m := func(kv ...any) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i].(string)] = kv[i+1]
		}
		return out
	}
	for text, want := range map[string]any{
		"":                                     nil,
		"---\na: b # c\n# d\n\nc:\n":           m("a", "b", "c", nil),
		"a:\n- x\n- y\nb: z\n":                 m("a", []any{"x", "y"}, "b", "z"),
		"a:\n  - x\n  -\n    k: v\n":           m("a", []any{"x", m("k", "v")}),
		"- - x\n  - y\n- k: v\n  l: w\n":       []any{[]any{"x", "y"}, m("k", "v", "l", "w")},
		"a: [x]\n":                             nil, // not JSON
		"a: [\"x\", 1]\nb: {}\nc: []\n":        m("a", []any{"x", float64(1)}, "b", m(), "c", []any{}),
		"a: 'it''s # no'\nb: \"q\\\"#\\n\"\n":  m("a", "it's # no", "b", "q\"#\n"),
		"\"a b\": c\n'd': e\n":                 m("a b", "c", "d", "e"),
		"a: lib.so.1::/usr/lib/x.so\nb: c#d\n": m("a", "lib.so.1::/usr/lib/x.so", "b", "c#d"),
		"a: it's\n":                            m("a", "it's"),
		"a: b\n...\n":                          m("a", "b"),
		"a: b\n---\na: c\n":                    nil,
		"a: b\na: c\n":                         nil,
		"a: &x b\n":                            nil,
		"a: *x\n":                              nil,
		"a: !!str b\n":                         nil,
		"a: |\n  b\n":                          nil,
		"a: b: c\n":                            nil,
		"a: b\n  c: d\n":                       nil,
		"\ta: b\n":                             nil,
		"a: b\nc\n":                            nil,
		"a: \"b\n":                             nil,
		"? a\n: b\n":                           nil,
		"- a\nb: c\n":                          nil,
		"a:\n    b: c\n  d: e\n":               nil,
		strings.Repeat("- ", 40) + "x\n":       nil,
	} {
		got, err := decodeYAML([]byte(text))
		if want == nil && text != "" {
			if !errors.Is(err, errInvalid) {
				t.Errorf("%q gave %v, %v", text, got, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q gave %#v, %v; want %#v", text, got, err, want)
		}
	}
}

func TestSpecBounds(t *testing.T) {
	for name, text := range map[string]string{
		"no kind":       "devices:\n- name: a\n",
		"no devices":    "kind: nvidia.com/gpu\ndevices: []\n",
		"same name":     "kind: nvidia.com/gpu\ndevices:\n- name: a\n- name: a\n",
		"no name":       "kind: nvidia.com/gpu\ndevices:\n- containerEdits:\n    env:\n    - A=b\n",
		"relative path": "kind: nvidia.com/gpu\ndevices:\n- name: a\n  containerEdits:\n    mounts:\n    - hostPath: ../x\n",
		"a mount of no": "kind: nvidia.com/gpu\ndevices:\n- name: a\n  containerEdits:\n    mounts:\n    - containerPath: /x\n",
	} {
		if s, err := parseSpec("a.yaml", []byte(text)); !errors.Is(err, errInvalid) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// The rule is CDI's: the later directory wins, and two files of one directory
// that list a name make it unusable.
func TestSpecOf(t *testing.T) {
	spec := func(path string, devices ...string) berth.CDISpec {
		return berth.CDISpec{Path: path, Kind: CDIKind, Devices: devices}
	}
	stale, fresh := spec("/etc/cdi/nvidia.yaml", "0", "1"), spec("/var/run/cdi/nvidia.yaml", "0")
	twin := spec("/etc/cdi/other.yaml", "1")
	unread := berth.CDISpec{Path: "/var/run/cdi/z.yaml", Error: "invalid"}
	of := func(dirs []string, name string, specs ...berth.CDISpec) (string, bool) {
		s, rival := specOf(dirs, specs, name)
		if s == nil {
			return "", false
		}
		return s.Path, rival != nil
	}
	for _, order := range [][]berth.CDISpec{{stale, twin, fresh, unread}, {unread, fresh, twin, stale}} {
		if path, rival := of(nil, "0", order...); path != fresh.Path || rival {
			t.Errorf("0: %s, %v", path, rival)
		}
		if _, rival := of(nil, "1", order...); !rival {
			t.Error("1: two files of one directory list it")
		}
		if path, _ := of(nil, "2", order...); path != "" {
			t.Errorf("2: %s", path)
		}
	}
	// Two in a directory that does not count are no conflict.
	if path, rival := of(nil, "1", stale, twin, spec("/run/cdi/nvidia.yaml", "1")); path != "/run/cdi/nvidia.yaml" || rival {
		t.Errorf("%s, %v", path, rival)
	}
	if path, _ := of([]string{"/var/run/cdi", "/etc/cdi"}, "0", stale, fresh); path != stale.Path {
		t.Errorf("the daemon's own order was not kept: %s", path)
	}
}

func TestNewerKernel(t *testing.T) {
	for _, tt := range []struct {
		running   string
		installed []string
		want      string
	}{
		{"6.8.0-60-generic", []string{"6.8.0-58-generic", "6.8.0-60-generic"}, ""},
		{"6.8.0-9-generic", []string{"6.8.0-10-generic", "6.8.0-9-generic"}, "6.8.0-10-generic"},
		{"6.8.0-60-generic", []string{"6.8.0-60-generic", "6.11.0-1016-nvidia"}, ""}, // another flavour
		{"6.9.1-arch1-1", []string{"6.9.3-arch1-1"}, "6.9.3-arch1-1"},                // its own modules are gone
		{"6.14.5-300.fc42.x86_64", []string{"6.14.5-300.fc42.x86_64", "6.15.1-200.fc43.x86_64"}, "6.15.1-200.fc43.x86_64"},
		{"6.18.44-own", []string{"6.1.0-37-amd64"}, ""},
		{"6.6.87.2-microsoft-standard-WSL2", nil, ""},
	} {
		if got := newerKernel(tt.running, tt.installed); got != tt.want {
			t.Errorf("%s with %v: %q, want %q", tt.running, tt.installed, got, tt.want)
		}
	}
}

func TestParseID(t *testing.T) {
	who, err := parseID("uid=1000(ada) gid=513(domain users) groups=513(domain users),998(docker),4242 context=u:r:t:s0\n")
	if err != nil || who.uid != 1000 || who.gid != 513 || !slices.Equal(who.gids, []int{513, 998, 4242}) || who.groups[1] != DockerGroup {
		t.Errorf("%+v, %v", who, err)
	}
	if who, err = parseID("uid=1000(ada) gid=1000(ada) euid=0(root) groups=1000(ada)"); err != nil || who.uid != 1000 {
		t.Errorf("%+v, %v", who, err)
	}
	for _, bad := range []string{"", "uid=x gid=1 groups=1", "root", "uid=1 gid=1"} {
		if _, err := parseID(bad); !errors.Is(err, errInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWSLVersion(t *testing.T) {
	for text, want := range map[string]int{
		"Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc)": 1,
		"Linux version 5.15.90.1-microsoft-standard-WSL2":                     2,
		"Linux version 6.8.0-60-generic":                                      0,
	} {
		if got := wslVersion(text); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestReadOnlyUsr(t *testing.T) {
	if readOnlyUsr("/dev/a / ext4 rw 0 0\n/dev/b /usr ext4 rw,errors=remount-ro 0 0\n") {
		t.Error("an option that has ro in it was taken for it")
	}
	if !readOnlyUsr("/dev/b /usr btrfs ro,relatime 0 0\n") {
		t.Error("a read-only /usr was not seen")
	}
}

func TestParseRoutesRefuses(t *testing.T) {
	const head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
	for _, bad := range []string{"x\n", head + "eth0\t0\n", head + "eth0\tzz\t0\t1\t0\t0\t0\t0\t0\t0\t0\n", head + "eth0\t0\t0\t1\t0\t0\t0\t00FF00FF\t0\t0\t0\n"} {
		if r, err := parseRoutes([]byte(bad)); !errors.Is(err, errInvalid) {
			t.Errorf("%q: %v, %v", bad, r, err)
		}
	}
}

// What is installed and what the probe is told of it, by each family's tool.
func TestPackages(t *testing.T) {
	deb := parseDpkg("ii |docker-ce|5:28\nrc |docker.io|24\nhi |containerd.io|1.7\niU |runc|1.1\nun |moby-engine|\nii |bash|5\n", packageNames)
	if !reflect.DeepEqual(deb, map[string]string{"docker-ce": "5:28", "containerd.io": "1.7"}) {
		t.Errorf("dpkg: %v", deb)
	}
	rpm := parseRPM("package docker-ce is not installed\nmoby-engine|28.5.1-3.fc43\n", packageNames)
	if !reflect.DeepEqual(rpm, map[string]string{"moby-engine": "28.5.1-3.fc43"}) {
		t.Errorf("rpm: %v", rpm)
	}
	if pac := parsePacman("docker 1:28.5.1-1\nnvidia-container-toolkit 1.18.1-1\n", packageNames); len(pac) != 2 {
		t.Errorf("pacman: %v", pac)
	}
}

func TestModuleAndMismatch(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023":        "535.54.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs@x) Sat": "575.57.08",
		"NVRM version: something": "",
	} {
		if got := parseModule(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	for _, tt := range []struct {
		g    berth.GPUFacts
		want bool
	}{
		{berth.GPUFacts{Module: "550.54.14", Library: "550.54.15"}, true},
		{berth.GPUFacts{Module: "550.54.14", Library: "550.54.14"}, false},
		{berth.GPUFacts{Module: "550.144.03", Library: "550.144"}, false}, // NVML says it shorter
		{berth.GPUFacts{Module: "550.54.14"}, false},
		{berth.GPUFacts{Library: "550.54.14"}, false},
		{berth.GPUFacts{SMIError: "Failed to initialize NVML: Driver/library version mismatch"}, true},
	} {
		if got := mismatched(tt.g, 0); got != tt.want {
			t.Errorf("%+v: %v", tt.g, got)
		}
	}
}

func TestDisplayByNVIDIA(t *testing.T) {
	for text, want := range map[string]bool{
		"PCI_CLASS=30000\nPCI_ID=10DE:2684\n":  true,
		"PCI_CLASS=30200\nPCI_ID=10de:2330\n":  true,
		"PCI_CLASS=40300\nPCI_ID=10DE:22BA\n":  false, // its sound
		"PCI_CLASS=60400\nPCI_ID=10DE:22CE\n":  false, // a bridge
		"PCI_CLASS=30000\nPCI_ID=1002:744C\n":  false,
		"PCI_CLASS=30000\nPCI_SUBSYS_ID=10DE:": false,
	} {
		if got := isDisplayByNVIDIA(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Who waits for a lock holds nothing, nor does one who only reads.
func TestLockHolders(t *testing.T) {
	got := lockHolders("1: -> POSIX  ADVISORY  WRITE 2290 fd:00:4711 0 EOF\n2: POSIX  ADVISORY  READ  7 fd:00:1 0 EOF\n3: FLOCK  ADVISORY  WRITE 2210 fd:00:4711 0 EOF\n3: OFDLCK ADVISORY  WRITE -1 fd:00:2 0 0\n")
	if !slices.Equal(got, []int{2210}) {
		t.Errorf("%v", got)
	}
}
