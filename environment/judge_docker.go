package environment

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"berth"
)

// The components of the host step, in the recipe's order.
const (
	compDockerEngine  = "docker_engine"
	compToolkit       = "nvidia_toolkit"
	compToolkitBase   = "nvidia_toolkit_base"
	compRuntime       = "nvidia_runtime"
	compEnableCDI     = "enable_cdi"
	compCDI           = "nvidia_cdi"
	compDockerRestart = "docker_restart"
	compDockerService = "docker_service"
	compDockerGroup   = "docker_group"
)

var componentOrder = []string{
	compDockerEngine, compToolkit, compToolkitBase, compRuntime, compEnableCDI, compCDI, compDockerRestart, compDockerService, compDockerGroup,
}

// Versions of Docker at which the way to a GPU changes.
const (
	cdiByDefault = "28.2" // CDI is on unless it was turned off
	cdiPossible  = "25.0" // features.cdi in daemon.json turns it on, at the next start
)

// dynamicTo is the specification that the host step and the toolkit's own unit write.
const dynamicTo = "/var/run/cdi/nvidia.yaml"

// cdiRenewed is the toolkit from which on a unit of its own writes dynamicTo at
// each boot.
const cdiRenewed = "1.18"

// needs is what a host lacks.
type needs struct{ parts map[string]bool }

func (n *needs) add(components ...string) {
	if n.parts == nil {
		n.parts = map[string]bool{}
	}
	for _, c := range components {
		n.parts[c] = true
	}
}

func (n *needs) has(components ...string) bool {
	return slices.ContainsFunc(components, func(c string) bool { return n.parts[c] })
}

func (n *needs) none() bool { return len(n.parts) == 0 }

// list gives them in the recipe's order.
func (n *needs) list() []string {
	var out []string
	for _, c := range componentOrder {
		if n.parts[c] {
			out = append(out, c)
		}
	}
	return out
}

// dockerMissing reports that there is no Docker of any kind.
func dockerMissing(d berth.DockerFacts) bool {
	return !d.Reachable && d.Install == "" && d.CLI == "" && d.Socket == ""
}

// needed works out what is missing, by the least invasive way there is. It says
// nothing of the group, which is a question of access.
func (j *judgement) needed() needs {
	var n needs
	d := j.f.Docker
	switch {
	case dockerMissing(d):
		for _, fact := range []FactName{FactPackages, FactDockerSocket, FactDockerCLI} {
			j.known(fact, true)
		}
		n.add(compDockerEngine, compDockerService)
	case !d.Reachable && d.Service != "active" && !d.OnDemand && j.known(FactDockerService, true):
		n.add(compDockerService)
	}
	if j.gpu && j.card != nil && !j.gpuUsable() {
		j.wayToGPU(&n)
	}
	return n
}

// gpuUsable reports whether containers get the chosen card as things are: by a
// CDI device that the daemon knows, or by the nvidia runtime.
func (j *judgement) gpuUsable() bool {
	d := j.f.Docker
	if !d.Reachable {
		return false
	}
	if d.CDI && j.cdiReady() {
		return true
	}
	return slices.Contains(d.Runtimes, "nvidia") && (j.hasPackage("nvidia-container-toolkit") || j.f.Toolkit.CTK != "")
}

// cdiReady reports whether the chosen card itself, not just any, is described by
// a specification that fits the driver that runs.
func (j *judgement) cdiReady() bool {
	d := j.f.Docker
	name := j.cdiName()
	if len(d.CDIDevices) > 0 && !hasDevice(d.CDIDevices, name) {
		return false
	}
	spec, rival := j.specOf(name)
	if spec == nil { // they cannot be read, or the daemon reads them elsewhere
		return hasDevice(d.CDIDevices, name)
	}
	return rival == nil && !j.stale(*spec)
}

