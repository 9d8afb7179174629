package environment

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// warnings tells what a person should know before agreeing. None blocks, and
// none is in the digest. Where the plan is blocked only what stays true whatever
// is done about it is told.
func (j *judgement) warnings() {
	j.warnCPU()
	j.warnBusy()
	j.warnVersions()
	if j.f.OS.RebootDue {
		j.warn(berth.WarnRebootDue, "The system asks for a restart. When a driver or kernel was updated, restart first: the check of the GPU may fail until then.")
	}
	if base := j.baseOf(); base != "" {
		j.warn(berth.WarnDerivative, fmt.Sprintf("%s is made from %s. What is published for that mostly fits, and nobody tried it here.", orUnknown(j.f.OS.Name), base),
			"distribution", j.f.OS.ID, "base", base)
	}
	if !j.clear() {
		return
	}
	j.warnSize()
	j.warnLinger()
	j.warnPools()
	if h := j.plan.HostStep; h != nil {
		j.warnHostStep(*h)
	}
}

func (j *judgement) warnCPU() {
	r := j.in.Release
	switch {
	case r != nil && !r.NeedsGPU() && len(j.f.GPU.Cards) > 0:
		j.warn(berth.WarnCPUOnly, fmt.Sprintf("Release %s runs on the CPU and does not use %s.", r.ID, j.f.GPU.Cards[0].Name), "release", r.ID)
	case r != nil && !r.NeedsGPU():
		j.warn(berth.WarnCPUOnly, fmt.Sprintf("Release %s runs on the CPU.", r.ID), "release", r.ID)
	case r == nil && !j.gpu && j.clear():
		j.warn(berth.WarnCPUOnly, "There is no NVIDIA card here: only engines that run on the CPU will run.")
	}
}

// warnVersions names engines whose check was under other versions: what it
// proved may hold no more.
func (j *judgement) warnVersions() {
	for _, in := range j.in.Installations {
		if in.Status != berth.InstallationReady || j.in.Target.Engine != "" && in.Engine != j.in.Target.Engine {
			continue
		}
		if changed := changedVersions(in, *j.f); len(changed) > 0 {
			j.warn(berth.WarnVersions, fmt.Sprintf("Since %s was checked here, this has changed: %s. Setting it up again checks it again, and keeps the rest.", in.Engine, strings.Join(changed, ", ")),
				"engine", in.Engine, "release", in.Release.ID, "changed", strings.Join(changed, ", ")).
				Commands = []string{"berth setup " + in.Engine + " --release " + in.Release.ID}
		}
	}
}

func (j *judgement) warnBusy() {
	if j.card == nil || len(j.card.Processes) == 0 {
		return
	}
	const most = 5
	var list []string
	var used int64
	for i, p := range j.card.Processes {
		used += p.UsedBytes
		switch {
		case i < most:
			list = append(list, fmt.Sprintf("%s (process %d, %s)", orUnknown(p.Name), p.PID, bytesInWords(p.UsedBytes)))
		case i == most:
			list = append(list, fmt.Sprintf("%d more", len(j.card.Processes)-most))
		}
	}
	j.warn(berth.WarnGPUBusy, fmt.Sprintf("%s is in use by %s. berth ends none of them; a model gets what is left.", j.card.Name, strings.Join(list, ", ")),
		"gpu", j.card.UUID, "processes", fmt.Sprint(len(j.card.Processes)), "used_bytes", fmt.Sprint(used))
}

// warnSize speaks up where the disk could not be judged.
func (j *judgement) warnSize() {
	if j.in.Release == nil || j.size.sufficient != nil {
		return
	}
	var text string
	switch {
	case j.in.PullBegan:
		text = "A part of the image is already here, so whether the rest fits cannot be told beforehand."
	case j.size.need == 0 && j.in.ImagePresent == nil && j.recorded():
		text = "Docker does not answer, so whether the image is still here is not known."
	case j.size.sizeless && j.size.need == 0:
		text = "Nobody published how large this image is. See that there is room: engine images take 5 to 70 GB."
	case j.size.sizeless:
		text = fmt.Sprintf("Only the download of %s is published, not what it takes unpacked: count on twice as much.", bytesInWords(j.size.need))
	default:
		text = fmt.Sprintf("The image takes %s and less is free at %s, unless it is here already: Docker does not answer that yet.", bytesInWords(j.size.need), j.size.path)
	}
	j.warn(berth.WarnUnknownSize, text, "release", j.in.Release.ID)
}

