package hoststep

import (
	"context"
	"fmt"
	"strings"
)

func (r *run) rpmInstalled(ctx context.Context, name string) (string, error) {
	o, err := r.do(ctx, "rpm-query", name)
	if err != nil {
		return "", err
	}
	if o.code == 1 && strings.TrimSpace(o.stdout) == "package "+name+" is not installed" {
		return "", nil
	}
	if o.code != 0 {
		return "", failed("rpm", o)
	}
	version, _, _ := strings.Cut(strings.TrimSpace(o.stdout), "\n") // one line for each installed version
	return version, nil
}

// dnfRefresh reads the vendor's own metadata and asks what the missing packages
// would push out: dnf replaces what a package obsoletes without a question, so
// the question is asked here.
func (r *run) dnfRefresh(ctx context.Context, v vendor, missing []string) error {
	path, err := r.source(v)
	if err != nil {
		return err
	}
	if path == "" {
		return fmt.Errorf("no source names the repository of %s", v.Name)
	}
	if _, err := r.must(ctx, "dnf-refresh", v.Repository); err != nil {
		return err
	}
	for _, p := range missing {
		o, err := r.must(ctx, "dnf-obsoletes", p)
		if err != nil {
			return err
		}
		for line := range strings.Lines(o.stdout) {
			cells := strings.Fields(line)
			if len(cells) == 0 || !packageForm.MatchString(cells[0]) {
				continue // a capability that is no package's name
			}
			version, err := r.rpmInstalled(ctx, cells[0])
			if err != nil {
				return err
			}
			if version != "" {
				return fmt.Errorf("%s would replace an installed package, which is not taken out: %s %s", p, cells[0], version)
			}
		}
	}
	return nil
}
