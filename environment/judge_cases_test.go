package environment

import (
	"slices"
	"strings"
	"time"

	"berth"
)

// The machine of these tests: Ubuntu 24.04 on x86_64 with one RTX 4090 and a
// Docker that works. A case changes what it is about.

const (
	card4090  = "GPU-11111111-2222-3333-4444-555555555555"
	cardOld   = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
	imageSum  = "sha256:a4a4c0437bf7240089da5f08aa370c4aee17ae5290f7a3b468825ee26c4c3a6b"
	checkSum  = "sha256:605fb0c8acf8674e164d822da8a8521f3a655056e569f0899e72ae940e1fe7dc"
	cpuSum    = "sha256:fcca4dac388066ca93db561751e8caf5fc7d46d9df5f00a7422026db68468e31"
	recipeSum = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
)

func goodFacts() berth.Facts {
	return berth.Facts{
		OS: berth.OSFacts{ID: "ubuntu", IDLike: []string{"debian"}, Version: "24.04", Codename: "noble", Name: "Ubuntu 24.04.3 LTS",
			Family: FamilyAPT, Architecture: "x86_64", Kernel: "6.8.0-60-generic", Systemd: true},
		GPU: berth.GPUFacts{OnBus: 1, Module: "580.95.05", Library: "580.95.05", SMI: "/usr/bin/nvidia-smi", CUDA: "13.0",
			Cards: []berth.GPU{{UUID: card4090, Name: "NVIDIA GeForce RTX 4090", ComputeCapability: "8.9", MemoryBytes: 25757220864, FreeBytes: 25000000000, Driver: "580.95.05"}}},
		Docker: berth.DockerFacts{CLI: "/usr/bin/docker", CLIVersion: "29.2.0", Install: "docker-ce", Package: "5:29.2.0-1~ubuntu.24.04~noble",
			Socket: "/var/run/docker.sock", SocketGroup: "docker", Reachable: true, DaemonID: "d", Version: "29.2.0", API: "1.53", OperatingSystem: "Ubuntu 24.04.3 LTS",
			Runtimes: []string{"runc"}, CDI: true, CDIDirs: []string{"/etc/cdi", "/var/run/cdi"}, CDIDevices: []string{"nvidia.com/gpu=" + card4090, "nvidia.com/gpu=all"},
			Root: "/var/lib/docker", ContainerdStore: true, Service: "active", DaemonJSON: daemonAbsent},
		Toolkit: berth.ToolFacts{CTK: "/usr/bin/nvidia-ctk", Version: "1.18.1", Packages: []string{"nvidia-container-toolkit-base=1.18.1-1"},
			Specs: []berth.CDISpec{{Path: "/var/run/cdi/nvidia.yaml", Kind: "nvidia.com/gpu", Devices: []string{"0", card4090, "all"}, Driver: "580.95.05"}}, RefreshOn: true},
		Disk:   []berth.DiskFacts{{Purpose: DiskDockerRoot, Path: "/var/lib/docker", FreeBytes: 300e9}, {Purpose: DiskContainerdRoot, Path: "/var/lib/containerd", FreeBytes: 300e9}},
		Memory: berth.MemoryFacts{TotalBytes: 64e9, AvailableBytes: 50e9},
		User:   berth.UserFacts{Name: "ada", UID: 1000, GID: 1000, GroupConfigured: true, GroupEffective: true, Linger: true},
		Routes: []berth.Route{{Destination: "10.0.0.0/24", Device: "eth0"}, {Destination: "172.17.0.0/16", Device: "docker0"}},
		BootID: "b", Unknown: []berth.Unknown{},
	}
}

func gpuRelease() *berth.Release {
	return &berth.Release{V: 1, ID: "vllm-0.31.0-r1", Engine: "vllm", Version: "0.31.0",
		Images:               map[string]berth.Image{"linux/amd64": {Repository: "docker.io/vllm/vllm-openai", Digest: imageSum, DownloadBytes: 10134470647}},
		CheckImages:          map[string]berth.Image{"linux/amd64": {Repository: "nvcr.io/nvidia/cuda", Digest: checkSum, DownloadBytes: 90e6}},
		MinComputeCapability: "8.0", MinDriver: "580.0", RequiredDiskBytes: 30064771072, Port: 8000, Health: "/health", Source: "test"}
}

func cpuRelease() *berth.Release {
	return &berth.Release{V: 1, ID: "llama.cpp-2026-cpu-r1", Engine: "llama.cpp", Version: "2026",
		Images: map[string]berth.Image{"linux/amd64": {Repository: "ghcr.io/ggml-org/llama.cpp", Digest: cpuSum, DownloadBytes: 100e6, UncompressedBytes: 400e6}},
		Port:   8080, Health: "/health", Source: "test"}
}

