package environment

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"berth"
	"berth/guestapi"
)

// CDIKind is the kind under which the NVIDIA toolkit lists cards.
const CDIKind = "nvidia.com/gpu"

// Bounds of what is read of CDI.
const (
	maxSpecDirs  = 16
	maxSpecs     = 64         // files in one directory
	maxSpecFile  = 1024 * kib // a spec of eight cards has 40 KiB
	maxSpecPaths = 1024       // host paths of one spec that are looked at
	maxDevices   = 1024       // of one spec
)

// defaultSpecDirs are Docker's own, in its order: what a later directory lists
// wins over the same name in an earlier one.
var defaultSpecDirs = []string{"/etc/cdi", "/var/run/cdi"}

// spec is what a CDI specification says that matters here.
type spec struct {
	kind    string
	devices []string
	paths   []string // of the host that a container would get, sorted
}

// parseSpec reads a CDI specification of version 0.3 and later; name decides
// between JSON and YAML, as for every reader of CDI.
func parseSpec(name string, data []byte) (spec, error) {
	if !utf8.Valid(data) {
		return spec{}, invalidf("it is not UTF-8")
	}
	var doc any
	var err error
	if path.Ext(name) == ".json" {
		if err = json.Unmarshal(data, &doc); err != nil {
			err = invalidf("JSON: %w", err)
		}
	} else {
		doc, err = decodeYAML(data)
	}
	if err != nil {
		return spec{}, err
	}
	top, ok := doc.(map[string]any)
	if !ok {
		return spec{}, invalidf("it is no mapping")
	}
	s := spec{}
	if s.kind, ok = top["kind"].(string); !ok || !cdiKind.MatchString(s.kind) {
		return spec{}, invalidf("it names no kind")
	}
	if err := s.edits(top["containerEdits"]); err != nil {
		return spec{}, err
	}
	devices, ok := top["devices"].([]any)
	if !ok || len(devices) == 0 {
		return spec{}, invalidf("it lists no devices")
	}
	if len(devices) > maxDevices {
		return spec{}, invalidf("it lists %d devices", len(devices))
	}
	for _, d := range devices {
		device, _ := d.(map[string]any)
		name, _ := device["name"].(string)
		if !cdiDevice.MatchString(name) || slices.Contains(s.devices, name) {
			return spec{}, invalidf("a device has no name of its own: %q", clip(fmt.Sprint(device["name"])))
		}
		s.devices = append(s.devices, name)
		if err := s.edits(device["containerEdits"]); err != nil {
			return spec{}, err
		}
	}
	slices.Sort(s.paths)
	s.paths = slices.Compact(s.paths)
	if len(s.paths) > maxSpecPaths {
		return spec{}, invalidf("it mounts %d paths", len(s.paths))
	}
	return s, nil
}

