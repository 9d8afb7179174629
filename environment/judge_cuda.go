package environment

import (
	"slices"
	"strconv"
	"strings"

	"berth"
)

// Verdict answers a question about facts of which some may not be known.
type Verdict string

// The verdicts.
const (
	Met        Verdict = "met"
	Unmet      Verdict = "unmet"
	Unsettled  Verdict = "unsettled" // it depends on a fact that is not known
	maxRequire         = 16 << 10    // bytes of an expression
	maxTerms           = 1024        // conditions in it; NVIDIA's own have some 300
)

// RequireCUDA judges the expression that an image carries in NVIDIA_REQUIRE_CUDA
// for one card: alternatives apart by blanks, the conditions of each apart by
// commas, "cuda>=12.9 brand=tesla,driver>=535,driver<536". Known subjects are
// cuda (the newest that the driver runs), driver, arch (compute capability) and
// brand; a condition on anything else is unsettled. An empty expression is met.
// One that cannot be read is CodeInvalidArgument. With CDI nobody but us checks
// it before the engine fails.
func RequireCUDA(expr string, gpu berth.GPUFacts, card berth.GPU) (Verdict, error) {
	alternatives, err := parseRequire(expr)
	if err != nil {
		return Unsettled, err
	}
	if len(alternatives) == 0 {
		return Met, nil
	}
	// The brand is not among the facts. Each that the name allows is tried, and
	// what holds for all of them holds.
	brands := brandsOf(card.Name)
	verdict := Verdict("")
	for _, brand := range brands {
		v := anyAlternative(alternatives, gpu, card, brand)
		if verdict != "" && verdict != v {
			return Unsettled, nil
		}
		verdict = v
	}
	return verdict, nil
}

type requireTerm struct{ subject, op, value string }

// requireOps, the longer first.
var requireOps = []string{">=", "<=", "!=", "=", "<", ">"}

func parseRequire(expr string) ([][]requireTerm, error) {
	if len(expr) > maxRequire {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "NVIDIA_REQUIRE_CUDA is longer than %d bytes", maxRequire)
	}
	var all [][]requireTerm
	terms := 0
	for alternative := range strings.FieldsSeq(expr) {
		var list []requireTerm
		for text := range strings.SplitSeq(alternative, ",") {
			if terms++; terms > maxTerms {
				return nil, berth.Errorf(berth.CodeInvalidArgument, "NVIDIA_REQUIRE_CUDA has more than %d conditions", maxTerms)
			}
			t, ok := parseTerm(text)
			if !ok {
				return nil, berth.Errorf(berth.CodeInvalidArgument, "NVIDIA_REQUIRE_CUDA: %.60q is not a condition", text)
			}
			list = append(list, t)
		}
		all = append(all, list)
	}
	return all, nil
}

func parseTerm(text string) (requireTerm, bool) {
	i := strings.IndexAny(text, "<>=!")
	if i <= 0 {
		return requireTerm{}, false
	}
	for _, op := range requireOps {
		if rest, ok := strings.CutPrefix(text[i:], op); ok {
			rest = strings.Trim(rest, `"'`)
			return requireTerm{strings.ToLower(text[:i]), op, rest}, rest != "" && !strings.ContainsAny(rest, "<>=!")
		}
	}
	return requireTerm{}, false
}

func anyAlternative(all [][]requireTerm, gpu berth.GPUFacts, card berth.GPU, brand string) Verdict {
	result := Unmet
	for _, list := range all {
		verdict := Met
		for _, t := range list {
			switch t.judge(gpu, card, brand) {
			case Unmet:
				verdict = Unmet
			case Unsettled:
				if verdict == Met {
					verdict = Unsettled
				}
			}
		}
		if verdict == Met {
			return Met
		}
		if verdict == Unsettled {
			result = Unsettled
		}
	}
	return result
}

func (t requireTerm) judge(gpu berth.GPUFacts, card berth.GPU, brand string) Verdict {
	switch t.subject {
	case "cuda":
		return t.version(gpu.CUDA)
	case "driver":
		return t.version(driverOf(gpu, card))
	case "arch":
		return t.version(card.ComputeCapability)
	case "brand":
		switch {
		case brand == "":
			return Unsettled
		case t.op == "=":
			return verdictOf(strings.EqualFold(brand, t.value))
		case t.op == "!=":
			return verdictOf(!strings.EqualFold(brand, t.value))
		}
	}
	return Unsettled
}

func (t requireTerm) version(have string) Verdict {
	if have == "" || !isVersion(t.value) {
		return Unsettled
	}
	c := compareVersions(have, t.value)
	switch t.op {
	case ">=":
		return verdictOf(c >= 0)
	case "<=":
		return verdictOf(c <= 0)
	case "!=":
		return verdictOf(c != 0)
	case "=":
		return verdictOf(c == 0)
	case "<":
		return verdictOf(c < 0)
	}
	return verdictOf(c > 0)
}

func verdictOf(b bool) Verdict {
	if b {
		return Met
	}
	return Unmet
}

// brandsOf are the brands that a card of that name can have, as the driver
// tells them; one "" = any.
func brandsOf(name string) []string {
	words := strings.Fields(strings.ToUpper(name))
	has := func(list ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(list, w) })
	}
	switch {
	case has("GEFORCE"):
		return []string{"geforce", "geforcertx"}
	case has("TITAN"):
		return []string{"titan", "titanrtx"}
	case has("QUADRO"):
		return []string{"quadro", "quadrortx"}
	case has("TESLA"):
		return []string{"tesla"}
	case has("RTX"):
		return []string{"nvidiartx", "quadrortx"}
	case has("A100-SXM4-40GB", "A100-SXM4-80GB", "A100", "H100", "H200", "B200", "B300", "GH200", "L4", "L40", "L40S", "A10", "A30", "A40", "T4"):
		return []string{"nvidia", "tesla"}
	}
	return []string{""}
}

// driverOf is the version of the driver that serves a card; "" = not known.
func driverOf(gpu berth.GPUFacts, card berth.GPU) string {
	for _, v := range []string{card.Driver, gpu.Module, gpu.Library} {
		if v != "" {
			return v
		}
	}
	return ""
}

// compareVersions compares by dotted segments as numbers; a missing one is 0,
// and what follows the digits of a segment ends the version ("28.3.1-1~u24").
func compareVersions(a, b string) int {
	x, y := versionSegments(a), versionSegments(b)
	for i := range max(len(x), len(y)) {
		var p, q uint64
		if i < len(x) {
			p = x[i]
		}
		if i < len(y) {
			q = y[i]
		}
		if p != q {
			if p < q {
				return -1
			}
			return 1
		}
	}
	return 0
}

// versionSegments reads the numbers of a version. A package's epoch ("5:28.3")
// is no part of it.
func versionSegments(v string) []uint64 {
	if _, rest, ok := strings.Cut(v, ":"); ok {
		v = rest
	}
	var out []uint64
	for part := range strings.SplitSeq(v, ".") {
		n := 0
		for n < len(part) && part[n] >= '0' && part[n] <= '9' {
			n++
		}
		if n == 0 {
			break
		}
		value, err := strconv.ParseUint(part[:n], 10, 64)
		if err != nil {
			value = ^uint64(0) // longer than any version: the largest
		}
		out = append(out, value)
		if n < len(part) {
			break
		}
	}
	return out
}

func isVersion(v string) bool { return len(versionSegments(v)) > 0 }
