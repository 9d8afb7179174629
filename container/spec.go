package container

import (
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"berth"
)

// GPUMode is how a container is given a card. The caller chooses it; there is no
// falling back from one to another.
type GPUMode string

// The modes.
const (
	GPUNone    GPUMode = ""
	GPUCDI     GPUMode = "cdi"     // a CDI device of the daemon: "nvidia.com/gpu=UUID"
	GPURequest GPUMode = "request" // what `--gpus device=UUID` asks for: the hook of the toolkit
	GPURuntime GPUMode = "runtime" // the runtime "nvidia", told by the environment
)

// Valid reports whether the mode is one of the above.
func (m GPUMode) Valid() bool {
	switch m {
	case GPUNone, GPUCDI, GPURequest, GPURuntime:
		return true
	}
	return false
}

// GPU is the card that a container is given.
type GPU struct {
	Mode GPUMode
	UUID string // "GPU-…" or "MIG-…"; "" with GPUNone
}

// cdiKind is the kind of NVIDIA's CDI devices.
const cdiKind = "nvidia.com/gpu="

// Mount is a directory or file of the host in a container.
type Mount struct {
	Source, Target string // absolute; Source must exist
	ReadOnly       bool
}

// Port is a port of a container, published on 127.0.0.1 of its host.
type Port struct {
	Container int
	Host      int // 0 = Docker chooses one
}

// Spec describes an engine's container.
type Spec struct {
	Image    berth.Image // must be there: nothing is pulled
	Name     string      // unique on the host
	Engine   string
	Instance string // id of the engine instance that it belongs to
	// Entrypoint and Argv replace those of the image; nil = the image's.
	Entrypoint, Argv []string
	Env              []string // NAME=VALUE
	UID, GID         int      // that the engine runs as
	Mounts           []Mount
	Tmpfs            []string // absolute paths in the container
	Ports            []Port
	GPU              GPU
	ShmBytes         int64 // 0 = 2 GiB; at most 16 GiB
	MemoryBytes      int64 // 0 = no limit
	Pids             int64 // 0 = 4096
	LogBytes         int64 // that Docker keeps of its output; 0 = 20 MiB
	ReadOnlyRoot     bool
}

// Defaults and bounds of a Spec.
const (
	defaultShm      = 2 << 30
	maxShm          = 16 << 30
	defaultPids     = 4096
	defaultLogBytes = 20 << 20
	loopback        = "127.0.0.1"
)

// Labels that our containers carry. They tell a person what it is; nothing is
// ever decided by them, but for the token: nobody else can have drawn the same.
const (
	LabelToken    = "berth.token"
	LabelPurpose  = "berth.purpose"
	LabelEngine   = "berth.engine"
	LabelInstance = "berth.instance"
)

