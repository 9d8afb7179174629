package environment

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// JudgeInput is all that a judgement is made from.
type JudgeInput struct {
	Kind   berth.OperationKind // "" = setup; a removal is JudgeRemoval's
	Target berth.Target
	Facts  berth.Facts
	// Release is what would be set up; nil = the environment itself.
	Release *berth.Release
	// CPURelease is the id of the engine's newest release for the CPU; "" = none.
	CPURelease string
	// Platform ("linux/amd64"); "" = as the architecture says.
	Platform string
	// RequireCUDA is NVIDIA_REQUIRE_CUDA of the engine image, as the registry has
	// it; "" = it sets none, or was not read.
	RequireCUDA string
	// Manifest says where berth installs; nil = it cannot be had now.
	Manifest *Manifest
	// Recipe is that of the helper which would do the host step.
	Recipe berth.RecipeRef
	// ImagePresent says whether the engine image is there by digest; nil = Docker
	// could not be asked, which is neither.
	ImagePresent *bool
	// PullBegan: a pull of the image began before, so that a part of it already
	// takes space.
	PullBegan bool
	// Installations of the host.
	Installations []berth.Installation
	// RetainModels goes into the plan as it is.
	RetainModels bool
}

// The states of daemon.json in the facts.
const (
	daemonAbsent     = "absent"
	daemonOK         = "ok"
	daemonUnreadable = "unreadable"
	daemonInvalid    = "invalid"
)

// dockerGroup is the group that the Docker socket is given to.
const dockerGroup = "docker"

// judgement is one run of Judge.
type judgement struct {
	in   JudgeInput
	f    *berth.Facts
	plan berth.Plan
	card *berth.GPU // that would be used; nil = none is needed or none fits
	// platform of the release's images; "" = the architecture is not known.
	platform string
	gpu      bool // a GPU is needed
	size     diskNeed
}

// Judge decides what a setup or an update would do on a host with these facts,
// what stands against it, and what a person should know. It is pure, and its
// plan has its digest.
//
// The blockers that hold on any host are all collected. When there is none, the
// first of these that applies decides: what works is adopted; access to Docker
// is explained; a host on which berth does not install gets the commands; the
// rest is planned.
func Judge(in JudgeInput) berth.Plan {
	switch in.Kind {
	case "":
		in.Kind = berth.OperationSetup
	case berth.OperationRemove:
		return JudgeRemoval(RemovalInput{Target: in.Target, Facts: in.Facts, Installations: in.Installations, RetainModels: in.RetainModels, Recipe: in.Recipe, Manifest: in.Manifest})
	}
	j := &judgement{in: in, f: &in.Facts, plan: berth.Plan{
		V: 1, Kind: in.Kind, Target: in.Target,
		Blockers: []berth.PlanNote{}, Warnings: []berth.PlanNote{}, Changes: []berth.Change{},
		GPUs: slices.Clone(in.Facts.GPU.Cards), DockerRoot: in.Facts.Docker.Root,
		ImagePresent: in.ImagePresent, RetainModels: in.RetainModels, Facts: &in.Facts,
	}}
	if j.plan.GPUs == nil {
		j.plan.GPUs = []berth.GPU{}
	}
	j.universal()
	if j.clear() {
		j.decide()
	}
	return j.finish()
}

// UnsupportedPlan is the plan for a host that berth has no provisioner for. Its
// reason is its only notice.
func UnsupportedPlan(kind berth.OperationKind, target berth.Target, reason string) berth.Plan {
	p := berth.Plan{
		V: 1, Kind: kind, Target: target, Availability: berth.Unsupported,
		Blockers: []berth.PlanNote{}, Warnings: []berth.PlanNote{}, Changes: []berth.Change{}, GPUs: []berth.GPU{},
		Notices: []string{reason},
	}
	return sealed(p)
}

