package environment

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"berth"
)

// loginName is a user as the host step takes it.
var loginName = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)

// decide works out what is to be done, on a host against which nothing stands.
func (j *judgement) decide() {
	d := j.f.Docker
	n := j.needed()
	if !j.clear() {
		return
	}
	if d.Reachable && n.none() {
		j.plan.AdoptsExisting = true
		j.changes(n)
		return
	}
	if !d.Reachable && !j.access(&n) {
		return
	}
	if !j.gate(n) || !j.possible(n) {
		return
	}
	j.plan.AdoptsExisting = false
	j.plan.Manifest = j.in.Manifest.ID
	j.plan.Recipe = &berth.RecipeRef{ID: j.in.Recipe.ID, Digest: j.in.Recipe.Digest}
	os := j.f.OS
	j.plan.HostStep = &berth.HostStepParameters{
		User: j.f.User.Name, Arch: os.Architecture, Family: os.Family, Distro: os.ID, Version: os.Version, Components: n.list(), Stops: j.stops(n),
	}
	j.plan.Relogin = n.has(compDockerGroup)
	j.changes(n)
}

// access explains why Docker does not answer this user, and adds the group where
// that helps. False = a blocker was added.
func (j *judgement) access(n *needs) bool {
	u := j.f.User
	if !j.known(FactUser, true) {
		return false
	}
	if u.UID == 0 {
		return j.unexplained(*n, "you are root")
	}
	if !u.GroupEffective && !j.known(FactGroupConfigured, true) {
		return false
	}
	d := j.f.Docker
	if d.SocketGroup != "" && d.SocketGroup != dockerGroup && d.Service == "active" {
		j.noAccess("Docker does not answer: its socket belongs to group " + d.SocketGroup + ", not to docker. Somebody chose that; ask for access to that group, or give the socket to group docker.")
		return false
	}
	switch {
	case u.GroupEffective:
		return j.unexplained(*n, "you are in group docker")
	case u.GroupConfigured:
		j.relogin(*n)
		return false
	}
	only := n.none()
	n.add(compDockerGroup)
	if !only || !j.known(FactDistribution, true) || !j.known(FactImmutable, true) {
		return j.clear()
	}
	switch reason := j.gateReason(*n); reason {
	case berth.BlockManualInstall, berth.BlockManifest, berth.BlockDistribution:
		j.groupByHand(reason)
		return false
	}
	return true
}

// unexplained stands against it when nothing is missing and Docker yet does not
// answer; where something is missing, that is the explanation.
func (j *judgement) unexplained(n needs, although string) bool {
	if !n.none() {
		return true
	}
	text := "Docker is set up and does not answer, although " + although + "."
	if e := j.f.Docker.Error; e != "" {
		text += " It says: " + strings.TrimRight(e, ". ") + "."
	}
	j.noAccess(text)
	return false
}

func (j *judgement) noAccess(text string) {
	d := j.f.Docker
	j.block(berth.BlockDockerAccess, text+" See what the commands show, then try again.", "error", d.Error, "socket", d.Socket, "socket_group", d.SocketGroup).
		Commands = []string{"docker info", "sudo systemctl status docker"}
}

// relogin says that only a new login is missing, and names what else is.
func (j *judgement) relogin(n needs) {
	text := "You were added to group docker, and this login does not know it yet. Log out and in again"
	var commands []string
	if host := j.in.Target.Host; host == "" || host == berth.LocalHost {
		// Programs that outlive a login keep its groups.
		text += ", then run the command if berth ran on meanwhile"
		commands = []string{"berth up"}
	}
	j.block(berth.BlockRelogin, text+"; berth goes on by itself when it has become effective. Where it still has not, as with desktops that keep the old login, restart the machine.",
		"user", j.f.User.Name, "group", dockerGroup).Commands = commands
	after := " berth plans that once you have logged in again."
	if n.has(compDockerEngine) {
		j.block(berth.BlockDockerCLI, "Docker is not installed."+after)
	}
	if n.has(compToolkit, compToolkitBase) {
		j.block(berth.BlockToolkit, "The NVIDIA container toolkit is not installed."+after)
	}
	if n.has(compRuntime, compEnableCDI, compCDI) {
		if s := j.f.Docker.DaemonJSON; n.has(compRuntime, compEnableCDI) && (s == daemonUnreadable || s == daemonInvalid) {
			j.daemonJSON()
		} else {
			j.block(berth.BlockGPURuntime, "Docker cannot give containers the GPU yet."+after)
		}
	}
	if n.has(compDockerService) && !n.has(compDockerEngine) {
		j.block(berth.BlockDockerService, "Docker's service does not run (it is "+orUnknown(j.f.Docker.Service)+")."+after, "service", j.f.Docker.Service)
	}
	if !n.none() {
		j.gate(n)
	}
}

func (j *judgement) groupByHand(reason berth.BlockerReason) {
	why, _ := j.whyNotHere(reason)
	note := j.block(berth.BlockGroupManual, "Docker is ready, and your user may not use it. "+why+" Run the commands, log out and in again, then try again. Group docker gives the rights of root.",
		"user", j.f.User.Name, "group", dockerGroup)
	note.Commands = j.groupCommands()
}