func goodInput() JudgeInput {
	manifests, err := EmbeddedManifests()
	if err != nil {
		panic(err)
	}
	return JudgeInput{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "vllm"}, Facts: goodFacts(), Release: gpuRelease(),
		Manifest: &manifests[0], Recipe: berth.RecipeRef{ID: "linux-r2", Digest: recipeSum}, ImagePresent: answer(false)}
}

func forCPU(in *JudgeInput) {
	in.Release, in.Target.Engine = cpuRelease(), "llama.cpp"
}

func noDocker(in *JudgeInput) {
	f := &in.Facts
	f.Docker = berth.DockerFacts{Service: "inactive", DaemonJSON: daemonAbsent, Error: "there is no socket at /var/run/docker.sock"}
	f.Toolkit = berth.ToolFacts{}
	f.User.GroupConfigured, f.User.GroupEffective = false, false
	f.Routes = f.Routes[:1]
	in.ImagePresent = nil
}

// unreachable is the good machine for a user whose group is not effective yet.
func unreachable(in *JudgeInput) {
	d := &in.Facts.Docker
	*d = berth.DockerFacts{CLI: d.CLI, CLIVersion: d.CLIVersion, Install: d.Install, Package: d.Package, Socket: d.Socket, SocketGroup: d.SocketGroup,
		Service: "active", DaemonJSON: daemonAbsent, Error: "permission denied: this user may not use the socket"}
	in.Facts.User.GroupEffective = false
	in.ImagePresent = nil
}

func noToolkit(in *JudgeInput) {
	in.Facts.Toolkit = berth.ToolFacts{}
	in.Facts.Docker.CDIDevices = nil
}

func docker(in *JudgeInput, version, api string) {
	d := &in.Facts.Docker
	d.Version, d.API, d.CLIVersion, d.Package, d.CDI, d.CDIDevices, d.ContainerdStore = version, api, version, version+"-1", false, nil, false
}

func unknownFact(in *JudgeInput, fact FactName, reason string) {
	in.Facts.Unknown = append(in.Facts.Unknown, berth.Unknown{Fact: string(fact), Reason: reason})
}

func onOS(in *JudgeInput, id, version, codename, name, family string, like ...string) {
	o := &in.Facts.OS
	o.ID, o.Version, o.Codename, o.Name, o.Family, o.IDLike = id, version, codename, name, family, like
}

// VPN that takes everything in two halves, and one that pushes private ranges.
func vpn(in *JudgeInput, gateway string) {
	for _, d := range []string{"172.16.0.0/12", "192.168.0.0/16"} {
		in.Facts.Routes = append(in.Facts.Routes, berth.Route{Destination: d, Gateway: gateway, Device: "tun0"})
	}
}

const cudaRequire = "cuda>=13.0 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536"

type planCase struct {
	name string
	why  string // what a failure of it would mean to a person
	edit func(*JudgeInput)
}

// planCases are the machines. Each has a golden file that a person reads.
var planCases = slices.Concat(goodCases, universalCases, dockerCases, hostCases, warningCases)

