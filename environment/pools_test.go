package environment

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"berth"
)

// TestAddressPoolsAgainstBruteForce compares the arithmetic with trying each
// network against each prefix.
func TestAddressPoolsAgainstBruteForce(t *testing.T) {
	prefix := func(t *rapid.T, label string, shortest int) netip.Prefix {
		bits := rapid.IntRange(shortest, 32).Draw(t, label+" bits")
		// In one /12, so that they meet.
		addr := [4]byte{172, byte(16 + rapid.IntRange(0, 15).Draw(t, label+" b")), byte(rapid.IntRange(0, 255).Draw(t, label+" c")), byte(rapid.IntRange(0, 255).Draw(t, label+" d"))}
		return netip.PrefixFrom(netip.AddrFrom4(addr), bits).Masked()
	}
	rapid.Check(t, func(t *rapid.T) {
		base := prefix(t, "base", 12)
		pool := addressPool{base, min(32, base.Bits()+rapid.IntRange(0, 8).Draw(t, "size"))}
		var used []netip.Prefix
		for range rapid.IntRange(0, 6).Draw(t, "used") {
			used = append(used, prefix(t, "used", 8))
		}
		var want uint64
		s := spanOf(base)
		for at := s.from; at <= s.to; at += 1 << (32 - pool.Size) {
			network := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}), pool.Size)
			if !slices.ContainsFunc(used, network.Overlaps) {
				want++
			}
		}
		if got := freeNetworks(pool, usedSpans(used)); got != want {
			t.Fatalf("%v %v: %d free, tried %d", pool, used, got, want)
		}
	})
}

func TestAddressPools(t *testing.T) {
	route := func(destinations ...string) []berth.Route {
		var out []berth.Route
		for _, d := range destinations {
			dest, via, _ := strings.Cut(d, " via ")
			out = append(out, berth.Route{Destination: dest, Gateway: via})
		}
		return out
	}
	for _, c := range []struct {
		name     string
		routes   []berth.Route
		networks []string
		pools    []string
		onLink   bool
		want     uint64
	}{
		{"none in use", nil, nil, nil, true, 31},
		{"the default route is none", route("0.0.0.0/0"), nil, nil, true, 31},
		{"a VPN in two halves", route("0.0.0.0/1", "128.0.0.0/1"), nil, nil, true, 0},
		{"one half leaves nothing below 128", route("128.0.0.0/1"), nil, nil, true, 0},
		{"two routes mask all 31", route("172.16.0.0/12", "192.168.0.0/16"), nil, nil, true, 0},
		{"with a next hop, in a new Docker", route("172.16.0.0/12 via 10.8.0.1", "192.168.0.0/16 via 10.8.0.1"), nil, nil, true, 31},
		{"with a next hop, in an old Docker", route("172.16.0.0/12 via 10.8.0.1", "192.168.0.0/16 via 10.8.0.1"), nil, nil, false, 0},
		{"networks count", nil, []string{"172.17.0.0/16", "fd00::/64"}, nil, true, 30},
		{"a pool of one's own", nil, []string{"10.1.0.0/24"}, []string{"10.1.0.0/16 24"}, true, 255},
		{"a pool under a VPN", route("10.0.0.0/8"), nil, []string{"10.1.0.0/16 24"}, true, 0},
		{"a huge pool is not walked", nil, nil, []string{"0.0.0.0/0 30"}, true, 1 << 30},
	} {
		f := berth.Facts{Routes: c.routes, Docker: berth.DockerFacts{Networks: c.networks, Pools: c.pools, DaemonJSON: daemonOK}}
		v, ok := viewPools(&f, c.onLink)
		if !ok || v.Free != c.want {
			t.Errorf("%s: %d free, want %d (%v)", c.name, v.Free, c.want, ok)
		}
	}
	for name, f := range map[string]berth.Facts{
		"routes not known":       {Unknown: []berth.Unknown{{Fact: string(FactRoutes)}}},
		"daemon.json unreadable": {Docker: berth.DockerFacts{DaemonJSON: daemonUnreadable}},
		"pools not understood":   {Docker: berth.DockerFacts{Pools: []string{"ten"}}},
	} {
		if _, ok := viewPools(&f, true); ok {
			t.Errorf("%s: something was said", name)
		}
	}
}