// universal collects what stands against it on any host.
func (j *judgement) universal() {
	f := j.f
	j.known(FactArchitecture, true)
	arch := f.OS.Architecture
	j.platform = platforms[arch]
	if arch != "" && j.platform == "" {
		j.block(berth.BlockArchitecture, fmt.Sprintf("This machine is %s. Engines come as images for x86_64 and aarch64 only; use a host of one of those.", arch),
			"architecture", arch)
	}
	if j.in.Platform != "" {
		j.platform = j.in.Platform
	}
	j.plan.Platform = j.platform
	if f.OS.WSL == 1 {
		j.block(berth.BlockWSL1, "This is WSL 1, which runs no containers. Change the distribution to WSL 2: run the command in Windows, then try again.").
			Commands = []string{"wsl --set-version DISTRIBUTION 2"}
	}
	j.release()
	j.wantGPU()
	if j.gpu {
		j.judgeGPU()
	}
	j.dockerFlavour()
	j.disk()
}

// release judges the release against the target, the platform and what is
// installed.
func (j *judgement) release() {
	r, t := j.in.Release, j.in.Target
	if r == nil {
		return
	}
	j.plan.Release = &berth.ReleaseRef{ID: r.ID, Engine: r.Engine, Version: r.Version}
	j.plan.Notices = slices.Clone(r.Notices)
	if t.Engine != r.Engine {
		j.block(berth.BlockEngineMismatch, fmt.Sprintf("Release %s is of %s, not of %s. Choose a release of %s.", r.ID, r.Engine, t.Engine, t.Engine),
			"engine", t.Engine, "release", r.ID, "release_engine", r.Engine).Commands = []string{"berth engine show " + t.Engine}
	}
	if image, ok := r.Images[j.platform]; ok {
		j.plan.Image = &image
	} else if j.platform != "" {
		j.block(berth.BlockRelease, fmt.Sprintf("Release %s has no image for %s. Choose another release: berth engine ls", r.ID, j.platform),
			"release", r.ID, "platform", j.platform)
	}
	if check, ok := r.CheckImages[j.platform]; ok {
		j.plan.CheckImage = &check
	}
	j.installed(*r)
}

func (j *judgement) installed(r berth.Release) {
	have := installationOf(j.in.Installations, j.in.Target)
	switch {
	case have == nil && j.in.Kind == berth.OperationUpdate:
		j.block(berth.BlockNotInstalled, fmt.Sprintf("%s is not installed here, so there is nothing to update. Set it up.", j.in.Target.Engine),
			"engine", j.in.Target.Engine).Commands = []string{"berth setup " + j.in.Target.Engine}
	case have == nil:
	case have.Status == berth.InstallationRemoving:
		j.block(berth.BlockInstalledOther, fmt.Sprintf("The removal of %s (%s) has not ended. Let it end first.", have.Engine, have.Release.ID),
			"engine", have.Engine, "installed", have.Release.ID, "release", r.ID).Commands = []string{"berth remove " + have.Engine}
	case have.Release.ID != r.ID && j.in.Kind == berth.OperationSetup:
		j.block(berth.BlockInstalledOther, fmt.Sprintf("%s is installed with release %s. Replace it, keeping the models.", have.Engine, have.Release.ID),
			"engine", have.Engine, "installed", have.Release.ID, "release", r.ID).Commands = []string{"berth update " + have.Engine + " --release " + r.ID}
	}
}

// installationOf finds the engine's record; nil = none.
func installationOf(all []berth.Installation, t berth.Target) *berth.Installation {
	for i := range all {
		if all[i].Engine == t.Engine && (all[i].Host == t.Host || all[i].Host == "" || t.Host == "") {
			return &all[i]
		}
	}
	return nil
}