var goodCases = []planCase{
	{"adopt", "a machine that is ready gets nothing installed", func(*JudgeInput) {}},
	{"adopt_present", "an image that is there is not pulled, and needs no space", func(in *JudgeInput) {
		in.ImagePresent = answer(true)
		in.Facts.Disk[1].FreeBytes = 1e6
	}},
	{"adopt_any_distribution", "a Docker that works is used on a distribution that berth never saw", func(in *JudgeInput) {
		onOS(in, "nixos", "25.11", "", "NixOS 25.11", FamilyOther)
		unknownFact(in, FactPackages, "failed: no package database")
		in.Facts.Docker.Install = ""
	}},
	{"adopt_runtime", "an older Docker with the nvidia runtime works as it is", func(in *JudgeInput) {
		docker(in, "24.0.9", "1.43")
		in.Facts.Docker.Runtimes = []string{"nvidia", "runc"}
		in.Facts.Toolkit.Packages = []string{"nvidia-container-toolkit=1.17.8-1"}
	}},
	{"adopt_podman_free_cpu", "a CPU release needs Docker only: driver and toolkit are not asked for", func(in *JudgeInput) {
		forCPU(in)
		noToolkit(in)
		in.Facts.GPU = berth.GPUFacts{Cards: []berth.GPU{}}
		unknownFact(in, FactNVIDIASMI, "timed out: nvidia-smi")
		unknownFact(in, FactPCI, "permission denied: /sys")
	}},
	{"adopt_environment", "the environment itself, with a GPU that works", func(in *JudgeInput) { in.Release, in.Target.Engine, in.ImagePresent = nil, "", nil }},
	{"fresh_gpu", "on a fresh machine only the small half of the toolkit comes with Docker: no daemon.json, no restart", noDocker},
	{"fresh_cpu", "a CPU release on a fresh machine installs no NVIDIA package", func(in *JudgeInput) { noDocker(in); forCPU(in) }},
	{"fresh_root", "root needs no group and no new login", func(in *JudgeInput) {
		noDocker(in)
		in.Facts.User = berth.UserFacts{Name: "root"}
	}},
	{"fresh_environment", "the environment of a machine without a card is Docker alone, said aloud", func(in *JudgeInput) {
		noDocker(in)
		in.Release, in.Target.Engine = nil, ""
		in.Facts.GPU = berth.GPUFacts{Cards: []berth.GPU{}}
	}},
	{"toolkit_cdi", "Docker 28.2 or newer gets the toolkit's base and a specification: no edit, no restart", noToolkit},
	{"toolkit_enable_cdi", "Docker 27 gets CDI turned on, with a restart", func(in *JudgeInput) {
		docker(in, "27.5.1", "1.47")
		noToolkit(in)
	}},
	{"toolkit_runtime", "Docker 20.10 has no CDI: the whole toolkit and the runtime", func(in *JudgeInput) {
		docker(in, "20.10.24+dfsg1", "1.41")
		noToolkit(in)
	}},
	{"cdi_turned_off", "a person who turned CDI off keeps that", func(in *JudgeInput) {
		docker(in, "29.2.0", "1.53")
		noToolkit(in)
		in.Facts.Docker.DaemonJSON, in.Facts.Docker.DaemonJSONKeys = daemonOK, map[string]string{"features": `{"cdi":false}`}
	}},
	{"moby_engine_kept", "docker.io is completed, never replaced", func(in *JudgeInput) {
		docker(in, "28.2.2", "1.50")
		in.Facts.Docker.CDI, in.Facts.Docker.Install = true, "docker.io"
		noToolkit(in)
	}},
	{"spec_of_other_card", "a specification of some other card is none of the chosen one", func(in *JudgeInput) {
		in.Facts.Docker.CDIDevices = []string{"nvidia.com/gpu=" + cardOld}
		in.Facts.Toolkit.Specs[0].Devices = []string{cardOld}
	}},
	{"stale_spec_ours", "after a driver update the specification is written again", func(in *JudgeInput) { in.Facts.Toolkit.Specs[0].Driver = "570.10.01" }},
	{"stale_spec_old_toolkit", "a toolkit before 1.18 does not renew it at a restart of the machine, which is said", func(in *JudgeInput) {
		in.Facts.Toolkit.Specs[0].Driver, in.Facts.Toolkit.Version = "570.10.01", "1.17.8"
		in.Facts.Toolkit.Packages = []string{"nvidia-container-toolkit-base=1.17.8-1"}
	}},
	{"stale_spec_etc", "a stale file in /etc/cdi loses against a fresh one in /var/run/cdi, so one is written", func(in *JudgeInput) {
		in.Facts.Toolkit.Specs[0].Path, in.Facts.Toolkit.Specs[0].Missing = "/etc/cdi/nvidia.yaml", []string{"/usr/lib/libEGL_nvidia.so.570.10.01"}
	}},
	{"only_group", "Docker is ready and only the group is missing", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User.GroupConfigured = false
	}},
	{"service_stopped", "a Docker that does not run is started", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.Docker.Service, in.Facts.Docker.Error = "inactive", "nobody listens at the socket"
		in.Facts.User.GroupEffective = true
	}},
	{"fedora", "Fedora by dnf", func(in *JudgeInput) { noDocker(in); onOS(in, "fedora", "44", "", "Fedora Linux 44", FamilyDNF) }},
	{"update", "an update says that what is loaded is stopped", func(in *JudgeInput) {
		in.Kind = berth.OperationUpdate
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.30.0-r1", Engine: "vllm"}, Status: berth.InstallationReady}}
	}},
	{"unified_memory", "GB10 shows no memory size, and is a card all the same", func(in *JudgeInput) {
		in.Facts.OS.Architecture = "aarch64"
		in.Facts.GPU.Cards[0] = berth.GPU{UUID: card4090, Name: "NVIDIA GB10", ComputeCapability: "12.1", UnifiedMemory: true, Driver: "580.95.05"}
		in.Release.Images["linux/arm64"], in.Release.CheckImages["linux/arm64"] = in.Release.Images["linux/amd64"], in.Release.CheckImages["linux/amd64"]
	}},
	{"wsl2", "in WSL there is no card on the bus, and one CDI device for all", func(in *JudgeInput) {
		in.Facts.OS.WSL, in.Facts.GPU.OnBus, in.Facts.GPU.Module = 2, 0, ""
		in.Facts.Docker.CDIDevices, in.Facts.Toolkit.Specs[0].Devices = []string{"nvidia.com/gpu=all"}, []string{"all"}
	}},
	{"pull_began", "after a pull began the disk is not judged, and nothing blocks on it", func(in *JudgeInput) {
		in.PullBegan = true
		in.Facts.Disk[1].FreeBytes = 1e9
	}},
	{"update_newest", "what is installed is the newest: nothing is to be done", func(in *JudgeInput) {
		in.Kind, in.ImagePresent = berth.OperationUpdate, answer(true)
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.31.0-r1"}, Image: berth.Image{Digest: imageSum}, Status: berth.InstallationReady}}
	}},
	{"no_gpu_cpu_release", "an engine with a release for the CPU: that is the way out", func(in *JudgeInput) {
		in.Facts.GPU = berth.GPUFacts{Cards: []berth.GPU{}}
		in.CPURelease = "vllm-cpu-r1"
	}},
	{"installed_unreachable", "a recorded image behind a Docker that does not answer is not taken for absent", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User.GroupConfigured = false
		in.Facts.Disk[0].FreeBytes, in.Facts.Disk[1].FreeBytes = 1e9, 1e9
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.31.0-r1"}, Image: berth.Image{Digest: imageSum}, Status: berth.InstallationReady}}
	}},
	{"started_on_demand", "a Docker that systemd starts when it is asked is no service that stopped", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.Docker.Service, in.Facts.Docker.OnDemand = "inactive", true
	}},
	{"unknown_not_needed", "facts that nobody needs for this block nothing", func(in *JudgeInput) {
		for _, f := range []FactName{FactSecureBoot, FactSELinux, FactRoutes, FactLinger, FactMemory, FactKernel, FactDistribution, FactInit,
			FactPackages, FactDaemonJSON, FactGroupConfigured, FactToolkit, FactCDISpecs, FactFreeDisk, FactFreeModels, FactDockerCLI} {
			unknownFact(in, f, "permission denied: a file")
		}
		in.Facts.Toolkit = berth.ToolFacts{}
	}},
}

