package container

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/system"
	moby "github.com/moby/moby/client"

	"berth"
)

// Engine is what answers at the socket.
type Engine string

// The engines. Podman speaks the same API and is no Docker.
const (
	EngineDocker Engine = "docker"
	EnginePodman Engine = "podman"
)

// Info is what a Docker daemon says of itself. A daemon that answers with
// nothing of its own is not reachable: a status of 200 is no proof.
type Info struct {
	Reachable bool
	Err       error // why not; nil when reachable

	Engine          Engine
	DaemonID        string
	Version         string
	API             string // newest that the daemon speaks: "1.41"
	MinAPI          string
	OperatingSystem string // "Docker Desktop" is one
	OSType          string // "linux"
	Architecture    string // as uname -m says it
	Kernel          string
	Runtimes        []string // sorted
	DefaultRuntime  string
	// CDI says that the daemon takes CDI requests. DevicesListed says that it
	// tells which devices it found (from API 1.50); only then does an empty
	// CDIDevices mean that there are none.
	CDI             bool
	CDIDirs         []string
	DevicesListed   bool
	CDIDevices      []string // "nvidia.com/gpu=GPU-…", sorted
	Root            string
	StorageDriver   string
	ContainerdStore bool // images lie at containerd's root
	SecurityOptions []string
	Rootless        bool
	SELinux         bool
	LiveRestore     bool
	Running         int
	CgroupVersion   string   // "1" or "2"
	Pools           []string // configured default address pools, CIDR
	Warnings        []string
}

// Info asks the daemon. It fails only when ctx ends; a daemon that cannot be
// reached is an Info with Err.
func (c *Client) Info(ctx context.Context) (Info, error) {
	outer := ctx
	ctx, cancel := c.short(ctx)
	defer cancel()
	info, err := c.info(ctx)
	if outer.Err() != nil {
		return Info{}, failed(outer.Err(), "ask Docker for its state")
	}
	if err != nil {
		return Info{Err: failed(err, "ask Docker for its state")}, nil
	}
	return info, nil
}

func (c *Client) info(ctx context.Context) (Info, error) {
	api, err := c.newAPI()
	if err != nil {
		return Info{}, err
	}
	version, err := api.ServerVersion(ctx, moby.ServerVersionOptions{})
	if err != nil {
		return Info{}, err
	}
	c.api.Store(api)
	body, err := c.raw(ctx, "/v"+api.ClientVersion()+"/info")
	if err != nil {
		return Info{}, err
	}
	info, err := parseInfo(body, version)
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// raw reads an answer as it is: the API's client would drop fields that it does
// not know, and errors are among them.
func (c *Client) raw(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+moby.DummyHost+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&bounded{c.transport}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, berth.Errorf(berth.CodeDockerUnreachable, "Docker answers %s: %.500s", resp.Status, body).WithFact("reason", "status")
	}
	return body, nil
}

// maxListed bounds the lists of an answer.
const maxListed = 1000

// parseInfo judges the answers to /info and /version by their content.
func parseInfo(body []byte, version moby.ServerVersionResult) (Info, error) {
	var raw struct {
		system.Info
		ServerErrors []string
	}
	foreign := func(format string, args ...any) (Info, error) {
		return Info{}, berth.Errorf(berth.CodeDockerUnreachable, format, args...).WithFact("reason", "content")
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return foreign("what answers at Docker's socket is not Docker: %w", err)
	}
	switch {
	case len(raw.ServerErrors) > 0:
		return foreign("Docker answers with errors: %.500s", strings.Join(raw.ServerErrors, "; "))
	case raw.ServerVersion == "" || version.APIVersion == "":
		return foreign("what answers at Docker's socket says no version")
	}
	info := Info{
		Reachable: true, Engine: EngineDocker,
		DaemonID: raw.ID, Version: raw.ServerVersion, API: version.APIVersion, MinAPI: version.MinAPIVersion,
		OperatingSystem: raw.OperatingSystem, OSType: raw.OSType, Architecture: raw.Architecture, Kernel: raw.KernelVersion,
		DefaultRuntime: raw.DefaultRuntime, Root: raw.DockerRootDir, StorageDriver: raw.Driver,
		SecurityOptions: capped(raw.SecurityOptions), LiveRestore: raw.LiveRestoreEnabled, Running: raw.ContainersRunning,
		CgroupVersion: raw.CgroupVersion, Warnings: capped(raw.Warnings), CDIDirs: capped(raw.CDISpecDirs),
	}
	for _, part := range version.Components {
		if strings.Contains(strings.ToLower(part.Name), "podman") {
			info.Engine = EnginePodman
		}
	}
	for name := range raw.Runtimes {
		info.Runtimes = append(info.Runtimes, name)
	}
	slices.Sort(info.Runtimes)
	info.Runtimes = capped(info.Runtimes)
	info.CDI = len(info.CDIDirs) > 0
	info.DevicesListed = info.CDI && apiAtLeast(info.API, 1, 50)
	for _, d := range capped(raw.DiscoveredDevices) {
		if d.Source == "cdi" {
			info.CDIDevices = append(info.CDIDevices, d.ID)
		}
	}
	slices.Sort(info.CDIDevices)
	for _, s := range raw.DriverStatus {
		// Of the containerd store alone; the graph drivers have no such line.
		info.ContainerdStore = info.ContainerdStore || s[0] == "driver-type" && strings.HasPrefix(s[1], "io.containerd.snapshotter")
	}
	for _, o := range info.SecurityOptions {
		info.Rootless = info.Rootless || o == "name=rootless"
		info.SELinux = info.SELinux || o == "name=selinux"
	}
	for _, p := range capped(raw.DefaultAddressPools) {
		info.Pools = append(info.Pools, p.Base.String())
	}
	return info, nil
}

func capped[T any](list []T) []T { return list[:min(len(list), maxListed)] }

// apiAtLeast compares "1.41" by numbers; what is not understood is too old.
func apiAtLeast(version string, major, minor int) bool {
	a, b, ok := strings.Cut(version, ".")
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	return ok && err1 == nil && err2 == nil && (x > major || x == major && y >= minor)
}

// Subnets lists the subnets that Docker's networks use, as CIDR.
func (c *Client) Subnets(ctx context.Context) ([]string, error) {
	ctx, cancel := c.short(ctx)
	defer cancel()
	list, err := c.docker().NetworkList(ctx, moby.NetworkListOptions{})
	if err != nil {
		return nil, failed(err, "list Docker's networks")
	}
	var subnets []string
	for _, n := range list.Items {
		for _, conf := range n.IPAM.Config {
			if conf.Subnet.IsValid() {
				subnets = append(subnets, fmt.Sprint(conf.Subnet))
			}
		}
	}
	slices.Sort(subnets)
	return slices.Compact(subnets), nil
}
