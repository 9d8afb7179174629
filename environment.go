package berth

// Availability says what a host is to engines in containers.
type Availability string

// The availabilities.
const (
	Supported           Availability = "supported"            // ready as it is
	SetupRequired       Availability = "setup_required"       // berth can make it ready
	PrerequisiteBlocked Availability = "prerequisite_blocked" // a person must do something first
	Unsupported         Availability = "unsupported"          // not on this kind of host
)

// Valid reports whether the availability is one of the above.
func (a Availability) Valid() bool {
	switch a {
	case Supported, SetupRequired, PrerequisiteBlocked, Unsupported:
		return true
	}
	return false
}

// Environment is what is known of a host and its engines.
type Environment struct {
	Host          string         `json:"host"`
	Supported     bool           `json:"supported"`        // there is a provisioner for this kind of host
	Reason        string         `json:"reason,omitempty"` // why not
	Installations []Installation `json:"installations"`    // never nil
	// Active is the operation that is not over; "" = none.
	Active string `json:"active,omitempty"`
}

// Environments answers GET /v1/environments.
type Environments struct {
	V            int           `json:"v"`
	Environments []Environment `json:"environments"`
}

// GPU is a graphics card that can compute.
type GPU struct {
	UUID              string `json:"uuid"` // "GPU-…" or "MIG-…"
	Name              string `json:"name"`
	ComputeCapability string `json:"compute_capability"`       // "8.9"; "" = not known
	MemoryBytes       int64  `json:"memory_bytes"`             // 0 with UnifiedMemory
	FreeBytes         int64  `json:"free_bytes"`               // 0 = none, or not known
	UnifiedMemory     bool   `json:"unified_memory,omitempty"` // shares the host's; the driver shows no size
	Driver            string `json:"driver"`
	// Processes that hold memory on it now; nil = none or not known.
	Processes []GPUProcess `json:"processes,omitempty"`
}

// GPUProcess is a process that computes on a card.
type GPUProcess struct {
	PID       int    `json:"pid"`
	Name      string `json:"name,omitempty"`
	UsedBytes int64  `json:"used_bytes"`
}

// Facts is what a probe found on a host. A fact that could not be read is in
// Unknown with its reason and has its zero value: unknown is neither absent nor
// fine.
type Facts struct {
	OS        OSFacts     `json:"os"`
	GPU       GPUFacts    `json:"gpu"`
	Docker    DockerFacts `json:"docker"`
	Toolkit   ToolFacts   `json:"toolkit"`
	Disk      []DiskFacts `json:"disk"`
	Memory    MemoryFacts `json:"memory"`
	User      UserFacts   `json:"user"`
	Routes    []Route     `json:"routes,omitempty"`
	Unknown   []Unknown   `json:"unknown"` // never nil
	BootID    string      `json:"boot_id"`
	ElapsedMS int64       `json:"elapsed_ms"`
}

// Unknown is a fact that could not be read.
type Unknown struct {
	Fact   string `json:"fact"` // stable name: "free_disk", "daemon_json", …
	Reason string `json:"reason"`
}

// OSFacts is the operating system.
type OSFacts struct {
	ID           string   `json:"id"` // of /etc/os-release
	IDLike       []string `json:"id_like,omitempty"`
	Version      string   `json:"version"`
	Codename     string   `json:"codename,omitempty"`
	Name         string   `json:"name"`
	Family       string   `json:"family"`       // apt, dnf, pacman, zypper or other
	Architecture string   `json:"architecture"` // as uname -m says it: x86_64, aarch64
	Kernel       string   `json:"kernel"`
	Systemd      bool     `json:"systemd"`
	Immutable    bool     `json:"immutable"`
	Container    string   `json:"container,omitempty"` // "docker", "podman", …; "" = none seen
	WSL          int      `json:"wsl,omitempty"`       // 1 or 2; 0 = no
	RebootDue    bool     `json:"reboot_due"`
	PackageLock  string   `json:"package_lock,omitempty"` // who holds it; "" = nobody
	SecureBoot   bool     `json:"secure_boot"`
	SELinux      string   `json:"selinux,omitempty"` // enforcing, permissive; "" = off
}

// GPUFacts is the NVIDIA side.
type GPUFacts struct {
	OnBus         int    `json:"on_bus"`           // PCI devices of the display class by NVIDIA
	Module        string `json:"module,omitempty"` // version of the loaded kernel module; "" = not loaded
	Library       string `json:"library,omitempty"`
	Nouveau       bool   `json:"nouveau,omitempty"`
	Cards         []GPU  `json:"cards"`               // never nil
	SMI           string `json:"smi,omitempty"`       // path of nvidia-smi; "" = not there
	SMIError      string `json:"smi_error,omitempty"` // what it said when it failed
	MIG           bool   `json:"mig,omitempty"`
	CUDA          string `json:"cuda,omitempty"` // newest that the driver runs
	JetsonRelease string `json:"jetson_release,omitempty"`
}