var universalCases = []planCase{
	{"unknown_fact_architecture", "", func(in *JudgeInput) {
		in.Facts.OS.Architecture = ""
		unknownFact(in, FactArchitecture, "failed: uname")
	}},
	{"unknown_fact_smi", "", func(in *JudgeInput) {
		in.Facts.GPU.Cards = nil
		unknownFact(in, FactNVIDIASMI, "timed out: nvidia-smi gave no answer in 10s")
	}},
	{"unknown_fact_docker", "", func(in *JudgeInput) {
		in.Facts.Docker.Reachable = false
		unknownFact(in, FactDockerDaemon, "timed out: docker: GET /version")
	}},
	{"unknown_fact_several", "all of them are told at once, with what stands against it besides", func(in *JudgeInput) {
		noDocker(in)
		in.Facts.Disk = nil
		in.Facts.GPU.OnBus, in.Facts.GPU.Module, in.Facts.GPU.Cards = 0, "", nil
		unknownFact(in, FactPCI, "permission denied: /sys/bus/pci/devices")
		unknownFact(in, FactFreeDisk, "failed: statfs")
		in.Target.Engine = "tensorrt-llm"
	}},
	{"unknown_fact_capability", "", func(in *JudgeInput) { in.Facts.GPU.Cards[0].ComputeCapability = "" }},
	{"unknown_fact_driver", "", func(in *JudgeInput) {
		in.Facts.GPU.Module, in.Facts.GPU.Library, in.Facts.GPU.Cards[0].Driver = "", "", ""
	}},
	{"unknown_fact_cuda", "", func(in *JudgeInput) {
		in.RequireCUDA, in.Facts.GPU.CUDA = cudaRequire, ""
		unknownFact(in, FactCUDA, "failed: nvidia-smi")
	}},
	{"unknown_fact_brand", "", func(in *JudgeInput) {
		in.RequireCUDA, in.Facts.GPU.CUDA, in.Release.MinDriver = cudaRequire, "12.2", "525.0"
		in.Facts.GPU.Module, in.Facts.GPU.Library = "535.216.01", "535.216.01"
		in.Facts.GPU.Cards[0].Driver, in.Facts.GPU.Cards[0].Name = "535.216.01", "NVIDIA PG506-230"
	}},
	{"unknown_fact_requirement", "", func(in *JudgeInput) { in.RequireCUDA = "cuda" }},
	{"unknown_fact_group", "", func(in *JudgeInput) {
		noDocker(in)
		unknownFact(in, FactGroupConfigured, "invalid: /etc/group")
	}},
	{"unknown_fact_distribution", "", func(in *JudgeInput) {
		noDocker(in)
		in.Facts.OS = berth.OSFacts{Architecture: "x86_64", Systemd: true}
		unknownFact(in, FactDistribution, "permission denied: /etc/os-release")
	}},
	{"unknown_fact_docker_version", "", func(in *JudgeInput) {
		unreachable(in)
		noToolkit(in)
		in.Facts.Docker.Package, in.Facts.Docker.CLIVersion, in.Facts.User.GroupConfigured = "", "", false
	}},
	{"unsupported_architecture", "", func(in *JudgeInput) { in.Facts.OS.Architecture = "riscv64" }},
	{"wsl1", "", func(in *JudgeInput) { noDocker(in); in.Facts.OS.WSL = 1 }},
	{"release_not_for_platform", "", func(in *JudgeInput) { in.Facts.OS.Architecture = "aarch64" }},
	{"release_not_for_jetson", "", func(in *JudgeInput) { in.Facts.GPU.JetsonRelease = "R36.4.3" }},
	{"engine_mismatch", "", func(in *JudgeInput) { in.Target.Engine = "tensorrt-llm" }},
	{"not_installed", "", func(in *JudgeInput) { in.Kind = berth.OperationUpdate }},
	{"installed_with_other_release", "", func(in *JudgeInput) {
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.30.0-r1"}, Status: berth.InstallationReady}}
	}},
	{"installed_removing", "", func(in *JudgeInput) {
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.31.0-r1"}, Status: berth.InstallationRemoving}}
	}},
	{"no_gpu", "", func(in *JudgeInput) { in.Facts.GPU = berth.GPUFacts{Cards: []berth.GPU{}} }},
	{"no_gpu_not_shown", "", func(in *JudgeInput) {
		in.Facts.GPU.Cards, in.Facts.GPU.SMIError = nil, "No devices were found"
	}},
	{"driver_missing", "", func(in *JudgeInput) { in.Facts.GPU = berth.GPUFacts{OnBus: 1, Cards: []berth.GPU{}} }},
	{"driver_missing_nouveau", "", func(in *JudgeInput) {
		onOS(in, "fedora", "44", "", "Fedora Linux 44", FamilyDNF)
		in.Facts.GPU = berth.GPUFacts{OnBus: 1, Cards: []berth.GPU{}, Nouveau: true}
		in.Facts.OS.SecureBoot = true
	}},
	{"driver_missing_wsl", "", func(in *JudgeInput) { in.Facts.OS.WSL, in.Facts.GPU = 2, berth.GPUFacts{Cards: []berth.GPU{}} }},
	{"driver_missing_broken", "", func(in *JudgeInput) {
		in.Facts.GPU = berth.GPUFacts{OnBus: 1, Cards: []berth.GPU{}, SMI: "/usr/bin/nvidia-smi", SMIError: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."}
	}},
	{"driver_mismatch", "", func(in *JudgeInput) {
		in.Facts.GPU.Library, in.Facts.GPU.Cards = "580.105.08", nil
		in.Facts.GPU.SMIError = "Failed to initialize NVML: Driver/library version mismatch"
	}},
	{"driver_too_old", "", func(in *JudgeInput) {
		in.Facts.GPU.Module, in.Facts.GPU.Library, in.Facts.GPU.Cards[0].Driver = "570.10.01", "570.10.01", "570.10.01"
	}},
	{"driver_too_old_image", "an image of CUDA 13 on a driver of CUDA 12.4 is refused before 20 GB are pulled", func(in *JudgeInput) {
		in.RequireCUDA, in.Facts.GPU.CUDA, in.Release.MinDriver = cudaRequire, "12.4", "550.0"
	}},
	{"compute_capability_too_low", "", func(in *JudgeInput) {
		in.Facts.GPU.Cards[0].Name, in.Facts.GPU.Cards[0].ComputeCapability = "Tesla T4", "7.5"
	}},
	{"insufficient_disk", "", func(in *JudgeInput) { in.Facts.Disk[1].FreeBytes = 12e9 }},
}

var dockerCases = []planCase{
	{"docker_snap", "", func(in *JudgeInput) { in.Facts.Docker.Install = "snap" }},
	{"docker_rootless", "", func(in *JudgeInput) { in.Facts.Docker.Install, in.Facts.Docker.Rootless = "rootless", true }},
	{"docker_desktop_only", "", func(in *JudgeInput) {
		in.Facts.Docker.Install, in.Facts.Docker.OperatingSystem = "desktop", "Docker Desktop"
	}},
	{"podman_docker", "", func(in *JudgeInput) {
		noDocker(in)
		in.Facts.Docker.Install, in.Facts.Docker.PodmanShim, in.Facts.Docker.CLI = "podman-docker", true, "/usr/bin/docker"
	}},
	{"docker_unrecognised", "", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User.GroupConfigured = false
		in.Facts.Docker.Install = ""
	}},
	{"docker_access_unexplained", "", func(in *JudgeInput) { unreachable(in); in.Facts.User.GroupEffective = true }},
	{"docker_access_root", "", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User = berth.UserFacts{Name: "root"}
		in.Facts.Docker.Error = "docker: GET /version: status 503 starting"
	}},
	{"docker_access_other_group", "", func(in *JudgeInput) { unreachable(in); in.Facts.Docker.SocketGroup = "wheel" }},
	{"docker_group_manual", "", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User.GroupConfigured = false
		onOS(in, "arch", "", "", "Arch Linux", FamilyPacman)
	}},
	{"docker_group_manual_ostree", "", func(in *JudgeInput) {
		unreachable(in)
		in.Facts.User.GroupConfigured, in.Facts.OS.Immutable = false, true
		onOS(in, "fedora", "44", "", "Fedora Silverblue 44", FamilyDNF)
	}},
	{"relogin_required", "only this one is waited for", unreachable},
	{"relogin_and_more", "what is missing besides is named, and nothing is planned", func(in *JudgeInput) {
		unreachable(in)
		noToolkit(in)
		in.Facts.Docker.Service = "inactive"
	}},
	{"relogin_no_docker", "", func(in *JudgeInput) { noDocker(in); in.Facts.User.GroupConfigured = true }},
	{"relogin_daemon_json", "", func(in *JudgeInput) {
		unreachable(in)
		noToolkit(in)
		in.Facts.Docker.Package, in.Facts.Docker.DaemonJSON = "20.10.24", daemonUnreadable
	}},
	{"daemon_json_unreadable", "a file of mode 0600 is not taken for none", func(in *JudgeInput) {
		docker(in, "27.5.1", "1.47")
		noToolkit(in)
		in.Facts.Docker.DaemonJSON = daemonUnreadable
	}},
	{"daemon_json_invalid", "", func(in *JudgeInput) {
		docker(in, "20.10.24", "1.41")
		noToolkit(in)
		in.Facts.Docker.DaemonJSON = daemonInvalid
	}},
	{"stale_cdi_spec", "two files for one card", func(in *JudgeInput) {
		in.Facts.Toolkit.Specs = append(in.Facts.Toolkit.Specs, berth.CDISpec{Path: "/var/run/cdi/old.yaml", Kind: "nvidia.com/gpu", Devices: []string{card4090}, Driver: "570.10.01"})
	}},
	{"stale_cdi_spec_order", "a daemon that reads /etc/cdi last", func(in *JudgeInput) {
		in.Facts.Docker.CDIDirs = []string{"/var/run/cdi", "/etc/cdi"}
		in.Facts.Toolkit.Specs = append(in.Facts.Toolkit.Specs, berth.CDISpec{Path: "/etc/cdi/nvidia.yaml", Kind: "nvidia.com/gpu", Devices: []string{card4090}, Driver: "570.10.01"})
	}},
}