// dockerFlavour refuses what berth can neither use nor complete.
func (j *judgement) dockerFlavour() {
	d := j.f.Docker
	j.known(FactDockerDaemon, true)
	switch {
	case d.PodmanShim || d.Install == "podman-docker":
		j.block(berth.BlockPodmanDocker, "The docker command here is Podman's stand-in, which has no Docker daemon behind it. Remove the package podman-docker, then try again; Podman itself may stay.",
			"install", "podman-docker").Commands = removePackage(j.f.OS.Family, "podman-docker")
	case d.Install == "snap":
		j.block(berth.BlockDockerSnap, "Docker comes from a snap, which reaches neither the GPU driver nor berth's directories, and another Docker cannot run beside it. Remove it (its containers and images go with it), or use another host.",
			"install", "snap").Commands = []string{"sudo snap remove docker"}
	case d.Rootless || d.Install == "rootless":
		j.block(berth.BlockDockerRootless, "Docker runs rootless here, where it gives containers neither this user's ids nor, with CDI, the GPU. Set up the system's Docker beside it: stop the rootless one, then try again.",
			"install", "rootless").Commands = []string{"systemctl --user disable --now docker.service"}
	case d.Install == "desktop" || d.Reachable && d.OperatingSystem == "Docker Desktop":
		j.block(berth.BlockDockerDesktop, "The only Docker here is Docker Desktop, whose virtual machine has no GPU and other paths. Install Docker Engine beside it (docs.docker.com/engine/install); both can stay.",
			"install", "desktop")
	}
}

func removePackage(family, name string) []string {
	switch family {
	case FamilyAPT:
		return []string{"sudo apt-get remove " + name}
	case FamilyDNF:
		return []string{"sudo dnf remove " + name}
	case FamilyZypper:
		return []string{"sudo zypper remove " + name}
	}
	return nil
}

// block adds a blocker; params come in pairs. The note can be added to until the
// next one is.
func (j *judgement) block(reason berth.BlockerReason, message string, params ...string) *berth.PlanNote {
	j.plan.Blockers = append(j.plan.Blockers, noteOf(string(reason), message, params))
	return &j.plan.Blockers[len(j.plan.Blockers)-1]
}

func (j *judgement) warn(reason berth.WarningReason, message string, params ...string) *berth.PlanNote {
	j.plan.Warnings = append(j.plan.Warnings, noteOf(string(reason), message, params))
	return &j.plan.Warnings[len(j.plan.Warnings)-1]
}

func noteOf(reason, message string, params []string) berth.PlanNote {
	n := berth.PlanNote{Reason: reason, Message: message}
	for i := 0; i+1 < len(params); i += 2 {
		if params[i+1] == "" { // not known, or none
			continue
		}
		if n.Params == nil {
			n.Params = map[string]string{}
		}
		n.Params[params[i]] = params[i+1]
	}
	return n
}

func (j *judgement) clear() bool { return len(j.plan.Blockers) == 0 }

// known reports whether a fact could be read. One that is needed and could not
// is a blocker that names it, once.
func (j *judgement) known(fact FactName, needed bool) bool {
	for _, u := range j.f.Unknown {
		if u.Fact != string(fact) {
			continue
		}
		if needed {
			j.blockUnknown(fact, u.Reason)
		}
		return false
	}
	return true
}

func (j *judgement) blockUnknown(fact FactName, reason string) {
	for _, b := range j.plan.Blockers {
		if b.Reason == string(berth.BlockUnknownFact) && b.Params["fact"] == string(fact) {
			return
		}
	}
	what, next := factInWords(fact)
	j.block(berth.BlockUnknownFact, fmt.Sprintf("berth could not find out %s (%s), and does not guess. %s", what, reason, next),
		"fact", string(fact), "reason", reason)
}

func factUnknown(f *berth.Facts, fact FactName) bool {
	return slices.ContainsFunc(f.Unknown, func(u berth.Unknown) bool { return u.Fact == string(fact) })
}

