package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"unicode/utf8"
)

// States of /etc/docker/daemon.json in berth.DockerFacts.DaemonJSON.
const (
	DaemonJSONAbsent     = "absent"
	DaemonJSONOK         = "ok"
	DaemonJSONUnreadable = "unreadable" // it is there, and may not be read
	DaemonJSONInvalid    = "invalid"    // Docker would not start with it
)

// daemonJSONKeys are those that a plan depends on. Others may hold secrets and
// stay on the host.
var daemonJSONKeys = []string{
	"bip", "cdi-spec-dirs", "containerd", "data-root", "default-address-pools", "default-runtime", "exec-opts",
	"features", "group", "hosts", "live-restore", "runtimes", "selinux-enabled", "storage-driver", "userns-remap",
}

const maxDaemonJSONValue = 16 * kib

// parseDaemonJSON gives the values, as compact JSON, of the keys that berth
// looks at. An empty file is one without keys, as it is for dockerd.
func parseDaemonJSON(data []byte) (map[string]string, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	if len(data) == 0 {
		return nil, nil
	}
	if !utf8.Valid(data) {
		return nil, invalidf("daemon.json is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var object map[string]json.RawMessage
	if err := dec.Decode(&object); err != nil {
		return nil, invalidf("daemon.json: %w", err)
	}
	if object == nil {
		return nil, invalidf("daemon.json is null")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, invalidf("daemon.json goes on behind its end")
	}
	var keys map[string]string
	for _, name := range daemonJSONKeys {
		raw, ok := object[name]
		if !ok {
			continue
		}
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return nil, invalidf("daemon.json: %s: %w", name, err)
		}
		if b.Len() > maxDaemonJSONValue {
			return nil, invalidf("daemon.json: %s has %d bytes", name, b.Len())
		}
		if keys == nil {
			keys = map[string]string{}
		}
		keys[name] = b.String()
	}
	return keys, nil
}

// readDaemonJSON tells a file that is not there from one that may not be read
// and from one that makes no sense: only the first may be written anew.
func (p *probe) readDaemonJSON(ctx context.Context) {
	d := &p.facts.Docker
	data, _, err := p.file(ctx, "/etc/docker/daemon.json", maxTable)
	var keys map[string]string
	if err == nil {
		keys, err = parseDaemonJSON(data)
	}
	switch {
	case absent(err):
		d.DaemonJSON = DaemonJSONAbsent
	case err == nil:
		d.DaemonJSON, d.DaemonJSONKeys = DaemonJSONOK, keys
	case errors.Is(err, errInvalid):
		d.DaemonJSON = DaemonJSONInvalid
		p.miss(FactDaemonJSON, err)
	default:
		d.DaemonJSON = DaemonJSONUnreadable
		p.miss(FactDaemonJSON, err)
	}
}

// poolEntry is an entry of default-address-pools, in daemon.json and, with
// capital letters, in what the daemon answers.
type poolEntry struct {
	Base string `json:"base"`
	Size int    `json:"size"`
}

const maxPools = 1024

// poolList writes pools as facts have them, "BASE SIZE", without those that make
// no sense.
func poolList(pools []poolEntry) []string {
	var out []string
	for _, pool := range pools[:min(len(pools), maxPools)] {
		base, err := netip.ParsePrefix(pool.Base)
		if err != nil || pool.Size < base.Bits() || pool.Size > base.Addr().BitLen() {
			continue
		}
		out = append(out, base.Masked().String()+" "+strconv.Itoa(pool.Size))
	}
	return out
}

// configuredPools reads the pools out of daemon.json, for a daemon that does
// not say them itself.
func configuredPools(keys map[string]string) []string {
	var pools []poolEntry
	if json.Unmarshal([]byte(keys["default-address-pools"]), &pools) != nil {
		return nil
	}
	return poolList(pools)
}

// cleanList sorts a list of foreign names and drops what is empty or double,
// and all beyond limit.
func cleanList(names []string, limit int) []string {
	var out []string
	for _, n := range names[:min(len(names), limit)] {
		if n = clip(n); n != "" {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
