package environment

// byHand are the commands that do by hand what the host step would, on a host
// that berth does not install on. They are the distribution's own packages where
// it has them. Nil = berth does not know how.
func (j *judgement) byHand(n needs) []string {
	var out []string
	switch {
	case j.f.OS.Immutable && n.has(compDockerEngine, compToolkit, compToolkitBase):
		if out = j.layered(n); out == nil {
			return nil
		}
	case j.f.OS.Family == FamilyAPT:
		out = aptByHand(n)
	case j.f.OS.Family == FamilyDNF:
		out = j.dnfByHand(n)
	case j.f.OS.Family == FamilyPacman:
		out = pacmanByHand(n)
	case j.f.OS.Family == FamilyZypper:
		out = zypperByHand(n)
	default:
		if n.has(compDockerEngine, compToolkit, compToolkitBase) {
			return nil
		}
	}
	return append(out, j.configByHand(n)...)
}

const (
	nvidiaDeb = "https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list"
	nvidiaRPM = "https://nvidia.github.io/libnvidia-container/stable/rpm/nvidia-container-toolkit.repo"
	nvidiaKey = "https://nvidia.github.io/libnvidia-container/gpgkey"
	keyring   = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
)

// toolkitByHand is the toolkit's package. By hand it is always the whole one,
// as the runtime is what nvidia-ctk sets up in each version of Docker.
const toolkitByHand = "nvidia-container-toolkit"

func aptByHand(n needs) []string {
	var out []string
	if n.has(compDockerEngine) {
		out = append(out, "sudo apt-get update", "sudo apt-get install -y docker.io")
	}
	if n.has(compToolkit, compToolkitBase) {
		out = append(out,
			"curl -fsSL "+nvidiaKey+" | sudo gpg --dearmor --yes -o "+keyring,
			"curl -fsSL "+nvidiaDeb+" | sed 's#deb https://#deb [signed-by="+keyring+"] https://#' | sudo tee /etc/apt/sources.list.d/nvidia-container-toolkit.list",
			"sudo apt-get update", "sudo apt-get install -y "+toolkitByHand)
	}
	return out
}

func (j *judgement) dnfByHand(n needs) []string {
	var out []string
	if n.has(compDockerEngine) {
		if j.f.OS.ID == "fedora" {
			out = append(out, "sudo dnf install -y moby-engine")
		} else {
			out = append(out, "sudo dnf config-manager --add-repo https://download.docker.com/linux/centos/docker-ce.repo",
				"sudo dnf install -y docker-ce docker-ce-cli containerd.io")
		}
	}
	if n.has(compToolkit, compToolkitBase) {
		out = append(out, "curl -fsSL "+nvidiaRPM+" | sudo tee /etc/yum.repos.d/nvidia-container-toolkit.repo", "sudo dnf install -y "+toolkitByHand)
	}
	return out
}

func (j *judgement) layered(n needs) []string {
	if j.f.OS.Family != FamilyDNF {
		return nil
	}
	var out []string
	packages := ""
	if n.has(compToolkit, compToolkitBase) {
		out = append(out, "curl -fsSL "+nvidiaRPM+" | sudo tee /etc/yum.repos.d/nvidia-container-toolkit.repo")
		packages += " " + toolkitByHand
	}
	if n.has(compDockerEngine) {
		packages += " moby-engine"
	}
	return append(out, "sudo rpm-ostree install"+packages, "sudo systemctl reboot")
}

func pacmanByHand(n needs) []string {
	packages := ""
	if n.has(compDockerEngine) {
		packages += " docker"
	}
	if n.has(compToolkit, compToolkitBase) {
		packages += " " + toolkitByHand
	}
	if packages == "" {
		return nil
	}
	return []string{"sudo pacman -Syu --needed" + packages}
}

func zypperByHand(n needs) []string {
	var out []string
	if n.has(compDockerEngine) {
		out = append(out, "sudo zypper install -y docker")
	}
	if n.has(compToolkit, compToolkitBase) {
		out = append(out, "sudo zypper addrepo "+nvidiaRPM, "sudo zypper --gpg-auto-import-keys install -y "+toolkitByHand)
	}
	return out
}

// configByHand sets up the runtime rather than CDI in a Docker that has CDI off:
// nvidia-ctk cannot turn that on without dropping other features of the file.
func (j *judgement) configByHand(n needs) []string {
	var out []string
	if n.has(compRuntime, compEnableCDI) {
		out = append(out, "sudo nvidia-ctk runtime configure --runtime=docker")
	}
	if n.has(compCDI) && !n.has(compEnableCDI) {
		out = append(out, "sudo mkdir -p /var/run/cdi", "sudo nvidia-ctk cdi generate --output="+dynamicTo)
	}
	switch {
	case n.has(compDockerService):
		out = append(out, "sudo systemctl enable --now docker")
	case n.has(compDockerRestart):
		out = append(out, "sudo systemctl restart docker")
	case n.has(compRuntime):
		out = append(out, "sudo systemctl reload docker")
	}
	if n.has(compDockerGroup) {
		out = append(out, j.groupCommands()...)
	}
	return out
}

func (j *judgement) groupCommands() []string {
	user := j.f.User.Name
	if !loginName.MatchString(user) {
		user = `"$USER"`
	}
	var out []string
	if j.f.OS.Immutable { // usermod looks only into /etc/group
		out = append(out, "grep -q '^docker:' /etc/group || grep '^docker:' /usr/lib/group | sudo tee -a /etc/group")
	}
	return append(out, "sudo usermod -aG "+dockerGroup+" "+user)
}

// baseOf names the distribution that this one was made from; "" = it is none
// that berth knows.
func (j *judgement) baseOf() string {
	os := j.f.OS
	if os.ID == "" || j.in.Manifest == nil {
		return ""
	}
	if _, ok := j.in.Manifest.Find(os.ID, os.Version, os.Architecture); ok {
		return ""
	}
	base, ok := j.in.Manifest.Base(os.IDLike, os.Codename, os.Architecture)
	if !ok || base.ID == os.ID {
		return ""
	}
	return base.ID + " " + base.Version
}
