package environment

import (
	"fmt"
	"strconv"
	"strings"

	"berth"
)

// packagesOf are the packages that the host step installs for the components.
func packagesOf(n needs) []string {
	var out []string
	if n.has(compDockerEngine) {
		out = append(out, "docker-ce", "docker-ce-cli", "containerd.io")
	}
	if n.has(compToolkit) {
		out = append(out, "nvidia-container-toolkit")
	}
	if n.has(compToolkitBase) {
		out = append(out, "nvidia-container-toolkit-base")
	}
	return out
}

// changes lists what would be done, in the order in which it is. What a person
// agrees to is in code, text and params; why is only told.
func (j *judgement) changes(n needs) {
	j.packageChanges(n)
	j.configChanges(n)
	j.accessChanges(n)
	if j.in.Release != nil {
		j.engineChanges()
	}
}

func (j *judgement) change(code berth.ChangeCode, elevated bool, text, why string, params ...string) *berth.Change {
	note := noteOf("", "", params)
	j.plan.Changes = append(j.plan.Changes, berth.Change{Code: code, Text: text, Why: why, Params: note.Params, Elevated: elevated})
	return &j.plan.Changes[len(j.plan.Changes)-1]
}

func (j *judgement) packageChanges(n needs) {
	os := j.f.OS
	repository := func(vendor, of, why string) {
		j.change(berth.ChangeAddRepository, true, "Add the package repository of "+of+", with its signing key", why,
			"vendor", vendor, "family", os.Family, "distribution", os.ID, "version", os.Version, "architecture", os.Architecture)
	}
	if n.has(compDockerEngine) {
		repository("docker", "Docker", "Docker comes from its makers; the key is checked by its fingerprint")
	}
	if n.has(compToolkit, compToolkitBase) {
		repository("nvidia", "NVIDIA's container toolkit", "the toolkit comes from NVIDIA; the key is checked by its fingerprint")
	}
	if list := packagesOf(n); len(list) > 0 {
		why := "nothing that is installed is upgraded or removed"
		if n.has(compToolkitBase) && !n.has(compDockerEngine) {
			why = "CDI needs only this part of the toolkit; Docker is left as it is"
		}
		j.change(berth.ChangeInstallPackages, true, "Install "+strings.Join(list, ", "), why, "packages", strings.Join(list, " "))
	}
}

func (j *judgement) configChanges(n needs) {
	if n.has(compRuntime) {
		j.change(berth.ChangeConfigureRuntime, true, "Add the nvidia runtime to /etc/docker/daemon.json: "+runtimeEdit+j.insteadOf("runtimes", "nvidia"),
			"this Docker gives containers the GPU by it, and reads it without a restart; other keys stay, and the old file is kept", "file", "/etc/docker/daemon.json", "set", runtimeEdit)
	}
	if n.has(compEnableCDI) {
		j.change(berth.ChangeEnableCDI, true, "Turn features.cdi on in /etc/docker/daemon.json: "+cdiEdit+j.insteadOf("features", "cdi"),
			"this Docker has CDI off by default; other keys stay, and the old file is kept", "file", "/etc/docker/daemon.json", "set", cdiEdit)
	}
	if n.has(compCDI) {
		why := "Docker gives a container the one card by this; the toolkit renews it at each boot"
		if have := j.f.Toolkit.Version; have != "" && compareVersions(have, cdiRenewed) < 0 {
			why = "Docker gives a container the one card by this; a restart of the machine takes it away, as toolkit " + have + " does not renew it: set up again then, or update the toolkit to " + cdiRenewed
		}
		j.change(berth.ChangeGenerateCDI, true, "Describe the GPUs in "+dynamicTo, why, "file", dynamicTo)
	}
}

// What the helper sets in daemon.json: all that is different in the file then.
const (
	runtimeEdit = `"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}`
	cdiEdit     = `"features": {"cdi": true}`
)

// insteadOf tells the value that an edit takes the place of; "" = there is none.
func (j *judgement) insteadOf(parent, key string) string {
	old := jsonMember(j.f.Docker.DaemonJSONKeys[parent], key)
	if old == nil {
		return ""
	}
	return ", instead of " + clip(string(old))
}

func (j *judgement) accessChanges(n needs) {
	if n.has(compDockerService) {
		j.change(berth.ChangeEnableService, true, "Start Docker, now and at each boot", "engines run in its containers", "service", "docker.service")
	}
	if n.has(compDockerGroup) {
		j.change(berth.ChangeAddToGroup, true, "Add "+j.f.User.Name+" to group "+dockerGroup,
			"berth talks to Docker as you, never as root", "user", j.f.User.Name, "group", dockerGroup)
	}
	if n.has(compDockerRestart) {
		running := "unknown"
		text := "Restart Docker"
		if d := j.f.Docker; d.Reachable {
			running = strconv.Itoa(d.Running)
			if d.Running > 0 && !d.LiveRestore {
				text += ", which stops " + count(d.Running, "running container")
			}
		}
		j.change(berth.ChangeRestartDocker, true, text, "it reads its configuration only when it starts", "running_containers", running)
	}
}

func (j *judgement) engineChanges() {
	p, r := &j.plan, j.in.Release
	if p.Image == nil {
		return
	}
	// An update of a machine that nothing is done to was checked when it was set up.
	checks := p.Kind != berth.OperationUpdate || p.HostStep != nil
	if checks && j.gpu && p.CheckImage != nil && j.card != nil {
		j.change(berth.ChangePullImage, false, "Pull the check image "+p.CheckImage.Repository, "it is small, and has nvidia-smi in it",
			"image", p.CheckImage.Reference()).Bytes = p.CheckImage.DownloadBytes
		j.change(berth.ChangeRunCheck, false, "Run it once on "+j.card.Name, "a container must get the GPU before the large image is pulled",
			"image", p.CheckImage.Reference(), "gpu", j.card.UUID)
	}
	if p.ImagePresent == nil || !*p.ImagePresent {
		j.change(berth.ChangePullImage, false, "Pull "+r.Engine+" "+r.Version+" from "+p.Image.Repository, "by its digest, so that it is what the release names",
			"image", p.Image.Reference()).Bytes = p.Image.DownloadBytes
	}
	if have := installationOf(j.in.Installations, j.in.Target); p.Kind == berth.OperationUpdate && have != nil && have.Release.ID != r.ID {
		j.change(berth.ChangeStopContainers, false, "Stop what "+r.Engine+" has loaded, and go over from "+have.Release.ID, "two releases never run side by side",
			"engine", r.Engine, "from", have.Release.ID, "to", r.ID)
		if have.Image.Digest != p.Image.Digest && !have.Found {
			j.change(berth.ChangeRemoveImage, false, "Remove the image of "+have.Engine+" "+have.Release.Version, "the new release takes its place; it stays while a container uses it, and is never forced",
				"image", have.Image.Reference())
		}
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