var (
	cdiKind   = regexp.MustCompile(`^[A-Za-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}$`)
	cdiDevice = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?$`)
)

// edits collects the host paths that containerEdits need: mounts, device nodes
// (whose path on the host is that in the container unless it says otherwise)
// and the programs of hooks.
func (s *spec) edits(v any) error {
	if v == nil {
		return nil
	}
	edits, ok := v.(map[string]any)
	if !ok {
		return invalidf("containerEdits is no mapping")
	}
	for _, part := range []struct{ list, key, otherwise string }{
		{"mounts", "hostPath", ""}, {"deviceNodes", "hostPath", "path"}, {"hooks", "path", ""},
	} {
		if edits[part.list] == nil {
			continue
		}
		items, ok := edits[part.list].([]any)
		if !ok {
			return invalidf("%s is no list", part.list)
		}
		for _, item := range items {
			fields, _ := item.(map[string]any)
			p, _ := fields[part.key].(string)
			if p == "" && part.otherwise != "" {
				p, _ = fields[part.otherwise].(string)
			}
			if !path.IsAbs(p) || len(p) > 4096 || strings.ContainsRune(p, 0) {
				return invalidf("%s has an entry without a path of the host", part.list)
			}
			s.paths = append(s.paths, path.Clean(p))
		}
	}
	return nil
}

// driverLibrary is a library whose name carries the driver's version.
var driverLibrary = regexp.MustCompile(`^lib(?:cuda|nvidia-[a-z0-9-]+|nv[a-z0-9-]+|EGL_nvidia|GLX_nvidia|GLESv[12]_[A-Z0-9]*nvidia|vdpau_nvidia)\.so\.(\d{3,}(?:\.\d+){1,2})$`)

// driver gives the version that most libraries of the spec carry; "" = none does.
func (s *spec) driver() string {
	count, best := map[string]int{}, ""
	for _, p := range s.paths {
		m := driverLibrary.FindStringSubmatch(path.Base(p))
		if m == nil {
			continue
		}
		v := m[1]
		count[v]++
		if best == "" || count[v] > count[best] || count[v] == count[best] && compareKernels(v, best) > 0 {
			best = v
		}
	}
	return best
}

// readSpecs reads every CDI specification in the directories that the daemon
// names, else in the usual ones, and looks whether what it mounts is there.
func (p *probe) readSpecs(ctx context.Context) {
	dirs := p.facts.Docker.CDIDirs
	if len(dirs) == 0 {
		dirs = defaultSpecDirs
	}
	found := make([][]berth.CDISpec, len(dirs))
	each(len(dirs), func(i int) { found[i] = p.specsIn(ctx, path.Clean(dirs[i])) })
	t := &p.facts.Toolkit
	for _, specs := range found {
		t.Specs = append(t.Specs, specs...)
	}
	var devices []string
	for _, s := range t.Specs {
		if s.Kind == CDIKind {
			for _, d := range s.Devices {
				devices = append(devices, s.Kind+"="+d)
			}
		}
	}
	t.Devices = cleanList(devices, maxNames)
}

func (p *probe) specsIn(ctx context.Context, dir string) []berth.CDISpec {
	names, err := p.list(ctx, dir)
	if err != nil {
		p.miss(FactCDISpecs, err)
		return nil
	}
	names = slices.DeleteFunc(names, func(n string) bool { return path.Ext(n) != ".yaml" && path.Ext(n) != ".json" })
	if len(names) > maxSpecs {
		p.missReason(FactCDISpecs, fmt.Sprintf("%s: %s has %d specs", ReasonInvalid, dir, len(names)))
		names = names[:maxSpecs]
	}
	specs := make([]berth.CDISpec, len(names))
	each(len(names), func(i int) { specs[i] = p.readSpec(ctx, path.Join(dir, names[i])) })
	return specs
}

// readSpec reads one file. One that cannot be read says so itself: the others
// are facts all the same.
func (p *probe) readSpec(ctx context.Context, name string) berth.CDISpec {
	out := berth.CDISpec{Path: name}
	var info guestapi.FileInfo
	data, info, err := p.file(ctx, name, maxSpecFile)
	if absent(err) { // it went away, or is a link to nowhere
		info, err = p.stat(ctx, name, false)
		if err == nil {
			err = invalidf("it leads to %s, which is not there", info.Target)
		}
	}
	if err != nil {
		out.Error = clip(reasonOf(err))
		if guestFailure(err) != nil {
			p.miss(FactCDISpecs, err)
		}
		return out
	}
	out.Mode = fmt.Sprintf("%04o", info.Mode)
	s, err := parseSpec(name, data)
	if err != nil {
		out.Error = clip(reasonOf(err))
		return out
	}
	out.Kind, out.Devices, out.Driver = s.kind, s.devices, s.driver()
	missing := make([]string, len(s.paths))
	each(len(s.paths), func(i int) {
		ok, err := p.there(ctx, s.paths[i])
		if err != nil { // may not be looked at: that is not missing
			p.miss(FactCDISpecs, err)
		} else if !ok {
			missing[i] = s.paths[i]
		}
	})
	out.Missing = cleanList(missing, maxSpecPaths)
	return out
}

var ctkVersion = regexp.MustCompile(`version v?(\d+(?:\.\d+){1,3}[0-9A-Za-z.~+-]*)`)

// readCTK looks at the toolkit's program and at the unit that keeps its spec fresh.
func (p *probe) readCTK(ctx context.Context) {
	t := &p.facts.Toolkit
	ctk, err := p.find(ctx, "nvidia-ctk")
	if err != nil {
		p.miss(FactToolkit, err)
		return
	}
	if t.CTK = ctk; ctk == "" {
		return
	}
	r, err := p.exec(ctx, p.cfg.Timeouts.Program, ctk, "--version")
	if err != nil {
		p.miss(FactToolkit, err)
		return
	}
	if m := ctkVersion.FindStringSubmatch(string(r.Stdout)); r.Code == 0 && m != nil {
		t.Version = m[1]
	} else {
		p.missReason(FactToolkit, ReasonInvalid+": nvidia-ctk --version says "+said(r))
	}
	ok, err := p.there(ctx, "/run/systemd/system")
	if err == nil && ok {
		state, err := p.systemctl(ctx, "is-enabled", "nvidia-cdi-refresh.path")
		if err != nil {
			p.miss(FactCDIRefresh, err)
		}
		t.RefreshOn = state == "enabled"
	}
}
