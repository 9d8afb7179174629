package environment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth"
	"berth/guestapi"
)

// How Docker came onto a host, in berth.DockerFacts.Install.
const (
	InstallDockerCE     = "docker-ce"
	InstallDockerIO     = "docker.io"
	InstallMoby         = "moby-engine"
	InstallSnap         = "snap"
	InstallDesktop      = "desktop"
	InstallRootless     = "rootless"
	InstallPodmanDocker = "podman-docker"
)

// packageNames are all that the package database is asked for, whatever the
// distribution: one that has no such name answers that it is not installed.
// "docker" is the engine's name on Arch and openSUSE.
var packageNames = []string{
	"docker-ce", "docker-ce-cli", "docker.io", "docker-cli", "docker", "moby-engine", "docker-desktop", "podman-docker",
	"containerd.io", "containerd", "runc",
	"nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1",
}

// packageQuery is how a family's database is asked, and what its statuses mean.
type packageQuery struct {
	program string
	args    []string
	codes   []int // statuses other than 0 that say that some are not installed; nil = any up to the number asked for
	parse   func(out string, names []string) map[string]string
}

var (
	dpkgQuery   = packageQuery{"dpkg-query", []string{"-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\n"}, []int{1}, parseDpkg}
	rpmQuery    = packageQuery{"rpm", []string{"-q", "--qf", "%{NAME}|%{VERSION}-%{RELEASE}\n"}, nil, parseRPM}
	pacmanQuery = packageQuery{"pacman", []string{"-Q"}, []int{1}, parsePacman}
)

var packageQueries = map[string][]packageQuery{
	FamilyAPT: {dpkgQuery}, FamilyDNF: {rpmQuery}, FamilyZypper: {rpmQuery}, FamilyPacman: {pacmanQuery},
	FamilyOther: {dpkgQuery, rpmQuery, pacmanQuery}, "": {dpkgQuery, rpmQuery, pacmanQuery},
}

// parseDpkg counts what is wholly installed ("ii"), held or not. A package that
// was removed keeps a row while its configuration is there.
func parseDpkg(out string, names []string) map[string]string {
	return packageRows(out, "|", names, func(f []string) (string, string, bool) {
		return f[1], f[2], len(f[0]) >= 2 && f[0][1] == 'i'
	}, 3)
}

// parseRPM passes over "package x is not installed", which has no bar.
func parseRPM(out string, names []string) map[string]string {
	return packageRows(out, "|", names, func(f []string) (string, string, bool) { return f[0], f[1], true }, 2)
}

func parsePacman(out string, names []string) map[string]string {
	return packageRows(out, " ", names, func(f []string) (string, string, bool) { return f[0], f[1], true }, 2)
}

func packageRows(out, sep string, names []string, row func([]string) (name, version string, ok bool), cells int) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), sep)
		if len(f) != cells {
			continue
		}
		if name, version, ok := row(f); ok && slices.Contains(names, name) && version != "" {
			found[name] = clip(version)
		}
	}
	return found
}

// readPackages looks which of the packages that matter are installed.
func (p *probe) readPackages(ctx context.Context) {
	var err error
	if p.packages, err = p.installed(ctx, packageNames); err != nil {
		p.miss(FactPackages, err)
	}
}

// installed asks the package database which of the packages are there, and in
// which version.
func (p *probe) installed(ctx context.Context, names []string) (map[string]string, error) {
	for _, q := range packageQueries[p.facts.OS.Family] {
		program, err := p.find(ctx, q.program)
		if err != nil {
			return nil, err
		}
		if program == "" {
			continue
		}
		argv := append(append([]string{program}, q.args...), names...)
		r, err := p.exec(ctx, p.cfg.Timeouts.Program, argv...)
		if err != nil {
			return nil, err
		}
		some := r.Code == 0 || slices.Contains(q.codes, r.Code) || q.codes == nil && r.Code > 0 && r.Code <= len(names)
		if !some || r.Signal != "" {
			return nil, fmt.Errorf("%s ended with status %d: %s", q.program, r.Code, said(guestapi.ExecResult{Stdout: r.Stderr}))
		}
		return q.parse(string(r.Stdout), names), nil
	}
	return nil, errors.New("there is no package database that berth can ask")
}

