package hoststep

import "slices"

// Component is one thing that can be asked for.
type Component string

// The components.
const (
	DockerEngine      Component = "docker_engine"       // Docker's packages, from Docker
	NVIDIAToolkit     Component = "nvidia_toolkit"      // the whole NVIDIA container toolkit
	NVIDIAToolkitBase Component = "nvidia_toolkit_base" // what CDI needs of it
	NVIDIARuntime     Component = "nvidia_runtime"      // runtimes.nvidia in daemon.json
	EnableCDI         Component = "enable_cdi"          // features.cdi in daemon.json
	NVIDIACDI         Component = "nvidia_cdi"          // the CDI specification of the cards
	DockerRestart     Component = "docker_restart"      // consent to restart Docker, which may stop containers
	DockerService     Component = "docker_service"      // docker.service on, now and at boot
	DockerGroup       Component = "docker_group"        // the user into group docker, which is as good as root
)

// Components are all of them, in the order in which a request lists them.
var Components = []Component{DockerEngine, NVIDIAToolkit, NVIDIAToolkitBase, NVIDIARuntime, EnableCDI, NVIDIACDI, DockerRestart, DockerService, DockerGroup}

// Valid reports whether the component is one of the above.
func (c Component) Valid() bool {
	return slices.Contains(Components, c)
}

const (
	familyAPT = "apt"
	familyDNF = "dnf"
)

var architectures = []string{"x86_64", "aarch64"}

// RecipeID names this build's recipe. It changes with every change of its data.
const RecipeID = "linux-r2"

// RecipeDigest is "sha256:…" over the RFC 8785 form of the recipe: every
// address, key, package, path and argv that the helper can use.
func RecipeDigest() string { return digestOf(frozen()) }

// ThisRecipe is what a request must name for this build to accept it.
func ThisRecipe() Recipe { return Recipe{ID: RecipeID, Digest: RecipeDigest()} }

// Qualified reports whether the recipe knows the distribution (ID and
// VERSION_ID of /etc/os-release, architecture as uname -m says it), and the
// family that it belongs to.
func Qualified(distro, version, arch string) (family string, ok bool) {
	d, ok := frozen().distribution(distro, version, arch)
	return d.Family, ok
}

// JSONEdit is what a component sets in daemon.json, as a member of the file's
// object; "" = nothing.
func JSONEdit(c Component) string {
	for _, e := range frozen().DaemonJSON {
		if e.Component == c {
			return `"` + e.Parent + `": {"` + e.Key + `": ` + e.Value + `}`
		}
	}
	return ""
}

// recipe is data only. Each distribution carries its own two vendors, written
// out by the functions below: nothing is derived at run time.
type recipe struct {
	ID            string         `json:"id"`
	Distributions []distribution `json:"distributions"`
	Conflicts     conflicts      `json:"conflicts"`
	DaemonJSON    []jsonEdit     `json:"daemon_json"`
	Commands      []command      `json:"commands"`
	Steps         []string       `json:"steps"`
}

type distribution struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Family  string `json:"family"`
	Arch    string `json:"arch"`
	Docker  vendor `json:"docker"`
	NVIDIA  vendor `json:"nvidia"`
}

// vendor is one source of packages.
type vendor struct {
	Name         string   `json:"name"`
	KeyURL       string   `json:"key_url"`
	KeyPath      string   `json:"key_path"`
	KeyArmored   bool     `json:"key_armored"`  // as it lies on disk
	Fingerprints []string `json:"fingerprints"` // of all primary keys that the file may hold
	SourcePath   string   `json:"source_path"`
	SourceText   string   `json:"source_text"`
	SourceMark   string   `json:"source_mark"` // another source that holds this already serves
	Repository   string   `json:"repository"`  // dnf's id; "" = apt
	Packages     []string `json:"packages"`
	Base         []string `json:"base"` // packages of the smaller component; empty = none
}

// conflicts are packages that the vendor's own would push out.
type conflicts struct {
	APT []string `json:"apt"`
	DNF []string `json:"dnf"`
}

// jsonEdit is one key that a component sets in daemon.json.
type jsonEdit struct {
	Component Component `json:"component"`
	Parent    string    `json:"parent"`
	Key       string    `json:"key"`
	Value     string    `json:"value"` // JSON
}

func (r recipe) distribution(id, version, arch string) (distribution, bool) {
	for _, d := range r.Distributions {
		if d.ID == id && d.Version == version && d.Arch == arch {
			return d, true
		}
	}
	return distribution{}, false
}