var hostCases = []planCase{
	{"immutable_os", "", func(in *JudgeInput) {
		noDocker(in)
		in.Facts.OS.Immutable = true
		onOS(in, "fedora", "44", "", "Fedora Silverblue 44", FamilyDNF)
	}},
	{"immutable_only_config", "where no package is missing the remaining steps are listed", func(in *JudgeInput) {
		in.Facts.OS.Immutable = true
		in.Facts.Docker.CDIDevices, in.Facts.Toolkit.Specs = nil, nil
		onOS(in, "fedora", "44", "", "Fedora Silverblue 44", FamilyDNF)
	}},
	{"manual_install", "", func(in *JudgeInput) { noDocker(in); onOS(in, "arch", "", "", "Arch Linux", FamilyPacman) }},
	{"manual_install_zypper", "", func(in *JudgeInput) {
		noDocker(in)
		onOS(in, "opensuse-leap", "16.0", "", "openSUSE Leap 16.0", FamilyZypper)
	}},
	{"manual_install_other", "where berth knows no command it says none", func(in *JudgeInput) { noDocker(in); onOS(in, "alpine", "3.22", "", "Alpine Linux v3.22", FamilyOther) }},
	{"distribution_not_qualified", "", func(in *JudgeInput) { noDocker(in); onOS(in, "ubuntu", "25.10", "questing", "Ubuntu 25.10", FamilyAPT) }},
	{"distribution_not_qualified_dnf", "", func(in *JudgeInput) {
		noDocker(in)
		onOS(in, "rhel", "9.6", "", "Red Hat Enterprise Linux 9.6", FamilyDNF)
	}},
	{"manifest_unavailable", "", func(in *JudgeInput) { noDocker(in); in.Manifest = nil }},
	{"no_systemd", "the password is not asked for in vain", func(in *JudgeInput) { noDocker(in); in.Facts.OS.Systemd, in.Facts.Docker.Service = false, "" }},
	{"package_conflict", "", func(in *JudgeInput) { noDocker(in); in.Facts.Docker.Conflicts = []string{"runc", "containerd"} }},
	{"recipe_refused", "", func(in *JudgeInput) { noDocker(in); in.Recipe.ID = "linux-r2" }},
	{"recipe_refused_user", "", func(in *JudgeInput) { noDocker(in); in.Facts.User.Name = "CORP\\ada" }},
}