// gate stands before every change by the host step: on a host that it was not
// made for, the commands are listed instead. False = a blocker was added.
func (j *judgement) gate(n needs) bool {
	for _, fact := range []FactName{FactDistribution, FactImmutable} {
		if !j.known(fact, true) {
			return false
		}
	}
	reason := j.gateReason(n)
	if reason == "" {
		return true
	}
	os := j.f.OS
	why, next := j.whyNotHere(reason)
	note := j.block(reason, why+" "+next, "distribution", os.ID, "version", os.Version, "architecture", os.Architecture, "missing", strings.Join(packagesOf(n), " "))
	switch reason {
	case berth.BlockDockerUnrecognised, berth.BlockManifest:
	default:
		note.Commands = j.byHand(n)
	}
	return false
}

// gateReason is the first reason why the host step does nothing here; "" = it
// does.
func (j *judgement) gateReason(n needs) berth.BlockerReason {
	os, d := j.f.OS, j.f.Docker
	switch {
	case os.Immutable && n.has(compDockerEngine, compToolkit, compToolkitBase):
		return berth.BlockImmutableOS
	case os.Immutable, os.Family != FamilyAPT && os.Family != FamilyDNF:
		return berth.BlockManualInstall
	case !d.Reachable && !dockerMissing(d) && d.Install == "":
		return berth.BlockDockerUnrecognised
	case j.in.Manifest == nil:
		return berth.BlockManifest
	}
	if _, ok := j.in.Manifest.Find(os.ID, os.Version, os.Architecture); !ok {
		return berth.BlockDistribution
	}
	return ""
}

func (j *judgement) whyNotHere(reason berth.BlockerReason) (why, next string) {
	os := j.f.OS
	name := orUnknown(os.Name)
	run := "Run the commands, then try again; berth then uses what is there."
	switch reason {
	case berth.BlockImmutableOS:
		return name + " has a read-only system, into which berth installs nothing.", run
	case berth.BlockManualInstall:
		return "berth changes nothing on " + name + " itself.", run
	case berth.BlockDockerUnrecognised:
		what := "There is a Docker here"
		if j.f.Docker.CLI != "" {
			what = "There is " + j.f.Docker.CLI
		}
		return what + ", which no package that berth knows brought, and no Docker answers.", "Start that Docker, or remove what is left of it, then try again."
	case berth.BlockManifest:
		return "The list of distributions that berth installs on cannot be had now.", "See that this host reaches the network, then try again."
	}
	return fmt.Sprintf("berth was not tried on %s %s (%s), so it installs nothing there.", orUnknown(os.ID), os.Version, os.Architecture), run
}

// possible judges what the host step itself would meet. False = a blocker was
// added.
func (j *judgement) possible(n needs) bool {
	d, os := j.f.Docker, j.f.OS
	if n.has(compRuntime, compEnableCDI) && !n.has(compDockerEngine) {
		switch d.DaemonJSON {
		case daemonUnreadable, daemonInvalid:
			j.daemonJSON()
		case "":
			j.known(FactDaemonJSON, true)
		}
	}
	if n.has(compDockerEngine, compDockerService, compDockerRestart, compRuntime) && j.known(FactInit, true) && !os.Systemd {
		j.block(berth.BlockNoSystemd, "systemd does not run here, so berth can neither start Docker nor restart it. Start Docker by the means of this machine so that docker info answers, then try again; in WSL, turn systemd on.")
	}
	if n.has(compDockerEngine) && len(d.Conflicts) > 0 {
		list := slices.Sorted(slices.Values(d.Conflicts))
		note := j.block(berth.BlockPackageConflict, "Docker's packages cannot be installed beside "+strings.Join(list, ", ")+". berth removes no package of yours: remove them, or complete them to a Docker that runs, then try again.",
			"packages", strings.Join(list, " "))
		if shellSafe(strings.Join(list, "")) {
			note.Commands = removePackage(os.Family, strings.Join(list, " "))
		}
	}
	if why := j.refusedByRecipe(n); why != "" {
		j.block(berth.BlockRecipeRefused, "The helper for privileged steps would refuse this: "+why+".", "recipe", j.in.Recipe.ID, "manifest", j.in.Manifest.ID)
	}
	return j.clear()
}

// refusedByRecipe foresees what the helper checks; "" = nothing.
func (j *judgement) refusedByRecipe(n needs) string {
	u := j.f.User
	switch {
	case j.in.Recipe.ID == "" || j.in.Recipe.Digest == "":
		return "it is not there. Install berth-hoststep beside the daemon"
	case j.in.Recipe.ID != j.in.Manifest.Recipe:
		return fmt.Sprintf("its recipe is %s and the manifest is for %s. Use the berth-hoststep of the same build as the daemon", j.in.Recipe.ID, j.in.Manifest.Recipe)
	case !loginName.MatchString(u.Name):
		return fmt.Sprintf("%.40q is no login name that it takes. Run berth as another user", u.Name)
	case n.has(compDockerGroup) && u.UID == 0:
		return "root needs no group"
	}
	return ""
}

func (j *judgement) daemonJSON() {
	state := j.f.Docker.DaemonJSON
	text, command := "/etc/docker/daemon.json cannot be read by your user, and berth does not write over what it cannot read. Make it readable, then try again.", "sudo chmod a+r /etc/docker/daemon.json"
	if state == daemonInvalid {
		text, command = "/etc/docker/daemon.json is not JSON, and berth does not write over what it does not understand. Mend it, then try again.", "sudo dockerd --validate --config-file=/etc/docker/daemon.json"
	}
	j.block(berth.BlockDaemonJSON, text, "state", state).Commands = []string{command}
}