func (j *judgement) warnLinger() {
	u := j.f.User
	if u.UID == 0 || u.Linger || !j.f.OS.Systemd || factUnknown(j.f, FactLinger) || factUnknown(j.f, FactUser) {
		return
	}
	user := u.Name
	if !loginName.MatchString(user) {
		user = `"$USER"`
	}
	j.warn(berth.WarnLinger, "When you log out, the system ends berth's daemon, and an engine that nobody tends ends after a while. To keep them, run the command.",
		"user", u.Name).Commands = []string{"sudo loginctl enable-linger " + user}
}

func (j *judgement) warnHostStep(h berth.HostStepParameters) {
	has := func(list ...string) bool {
		return slices.ContainsFunc(list, func(c string) bool { return slices.Contains(h.Components, c) })
	}
	if has(compDockerGroup) {
		j.warn(berth.WarnDockerGroup, fmt.Sprintf("Group docker gives %s the rights of root on this machine: who can use Docker can change any file.", h.User), "user", h.User)
	}
	if has(compDockerRestart) {
		j.warnRestart()
	}
	if lock := j.f.OS.PackageLock; lock != "" && has(compDockerEngine, compToolkit, compToolkitBase) {
		j.warn(berth.WarnPackageLock, fmt.Sprintf("%s holds the lock of the package manager. The step waits for it.", lock), "holder", lock)
	}
}

func (j *judgement) warnRestart() {
	d := j.f.Docker
	switch {
	case !d.Reachable:
		j.warn(berth.WarnLiveRestore, "Docker is restarted, and how many containers run is not known: those without live-restore stop.", "running_containers", "unknown")
	case d.Running > 0 && !d.LiveRestore:
		these := "the container that runs now stops; with a restart policy it starts again by itself."
		if d.Running > 1 {
			these = fmt.Sprintf("the %d containers that run now stop; those with a restart policy start again by themselves.", d.Running)
		}
		j.warn(berth.WarnLiveRestore, "Docker is restarted, and live-restore is off: "+these, "running_containers", fmt.Sprint(d.Running))
	}
}

// warnPools foresees that Docker finds no network of its own. A bip of one's own
// is no help: Docker still looks for the rest.
func (j *judgement) warnPools() {
	d := j.f.Docker
	onLink := dockerMissing(d)
	if v := dockerVersion(d); v != "" {
		onLink = compareVersions(v, onLinkDocker) >= 0
	}
	v, ok := viewPools(j.f, onLink)
	if !ok || v.Free > 0 {
		return
	}
	whose := "Docker's own address ranges"
	if v.Configured {
		whose = "The address ranges that daemon.json gives Docker"
	}
	var taken []string
	if len(v.Routes) > 0 {
		taken = append(taken, "routes of this machine ("+strings.Join(firstFew(v.Routes, 4), ", ")+")")
	}
	if v.Networks > 0 {
		taken = append(taken, count(v.Networks, "Docker network"))
	}
	then := "Docker may not start. Leave the VPN for the time of the setup, or set default-address-pools in /etc/docker/daemon.json to a range that is free."
	if d.Reachable {
		then = "Docker goes on with the networks it has, and can make no other. Remove networks that are not used, or set default-address-pools in /etc/docker/daemon.json."
	}
	note := j.warn(berth.WarnAddressPools, fmt.Sprintf("%s are all taken by %s. %s", whose, strings.Join(taken, " and "), then),
		"routes", strings.Join(v.Routes, " "), "networks", fmt.Sprint(v.Networks), "configured_pools", fmt.Sprint(v.Configured))
	if d.Reachable && v.Networks > 0 {
		note.Commands = []string{"docker network prune"}
	}
}

func firstFew(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}