var warningCases = []planCase{
	{"warn_address_pools", "two routes that leave room alone cover everything together", func(in *JudgeInput) { noDocker(in); vpn(in, "") }},
	{"warn_address_pools_gateway", "a Docker before 27 also minds routes with a next hop", func(in *JudgeInput) {
		docker(in, "24.0.9", "1.43")
		noToolkit(in)
		in.Facts.Docker.Running = 0
		vpn(in, "10.8.0.1")
	}},
	{"warn_address_pools_configured", "ranges that daemon.json sets are judged, not Docker's own", func(in *JudgeInput) {
		in.Facts.Docker.DaemonJSON = daemonOK
		in.Facts.Docker.DaemonJSONKeys = map[string]string{"default-address-pools": `[{"base":"10.200.0.0/23","size":24}]`}
		in.Facts.Docker.Networks = []string{"10.200.0.0/24", "10.200.1.0/24"}
	}},
	{"warn_address_pools_bip", "an address for the bridge alone is no range for the rest", func(in *JudgeInput) {
		noDocker(in)
		vpn(in, "")
		in.Facts.Docker.DaemonJSON, in.Facts.Docker.DaemonJSONKeys = daemonOK, map[string]string{"bip": `"10.5.0.1/24"`}
	}},
	{"warn_live_restore", "", func(in *JudgeInput) {
		docker(in, "27.5.1", "1.47")
		noToolkit(in)
		in.Facts.Docker.Running = 3
	}},
	{"warn_live_restore_unknown", "", func(in *JudgeInput) {
		unreachable(in)
		noToolkit(in)
		in.Facts.Docker.Package, in.Facts.User.GroupConfigured = "5:27.5.1-1", false
	}},
	{"warn_linger", "", func(in *JudgeInput) { in.Facts.User.Linger = false }},
	{"warn_versions_changed", "another driver than when it was checked: that is said, and a setup checks again", func(in *JudgeInput) {
		in.Installations = []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.31.0-r1"}, Image: berth.Image{Digest: imageSum}, Status: berth.InstallationReady,
			Verified: map[string]string{"gpu": in.Facts.GPU.Cards[0].UUID, "driver": "570.86.15", "docker": in.Facts.Docker.Version}}}
	}},
	{"warn_cpu_only", "", func(in *JudgeInput) { forCPU(in) }},
	{"warn_gpu_in_use", "", func(in *JudgeInput) {
		in.Facts.GPU.Cards[0].Processes = []berth.GPUProcess{{PID: 4242, Name: "python3", UsedBytes: 20e9}, {PID: 77, Name: "Xorg", UsedBytes: 3e8}}
	}},
	{"warn_reboot_due", "", func(in *JudgeInput) { in.Facts.OS.RebootDue = true }},
	{"warn_package_lock", "", func(in *JudgeInput) { noDocker(in); in.Facts.OS.PackageLock = "unattended-upgr (process 812)" }},
	{"warn_derivative", "", func(in *JudgeInput) {
		onOS(in, "linuxmint", "22.2", "noble", "Linux Mint 22.2", FamilyAPT, "ubuntu", "debian")
	}},
	{"warn_derivative_fresh", "", func(in *JudgeInput) {
		noDocker(in)
		onOS(in, "linuxmint", "22.2", "noble", "Linux Mint 22.2", FamilyAPT, "ubuntu", "debian")
	}},
	{"warn_size_unknown", "", func(in *JudgeInput) {
		in.Release.RequiredDiskBytes = 0
		image := in.Release.Images["linux/amd64"]
		image.DownloadBytes = 0
		in.Release.Images["linux/amd64"] = image
	}},
	{"warn_size_download_only", "", func(in *JudgeInput) { in.Release.RequiredDiskBytes = 0 }},
}

