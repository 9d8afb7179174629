package environment

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"berth"
)

// addressPool is a range that Docker cuts networks of Size bits from.
type addressPool struct {
	Base netip.Prefix
	Size int
}

// dockerPools are Docker's own when daemon.json sets none: 31 networks.
var dockerPools = []addressPool{
	{netip.MustParsePrefix("172.17.0.0/16"), 16},
	{netip.MustParsePrefix("172.18.0.0/16"), 16},
	{netip.MustParsePrefix("172.19.0.0/16"), 16},
	{netip.MustParsePrefix("172.20.0.0/14"), 16},
	{netip.MustParsePrefix("172.24.0.0/14"), 16},
	{netip.MustParsePrefix("172.28.0.0/14"), 16},
	{netip.MustParsePrefix("192.168.0.0/16"), 20},
}

// onLinkDocker is the first Docker that minds only routes without a next hop
// when it looks for a free network. Older ones mind every route but the default.
const onLinkDocker = "27.0"

// span is a range of IPv4 addresses, both ends in it.
type span struct{ from, to uint64 }

func spanOf(p netip.Prefix) span {
	p = p.Masked()
	b := p.Addr().As4()
	from := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	return span{from, from + 1<<(32-p.Bits()) - 1}
}

// usedSpans is the union of the prefixes: sorted, without overlaps. Two routes
// that each leave room may leave none together.
func usedSpans(prefixes []netip.Prefix) []span {
	spans := make([]span, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is4() {
			spans = append(spans, spanOf(p))
		}
	}
	slices.SortFunc(spans, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	var merged []span
	for _, s := range spans {
		if n := len(merged); n > 0 && s.from <= merged[n-1].to+1 {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// freeNetworks counts the networks of a pool that touch nothing in use. A
// network is free exactly when it lies wholly in one gap between the used spans,
// so no pool, however large, is walked network by network.
func freeNetworks(pool addressPool, used []span) uint64 {
	if !pool.Base.IsValid() || !pool.Base.Addr().Is4() || pool.Size < pool.Base.Bits() || pool.Size > 32 {
		return 0
	}
	whole, size := spanOf(pool.Base), uint64(1)<<(32-pool.Size)
	fit := func(from, to uint64) uint64 { // [from, to)
		first := (from + size - 1) / size * size
		if first >= to {
			return 0
		}
		return (to - first) / size
	}
	var free uint64
	at, end := whole.from, whole.to+1
	for _, u := range used {
		if u.to < at || u.from >= end {
			continue
		}
		if u.from > at {
			free += fit(at, u.from)
		}
		at = max(at, u.to+1)
	}
	if at < end {
		free += fit(at, end)
	}
	return free
}

// poolView is what was found out about Docker's address pools.
type poolView struct {
	Free       uint64
	Configured bool     // daemon.json sets its own
	Routes     []string // that cover a part of a pool, as they are written
	Networks   int      // of Docker that lie in a pool
}

// viewPools looks at the pools. False when what it needs is not known: then
// nothing is said.
func viewPools(f *berth.Facts, onLinkOnly bool) (poolView, bool) {
	var v poolView
	if factUnknown(f, FactRoutes) || factUnknown(f, FactDaemonJSON) ||
		f.Docker.DaemonJSON == daemonUnreadable || f.Docker.DaemonJSON == daemonInvalid {
		return v, false
	}
	pools, configured, ok := dockerPoolsOf(f.Docker)
	if !ok {
		return v, false
	}
	v.Configured = configured
	var used []netip.Prefix
	for _, r := range f.Routes {
		p, err := netip.ParsePrefix(r.Destination)
		if err != nil || !p.Addr().Is4() || p.Bits() == 0 || onLinkOnly && r.Gateway != "" {
			continue
		}
		used = append(used, p)
		if overlapsPool(pools, p) && !slices.Contains(v.Routes, p.String()) {
			v.Routes = append(v.Routes, p.String())
		}
	}
	for _, n := range f.Docker.Networks {
		if p, err := netip.ParsePrefix(n); err == nil && p.Addr().Is4() {
			used = append(used, p)
			if overlapsPool(pools, p) {
				v.Networks++
			}
		}
	}
	spans := usedSpans(used)
	for _, p := range pools {
		v.Free += freeNetworks(p, spans)
	}
	return v, true
}

func overlapsPool(pools []addressPool, p netip.Prefix) bool {
	return slices.ContainsFunc(pools, func(a addressPool) bool { return a.Base.Overlaps(p) })
}

// dockerPoolsOf gives the pools that Docker uses: those of daemon.json, those that the
// daemon told of, else its own. False when they are there and not understood.
func dockerPoolsOf(d berth.DockerFacts) (pools []addressPool, configured, ok bool) {
	if raw := d.DaemonJSONKeys["default-address-pools"]; raw != "" {
		var set []struct {
			Base string `json:"base"`
			Size int    `json:"size"`
		}
		if err := json.Unmarshal([]byte(raw), &set); err != nil {
			return nil, true, false
		}
		for _, s := range set {
			p, err := netip.ParsePrefix(s.Base)
			if err != nil {
				return nil, true, false
			}
			if p.Addr().Is4() {
				pools = append(pools, addressPool{p.Masked(), s.Size})
			}
		}
		if len(pools) > 0 {
			return pools, true, true
		}
	}
	for _, text := range d.Pools {
		p, ok := parsePool(text)
		if !ok {
			return nil, true, false
		}
		if p.Base.Addr().Is4() {
			pools = append(pools, p)
		}
	}
	if len(pools) > 0 {
		return pools, true, true
	}
	return dockerPools, false, true
}

// parsePool reads a pool as the facts write it: BASE, or BASE and the size of
// its networks in bits after a blank.
func parsePool(text string) (addressPool, bool) {
	base, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	p, err := netip.ParsePrefix(base)
	if err != nil {
		return addressPool{}, false
	}
	size := p.Bits()
	if rest = strings.Trim(strings.TrimPrefix(strings.TrimSpace(rest), "size"), " =:/"); rest != "" {
		if size, err = strconv.Atoi(rest); err != nil || size < p.Bits() || size > 128 {
			return addressPool{}, false
		}
	}
	return addressPool{p.Masked(), size}, true
}