// frozen is the recipe of this build. Suites are written down here: the code
// name that a machine claims is never trusted.
func frozen() recipe {
	r := recipe{
		ID: RecipeID,
		Conflicts: conflicts{
			APT: []string{"docker.io", "podman-docker", "containerd", "runc", "moby-engine"},
			DNF: []string{"moby-engine", "docker", "podman-docker"},
		},
		DaemonJSON: []jsonEdit{
			{NVIDIARuntime, "runtimes", "nvidia", `{"args":[],"path":"nvidia-container-runtime"}`},
			{EnableCDI, "features", "cdi", `true`},
		},
		Commands: commands(),
	}
	for _, row := range table() {
		r.Steps = append(r.Steps, row.id)
	}
	for _, d := range []struct{ id, version, suite string }{
		{"ubuntu", "22.04", "jammy"}, {"ubuntu", "24.04", "noble"}, {"ubuntu", "26.04", "resolute"},
		{"debian", "12", "bookworm"}, {"debian", "13", "trixie"},
	} {
		for _, arch := range architectures {
			r.Distributions = append(r.Distributions, distribution{d.id, d.version, familyAPT, arch,
				dockerAPT(d.id, d.suite, debianArch[arch]), nvidiaAPT(debianArch[arch])})
		}
	}
	for _, version := range []string{"43", "44"} {
		for _, arch := range architectures {
			r.Distributions = append(r.Distributions, distribution{"fedora", version, familyDNF, arch,
				dockerDNF(version, arch), nvidiaDNF(arch)})
		}
	}
	return r
}

var debianArch = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// Fingerprints of the vendors' signing keys.
const (
	dockerDebKey = "9DC858229FC7DD38854AE2D88D81803C0EBFCD88"
	dockerRPMKey = "060A61C51B558A7F742B77AAC52FEB6B621E9F35"
	nvidiaKey    = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
)

var (
	dockerPackages = []string{"docker-ce", "docker-ce-cli", "containerd.io"} // also what running containers need
	nvidiaPackages = []string{"nvidia-container-toolkit"}
	nvidiaBase     = []string{"nvidia-container-toolkit-base"}
)

// serves reports whether the package comes from the source of the vendor.
func serves(vendor, name string) bool {
	if vendor == dockerVendor {
		return slices.Contains(dockerPackages, name)
	}
	return slices.Contains(nvidiaPackages, name) || slices.Contains(nvidiaBase, name)
}

const nvidiaURL = "https://nvidia.github.io/libnvidia-container"

func dockerAPT(id, suite, arch string) vendor {
	url, key := "https://download.docker.com/linux/"+id, "/etc/apt/keyrings/docker.asc"
	return vendor{
		Name: "docker", KeyURL: url + "/gpg", KeyPath: key, KeyArmored: true, Fingerprints: []string{dockerDebKey},
		SourcePath: "/etc/apt/sources.list.d/docker.list",
		SourceText: "# written by berth-hoststep\ndeb [arch=" + arch + " signed-by=" + key + "] " + url + " " + suite + " stable\n",
		SourceMark: "download.docker.com/linux/" + id, Packages: dockerPackages, Base: []string{},
	}
}

func nvidiaAPT(arch string) vendor {
	key := "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
	return vendor{
		Name: "nvidia", KeyURL: nvidiaURL + "/gpgkey", KeyPath: key, KeyArmored: false, Fingerprints: []string{nvidiaKey},
		SourcePath: "/etc/apt/sources.list.d/nvidia-container-toolkit.list",
		SourceText: "# written by berth-hoststep\ndeb [signed-by=" + key + "] " + nvidiaURL + "/stable/deb/" + arch + " /\n",
		SourceMark: "nvidia.github.io/libnvidia-container/stable/deb", Packages: nvidiaPackages, Base: nvidiaBase,
	}
}

func dockerDNF(version, arch string) vendor {
	url, key := "https://download.docker.com/linux/fedora", "/etc/pki/rpm-gpg/RPM-GPG-KEY-docker-ce"
	return vendor{
		Name: "docker", KeyURL: url + "/gpg", KeyPath: key, KeyArmored: true, Fingerprints: []string{dockerRPMKey},
		SourcePath: "/etc/yum.repos.d/docker-ce.repo",
		SourceText: "# written by berth-hoststep\n[docker-ce-stable]\nname=Docker CE Stable\nbaseurl=" + url + "/" + version + "/" + arch +
			"/stable\nenabled=1\ngpgcheck=1\ngpgkey=file://" + key + "\n",
		SourceMark: "[docker-ce-stable]", Repository: "docker-ce-stable", Packages: dockerPackages, Base: []string{},
	}
}

// nvidiaDNF checks the signature of the metadata: NVIDIA signs that, and not
// each package, which the metadata names by hash.
func nvidiaDNF(arch string) vendor {
	key := "/etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-container-toolkit"
	return vendor{
		Name: "nvidia", KeyURL: nvidiaURL + "/gpgkey", KeyPath: key, KeyArmored: true, Fingerprints: []string{nvidiaKey},
		SourcePath: "/etc/yum.repos.d/nvidia-container-toolkit.repo",
		SourceText: "# written by berth-hoststep\n[nvidia-container-toolkit]\nname=NVIDIA container toolkit\nbaseurl=" + nvidiaURL +
			"/stable/rpm/" + arch + "\nenabled=1\nrepo_gpgcheck=1\ngpgcheck=0\ngpgkey=file://" + key + "\n",
		SourceMark: "[nvidia-container-toolkit]", Repository: "nvidia-container-toolkit", Packages: nvidiaPackages, Base: nvidiaBase,
	}
}