type removalCase struct {
	name string
	why  string
	edit func(*RemovalInput)
}

func goodRemoval() RemovalInput {
	in := goodInput()
	return RemovalInput{
		Target: in.Target, Facts: in.Facts, Recipe: in.Recipe, Manifest: in.Manifest, Containers: []string{"berth-vllm-2", "berth-vllm-1"},
		ImageUsers: &[]string{}, CheckImageUsers: &[]string{}, CacheBytes: 2e9, ModelBytes: 14e9,
		Installations: []berth.Installation{{Host: "local", Engine: "vllm", Release: berth.ReleaseRef{ID: "vllm-0.31.0-r1", Engine: "vllm", Version: "0.31.0"},
			Image: in.Release.Images["linux/amd64"], CheckImage: &berth.Image{Repository: "nvcr.io/nvidia/cuda", Digest: checkSum}, Platform: "linux/amd64", Status: berth.InstallationReady}},
	}
}

func otherEngine() berth.Installation {
	return berth.Installation{Host: "local", Engine: "tensorrt-llm", Release: berth.ReleaseRef{ID: "tensorrt-llm-1.2.1-r1"}, Image: berth.Image{Digest: recipeSum},
		CheckImage: &berth.Image{Repository: "nvcr.io/nvidia/cuda", Digest: checkSum}, Status: berth.InstallationReady}
}

