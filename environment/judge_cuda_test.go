package environment

import (
	"strings"
	"testing"

	"berth"
)

func TestRequireCUDA(t *testing.T) {
	h100 := berth.GPU{Name: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0", Driver: "535.216.01"}
	for _, c := range []struct {
		name, expr, cuda, driver string
		card                     berth.GPU
		want                     Verdict
	}{
		{"nothing asked", "  ", "", "", h100, Met},
		{"new enough", cudaRequire, "13.0", "580.1", h100, Met},
		{"too old, and not of that brand", cudaRequire, "12.4", "550.1", h100, Unmet},
		{"a data centre card with an old branch", cudaRequire, "12.2", "535.216.01", h100, Met},
		{"a GeForce with that branch", cudaRequire, "12.2", "535.216.01", berth.GPU{Name: "NVIDIA GeForce RTX 4090"}, Unmet},
		{"a card of unknown brand with that branch", cudaRequire, "12.2", "535.216.01", berth.GPU{Name: "NVIDIA PG506"}, Unsettled},
		{"an unknown brand decides nothing here", cudaRequire, "12.2", "530.1", berth.GPU{Name: "NVIDIA PG506"}, Unmet},
		{"CUDA not known", "cuda>=12.0", "", "580.1", h100, Unsettled},
		{"CUDA not known, and no need to", "cuda>=12.0 driver>=500", "", "580.1", h100, Met},
		{"a subject that nobody knows", "moon>=1", "13.0", "580.1", h100, Unsettled},
		{"arch", "arch>=9.0,cuda>=12.0", "12.4", "550.1", h100, Met},
		{"not equal", "cuda!=12.4", "12.4", "550.1", h100, Unmet},
		{"12.10 is more than 12.9", "cuda>=12.9", "12.10", "", h100, Met},
	} {
		card := c.card
		card.Driver = c.driver
		got, err := RequireCUDA(c.expr, berth.GPUFacts{CUDA: c.cuda}, card)
		if err != nil || got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, err)
		}
	}
	for _, bad := range []string{"cuda", ">=12", "cuda>=", "cuda>=1,", "a=b=c", strings.Repeat("a", maxRequire+1), strings.Repeat("a=b ", maxTerms+1)} {
		if v, err := RequireCUDA(bad, berth.GPUFacts{}, h100); err == nil || v != Unsettled {
			t.Errorf("%.40q: %s", bad, v)
		}
	}
}

func FuzzRequireCUDA(f *testing.F) {
	for _, s := range []string{cudaRequire, "cuda>=12.0", "brand!=tesla,driver<=5", "cuda>=", "a=b=c", " , ", `arch="8.0"`} {
		f.Add(s, "12.4", "NVIDIA H100")
	}
	f.Fuzz(func(t *testing.T, expr, cuda, name string) {
		v, err := RequireCUDA(expr, berth.GPUFacts{CUDA: cuda}, berth.GPU{Name: name, Driver: "550.1", ComputeCapability: "9.0"})
		if v != Met && v != Unmet && v != Unsettled || err != nil && v != Unsettled {
			t.Errorf("%q: %v %v", expr, v, err)
		}
	})
}
