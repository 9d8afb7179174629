package environment

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// wantGPU decides whether a GPU is needed: by the release, or, for the
// environment itself, by whether there is one.
func (j *judgement) wantGPU() {
	if j.in.Release != nil {
		j.gpu = j.in.Release.NeedsGPU()
		return
	}
	g := j.f.GPU
	if len(g.Cards) == 0 && g.OnBus == 0 && !j.known(FactPCI, true) {
		return
	}
	j.gpu = len(g.Cards) > 0 || g.OnBus > 0 || j.f.OS.WSL == 2 && g.SMI != ""
}

// judgeGPU looks at card and driver, and chooses the card.
func (j *judgement) judgeGPU() {
	g := j.f.GPU
	if mismatched(g, j.f.OS.WSL) {
		j.block(berth.BlockDriverMismatch, "The NVIDIA driver that runs and its library are of different versions, as after an update of packages. Restart the machine, then try again.",
			"module", g.Module, "library", g.Library).Commands = []string{"sudo systemctl reboot"}
		return
	}
	if jetson(g.JetsonRelease) && j.in.Release != nil {
		j.block(berth.BlockRelease, fmt.Sprintf("This is a Jetson with %s, which needs images made for Jetson; release %s has none. Use another host, or JetPack 7.", g.JetsonRelease, j.in.Release.ID),
			"release", j.in.Release.ID, "jetson", g.JetsonRelease)
		return
	}
	if len(g.Cards) == 0 {
		j.noCard()
		return
	}
	capability := ""
	if j.in.Release != nil {
		capability = j.in.Release.MinComputeCapability
	}
	card, verdict := ChooseGPU(g.Cards, capability, j.f.Memory)
	switch verdict {
	case Unmet:
		best := bestCapability(g.Cards)
		j.block(berth.BlockComputeCapability, fmt.Sprintf("Release %s needs a card of compute capability %s or higher; the best here is %s with %s. Choose a release for older cards (berth engine ls), or another host.",
			j.in.Release.ID, capability, best.Name, best.ComputeCapability),
			"required", capability, "found", best.ComputeCapability, "gpu", best.UUID)
		return
	case Unsettled:
		j.block(berth.BlockUnknownFact, "berth could not find out the compute capability of any card that could do, and does not guess. Update the NVIDIA driver: old ones do not tell it.",
			"fact", "compute_capability", "reason", "the driver does not tell it")
		return
	}
	j.card = &card
	if j.in.Release != nil {
		j.driver(card)
	}
}

// mismatched reports a kernel module of another version than the library, which
// only a restart of the machine mends. The library's name may carry fewer
// numbers than it has; that is no mismatch. In WSL there is no module to compare
// with.
func mismatched(g berth.GPUFacts, wsl int) bool {
	if strings.Contains(strings.ToLower(g.SMIError), "version mismatch") {
		return true
	}
	// Where the driver lists cards, the library that is in use fits; the file that
	// was found is of another installation.
	return wsl == 0 && len(g.Cards) == 0 && g.Module != "" && g.Library != "" && compareVersions(g.Module, g.Library) != 0 && !strings.HasPrefix(g.Module, g.Library+".")
}

// jetson reports a Jetson Linux whose GPU needs images of its own: up to R36.
// R38 (JetPack 7) runs what other Arm machines run.
func jetson(release string) bool {
	number := strings.TrimPrefix(strings.ToUpper(release), "R")
	return release != "" && isVersion(number) && compareVersions(number, "38") < 0
}

// noCard says why the driver shows none.
func (j *judgement) noCard() {
	g := j.f.GPU
	if !j.known(FactNVIDIASMI, true) || g.MIG && !j.known(FactMIG, true) {
		return
	}
	if j.f.OS.WSL == 2 {
		j.block(berth.BlockDriverMissing, "WSL shows no NVIDIA card. Install NVIDIA's driver in Windows (never one inside WSL), restart WSL, then try again."+saidBy(g.SMIError),
			"smi_error", g.SMIError).Commands = []string{"wsl --shutdown"}
		return
	}
	if g.OnBus == 0 && g.Module == "" {
		if !j.known(FactPCI, true) {
			return
		}
		j.noGPU()
		return
	}
	if g.SMI != "" && g.Module != "" && (g.SMIError == "" || strings.Contains(strings.ToLower(g.SMIError), "no devices")) {
		j.block(berth.BlockNoGPU, "The NVIDIA driver runs, and shows no card: it does not know this one, or the card does not answer. Look at the kernel's log, and use a driver that knows the card."+saidBy(g.SMIError),
			"module", g.Module, "smi_error", g.SMIError).Commands = []string{"sudo dmesg | grep -i nvrm"}
		return
	}
	if !j.known(FactDriverModule, true) {
		return
	}
	j.driverMissing()
}

// noGPU names the way out that there is: a release for the CPU, if the engine has
// one.
func (j *judgement) noGPU() {
	r := j.in.Release
	switch {
	case r == nil:
		j.block(berth.BlockNoGPU, "There is no NVIDIA card in this machine. Use a host with a card.")
	case j.in.CPURelease != "":
		j.block(berth.BlockNoGPU, fmt.Sprintf("There is no NVIDIA card in this machine. Take the release of %s that runs on the CPU, or a host with a card.", r.Engine)).
			Commands = []string{"berth setup " + r.Engine + " --release " + j.in.CPURelease}
	default:
		j.block(berth.BlockNoGPU, fmt.Sprintf("There is no NVIDIA card in this machine, and %s runs on nothing else. Use a host with a card, or an engine whose device is cpu.", r.Engine)).
			Commands = []string{"berth engine ls"}
	}
}

