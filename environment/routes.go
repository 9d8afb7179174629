package environment

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"berth"
)

const (
	maxRoutes   = 4096
	routeUp     = 0x1
	routeReject = 0x200
)

// parseRoutes reads /proc/net/route, whose addresses are hexadecimal in the
// byte order of the machine: little-endian on all that berth runs on. The
// default route is one of them, as 0.0.0.0/0. Routes that are down or refuse
// are left out.
func parseRoutes(data []byte) ([]berth.Route, error) {
	var routes []berth.Route
	header := true
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if header {
			header = false
			if len(f) < 8 || f[0] != "Iface" || f[1] != "Destination" || f[7] != "Mask" {
				return nil, invalidf("/proc/net/route has another head: %q", clip(line))
			}
			continue
		}
		if len(f) == 0 {
			continue
		}
		if len(f) < 8 {
			return nil, invalidf("/proc/net/route has a short line: %q", clip(line))
		}
		r, keep, err := parseRoute(f)
		if err != nil {
			return nil, err
		}
		if keep {
			if len(routes) == maxRoutes {
				return nil, invalidf("/proc/net/route has more than %d routes", maxRoutes)
			}
			routes = append(routes, r)
		}
	}
	return routes, nil
}

func parseRoute(f []string) (berth.Route, bool, error) {
	dest, err1 := hexAddr(f[1])
	gateway, err2 := hexAddr(f[2])
	flags, err3 := strconv.ParseUint(f[3], 16, 32)
	mask, err4 := hexAddr(f[7])
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return berth.Route{}, false, invalidf("/proc/net/route: %w", err)
		}
	}
	if flags&routeUp == 0 || flags&routeReject != 0 {
		return berth.Route{}, false, nil
	}
	m := binary.BigEndian.Uint32(mask.AsSlice())
	ones := bits.LeadingZeros32(^m)
	if ones < 32 && m<<ones != 0 {
		return berth.Route{}, false, invalidf("/proc/net/route has a mask with holes: %s", mask)
	}
	r := berth.Route{Destination: netip.PrefixFrom(dest, ones).Masked().String(), Device: clip(f[0])}
	if !gateway.IsUnspecified() {
		r.Gateway = gateway.String()
	}
	return r, true, nil
}

func hexAddr(s string) (netip.Addr, error) {
	n, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		return netip.Addr{}, err
	}
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b), nil
}
