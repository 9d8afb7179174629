package environment

import (
	"context"
	"path"
	"regexp"
	"strings"
	"sync/atomic"

	"berth"
	"berth/guestapi"
)

const maxPCI = 2048 // devices that are looked at

// readGPU reads the NVIDIA side: bus, module, library, and what the driver says.
func (p *probe) readGPU(ctx context.Context) {
	g := &p.facts.GPU
	var fromLink, fromDriver string
	all(
		func() { p.readBus(ctx) },
		func() { p.readModule(ctx) },
		func() { fromLink = p.readLibrary(ctx) },
		func() { fromDriver = p.readCards(ctx) },
		func() {
			if text, err := p.line(ctx, "/etc/nv_tegra_release"); err == nil {
				g.JetsonRelease = parseJetson(text)
			}
		},
	)
	g.Library = first(fromLink, fromDriver)
}

// readBus counts the display devices by NVIDIA. One file a device has all that
// is needed.
func (p *probe) readBus(ctx context.Context) {
	devices, err := p.list(ctx, "/sys/bus/pci/devices")
	if err == nil && len(devices) > maxPCI {
		err = invalidf("there are %d PCI devices", len(devices))
	}
	if err != nil {
		p.miss(FactPCI, err)
		return
	}
	var count atomic.Int64
	each(len(devices), func(i int) {
		data, _, err := p.file(ctx, "/sys/bus/pci/devices/"+devices[i]+"/uevent", maxSmall)
		switch {
		case absent(err): // taken out meanwhile
		case err != nil:
			p.miss(FactPCI, err)
		case isDisplayByNVIDIA(string(data)):
			count.Add(1)
		}
	})
	p.facts.GPU.OnBus = int(count.Load())
}

// isDisplayByNVIDIA reads the uevent file of a PCI device: vendor 10DE, class
// 0x0300 (VGA) or 0x0302 (3D, as data centre cards are). The kernel writes the
// class without its leading zero.
func isDisplayByNVIDIA(uevent string) bool {
	vendor, class := false, false
	for line := range strings.Lines(uevent) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "PCI_ID":
			vendor = strings.HasPrefix(strings.ToUpper(value), "10DE:")
		case "PCI_CLASS":
			value = strings.TrimLeft(value, "0")
			class = len(value) == 5 && (strings.HasPrefix(value, "300") || strings.HasPrefix(value, "302"))
		}
	}
	return vendor && class
}

// readModule finds the version of the kernel module that runs.
func (p *probe) readModule(ctx context.Context) {
	g := &p.facts.GPU
	v, err := p.line(ctx, "/sys/module/nvidia/version")
	if absent(err) || err == nil && !version.MatchString(v) {
		v, err = p.line(ctx, "/proc/driver/nvidia/version")
		v = parseModule(v)
	}
	if err != nil && !absent(err) {
		p.miss(FactDriverModule, err)
	}
	g.Module = v
	ok, err := p.there(ctx, "/sys/module/nouveau")
	if err != nil {
		p.miss(FactDriverModule, err)
	}
	g.Nouveau = ok
}

// libraryDirs are where distributions keep the driver's libraries.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
	"/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/run/opengl-driver/lib", "/usr/lib/wsl/lib",
}

var libraryName = regexp.MustCompile(`^libnvidia-ml\.so\.(\d+(?:\.\d+){1,3})$`)

// readLibrary finds the version of the driver's library on disk: the name of
// the file that the library's links lead to carries it. Nothing is loaded.
func (p *probe) readLibrary(ctx context.Context) string {
	for _, dir := range libraryDirs {
		v, err := p.libraryIn(ctx, dir)
		if err != nil && !absent(err) {
			p.miss(FactDriverLibrary, err)
		}
		if v != "" {
			return v
		}
	}
	return ""
}

const maxLinks = 8

func (p *probe) libraryIn(ctx context.Context, dir string) (string, error) {
	name := path.Join(dir, "libnvidia-ml.so.1")
	for range maxLinks {
		info, err := p.stat(ctx, name, false)
		if err != nil {
			return "", err
		}
		if m := libraryName.FindStringSubmatch(path.Base(name)); m != nil {
			return m[1], nil
		}
		if info.Type != guestapi.FileSymlink || info.Target == "" {
			return "", nil // WSL: a plain file
		}
		if path.IsAbs(info.Target) {
			name = path.Clean(info.Target)
		} else {
			name = path.Join(path.Dir(name), info.Target)
		}
	}
	return "", nil
}