func recorded(entries ...UndoEntry) func(*RemovalInput) {
	return func(in *RemovalInput) {
		in.Target.Engine, in.Installations, in.Containers = "", nil, nil
		for i := range entries {
			entries[i].Change.At = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		}
		in.Undo = entries
	}
}

var removalCases = []removalCase{
	{"remove_engine", "what is ours, in the order in which it goes", func(*RemovalInput) {}},
	{"remove_keep_models", "", func(in *RemovalInput) { in.RetainModels = true }},
	{"remove_foreign_container", "an image that somebody else's container uses stays", func(in *RemovalInput) { in.ImageUsers = &[]string{"web", "lab"} }},
	{"remove_other_engine", "models and the check image are also another engine's", func(in *RemovalInput) { in.Installations = append(in.Installations, otherEngine()) }},
	{"remove_foreign_check_image", "a check image that was there before is not ours", func(in *RemovalInput) { in.Installations[0].CheckImage = nil }},
	{"remove_found_image", "an image that was there before berth stays", func(in *RemovalInput) { in.Installations[0].Found = true }},
	{"remove_environment_others", "what serves another user of the machine too stays, and so does what was done for them", recorded(
		UndoEntry{Change: berth.HostChange{Seq: 4, Step: "docker_group", Kind: "group", Name: "docker", Value: "ada", User: "ada"}, Component: compDockerGroup},
		UndoEntry{Change: berth.HostChange{Seq: 5, Step: "docker_group", Kind: "group", Name: "docker", Value: "bob", User: "bob"}, Component: compDockerGroup},
		UndoEntry{Change: berth.HostChange{Seq: 2, Step: "install_packages.docker", Kind: "package", Name: "docker-ce", After: "5:29.2.0-1", User: "ada"}, Component: compDockerEngine},
	)},
	{"remove_not_installed", "", func(in *RemovalInput) { in.Installations = nil }},
	{"remove_docker_hangs", "", func(in *RemovalInput) {
		in.Facts.Unknown = append(in.Facts.Unknown, berth.Unknown{Fact: string(FactDockerDaemon), Reason: "timed out"})
	}},
	{"remove_environment", "only what is still as we made it", recorded(
		UndoEntry{Change: berth.HostChange{Step: "docker_group", Kind: "group", Name: "docker"}, Component: compDockerGroup},
		UndoEntry{Change: berth.HostChange{Step: "enable_cdi", Kind: "json", Name: "features.cdi", Path: "/etc/docker/daemon.json"}, Component: compEnableCDI, Kept: "somebody changed it since"},
		UndoEntry{Change: berth.HostChange{Step: "install_packages.nvidia", Kind: "package", Name: "nvidia-container-toolkit-base", After: "1.18.1-1"}, Component: compToolkitBase},
		UndoEntry{Change: berth.HostChange{Step: "write_source.nvidia", Kind: "file", Path: "/etc/apt/sources.list.d/nvidia-container-toolkit.list", After: strings.Repeat("a", 64)}, Component: compToolkitBase},
	)},
	{"remove_environment_docker", "packages of a Docker under which containers run", func(in *RemovalInput) {
		recorded(UndoEntry{Change: berth.HostChange{Step: "install_packages.docker", Kind: "package", Name: "docker-ce", After: "5:29.2.0-1"}, Component: compDockerEngine})(in)
		in.Facts.Docker.Running = 2
	}},
	{"remove_environment_in_use", "", func(in *RemovalInput) {
		recorded(UndoEntry{Change: berth.HostChange{Step: "docker_group", Kind: "group", Name: "docker"}})(in)
		in.Installations = []berth.Installation{otherEngine()}
	}},
	{"remove_environment_nothing", "", recorded()},
}
