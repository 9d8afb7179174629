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
	return r.dnfPlan(ctx, missing)
}

// dnfPlan asks dnf what it would do to packages that are there. It ends with a
// status of its own because it is told no; a plan that does not work out is the
// installation's to say.
func (r *run) dnfPlan(ctx context.Context, missing []string) error {
	o, err := r.do(ctx, "dnf-plan", missing...)
	if err != nil {
		return err
	}
	if touched := dnfTouched(o.stdout); len(touched) > 0 {
		return untouchable(missing, touched, "sudo dnf upgrade "+strings.Join(namesOf(touched), " "))
	}
	return nil
}

// dnfTouched reads the table of a transaction: the rows below a heading, which
// are set in by one blank. What is set in further goes on with the row above.
func dnfTouched(stdout string) (all []touched) {
	headings := map[string]string{
		"Upgrading:": "would be upgraded", "Downgrading:": "would be downgraded", "Reinstalling:": "would be installed again",
		"Removing:": "would go", "Removing dependent packages:": "would go", "Removing unused dependencies:": "would go",
	}
	what := ""
	for line := range strings.Lines(stdout) {
		text := strings.TrimSpace(line)
		if text != "" && !strings.HasPrefix(line, " ") {
			what = headings[text]
			continue
		}
		name, _, _ := strings.Cut(text, " ")
		if what != "" && packageForm.MatchString(name) && !strings.HasPrefix(line, "  ") {
			all = append(all, touched{name, what})
		}
	}
	return all
}
