package environment

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// The package families.
const (
	FamilyAPT    = "apt"
	FamilyDNF    = "dnf"
	FamilyPacman = "pacman"
	FamilyZypper = "zypper"
	FamilyOther  = "other"
)

// families says which tool installs on a distribution. A derivative is found by
// its ID_LIKE.
var families = map[string]string{
	"debian": FamilyAPT, "ubuntu": FamilyAPT, "linuxmint": FamilyAPT, "pop": FamilyAPT, "raspbian": FamilyAPT,
	"fedora": FamilyDNF, "rhel": FamilyDNF, "centos": FamilyDNF, "rocky": FamilyDNF, "almalinux": FamilyDNF, "ol": FamilyDNF, "amzn": FamilyDNF,
	"arch": FamilyPacman, "manjaro": FamilyPacman, "endeavouros": FamilyPacman, "cachyos": FamilyPacman,
	"opensuse": FamilyZypper, "opensuse-leap": FamilyZypper, "opensuse-tumbleweed": FamilyZypper, "sles": FamilyZypper, "suse": FamilyZypper,
}

// osRelease is what os-release(5) says that matters here.
type osRelease struct {
	id       string
	idLike   []string
	version  string // VERSION_ID, else BUILD_ID
	codename string // UBUNTU_CODENAME, else VERSION_CODENAME: a derivative's own name is in no repository
	name     string
}

// family names the package family: the distribution's own id decides, then the
// nearest relative.
func (r osRelease) family() string {
	for _, id := range append([]string{r.id}, r.idLike...) {
		if f, ok := families[id]; ok {
			return f
		}
	}
	return FamilyOther
}

// parseOSRelease reads os-release(5): NAME=value lines in which a value may be
// quoted as a POSIX shell would take it. Lines that are neither are passed
// over, as the format asks; a file that names no distribution is invalid.
func parseOSRelease(data []byte) (osRelease, error) {
	if !utf8.Valid(data) {
		return osRelease{}, invalidf("os-release is not UTF-8")
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, raw, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || key == "" || key[0] == '#' {
			continue
		}
		if value, ok := unquote(raw); ok {
			vars[key] = value
		}
	}
	r := osRelease{
		id:       strings.ToLower(vars["ID"]),
		idLike:   strings.Fields(strings.ToLower(vars["ID_LIKE"])),
		version:  first(vars["VERSION_ID"], vars["BUILD_ID"]),
		codename: first(vars["UBUNTU_CODENAME"], vars["VERSION_CODENAME"]),
		name:     first(vars["PRETTY_NAME"], vars["NAME"], vars["ID"]),
	}
	if len(r.idLike) == 0 {
		r.idLike = nil
	}
	if r.id == "" {
		return osRelease{}, invalidf("os-release names no ID")
	}
	return r, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// unquote takes one value as a shell would, without expansions. It is false for
// a quote that does not end or a value of two words.
func unquote(raw string) (string, bool) {
	if raw == "" {
		return "", true
	}
	quote := raw[0]
	if quote != '"' && quote != '\'' {
		return raw, !strings.ContainsAny(raw, " \t\"'")
	}
	var b strings.Builder
	for i := 1; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == quote:
			return b.String(), i == len(raw)-1
		case c == '\\' && quote == '"' && i+1 < len(raw) && strings.IndexByte("\"\\$`", raw[i+1]) >= 0:
			i++
			b.WriteByte(raw[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// immutableIDs are distributions on which a package manager does not change the
// running system, beyond those that the ostree marker shows.
var immutableIDs = []string{"nixos", "opensuse-microos", "opensuse-aeon", "sle-micro", "sl-micro", "steamos", "flatcar", "talos", "bottlerocket", "ubuntu-core", "cos", "guix"}

func immutableID(id string) bool { return slices.Contains(immutableIDs, id) }

// readOnlyUsr reports whether /proc/mounts shows that the system's programs lie
// on a file system that is mounted read-only.
func readOnlyUsr(mounts string) bool {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "/usr" {
			continue
		}
		if slices.Contains(strings.Split(f[3], ","), "ro") {
			return true
		}
	}
	return false
}

// wslVersion reads /proc/version: 0 = not WSL. The first generation has no
// kernel of its own and shows the name of the company as the flavour of an old
// one.
func wslVersion(version string) int {
	v := strings.ToLower(version)
	switch {
	case !strings.Contains(v, "microsoft"):
		return 0
	case strings.Contains(v, "wsl2"), strings.Contains(v, "microsoft-standard"):
		return 2
	}
	return 1
}

// newerKernel gives the newest installed kernel of the running one's flavour
// when that is newer, or when the running one's own modules are gone; "" = no
// restart is due. A kernel of no flavour that is installed is somebody's own:
// nothing is said about it.
func newerKernel(running string, installed []string) string {
	newest, have := "", false
	for _, k := range installed {
		have = have || k == running
		if k != running && flavour(k) == flavour(running) && (newest == "" || compareKernels(newest, k) < 0) {
			newest = k
		}
	}
	if newest == "" || have && compareKernels(newest, running) <= 0 {
		return ""
	}
	return newest
}

// flavour is what is left of a kernel's name without its numbers: "generic" of
// 6.8.0-45-generic.
func flavour(kernel string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || strings.ContainsRune(".-_+~", r) {
			return -1
		}
		return r
	}, kernel)
}

// compareKernels compares two versions by all of their numbers in order; what is
// missing is 0. Letters do not count.
func compareKernels(a, b string) int {
	na, nb := numbers(a), numbers(b)
	for i := range max(len(na), len(nb)) {
		var x, y string
		if i < len(na) {
			x = na[i]
		}
		if i < len(nb) {
			y = nb[i]
		}
		if len(x) != len(y) {
			return min(1, max(-1, len(x)-len(y)))
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
	return 0
}

// numbers gives the digit runs of s without leading zeros, so that a longer one
// is larger; zero is "".
func numbers(s string) []string {
	runs := strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	for i := range runs {
		runs[i] = strings.TrimLeft(runs[i], "0")
	}
	return runs
}
