package environment

import (
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	pool := "failed to start daemon: Error initializing network controller: all predefined address pools have been fully subnetted\n" +
		"docker.service: Start request repeated too quickly."
	for _, c := range []struct {
		log   string
		pools poolState
		want  string // in it
	}{
		{pool, poolsSet, "sets in default-address-pools are used up"},
		{pool, poolsUnset, "VPN"},
		{pool, poolsUnknown, "is not known"},
		{"Start request repeated too quickly", poolsUnset, "journalctl -u docker"},
		{"dpkg: error: trying to overwrite '/usr/bin/docker', which is also in package docker.io", poolsUnset, "berth removes none of yours"},
		{"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812", poolsUnset, "package manager"},
		{"curl: (6) Could not resolve host: download.docker.com", poolsUnset, "DNS"},
		{"E: The repository is not signed. NO_PUBKEY 7EA0A9C3F273FCD8", poolsUnset, "pinned key"},
		{"write /usr/bin/dockerd: no space left on device", poolsUnset, "disk is full"},
		{"Failed to initialize NVML: Driver/library version mismatch", poolsUnset, "Restart the machine"},
		{"Failed to initialize NVML: Insufficient Permissions", poolsUnset, "container_use_devices"},
		{"unable to configure the Docker daemon with file /etc/docker/daemon.json: the following directives are specified both as a flag and in the configuration file: hosts", poolsUnset, "put back"},
		{"failed to create NAT chain DOCKER: iptables failed", poolsUnset, "kernel"},
		{"E: Release file is not valid yet (invalid for another 2h)", poolsUnset, "clock"},
		{"something nobody has seen", poolsUnset, ""},
		{"", poolsUnset, ""},
	} {
		got := explain(c.log, c.pools)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%.60q: %q", c.log, got)
		}
	}
	if got := explain(strings.Repeat("no space left on device ", 1)+strings.Repeat("x", maxExplain), poolsUnset); got != "" {
		t.Errorf("it read more than the end of the log: %q", got)
	}
}
