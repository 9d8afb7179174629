package environment

import (
	"strings"
	"testing"

	"berth"
)

func TestExplain(t *testing.T) {
	pool := "failed to start daemon: Error initializing network controller: all predefined address pools have been fully subnetted\n" +
		"docker.service: Start request repeated too quickly."
	set := goodFacts()
	set.Docker.DaemonJSON, set.Docker.DaemonJSONKeys = daemonOK, map[string]string{"default-address-pools": `[{"base":"10.1.0.0/16","size":24}]`}
	vpnFacts := goodInput()
	vpn(&vpnFacts, "")
	unreadable := goodFacts()
	unreadable.Docker.DaemonJSON = daemonUnreadable
	for _, c := range []struct {
		log   string
		facts berth.Facts
		want  string // in it
	}{
		{pool, set, "sets in default-address-pools are used up"},
		{pool, vpnFacts.Facts, "172.16.0.0/12, 192.168.0.0/16"},
		{pool, unreadable, "is not known"},
		{"Start request repeated too quickly", goodFacts(), "journalctl -u docker"},
		{"dpkg: error: trying to overwrite '/usr/bin/docker', which is also in package docker.io", goodFacts(), "berth removes none of yours"},
		{"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812", goodFacts(), "package manager"},
		{"curl: (6) Could not resolve host: download.docker.com", goodFacts(), "DNS"},
		{"E: The repository is not signed. NO_PUBKEY 7EA0A9C3F273FCD8", goodFacts(), "pinned key"},
		{"write /usr/bin/dockerd: no space left on device", goodFacts(), "disk is full"},
		{"Failed to initialize NVML: Driver/library version mismatch", goodFacts(), "Restart the machine"},
		{"Failed to initialize NVML: Insufficient Permissions", goodFacts(), "container_use_devices"},
		{"unable to configure the Docker daemon with file /etc/docker/daemon.json: the following directives are specified both as a flag and in the configuration file: hosts", goodFacts(), "put back"},
		{"failed to create NAT chain DOCKER: iptables failed", goodFacts(), "kernel"},
		{"E: Release file is not valid yet (invalid for another 2h)", goodFacts(), "clock"},
		{"something nobody has seen", goodFacts(), ""},
		{"", berth.Facts{}, ""},
	} {
		got := Explain(c.log, c.facts)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%.60q: %q", c.log, got)
		}
	}
	if got := Explain(strings.Repeat("no space left on device ", 1)+strings.Repeat("x", maxExplain), goodFacts()); got != "" {
		t.Errorf("it read more than the end of the log: %q", got)
	}
}