func (j *judgement) driverMissing() {
	g := j.f.GPU
	want := "NVIDIA's driver"
	if r := j.in.Release; r != nil && r.MinDriver != "" {
		want += " " + r.MinDriver + " or newer"
	}
	text := "There is an NVIDIA card, and no working driver for it."
	if g.Nouveau {
		text = "There is an NVIDIA card, and the driver that runs it is nouveau, which cannot compute."
	}
	text += " Install " + want + ", restart the machine, then try again."
	if j.f.OS.SecureBoot {
		text += " Secure Boot is on: take the distribution's signed driver, as one that is built here asks for a key at the machine's own console."
	}
	note := j.block(berth.BlockDriverMissing, text+saidBy(g.SMIError), "module", g.Module, "smi_error", g.SMIError)
	if j.f.OS.ID == "ubuntu" {
		note.Commands = []string{"sudo ubuntu-drivers install", "sudo systemctl reboot"}
	}
}

func saidBy(smiError string) string {
	if smiError == "" {
		return ""
	}
	return " nvidia-smi says: " + strings.TrimRight(smiError, ". ") + "."
}

// driver judges the driver's version for a card.
func (j *judgement) driver(card berth.GPU) {
	r, version := j.in.Release, driverOf(j.f.GPU, card)
	if r.MinDriver != "" {
		switch {
		case version == "":
			j.blockUnknown(FactDriverModule, "neither the card nor the module tells it")
			return
		case compareVersions(version, r.MinDriver) < 0:
			j.tooOld(fmt.Sprintf("The NVIDIA driver is %s; release %s needs %s or newer.", version, r.ID, r.MinDriver), "driver", version, "required", r.MinDriver)
			return
		}
	}
	if j.in.RequireCUDA == "" {
		return
	}
	verdict, err := RequireCUDA(j.in.RequireCUDA, j.f.GPU, card)
	switch {
	case err != nil:
		j.block(berth.BlockUnknownFact, fmt.Sprintf("berth cannot read what the image of release %s asks of the driver (%v), and does not pull it on a guess. Choose another release: berth engine ls", r.ID, err),
			"fact", "image_requirement", "reason", err.Error())
	case verdict == Unmet:
		j.tooOld(fmt.Sprintf("The image of release %s asks for more than this driver (%s, CUDA %s) gives: %s.", r.ID, orUnknown(version), orUnknown(j.f.GPU.CUDA), firstAlternative(j.in.RequireCUDA)),
			"driver", version, "cuda", j.f.GPU.CUDA, "required", firstAlternative(j.in.RequireCUDA))
	case verdict == Unsettled && j.f.GPU.CUDA == "":
		j.blockUnknown(FactCUDA, j.unknownReason(FactCUDA))
	case verdict == Unsettled:
		j.block(berth.BlockUnknownFact, fmt.Sprintf("Whether driver %s does for the image of release %s depends on the brand of %s, which berth cannot tell. One that gives %s does in any case.", orUnknown(version), r.ID, card.Name, firstAlternative(j.in.RequireCUDA)),
			"fact", "gpu_brand", "reason", "the driver does not tell it", "required", firstAlternative(j.in.RequireCUDA))
	}
}

func (j *judgement) tooOld(text string, params ...string) {
	next := " Install a newer driver, restart the machine, then try again."
	if j.f.OS.WSL == 2 {
		next = " Install a newer driver in Windows, restart WSL, then try again."
	}
	note := j.block(berth.BlockDriverTooOld, text+next, params...)
	if j.f.OS.ID == "ubuntu" && j.f.OS.WSL == 0 {
		note.Commands = []string{"sudo ubuntu-drivers install", "sudo systemctl reboot"}
	}
}

func (j *judgement) unknownReason(fact FactName) string {
	for _, u := range j.f.Unknown {
		if u.Fact == string(fact) {
			return u.Reason
		}
	}
	return "it was not read"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// firstAlternative is the general one: the rest names drivers of single brands.
func firstAlternative(expr string) string {
	if f := strings.Fields(expr); len(f) > 0 {
		return f[0]
	}
	return ""
}

// ChooseGPU takes the card of at least that compute capability ("" = any) that
// has the most memory in total. A card with unified memory counts by what the
// host has available. Equal ones are told apart by UUID, so that the order in
// which a driver lists them decides nothing. Unmet = none is enough; Unsettled =
// none is known to be, and of one it is not known.
func ChooseGPU(cards []berth.GPU, minCapability string, memory berth.MemoryFacts) (berth.GPU, Verdict) {
	verdict := Unmet
	var fit []berth.GPU
	for _, c := range cards {
		switch {
		case minCapability == "" || c.ComputeCapability != "" && compareVersions(c.ComputeCapability, minCapability) >= 0:
			fit = append(fit, c)
		case c.ComputeCapability == "":
			verdict = Unsettled
		}
	}
	if len(fit) == 0 {
		return berth.GPU{}, verdict
	}
	size := func(c berth.GPU) int64 {
		if c.UnifiedMemory {
			return memory.AvailableBytes
		}
		return c.MemoryBytes
	}
	return slices.MinFunc(fit, func(a, b berth.GPU) int {
		if x, y := size(a), size(b); x != y {
			if x > y {
				return -1
			}
			return 1
		}
		return strings.Compare(a.UUID, b.UUID)
	}), Met
}

func bestCapability(cards []berth.GPU) berth.GPU {
	return slices.MaxFunc(cards, func(a, b berth.GPU) int { return compareVersions(a.ComputeCapability, b.ComputeCapability) })
}