// DockerFacts is the container engine.
type DockerFacts struct {
	CLI             string            `json:"cli,omitempty"` // path; "" = not there
	CLIVersion      string            `json:"cli_version,omitempty"`
	PodmanShim      bool              `json:"podman_shim,omitempty"`
	Install         string            `json:"install,omitempty"` // docker-ce, docker.io, moby-engine, snap, desktop, rootless, podman-docker; "" = none recognised
	Package         string            `json:"package,omitempty"` // version of the package
	Socket          string            `json:"socket,omitempty"`  // that berth uses; "" = none there
	SocketGroup     string            `json:"socket_group,omitempty"`
	Context         string            `json:"context,omitempty"` // a context or DOCKER_HOST that points elsewhere
	Reachable       bool              `json:"reachable"`         // it answers as this user
	Error           string            `json:"error,omitempty"`   // what it said when not
	DaemonID        string            `json:"daemon_id,omitempty"`
	Version         string            `json:"version,omitempty"`
	API             string            `json:"api,omitempty"`
	OperatingSystem string            `json:"operating_system,omitempty"`
	Runtimes        []string          `json:"runtimes,omitempty"`
	CDI             bool              `json:"cdi"` // the daemon takes CDI requests
	CDIDirs         []string          `json:"cdi_dirs,omitempty"`
	CDIDevices      []string          `json:"cdi_devices,omitempty"` // that the daemon discovered; from API 1.50
	Root            string            `json:"root,omitempty"`
	ContainerdStore bool              `json:"containerd_store,omitempty"` // images lie at the containerd root
	Rootless        bool              `json:"rootless,omitempty"`
	LiveRestore     bool              `json:"live_restore,omitempty"`
	Running         int               `json:"running"`                    // containers
	Service         string            `json:"service,omitempty"`          // active, inactive, failed, …; "" = no systemd
	OnDemand        bool              `json:"on_demand,omitempty"`        // systemd listens in its place and starts it when it is asked
	Pools           []string          `json:"pools,omitempty"`            // configured default address pools
	Networks        []string          `json:"networks,omitempty"`         // subnets in use
	Conflicts       []string          `json:"conflicts,omitempty"`        // installed packages beside which Docker's own cannot be installed
	DaemonJSON      string            `json:"daemon_json"`                // absent, ok, unreadable or invalid
	DaemonJSONKeys  map[string]string `json:"daemon_json_keys,omitempty"` // those that berth looks at, as JSON
}

// ToolFacts is the NVIDIA container toolkit and its CDI specs.
type ToolFacts struct {
	CTK       string    `json:"ctk,omitempty"` // path of nvidia-ctk
	Version   string    `json:"version,omitempty"`
	Packages  []string  `json:"packages,omitempty"` // name=version
	Specs     []CDISpec `json:"specs,omitempty"`
	Devices   []string  `json:"devices,omitempty"`    // nvidia.com/gpu names, over all specs
	RefreshOn bool      `json:"refresh_on,omitempty"` // nvidia-cdi-refresh.path is enabled
}

// CDISpec is one file of CDI devices.
type CDISpec struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind,omitempty"`
	Devices []string `json:"devices,omitempty"`
	Missing []string `json:"missing,omitempty"` // host paths that it mounts and that are not there
	Driver  string   `json:"driver,omitempty"`  // version that its library names carry
	Mode    string   `json:"mode,omitempty"`
	Error   string   `json:"error,omitempty"` // why it cannot be read
}

// DiskFacts is the space at one place.
type DiskFacts struct {
	Purpose   string `json:"purpose"` // docker_root, containerd_root or models
	Path      string `json:"path"`
	FreeBytes int64  `json:"free_bytes"`
}

// MemoryFacts is the host's memory; 0 = not known.
type MemoryFacts struct {
	TotalBytes     int64 `json:"total_bytes"`
	AvailableBytes int64 `json:"available_bytes"`
}

// UserFacts is who asks.
type UserFacts struct {
	Name            string `json:"name"`
	UID             int    `json:"uid"`
	GID             int    `json:"gid"`
	GroupConfigured bool   `json:"group_configured"` // in group docker on disk
	GroupEffective  bool   `json:"group_effective"`  // in group docker now
	Linger          bool   `json:"linger"`
}

// Route is one IPv4 route.
type Route struct {
	Destination string `json:"destination"` // CIDR
	Gateway     string `json:"gateway,omitempty"`
	Device      string `json:"device"`
}