// factInWords says what a fact is, and what helps when it cannot be read.
func factInWords(fact FactName) (what, next string) {
	again := "Look at the reason, then try again."
	switch fact {
	case FactArchitecture:
		return "the architecture of this machine", again
	case FactDistribution:
		return "which distribution this is", "See that /etc/os-release can be read, then try again."
	case FactInit:
		return "whether systemd runs here", again
	case FactImmutable:
		return "whether packages can be installed here", again
	case FactPackages:
		return "which packages are installed", "See that the package manager works, then try again."
	case FactPCI:
		return "whether there is an NVIDIA card on the bus", again
	case FactDriverModule, FactDriverLibrary:
		return "the version of the NVIDIA driver", "See that nvidia-smi works, then try again."
	case FactNVIDIASMI:
		return "which cards there are: nvidia-smi gives no answer", "Run nvidia-smi by hand; when it hangs, restart the machine."
	case FactMIG:
		return "the MIG instances of the card", "See that nvidia-smi -L lists them, then try again."
	case FactCUDA:
		return "which CUDA the driver runs", "See that nvidia-smi works, then try again."
	case FactDockerDaemon:
		return "whether Docker works: it does not answer properly", "See that docker info answers, or restart Docker, then try again."
	case FactDockerService:
		return "whether Docker's service runs", "See what systemctl status docker says, then try again."
	case FactDaemonJSON:
		return "what /etc/docker/daemon.json says", "Make it readable for your user, then try again."
	case FactToolkit:
		return "which NVIDIA container toolkit is installed", "See that nvidia-ctk --version works, then try again."
	case FactCDISpecs:
		return "which CDI devices are described", "See that the files in /etc/cdi and /var/run/cdi can be read, then try again."
	case FactFreeDisk, FactFreeContainerd:
		return "how much disk is free where Docker keeps its images", again
	case FactUser, FactGroupConfigured:
		return "which groups you are in", again
	}
	return fmt.Sprintf("the fact %q", strings.ReplaceAll(string(fact), "_", " ")), again
}

// finish puts in what follows from the rest.
func (j *judgement) finish() berth.Plan {
	p := &j.plan
	if j.card != nil {
		p.GPU = j.card.UUID
	}
	p.RequiredBytes, p.DiskSufficient = j.size.need, j.size.sufficient
	p.DiskPath, p.FreeBytes = j.size.path, j.size.free
	if !j.clear() { // nothing would be done
		p.Changes, p.HostStep, p.Recipe, p.Manifest = []berth.Change{}, nil, nil, ""
		p.Elevation, p.Relogin, p.AdoptsExisting = false, false, false
	}
	for _, c := range p.Changes {
		p.DownloadBytes += c.Bytes
		p.Elevation = p.Elevation || c.Elevated
	}
	p.Availability = j.availability()
	j.warnings()
	return sealed(*p)
}

func (j *judgement) availability() berth.Availability {
	for _, b := range j.plan.Blockers {
		switch berth.BlockerReason(b.Reason) {
		case berth.BlockArchitecture, berth.BlockRelease, berth.BlockComputeCapability:
			return berth.Unsupported
		case berth.BlockNoGPU:
			if j.f.GPU.OnBus == 0 { // one that is there may only want another driver
				return berth.Unsupported
			}
		}
	}
	switch {
	case !j.clear():
		return berth.PrerequisiteBlocked
	case j.plan.HostStep != nil:
		return berth.SetupRequired
	}
	return berth.Supported
}

// sealed sets the digest. A plan that cannot be hashed cannot be approved
// either, so it must not look as if it had been.
func sealed(p berth.Plan) berth.Plan {
	digest, err := PlanDigest(p)
	if err != nil {
		p.Blockers = append(p.Blockers, noteOf(string(berth.BlockUnknownFact), "The plan cannot be hashed: "+err.Error(), []string{"fact", "plan_digest"}))
		digest = "sha256:" + strings.Repeat("0", 64)
	}
	p.Digest = digest
	return p
}