// readCards asks nvidia-smi. Its first answer decides whether it is asked more:
// a driver that hangs gets one process stuck, not four. It gives the version
// that the library says it has.
func (p *probe) readCards(ctx context.Context) string {
	g := &p.facts.GPU
	smi, err := p.find(ctx, "nvidia-smi")
	if err != nil {
		p.miss(FactNVIDIASMI, err)
		return ""
	}
	if g.SMI = smi; smi == "" {
		return ""
	}
	cards, library, ok := p.queryCards(ctx, smi)
	if !ok {
		return library
	}
	var instances []migInstance
	var processes map[string][]berth.GPUProcess
	for _, c := range cards {
		g.MIG = g.MIG || c.mig
	}
	all(
		func() {
			if g.MIG {
				instances = p.queryInstances(ctx, smi)
			}
		},
		func() { processes = p.queryProcesses(ctx, smi) },
		func() {
			if r, ok := p.ask(ctx, FactCUDA, smi); ok {
				g.CUDA = parseCUDA(string(r.Stdout))
			}
		},
	)
	for _, c := range usableCards(cards, instances) {
		if !c.memoryKnown {
			p.missReason(FactGPUMemory, ReasonFailed+": the driver shows no memory size of "+c.UUID)
		}
		if !c.freeKnown {
			p.missReason(FactGPUFree, ReasonFailed+": the driver shows no free memory of "+c.UUID)
		}
		c.Processes = processes[c.UUID]
		g.Cards = append(g.Cards, c.GPU)
	}
	return library
}

// queryCards gives the cards and the library's version; false = it cannot be
// gone on with.
func (p *probe) queryCards(ctx context.Context, smi string) ([]card, string, bool) {
	g := &p.facts.GPU
	fields := smiFields
	r, err := p.query(ctx, smi, "--query-gpu="+strings.Join(fields, ","))
	if err == nil && r.Code != 0 && strings.Contains(string(r.Stdout)+string(r.Stderr), "compute_cap") {
		fields = smiOldFields
		r, err = p.query(ctx, smi, "--query-gpu="+strings.Join(fields, ","))
	}
	if err != nil {
		p.miss(FactNVIDIASMI, err)
		return nil, "", false
	}
	if r.Code != 0 {
		g.SMIError = said(r)
		library := ""
		if m := libraryVersion.FindStringSubmatch(g.SMIError); m != nil {
			library = m[1]
		}
		return nil, library, false
	}
	cards, err := parseSMI(string(r.Stdout), fields)
	if err != nil {
		p.miss(FactNVIDIASMI, err)
		return nil, "", false
	}
	if len(cards) == 0 {
		g.SMIError = first(clip(string(r.Stdout)+" "+string(r.Stderr)), "no devices were found")
		return nil, "", false
	}
	return cards, cards[0].Driver, true
}

func (p *probe) query(ctx context.Context, smi, what string) (guestapi.ExecResult, error) {
	return p.exec(ctx, p.cfg.Timeouts.SMI, smi, what, "--format=csv,noheader,nounits")
}

// ask runs nvidia-smi for one more fact.
func (p *probe) ask(ctx context.Context, fact FactName, argv ...string) (guestapi.ExecResult, bool) {
	r, err := p.exec(ctx, p.cfg.Timeouts.SMI, argv...)
	if err != nil {
		p.miss(fact, err)
		return r, false
	}
	if r.Code != 0 {
		p.missReason(fact, ReasonFailed+": "+said(r))
		return r, false
	}
	return r, true
}

func (p *probe) queryInstances(ctx context.Context, smi string) []migInstance {
	r, ok := p.ask(ctx, FactMIG, smi, "-L")
	if !ok {
		return nil
	}
	instances, err := parseSMIList(string(r.Stdout))
	if err != nil {
		p.miss(FactMIG, err)
	}
	return instances
}

func (p *probe) queryProcesses(ctx context.Context, smi string) map[string][]berth.GPUProcess {
	r, ok := p.ask(ctx, FactGPUProcesses, smi, "--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv,noheader,nounits")
	if !ok {
		return nil
	}
	processes, err := parseSMIProcesses(string(r.Stdout))
	if err != nil {
		p.miss(FactGPUProcesses, err)
	}
	return processes
}
