package environment

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"berth"
)

const (
	maxCards     = 256 // of one machine, MIG instances among them
	maxProcesses = 4096
	mib          = 1 << 20
	gb           = 1_000_000_000
)

// smiFields and smiOldFields are what nvidia-smi is asked of a card; drivers
// before 510 do not know compute_cap.
var (
	smiFields    = []string{"uuid", "name", "compute_cap", "memory.total", "memory.free", "driver_version", "mig.mode.current"}
	smiOldFields = []string{"uuid", "name", "memory.total", "memory.free", "driver_version", "mig.mode.current"}
)

// card is a line of the answer.
type card struct {
	berth.GPU
	mig         bool // on: only its instances can be used
	memoryKnown bool // a size, or that it has none of its own
	freeKnown   bool
}

var (
	gpuUUID    = regexp.MustCompile(`^GPU-[0-9A-Za-z-]{1,64}$`)
	migUUID    = regexp.MustCompile(`^MIG-[0-9A-Za-z/-]{1,96}$`)
	capability = regexp.MustCompile(`^\d{1,2}\.\d{1,2}$`)
	version    = regexp.MustCompile(`^\d{1,5}(\.\d{1,5}){1,3}$`)
)

// parseSMI reads `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` for
// the given fields. Memory is in MiB. A name may have commas, so a line is cut
// from both ends. Lines that name no card (a head, a warning) are passed over.
func parseSMI(out string, fields []string) ([]card, error) {
	if !utf8.ValidString(out) {
		return nil, invalidf("nvidia-smi answers in no UTF-8")
	}
	var cards []card
	for line := range strings.Lines(out) {
		cells := strings.Split(strings.TrimSpace(line), ",")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !gpuUUID.MatchString(cells[0]) {
			continue
		}
		if len(cells) < len(fields) {
			return nil, invalidf("nvidia-smi: %q has %d cells of %d", clip(line), len(cells), len(fields))
		}
		if len(cards) == maxCards {
			return nil, invalidf("nvidia-smi names more than %d cards", maxCards)
		}
		extra := len(cells) - len(fields) // all of them in the name, the second cell
		values := map[string]string{fields[0]: cells[0], fields[1]: strings.Join(cells[1:2+extra], ", ")}
		for i := 2; i < len(fields); i++ {
			values[fields[i]] = cells[i+extra]
		}
		cards = append(cards, makeCard(values))
	}
	return cards, nil
}

func makeCard(v map[string]string) card {
	c := card{GPU: berth.GPU{UUID: v["uuid"], Name: clip(v["name"])}}
	if notAvailable(c.Name) {
		c.Name = ""
	}
	if capability.MatchString(v["compute_cap"]) {
		c.ComputeCapability = v["compute_cap"]
	}
	if version.MatchString(v["driver_version"]) {
		c.Driver = v["driver_version"]
	}
	c.MemoryBytes, c.memoryKnown = mebibytes(v["memory.total"])
	c.FreeBytes, c.freeKnown = mebibytes(v["memory.free"])
	if !c.memoryKnown && notAvailable(v["memory.total"]) {
		// The driver says that there is no such number: the card uses the
		// host's memory. That is not a card with no memory.
		c.UnifiedMemory, c.memoryKnown, c.freeKnown = true, true, true
		c.MemoryBytes, c.FreeBytes = 0, 0
	}
	c.mig = strings.EqualFold(v["mig.mode.current"], "enabled")
	return c
}

// notAvailable knows the two ways in which nvidia-smi says that a card has no
// such thing. "[Unknown Error]" and the like are something else.
func notAvailable(cell string) bool {
	switch strings.ToLower(strings.Trim(cell, "[]")) {
	case "n/a", "not supported":
		return true
	}
	return false
}

// mebibytes reads a number of MiB, with its unit or without.
func mebibytes(cell string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSuffix(cell, " MiB"), 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0, false
	}
	return n * mib, true
}

// migInstance is an instance that `nvidia-smi -L` lists below its card.
type migInstance struct {
	parent  string // UUID of the card
	uuid    string
	profile string // "1g.10gb"
	bytes   int64  // by the profile's name; 0 = it has none
}

var (
	listCard     = regexp.MustCompile(`^GPU \d+: .*\(UUID: (GPU-[^)]+)\)$`)
	listInstance = regexp.MustCompile(`^MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)$`)
	profileSize  = regexp.MustCompile(`\.(\d{1,4})gb(\+.*)?$`)
)

