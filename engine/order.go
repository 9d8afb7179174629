package engine

import (
	"cmp"
	"strings"

	"berth"
)

// newer orders releases of one engine, the newest first: by version; of one
// version the release for GPUs, so that nobody gets the CPU who did not name it;
// then by id, which ends with the revision of the document.
func newer(a, b berth.Release) int {
	gpu := func(r berth.Release) int {
		if r.NeedsGPU() {
			return 1
		}
		return 0
	}
	return cmp.Or(natural(b.Version, a.Version), cmp.Compare(gpu(b), gpu(a)), natural(b.ID, a.ID))
}

// natural compares texts with the numbers in them taken as numbers: r10 is
// behind r9, and 0.31.0 behind 0.4.2.
func natural(a, b string) int {
	for a != "" && b != "" {
		x, y := chunk(a), chunk(b)
		a, b = a[len(x):], b[len(y):]
		if digit(x[0]) && digit(y[0]) {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Compare(len(x), len(y)); c != 0 {
				return c
			}
		}
		if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// chunk is the longest beginning of s that is all digits, or none.
func chunk(s string) string {
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n]
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
