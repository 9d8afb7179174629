package environment

import "strings"

// maxExplain bounds how much of a log is read: its end.
const maxExplain = 64 << 10

// failureSign is a way in which a host step is known to fail.
type failureSign struct {
	any  []string // of the log, in lower case; one is enough
	text string
}

// failureSigns, the most telling first: a later one often follows from an
// earlier one.
var failureSigns = []failureSign{
	{[]string{"no space left on device"}, "The disk is full. Free some space, then try again."},
	{[]string{"dpkg was interrupted", "dpkg --configure -a"}, "An earlier installation was cut short. Run: sudo dpkg --configure -a. Then try again."},
	{[]string{"could not get lock", "unable to acquire the dpkg frontend lock", "waiting for process with pid"}, "Another program holds the package manager, often the automatic updates. Wait for it to end, then try again."},
	{[]string{"conflicting values set for option signed-by"}, "Two source lists name the same repository with different keys. Remove the older NVIDIA list from /etc/apt/sources.list.d, then try again."},
	{[]string{"no_pubkey", "the following signatures couldn't be verified", "is not signed", "gpg check failed", "invalid signature"}, "The signature of a package repository does not fit the pinned key. Nothing of it was installed; see whether a proxy changes downloads, then try again."},
	{[]string{"not valid yet", "certificate is not yet valid", "certificate has expired"}, "The clock of this machine seems wrong, so certificates and repositories are refused. Set it, then try again."},
	{[]string{"temporary failure resolving", "could not resolve", "name or service not known", "no such host"}, "A package repository could not be found by name. See that this machine reaches the internet (DNS, proxy), then try again."},
	{[]string{"connection timed out", "failed to connect to", "network is unreachable", "connection refused by", "unable to connect to"}, "A package repository did not answer. See that this machine reaches the internet (proxy, firewall), then try again."},
	{[]string{"held broken packages", "unmet dependencies", "pkgproblemresolver"}, "The package manager finds no set of packages that fits together. Mend what apt or dnf itself reports, then try again."},
	{[]string{"trying to overwrite", "conflicts with", "which obsoletes", "conflicting packages"}, "A package that is installed stands against Docker's own. berth removes none of yours: remove the one that the log names, then try again."},
	{[]string{"unable to configure the docker daemon with file", "unknown configuration key", "conflict with configuration from json file", "the following directives are specified both as a flag and in the configuration file"}, "Docker refuses its configuration: what /etc/docker/daemon.json says is unknown to it, or is also set in its service file. The old file was put back; take the key out of one of the two, then try again."},
	{[]string{"driver/library version mismatch"}, "The NVIDIA driver that runs and its library are of different versions. Restart the machine, then try again."},
	{[]string{"nvml: insufficient permissions", "initialize nvml: insufficient permissions"}, "SELinux keeps the card from containers. Let it through with: sudo setsebool -P container_use_devices 1. Then try again."},
	{[]string{"failed to initialize nvml", "could not load nvml", "nvml: driver not loaded"}, "The NVIDIA driver does not answer. See that nvidia-smi works, then try again."},
	{[]string{"failed to create nat chain", "iptables failed", "can't initialize iptables table", "could not fetch rule set generation id"}, "Docker cannot set its firewall rules. A kernel that was updated and not started yet is the usual reason: restart the machine, then try again."},
	{[]string{"devices cgroup isn't mounted", "cgroups: cgroup mountpoint does not exist", "cgroup mountpoint does not exist"}, "Docker finds no cgroups, as inside another container. Use a host that may run Docker."},
	{[]string{"error initializing graphdriver", "driver not supported: overlay"}, "Docker cannot use the file system at its data directory for images. Use another file system there, or another data-root."},
	{[]string{"permission denied while trying to connect to the docker"}, "Docker runs, and this user may not use it yet. Log out and in again, then try again."},
	{[]string{"start request repeated too quickly", "start-limit-hit", "start limit hit"}, "Docker failed several times in a row, and systemd starts it no more for a while. The reason is in: journalctl -u docker. Mend it, then try again; berth resets the limit first."},
}

// poolSigns are how dockerd says that no address range is left.
var poolSigns = []string{
	"all predefined address pools have been fully subnetted",
	"could not find an available, non-overlapping ipv4 address pool",
	"no available network",
}

// explain says in words why a host step or the check failed, from the end of its
// log and from what is known of Docker's address pools; "" = it is not known. It
// never says more than the log does.
func explain(logTail string, pools poolState) string {
	if len(logTail) > maxExplain {
		logTail = logTail[len(logTail)-maxExplain:]
	}
	log := strings.ToLower(strings.ReplaceAll(logTail, "’", "'"))
	for _, sign := range poolSigns {
		if strings.Contains(log, sign) {
			return "Docker found no free address range for its network. " + poolTexts[pools]
		}
	}
	for _, f := range failureSigns {
		for _, sign := range f.any {
			if strings.Contains(log, sign) {
				return f.text
			}
		}
	}
	return ""
}

var poolTexts = map[poolState]string{
	poolsSet:     "Those that /etc/docker/daemon.json sets in default-address-pools are used up or overlap with routes of this machine (ip route). Give it a range that is free, then try again.",
	poolsUnset:   "Routes of this machine (ip route), as of a VPN, cover all of its own. Leave the VPN for the time of the setup, or set bip and default-address-pools in /etc/docker/daemon.json to ranges that are free; then try again.",
	poolsUnknown: "Whether /etc/docker/daemon.json sets ranges is not known, as it cannot be read. See whether its default-address-pools, or the routes of a VPN (ip route), cover all of them; then try again.",
}