// parseSMIList reads the MIG instances of `nvidia-smi -L`. Their size is that in
// the name of the profile, in decimal gigabytes: NVML shows the whole card's
// memory for an instance, and the name is a little below what the instance has.
func parseSMIList(out string) ([]migInstance, error) {
	if !utf8.ValidString(out) {
		return nil, invalidf("nvidia-smi answers in no UTF-8")
	}
	var found []migInstance
	parent := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := listCard.FindStringSubmatch(line); m != nil && gpuUUID.MatchString(m[1]) {
			parent = m[1]
			continue
		}
		m := listInstance.FindStringSubmatch(line)
		if m == nil || !migUUID.MatchString(m[2]) {
			continue
		}
		if parent == "" {
			return nil, invalidf("nvidia-smi -L lists an instance before any card: %q", clip(line))
		}
		if len(found) == maxCards {
			return nil, invalidf("nvidia-smi -L lists more than %d instances", maxCards)
		}
		i := migInstance{parent: parent, uuid: m[2], profile: clip(m[1])}
		if s := profileSize.FindStringSubmatch(m[1]); s != nil {
			n, err := strconv.ParseInt(s[1], 10, 64)
			if err == nil {
				i.bytes = n * gb
			}
		}
		found = append(found, i)
	}
	return found, nil
}

// usableCards replaces cards on which MIG is on by their instances.
func usableCards(cards []card, instances []migInstance) []card {
	out := make([]card, 0, len(cards)+len(instances))
	for _, c := range cards {
		if !c.mig {
			out = append(out, c)
			continue
		}
		for _, i := range instances {
			if i.parent != c.UUID {
				continue
			}
			part := card{GPU: c.GPU, memoryKnown: i.bytes > 0}
			part.UUID, part.Name = i.uuid, c.Name+" MIG "+i.profile
			part.MemoryBytes, part.FreeBytes, part.UnifiedMemory = i.bytes, 0, false
			out = append(out, part)
		}
	}
	return out
}

// parseSMIProcesses reads `nvidia-smi
// --query-compute-apps=pid,gpu_uuid,used_memory,process_name
// --format=csv,noheader,nounits` by card. A process whose memory the driver
// does not show has 0.
func parseSMIProcesses(out string) (map[string][]berth.GPUProcess, error) {
	if !utf8.ValidString(out) {
		return nil, invalidf("nvidia-smi answers in no UTF-8")
	}
	found := map[string][]berth.GPUProcess{}
	n := 0
	for line := range strings.Lines(out) {
		cells := strings.SplitN(strings.TrimSpace(line), ",", 4)
		if len(cells) < 4 {
			continue
		}
		pid, err := strconv.ParseInt(strings.TrimSpace(cells[0]), 10, 32)
		uuid := strings.TrimSpace(cells[1])
		if err != nil || pid <= 0 || !gpuUUID.MatchString(uuid) {
			continue
		}
		if n++; n > maxProcesses {
			return nil, invalidf("nvidia-smi lists more than %d processes", maxProcesses)
		}
		used, _ := mebibytes(strings.TrimSpace(cells[2]))
		found[uuid] = append(found[uuid], berth.GPUProcess{PID: int(pid), Name: clip(cells[3]), UsedBytes: used})
	}
	return found, nil
}

// cudaHead is the newest CUDA that the driver runs, in the head of nvidia-smi's
// table; drivers of 2026 tell it from that of the toolkit.
var cudaHead = regexp.MustCompile(`CUDA (?:UMD )?Version\s*:\s*(\d{1,3}\.\d{1,3})\b`)

func parseCUDA(out string) string {
	if m := cudaHead.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return ""
}

var (
	moduleVersion  = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+){1,3})\b`)
	libraryVersion = regexp.MustCompile(`NVML library version:\s*(\d+(?:\.\d+){1,3})\b`)
)

// parseModule reads the version out of /proc/driver/nvidia/version, which words
// it differently for the open and the closed module.
func parseModule(text string) string {
	if m := moduleVersion.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// jetsonLine is the first of /etc/nv_tegra_release: "# R36 (release), REVISION: 4.3, …".
var jetsonLine = regexp.MustCompile(`# R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)`)

func parseJetson(text string) string {
	if m := jetsonLine.FindStringSubmatch(text); m != nil {
		return "R" + m[1] + "." + m[2]
	}
	return ""
}
