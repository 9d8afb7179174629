package environment

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lab"
)

// TestRealDaemons asks a dockerd of each generation through a real guest. The
// bugs: a field that one generation lacks or words differently, and a GPU by CDI
// believed where the daemon takes no CDI requests.
func TestRealDaemons(t *testing.T) {
	guest := realGuest(t)
	for _, g := range lab.Generations() {
		t.Run(string(g), func(t *testing.T) {
			d := lab.PrivateDocker(t, g, lab.Options{GPUs: []string{lab.GPU0}, LiveRestore: true, ContainerdStore: g == lab.Docker28})
			began := time.Now()
			f, err := Probe(t.Context(), ProbeConfig{Guest: guest, Socket: d.Socket})
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			k := f.Docker
			if !k.Reachable || k.Error != "" || k.DaemonID == "" || k.API == "" || !strings.HasPrefix(k.Version, string(g)+".") {
				t.Fatalf("%+v", k)
			}
			if took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			if !k.LiveRestore || k.Rootless || k.Running != 0 || !strings.HasPrefix(k.Root, d.Dir) || !slices.Contains(k.Runtimes, "runc") {
				t.Errorf("%+v", k)
			}
			if k.CDI == (g == lab.Docker20) || k.ContainerdStore != (g == lab.Docker28) {
				t.Errorf("CDI %v, containerd store %v", k.CDI, k.ContainerdStore)
			}
			name := CDIKind + "=" + lab.GPU0
			if slices.Contains(k.CDIDevices, name) != (g == lab.Docker28) {
				t.Errorf("devices that the daemon discovered: %v", k.CDIDevices)
			}
			if k.CDI {
				checkSpec(t, f, name, filepath.Join(d.Dir, "cdi"))
			}
			for _, fact := range []FactName{FactDockerDaemon, FactDockerSocket, FactDockerNetworks, FactCDISpecs, FactFreeDisk} {
				if r := unknownOf(f, fact); r != "" {
					t.Errorf("%s: %s", fact, r)
				}
			}
			t.Logf("%d ms: Docker %s, API %s, networks %v", f.ElapsedMS, k.Version, k.API, k.Networks)
		})
	}
}

func checkSpec(t *testing.T, f berth.Facts, name, dir string) {
	t.Helper()
	got, rival := specOf(f.Docker.CDIDirs, f.Toolkit.Specs, strings.TrimPrefix(name, CDIKind+"="))
	if got == nil || rival != nil || filepath.Dir(got.Path) != dir || len(got.Missing) > 0 || !slices.Contains(f.Toolkit.Devices, name) {
		t.Errorf("%s: %+v of %+v", name, got, f.Toolkit)
	}
}
