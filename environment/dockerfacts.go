package environment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"berth"
	"berth/guestapi"
)

// Bounds of the daemon's answers. A daemon with every network and device that
// it can have says less.
const (
	maxVersionAnswer  = 256 * kib
	maxInfoAnswer     = 4096 * kib
	maxNetworksAnswer = 4096 * kib
	maxNames          = 4096 // runtimes, devices, subnets
)

// readDaemon asks the daemon over its socket. Its own words count, not a
// program's exit status: a daemon that shows no version did not answer.
func (p *probe) readDaemon(ctx context.Context) {
	d := &p.facts.Docker
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Docker)
	defer cancel()
	var info guestapi.FileInfo
	err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
		info, err = p.cfg.Guest.Stat(ctx, p.cfg.Socket, true)
		return err
	})
	switch {
	case absent(err):
		d.Error = "there is no socket at " + p.cfg.Socket
		return
	case err != nil:
		d.Error = clip(err.Error())
		p.miss(FactDockerSocket, err)
		return
	case info.Type != guestapi.FileSocket:
		d.Error = p.cfg.Socket + " is no socket"
		return
	}
	d.Socket, p.socketGID = p.cfg.Socket, info.GID
	if err := p.askDaemon(ctx); err != nil {
		d.Reachable, d.Error = false, clip(err.Error())
		// A refusal is an answer. Silence and nonsense are none.
		if timedOut(err) || errors.Is(err, errInvalid) || guestFailure(err) != nil {
			p.miss(FactDockerDaemon, err)
		}
	}
}

func (p *probe) askDaemon(ctx context.Context) error {
	d := &p.facts.Docker
	data, err := p.get(ctx, "/version", maxVersionAnswer)
	if err == nil {
		err = applyVersion(d, data)
	}
	if err != nil {
		return err
	}
	if data, err = p.get(ctx, "/info", maxInfoAnswer); err != nil {
		return err
	}
	more, err := applyInfo(d, data)
	if err != nil {
		return err
	}
	d.Reachable, p.managed = true, more.managedContainerd
	if data, err = p.get(ctx, "/networks", maxNetworksAnswer); err == nil {
		d.Networks, err = parseNetworks(data)
	}
	if err != nil {
		p.miss(FactDockerNetworks, err)
	}
	return nil
}

// get reads one answer of the Engine API, in the daemon's own version of it,
// over a connection of its own: nothing of it lives on when get is back.
func (p *probe) get(ctx context.Context, what string, limit int64) ([]byte, error) {
	var conn net.Conn
	err := p.call(ctx, p.cfg.Timeouts.Docker, func(ctx context.Context) (err error) {
		conn, err = p.cfg.Guest.Dial(ctx, "unix", p.cfg.Socket)
		return err
	})
	if err != nil {
		return nil, dialError(err)
	}
	defer func() { _ = conn.Close() }()
	// Not every connection through a guest knows deadlines; all can be closed.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+what, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	status, data, err := roundTrip(conn, req, limit)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("docker: GET %s: %w", what, ctx.Err())
	case err != nil:
		return nil, fmt.Errorf("docker: GET %s: %w", what, err)
	case status != http.StatusOK:
		var problem struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(data, &problem)
		return nil, fmt.Errorf("docker: GET %s: status %d %s", what, status, clip(problem.Message))
	}
	return data, nil
}

// roundTrip sends a request and reads its answer, of at most limit bytes.
func roundTrip(conn net.Conn, req *http.Request, limit int64) (int, []byte, error) {
	if err := req.Write(conn); err != nil {
		return 0, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, limit+maxSmall)), req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if int64(len(data)) > limit {
		return 0, nil, invalidf("it answers more than %d bytes", limit)
	}
	return resp.StatusCode, data, err
}

// dialError says shortly why there is no connection.
func dialError(err error) error {
	switch {
	case errors.Is(err, berth.CodeForbidden), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%s: this user may not use the socket: %w", ReasonDenied, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at the socket: %w", err)
	}
	return err
}

// applyVersion takes GET /version in.
func applyVersion(d *berth.DockerFacts, data []byte) error {
	var v struct {
		Version    string
		APIVersion string `json:"ApiVersion"`
		Components []struct{ Name string }
	}
	if err := decodeAnswer(data, &v); err != nil {
		return err
	}
	for _, c := range v.Components {
		// Podman serves the same API at the same path.
		d.PodmanShim = d.PodmanShim || strings.Contains(strings.ToLower(c.Name), "podman")
	}
	d.Version, d.API = clip(v.Version), clip(v.APIVersion)
	return nil
}

// engineInfo is what GET /info says that matters here.
type engineInfo struct {
	ID                  string
	Name                string
	ServerVersion       string
	OperatingSystem     string
	Driver              string
	DriverStatus        [][]string
	DockerRootDir       string
	ContainersRunning   int
	LiveRestoreEnabled  bool
	Runtimes            map[string]json.RawMessage
	SecurityOptions     []string
	CDISpecDirs         []string
	DiscoveredDevices   []struct{ Source, ID string }
	DefaultAddressPools []poolEntry
	Containerd          *struct{ Address string }
	ServerErrors        []string
}

// infoMore is what follows from it and has no place in the facts.
type infoMore struct {
	managedContainerd bool // containerd is dockerd's own child and lies below its root
}