// cdiName is the CDI device of the chosen card. WSL has one for all.
func (j *judgement) cdiName() string {
	if j.f.OS.WSL == 2 {
		return "all"
	}
	return j.card.UUID
}

func hasDevice(devices []string, name string) bool {
	return slices.ContainsFunc(devices, func(d string) bool { return strings.TrimPrefix(d, CDIKind+"=") == name })
}

func (j *judgement) specOf(name string) (spec, rival *berth.CDISpec) {
	return specOf(j.f.Docker.CDIDirs, j.f.Toolkit.Specs, name)
}

// specOf is the specification that gives the device: that of the last of the
// daemon's directories, nil = none. A rival in the same directory makes the
// device unresolvable.
func specOf(dirs []string, specs []berth.CDISpec, name string) (spec, rival *berth.CDISpec) {
	best := -1
	for i := range specs {
		s := &specs[i]
		rank := specRank(dirs, s.Path)
		if s.Kind != CDIKind || rank < 0 || !hasDevice(s.Devices, name) {
			continue
		}
		switch {
		case rank > best:
			best, spec, rival = rank, s, nil
		case rank == best:
			rival = s
			if path.Base(s.Path) == path.Base(dynamicTo) {
				spec, rival = s, spec
			}
		}
	}
	return spec, rival
}

func (j *judgement) rank(file string) int { return specRank(j.f.Docker.CDIDirs, file) }

// specRank is the place of a file's directory in the daemon's list, nil = the
// usual one; -1 = it is not in it.
func specRank(dirs []string, file string) int {
	if len(dirs) == 0 {
		dirs = defaultSpecDirs
	}
	dir := runDir(path.Dir(file))
	for i, d := range dirs {
		if runDir(d) == dir {
			return i
		}
	}
	return -1
}

// runDir takes /run and /var/run for the one directory that they are.
func runDir(dir string) string {
	dir = path.Clean(dir)
	if rest, ok := strings.CutPrefix(dir, "/run/"); ok {
		return "/var/run/" + rest
	}
	return dir
}

func (j *judgement) stale(s berth.CDISpec) bool {
	driver := driverOf(j.f.GPU, *j.card)
	return s.Error != "" || len(s.Missing) > 0 || s.Driver != "" && driver != "" && compareVersions(s.Driver, driver) != 0
}

// wayToGPU adds what the card needs. With CDI on, that is the small half of the
// toolkit and a specification: no edit of daemon.json and no restart.
func (j *judgement) wayToGPU(n *needs) {
	if !j.known(FactToolkit, true) || !j.known(FactPackages, j.f.OS.Family != FamilyOther) {
		return
	}
	d := j.f.Docker
	version, set := dockerVersion(d), j.cdiSetting()
	switch {
	case n.has(compDockerEngine): // a fresh one has CDI on
		j.byCDI(n)
	case version == "":
		j.block(berth.BlockUnknownFact, "berth could not find out which version of Docker this is, and the way to the GPU depends on it. Start Docker, or let your user reach it, then try again.",
			"fact", "docker_version", "reason", "neither the daemon nor the package tells it")
	case j.toolkitTooOld(), j.rank(dynamicTo) < 0: // it writes no specification, or the daemon would not read it
		j.byRuntime(n)
	case d.Reachable && d.CDI, !d.Reachable && compareVersions(version, cdiByDefault) >= 0 && set != "false":
		j.byCDI(n)
	case compareVersions(version, cdiByDefault) >= 0: // somebody turned it off, and may keep that
		j.byRuntime(n)
	case compareVersions(version, cdiPossible) >= 0 && set != "false":
		n.add(compEnableCDI)
		j.restart(n)
		j.byCDI(n)
	default:
		j.byRuntime(n)
	}
}