// installMethod tells how Docker came onto the host, and the version of the
// package. What would mislead every later step comes first: a program that is
// not Docker, then a Docker that cannot have a GPU.
func installMethod(d berth.DockerFacts, packages map[string]string, rest installSigns) (method, version string) {
	_, desktop := packages["docker-desktop"]
	engine := ""
	for _, name := range []string{InstallDockerCE, InstallMoby, InstallDockerIO} {
		if _, ok := packages[name]; ok {
			engine = name
			break
		}
	}
	switch {
	case d.PodmanShim, packages[InstallPodmanDocker] != "":
		return InstallPodmanDocker, packages[InstallPodmanDocker]
	case rest.snap != "":
		return InstallSnap, rest.snap
	case d.Reachable && strings.Contains(d.OperatingSystem, "Docker Desktop"):
		return InstallDesktop, packages["docker-desktop"]
	case (desktop || rest.desktopSocket) && !d.Reachable && engine == "":
		return InstallDesktop, packages["docker-desktop"]
	case d.Rootless, rest.rootlessSocket && !d.Reachable && d.Service != "active":
		return InstallRootless, packages[engine]
	case engine != "":
		return engine, packages[engine]
	}
	return "", packages["docker"]
}

// dockerConflicts are packages beside which docker-ce and containerd.io cannot
// be, or which they would replace unasked: both bring /usr/bin/docker,
// containerd and runc.
var dockerConflicts = map[string][]string{
	FamilyAPT: {"docker.io", "docker-cli", "podman-docker", "containerd", "runc"},
	FamilyDNF: {"moby-engine", "docker", "docker-cli", "podman-docker", "containerd", "runc"},
}