// applyInfo takes GET /info in. An answer without a version is none.
func applyInfo(d *berth.DockerFacts, data []byte) (infoMore, error) {
	var v engineInfo
	if err := decodeAnswer(data, &v); err != nil {
		return infoMore{}, err
	}
	if v.ServerVersion == "" {
		if len(v.ServerErrors) > 0 {
			return infoMore{}, fmt.Errorf("docker: %s", clip(v.ServerErrors[0]))
		}
		return infoMore{}, invalidf("docker: GET /info names no version")
	}
	if v.ContainersRunning < 0 {
		return infoMore{}, invalidf("docker: %d containers run", v.ContainersRunning)
	}
	d.DaemonID, d.OperatingSystem, d.Root = clip(v.ID), clip(v.OperatingSystem), clip(v.DockerRootDir)
	d.Version = first(d.Version, clip(v.ServerVersion))
	d.Running, d.LiveRestore = v.ContainersRunning, v.LiveRestoreEnabled
	d.Runtimes = nil
	for name := range v.Runtimes {
		d.Runtimes = append(d.Runtimes, name)
	}
	slices.Sort(d.Runtimes) // before the bound: a map has no order
	d.Runtimes = cleanList(d.Runtimes, maxNames)
	for _, o := range v.SecurityOptions {
		d.Rootless = d.Rootless || slices.Contains(strings.Split(o, ","), "name=rootless")
	}
	for _, row := range v.DriverStatus {
		d.ContainerdStore = d.ContainerdStore ||
			len(row) == 2 && row[0] == "driver-type" && strings.HasPrefix(row[1], "io.containerd.snapshotter")
	}
	// The daemon lists directories only where it takes CDI requests. Their order
	// is that of precedence and stays.
	for _, dir := range v.CDISpecDirs[:min(len(v.CDISpecDirs), maxSpecDirs)] {
		if dir = clip(dir); dir != "" {
			d.CDIDirs = append(d.CDIDirs, dir)
		}
	}
	d.CDI = len(d.CDIDirs) > 0
	var devices []string
	for _, dev := range v.DiscoveredDevices {
		if dev.Source == "cdi" {
			devices = append(devices, dev.ID)
		}
	}
	d.CDIDevices = cleanList(devices, maxNames)
	d.Pools = poolList(v.DefaultAddressPools)
	return infoMore{managedContainerd: v.Containerd != nil && strings.Contains(v.Containerd.Address, "/docker/containerd/")}, nil
}

// parseNetworks gives the subnets of GET /networks.
func parseNetworks(data []byte) ([]string, error) {
	var networks []struct {
		IPAM struct {
			Config []struct{ Subnet string }
		}
	}
	if err := decodeAnswer(data, &networks); err != nil {
		return nil, err
	}
	var subnets []string
	for _, n := range networks {
		for _, c := range n.IPAM.Config {
			subnets = append(subnets, c.Subnet)
		}
	}
	return cleanList(subnets, maxNames), nil
}

func decodeAnswer(data []byte, into any) error {
	if !utf8.Valid(data) {
		return invalidf("docker answers in no UTF-8")
	}
	if err := json.Unmarshal(data, into); err != nil {
		return invalidf("docker: %w", err)
	}
	return nil
}

var cliVersion = regexp.MustCompile(`version v?(\d+(?:\.\d+)+[^\s,]*)`)

// readCLI looks at the docker program. One that is a snap is not started: that
// would make directories in the user's home.
func (p *probe) readCLI(ctx context.Context) {
	d := &p.facts.Docker
	cli, err := p.find(ctx, "docker")
	if err != nil {
		p.miss(FactDockerCLI, err)
		return
	}
	p.readSnap(ctx)
	if d.CLI = cli; cli == "" || p.isSnap(ctx, cli) {
		return
	}
	r, err := p.exec(ctx, p.cfg.Timeouts.Program, cli, "--version")
	if err != nil {
		p.miss(FactDockerCLI, err)
		return
	}
	text := string(r.Stdout) + " " + string(r.Stderr)
	p.shim = strings.Contains(strings.ToLower(text), "podman")
	if r.Code != 0 {
		p.missReason(FactDockerCLI, ReasonFailed+": "+said(r))
		return
	}
	if m := cliVersion.FindStringSubmatch(string(r.Stdout)); m != nil {
		d.CLIVersion = m[1]
	}
}

// isSnap reports whether a program is a snap's: below /snap, or a link to the
// program that starts snaps.
func (p *probe) isSnap(ctx context.Context, program string) bool {
	if strings.HasPrefix(program, "/snap/") || strings.HasPrefix(program, "/var/lib/snapd/") {
		return true
	}
	var info guestapi.FileInfo
	err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
		info, err = p.cfg.Guest.Stat(ctx, program, false)
		return err
	})
	return err == nil && (strings.HasSuffix(info.Target, "/usr/bin/snap") || strings.HasPrefix(info.Target, "/snap/"))
}

var snapVersion = regexp.MustCompile(`(?m)^version: *['"]?([0-9A-Za-z.+~_-]{1,64})['"]?\s*$`)

// readSnap finds the Docker snap by its files: snapd is not asked.
func (p *probe) readSnap(ctx context.Context) {
	for _, dir := range []string{"/snap/docker/current", "/var/lib/snapd/snap/docker/current"} {
		ok, err := p.there(ctx, dir)
		if err != nil {
			p.miss(FactDockerCLI, err)
		}
		if !ok {
			continue
		}
		p.snap = "unknown"
		if data, _, err := p.file(ctx, dir+"/meta/snap.yaml", maxSmall); err == nil {
			if m := snapVersion.FindSubmatch(data); m != nil {
				p.snap = string(m[1])
			}
		}
		return
	}
}