func (j *judgement) byCDI(n *needs) {
	if !j.hasPackage("nvidia-container-toolkit") && !j.hasPackage("nvidia-container-toolkit-base") && (j.f.OS.Family != FamilyOther || j.f.Toolkit.CTK == "") {
		n.add(compToolkitBase)
	}
	if !j.known(FactCDISpecs, true) {
		return
	}
	spec, rival := j.specOf(j.cdiName())
	switch {
	case spec == nil:
		n.add(compCDI)
	case rival != nil:
		j.shadowed(*rival, "Two files in one directory describe the same card, so Docker takes neither.")
	case !j.stale(*spec):
		if d := j.f.Docker; d.Reachable && d.CDI { // it is fine, and the daemon does not see it
			n.add(compCDI)
			j.restart(n)
		}
	case j.rank(spec.Path) < j.rank(dynamicTo) || runDir(spec.Path) == dynamicTo:
		n.add(compCDI) // the fresh one is written over it, or comes before it
	default:
		j.shadowed(*spec, "A CDI file that does not fit the driver that runs comes before any fresh one.")
	}
}

func (j *judgement) shadowed(s berth.CDISpec, cause string) {
	note := j.block(berth.BlockStaleCDI, cause+" berth did not write "+s.Path+" and leaves it alone: move it away with the command, then try again.",
		"path", s.Path, "spec_driver", s.Driver, "driver", driverOf(j.f.GPU, *j.card))
	if shellSafe(s.Path) {
		note.Commands = []string{"sudo mv " + s.Path + " " + s.Path + ".old"}
	}
}

func (j *judgement) byRuntime(n *needs) {
	if !j.hasPackage("nvidia-container-toolkit") {
		n.add(compToolkit)
	}
	d := j.f.Docker
	if slices.Contains(d.Runtimes, "nvidia") {
		return
	}
	// A daemon that answers and does not have it has to be told to read it even
	// where the runtime is written down; one that does not answer may have it.
	if d.Reachable || jsonMember(d.DaemonJSONKeys["runtimes"], "nvidia") == nil {
		n.add(compRuntime)
	}
}

// restart is asked for when Docker runs, reachable or not: a Docker that is
// started later reads everything then. Asking now saves a second host step.
func (j *judgement) restart(n *needs) {
	if j.f.Docker.Reachable || j.f.Docker.Service == "active" {
		n.add(compDockerRestart)
	}
}

// stops is how many containers the helper may stop: what the plan says. -1 = it
// is not known.
func (j *judgement) stops(n needs) int {
	switch d := j.f.Docker; {
	case !n.has(compDockerRestart):
		return 0
	case !d.Reachable:
		return -1
	default:
		return d.Running
	}
}

func (j *judgement) toolkitTooOld() bool {
	have := j.f.Toolkit.Version
	return have != "" && j.in.Manifest != nil && compareVersions(have, j.in.Manifest.MinToolkitCDI) < 0
}

// cdiSetting is features.cdi of daemon.json: "true", "false" or "" = not set.
func (j *judgement) cdiSetting() string {
	if v := string(jsonMember(j.f.Docker.DaemonJSONKeys["features"], "cdi")); v == "true" || v == "false" {
		return v
	}
	return ""
}

// jsonMember is a member of an object in JSON; nil = it has none of that name.
func jsonMember(object, name string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(object), &members) != nil {
		return nil
	}
	return members[name]
}

func (j *judgement) hasPackage(name string) bool {
	return slices.ContainsFunc(j.f.Toolkit.Packages, func(p string) bool {
		n, _, _ := strings.Cut(p, "=")
		return n == name
	})
}

// dockerVersion is the version as the daemon tells it, else the package's, else
// the client's; "" = not known.
func dockerVersion(d berth.DockerFacts) string {
	for _, v := range []string{d.Version, d.Package, d.CLIVersion} {
		if isVersion(v) {
			return v
		}
	}
	return ""
}

// shellSafe reports whether a word can stand in a command as it is.
func shellSafe(s string) bool {
	return s != "" && !strings.HasPrefix(s, "-") && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:=@") == ""
}