// conflicting gives those that are installed, sorted.
func conflicting(family string, packages map[string]string) []string {
	var out []string
	for _, name := range dockerConflicts[family] {
		if _, ok := packages[name]; ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// installSigns are the signs of an installation that no package shows.
type installSigns struct {
	snap           string // version of the Docker snap; "" = not there
	rootlessSocket bool   // in the user's runtime directory
	desktopSocket  bool   // in the user's home
}

// toolkitPackages lists the toolkit's packages as name=version.
func toolkitPackages(packages map[string]string) []string {
	var out []string
	for name, v := range packages {
		if strings.Contains(name, "nvidia-container") {
			out = append(out, name+"="+v)
		}
	}
	slices.Sort(out)
	return out
}

// readSigns looks for the sockets of a rootless and of a Desktop daemon.
func (p *probe) readSigns(ctx context.Context) {
	p.signs.snap = p.snap
	runtime := p.cfg.Env["XDG_RUNTIME_DIR"]
	if !path.IsAbs(runtime) && p.facts.User.UID > 0 {
		runtime = fmt.Sprintf("/run/user/%d", p.facts.User.UID)
	}
	if path.IsAbs(runtime) {
		p.signs.rootlessSocket = p.isSocket(ctx, path.Join(runtime, "docker.sock"))
	}
	if p.home != "" {
		p.signs.desktopSocket = p.isSocket(ctx, path.Join(p.home, ".docker/desktop/docker.sock"))
	}
}

func (p *probe) isSocket(ctx context.Context, name string) bool {
	info, err := p.stat(ctx, name, true)
	if err != nil && !absent(err) {
		p.miss(FactDockerSocket, err)
	}
	return err == nil && info.Type == guestapi.FileSocket && p.cfg.Root+name != p.cfg.Socket
}

// readContext finds out whether the user's docker program talks to another
// daemon than the one that berth uses.
func (p *probe) readContext(ctx context.Context) {
	d := &p.facts.Docker
	if host := p.cfg.Env["DOCKER_HOST"]; host != "" {
		if !p.isOurs(host) {
			d.Context = "DOCKER_HOST=" + withoutSecret(host)
		}
		return
	}
	dir := p.cfg.Env["DOCKER_CONFIG"]
	if !path.IsAbs(dir) {
		if p.home == "" {
			return
		}
		dir = path.Join(p.home, ".docker")
	}
	name := p.cfg.Env["DOCKER_CONTEXT"]
	if name == "" {
		var config struct {
			CurrentContext string `json:"currentContext"` // the rest of the file is credentials
		}
		if !p.readUserJSON(ctx, path.Join(dir, "config.json"), &config) {
			return
		}
		name = config.CurrentContext
	}
	if name == "" || name == "default" {
		return
	}
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	sum := sha256.Sum256([]byte(name)) // how the docker program names a context's directory
	p.readUserJSON(ctx, path.Join(dir, "contexts/meta", hex.EncodeToString(sum[:]), "meta.json"), &meta)
	if host := meta.Endpoints["docker"].Host; !p.isOurs(host) {
		d.Context = strings.TrimSuffix(clip(name)+"="+withoutSecret(host), "=")
	}
}

// readUserJSON is false when there is no such file, or none that can be read.
func (p *probe) readUserJSON(ctx context.Context, name string, into any) bool {
	data, _, err := p.file(ctx, name, maxTable)
	if absent(err) {
		return false
	}
	if err == nil {
		if e := json.Unmarshal(data, into); e != nil {
			err = invalidf("%s: %w", name, e)
		}
	}
	if err != nil {
		p.miss(FactDockerContext, err)
	}
	return err == nil
}

// isOurs reports whether a Docker endpoint is the socket that berth uses, by
// either of its two usual names.
func (p *probe) isOurs(host string) bool {
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return false
	}
	return socket == p.cfg.Socket || p.cfg.Socket == p.cfg.Root+defaultSocket && socket == strings.TrimPrefix(defaultSocket, "/var")
}

func withoutSecret(host string) string {
	u, err := url.Parse(host)
	if err != nil {
		return ""
	}
	return clip(u.Redacted())
}

// readService asks systemd for Docker's units. It comes after the daemon was
// asked, because that may have started it.
func (p *probe) readService(ctx context.Context) {
	d := &p.facts.Docker
	if !p.facts.OS.Systemd {
		return
	}
	out, err := p.systemctl(ctx, "is-active", "docker.service", "docker.socket")
	if err != nil {
		p.miss(FactDockerService, err)
		return
	}
	states := strings.Fields(out)
	if len(states) != 2 {
		p.missReason(FactDockerService, ReasonInvalid+": systemctl is-active says "+clip(out))
		return
	}
	d.Service, d.OnDemand = states[0], states[1] == "active"
}

// systemctl asks for the state of units; its status says only whether all of
// them are in it.
func (p *probe) systemctl(ctx context.Context, args ...string) (string, error) {
	program, err := p.find(ctx, "systemctl")
	if err != nil {
		return "", err
	}
	if program == "" {
		return "", berth.Errorf(berth.CodeCommandNotFound, "there is no systemctl")
	}
	r, err := p.exec(ctx, p.cfg.Timeouts.Program, append([]string{program}, args...)...)
	return strings.TrimSpace(string(r.Stdout)), err
}

const defaultContainerdRoot = "/var/lib/containerd"

// readContainerd finds out where containerd keeps its layers, which is where
// images lie with the containerd store.
func (p *probe) readContainerd(ctx context.Context) {
	if p.managed && p.facts.Docker.Root != "" {
		p.containerdRoot = path.Join(p.facts.Docker.Root, "containerd/daemon")
		return
	}
	p.containerdRoot = p.cfg.Root + defaultContainerdRoot
	data, _, err := p.file(ctx, "/etc/containerd/config.toml", maxTable)
	if absent(err) {
		return
	}
	var root string
	if err == nil {
		root, err = parseContainerdRoot(data)
	}
	if err != nil {
		p.containerdRoot = ""
		p.miss(FactContainerdRoot, err)
		return
	}
	if root != "" {
		p.containerdRoot = p.cfg.Root + root
	}
}

// parseContainerdRoot reads `root` of containerd's configuration; "" = the
// default.
func parseContainerdRoot(data []byte) (string, error) {
	var c struct {
		Root string `toml:"root"`
	}
	if err := toml.Unmarshal(data, &c); err != nil {
		return "", invalidf("containerd's config.toml: %w", err)
	}
	if c.Root != "" && !path.IsAbs(c.Root) {
		return "", invalidf("containerd's root %q is not absolute", clip(c.Root))
	}
	return c.Root, nil
}

// readDisks measures the places that fill. What the daemon calls its root is a
// path of the host as it is; only what is assumed lies below Root.
func (p *probe) readDisks(ctx context.Context) {
	root := p.facts.Docker.Root
	if root == "" {
		root = p.cfg.Root + first(configuredString(p.facts.Docker.DaemonJSONKeys, "data-root"), "/var/lib/docker")
	}
	places := []struct {
		purpose, path string
		fact          FactName
	}{
		{DiskDockerRoot, root, FactFreeDisk},
		{DiskContainerdRoot, p.containerdRoot, FactFreeContainerd},
		{DiskModels, p.cfg.Models, FactFreeModels},
	}
	found := make([]*berth.DiskFacts, len(places))
	each(len(places), func(i int) {
		if places[i].path == "" {
			return
		}
		var space guestapi.Space
		err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
			space, err = p.cfg.Guest.Space(ctx, places[i].path)
			return err
		})
		if err == nil && space.FreeBytes < 0 {
			err = invalidf("%d bytes are free at %s", space.FreeBytes, places[i].path)
		}
		if err != nil {
			p.miss(places[i].fact, err)
			return
		}
		found[i] = &berth.DiskFacts{Purpose: places[i].purpose, Path: places[i].path, FreeBytes: space.FreeBytes}
	})
	p.facts.Disk = []berth.DiskFacts{}
	for _, f := range found {
		if f != nil {
			p.facts.Disk = append(p.facts.Disk, *f)
		}
	}
}

// configuredString gives a key of daemon.json that is an absolute path; "" = it
// is not set, or none.
func configuredString(keys map[string]string, key string) string {
	var s string
	if json.Unmarshal([]byte(keys[key]), &s) != nil || !path.IsAbs(s) {
		return ""
	}
	return path.Clean(s)
}