var (
	gpuUUID       = regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z/-]{4,120}$`)
	containerName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)
	containerID   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	envName       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

func invalid(format string, args ...any) *berth.Error {
	return berth.Errorf(berth.CodeInvalidArgument, "container: "+format, args...)
}

func (g GPU) validate() error {
	switch {
	case !g.Mode.Valid():
		return invalid("%.40q is not a way to give a GPU", string(g.Mode))
	case g.Mode == GPUNone && g.UUID != "":
		return invalid("a GPU is named, and no way to give it")
	case g.Mode != GPUNone && !gpuUUID.MatchString(g.UUID):
		return invalid("%.140q is not the UUID of a GPU", g.UUID)
	}
	return nil
}

// clean reports whether s can stand in an argument or a variable.
func clean(s string) bool { return !strings.ContainsAny(s, "\x00\r\n") }

// Validate checks a Spec. CodeInvalidArgument with what is wrong.
func (s Spec) Validate() error {
	if err := s.Image.Validate(); err != nil {
		return err
	}
	switch {
	case !containerName.MatchString(s.Name):
		return invalid("%.140q is not a name", s.Name)
	case s.Engine == "" || s.Instance == "":
		return invalid("engine and instance must be named")
	case s.UID < 0 || s.GID < 0:
		return invalid("user %d:%d is not one", s.UID, s.GID)
	case s.ShmBytes < 0 || s.ShmBytes > maxShm:
		return invalid("shared memory of %d bytes is not between 0 and %d", s.ShmBytes, int64(maxShm))
	case s.MemoryBytes < 0 || s.Pids < 0 || s.LogBytes < 0:
		return invalid("a bound is negative")
	case len(s.Ports) > 16 || len(s.Mounts) > 64 || len(s.Env) > 256 || len(s.Argv) > 1024 || len(s.Tmpfs) > 16:
		return invalid("a list is too long")
	}
	for _, a := range append(append([]string{}, s.Entrypoint...), s.Argv...) {
		if !clean(a) || len(a) > 64<<10 {
			return invalid("argument %.80q cannot be passed", a)
		}
	}
	for _, v := range s.Env {
		if !envName.MatchString(v) || !clean(v) || len(v) > 64<<10 {
			name, _, _ := strings.Cut(v, "=") // the value may be a secret
			return invalid("variable %.80q cannot be passed", name)
		}
	}
	for _, p := range s.Ports {
		if p.Container < 1 || p.Container > 65535 || p.Host < 0 || p.Host > 65535 {
			return invalid("port %d:%d is not one", p.Host, p.Container)
		}
	}
	for _, m := range s.Mounts {
		if err := m.validate(); err != nil {
			return err
		}
	}
	for _, t := range s.Tmpfs {
		if !path.IsAbs(t) || path.Clean(t) != t || t == "/" || !clean(t) {
			return invalid("%.200q cannot be a tmpfs", t)
		}
	}
	return s.GPU.validate()
}

// kept are the places of a host that no container is given: sockets of daemons
// that are as good as root, and the machine itself.
var kept = []string{"/run", "/var/run", "/proc", "/sys", "/dev", "/boot", "/etc", "/var/lib/docker", "/var/lib/containerd"}

func (m Mount) validate() error {
	for _, p := range []string{m.Source, m.Target} {
		if !path.IsAbs(p) || path.Clean(p) != p || !clean(p) || strings.Contains(p, ":") || p == "/" {
			return invalid("%.200q cannot be mounted: it must be absolute, clean, not / and without a colon", p)
		}
	}
	return keptAway(m.Source)
}

// keptAway refuses a path of the host that no container is given.
func keptAway(source string) error {
	for _, k := range kept {
		// Neither it, nor what is in it, nor what it is in.
		if source == k || strings.HasPrefix(source, k+"/") || strings.HasPrefix(k, source+"/") {
			return invalid("%.200q is not given to containers", source).WithFact("path", source)
		}
	}
	if base := path.Base(source); base == "docker.sock" || base == "containerd.sock" || base == "podman.sock" {
		return invalid("%.200q is the socket of a container engine", source).WithFact("path", source)
	}
	return nil
}

// config is what Docker is told for a Spec. It is pure.
func (s Spec) config(ref string) (*container.Config, *container.HostConfig) {
	conf := &container.Config{
		Image: ref, Entrypoint: s.Entrypoint, Cmd: s.Argv, Env: s.Env,
		User:   strconv.Itoa(s.UID) + ":" + strconv.Itoa(s.GID),
		Labels: map[string]string{LabelPurpose: string(PurposeEngine), LabelEngine: s.Engine, LabelInstance: s.Instance},
	}
	host := hardened(orElse(s.Pids, defaultPids), orElse(s.LogBytes, defaultLogBytes))
	host.ReadonlyRootfs = s.ReadOnlyRoot
	host.ShmSize = orElse(s.ShmBytes, defaultShm)
	host.Memory = s.MemoryBytes
	for _, m := range s.Mounts {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}})
	}
	if len(s.Tmpfs) > 0 {
		host.Tmpfs = map[string]string{}
		for _, t := range s.Tmpfs {
			host.Tmpfs[t] = "rw,nosuid,nodev,mode=1777"
		}
	}
	if len(s.Ports) > 0 {
		conf.ExposedPorts, host.PortBindings = network.PortSet{}, network.PortMap{}
		for _, p := range s.Ports {
			port, _ := network.PortFrom(uint16(p.Container), network.TCP) //nolint:gosec // Validate bounds it
			conf.ExposedPorts[port] = struct{}{}
			b := network.PortBinding{HostIP: netip.MustParseAddr(loopback)}
			if p.Host != 0 {
				b.HostPort = strconv.Itoa(p.Host)
			}
			host.PortBindings[port] = append(host.PortBindings[port], b)
		}
	}
	s.GPU.apply(conf, host)
	return conf, host
}

// hardened is what all our containers have in common.
func hardened(pids, logBytes int64) *container.HostConfig {
	init := true
	const files = 2 // Docker drops the older half when the newer is full
	return &container.HostConfig{
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CapDrop:       []string{"ALL"},
		SecurityOpt:   []string{"no-new-privileges:true"},
		Init:          &init,
		IpcMode:       container.IPCModePrivate,
		Resources:     container.Resources{PidsLimit: &pids},
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
			"max-size": strconv.FormatInt(max(logBytes/files, 64<<10), 10), "max-file": strconv.Itoa(files)}},
	}
}

// apply asks for the card, in the one way that was chosen.
func (g GPU) apply(conf *container.Config, host *container.HostConfig) {
	switch g.Mode {
	case GPUCDI:
		host.DeviceRequests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: []string{cdiKind + g.UUID}}}
	case GPURequest:
		host.DeviceRequests = []container.DeviceRequest{{DeviceIDs: []string{g.UUID}, Capabilities: [][]string{{"gpu"}}}}
	case GPURuntime:
		host.Runtime = "nvidia"
		conf.Env = append(append([]string{}, conf.Env...), "NVIDIA_VISIBLE_DEVICES="+g.UUID, "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	case GPUNone:
		// Images of engines say "all" themselves: where the daemon's default runtime
		// is NVIDIA's, that alone would give them every card.
		conf.Env = append(append([]string{}, conf.Env...), "NVIDIA_VISIBLE_DEVICES=void")
	}
}

// gpuWords are what Docker, runc and the toolkit say when a card cannot be given.
var gpuWords = []struct{ words, reason, hint string }{
	{"could not select device driver \"cdi\"", "cdi_off", "Docker does not take CDI requests: enable features.cdi in daemon.json and restart it"},
	{"could not select device driver", "no_device_driver", "Docker found no NVIDIA hook when it started: install the toolkit, then restart Docker"},
	{"unresolvable cdi devices", "cdi_device_unknown", "no CDI specification lists that GPU: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"},
	{"cdi device injection failed", "cdi_device_unknown", "look at the CDI specification: nvidia-ctk cdi list"},
	{"unknown runtime specified", "no_runtime", "daemon.json has no runtime named nvidia: nvidia-ctk runtime configure"},
	{"unknown or invalid runtime name", "no_runtime", "daemon.json has no runtime named nvidia: nvidia-ctk runtime configure"},
	{"nvidia-container-cli", "toolkit", "the NVIDIA toolkit refused: nvidia-smi on the host must work first"},
}

// startFailed names why a container could not be made or started: about its card
// where the words say so, as gpuCode; else as it is.
func startFailed(err error, what string, gpuCode berth.Code) error {
	words := strings.ToLower(err.Error())
	for _, w := range gpuWords {
		if strings.Contains(words, w.words) {
			return berth.Errorf(gpuCode, "%s: %w", what, err).WithFact("reason", w.reason).WithHint(w.hint)
		}
	}
	if strings.Contains(words, "port is already allocated") || strings.Contains(words, "address already in use") {
		return berth.Errorf(berth.CodeConflict, "%s: %w", what, err).WithFact("reason", "port_taken").WithHint("choose another port")
	}
	named := berth.AsError(failed(err, what))
	// What Docker calls a bad parameter, or not found, is a program that is not
	// there, or an engine that asks for what this machine does not have.
	if named.Code == berth.CodeInternal || named.Code == berth.CodeInvalidArgument || named.Code == berth.CodeNotFound {
		named = berth.Errorf(berth.CodeStartFailed, "%s: %w", what, err)
	}
	return named
}
