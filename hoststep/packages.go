package hoststep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Which vendor a step is for.
const (
	dockerVendor = "docker"
	nvidiaVendor = "nvidia"
)

// vendor is the vendor and those of its packages that were asked for.
func (r *run) vendor(name string) (v vendor, packages []string) {
	if name == dockerVendor {
		return r.host.Docker, r.host.Docker.Packages
	}
	v = r.host.NVIDIA
	if r.req.Parameters.has(NVIDIAToolkitBase) {
		packages = append(packages, v.Base...)
	}
	if r.req.Parameters.has(NVIDIAToolkit) {
		packages = append(packages, v.Packages...)
	}
	return v, packages
}

// vendorCheck is a check about a vendor of which packages are missing: its key
// and source serve nothing else, so where all are there nothing is looked at.
func vendorCheck(name string, check func(*run, vendor, []string) (bool, string, error)) func(*run, context.Context) (bool, string, error) {
	return func(r *run, ctx context.Context) (bool, string, error) {
		v, packages := r.vendor(name)
		missing, there, err := r.missing(ctx, packages)
		if err != nil {
			return false, "", err
		}
		if len(missing) == 0 {
			return true, strings.Join(there, " "), nil
		}
		return check(r, v, missing)
	}
}

func vendorApply(name string, apply func(*run, context.Context, vendor, []string) error) func(*run, context.Context) error {
	return func(r *run, ctx context.Context) error {
		v, packages := r.vendor(name)
		missing, _, err := r.missing(ctx, packages)
		if err != nil {
			return err
		}
		return apply(r, ctx, v, missing)
	}
}

// missing splits packages into those that are not installed and "name version"
// of those that are.
func (r *run) missing(ctx context.Context, packages []string) (missing, there []string, err error) {
	for _, p := range packages {
		version, err := r.installed(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		if version == "" {
			missing = append(missing, p)
		} else {
			there = append(there, p+" "+version)
		}
	}
	return missing, there, nil
}

// installed is the version of a package; "" = the package database says, in its
// own words, that it is not installed. Every other answer is an error.
func (r *run) installed(ctx context.Context, name string) (string, error) {
	if r.host.Family == familyDNF {
		return r.rpmInstalled(ctx, name)
	}
	return r.dpkgInstalled(ctx, name)
}

// noConflicts refuses before anything is changed: what is in the way is named,
// and never taken out.
func (r *run) noConflicts(ctx context.Context) (bool, string, error) {
	_, wanted := r.vendor(dockerVendor)
	missing, _, err := r.missing(ctx, wanted)
	if err != nil || len(missing) == 0 {
		return true, "", err
	}
	names := r.recipe.Conflicts.APT
	if r.host.Family == familyDNF {
		names = r.recipe.Conflicts.DNF
	}
	_, there, err := r.missing(ctx, names)
	if err != nil || len(there) == 0 {
		return true, "", err
	}
	return false, "installed packages are in the way of Docker's own and are not taken out: " + strings.Join(there, ", "), nil
}

func (r *run) keyThere(v vendor, _ []string) (bool, string, error) {
	if path, err := r.source(v); err != nil || path != "" && path != v.SourcePath {
		return true, path + " names the repository with a key of its own", err
	}
	data, info, err := r.sys.read(v.KeyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return false, v.KeyPath + " is not there", nil
	}
	if err != nil {
		return false, "", err
	}
	k, err := parseKeys(data)
	switch {
	case err != nil:
		return false, "", fmt.Errorf("%s: %w", v.KeyPath, err)
	case !k.only(v.Fingerprints) || k.armored != v.KeyArmored:
		return false, "", fmt.Errorf("%s holds another key, which is left as it is: %s", v.KeyPath, strings.Join(k.fingerprints, " "))
	case info.Mode().Perm()&0o044 != 0o044:
		return false, "", fmt.Errorf("%s cannot be read by the package manager's own user: chmod 0644 it", v.KeyPath)
	}
	return true, strings.Join(k.fingerprints, " "), nil
}

func (r *run) installKey(ctx context.Context, v vendor, _ []string) error {
	data, err := r.fetch(ctx, v.KeyURL)
	if err != nil {
		return fmt.Errorf("fetch the key of %s: %w", v.Name, err)
	}
	k, err := parseKeys(data)
	if err != nil {
		return fmt.Errorf("the key of %s: %w", v.Name, err)
	}
	if !k.only(v.Fingerprints) {
		return fmt.Errorf("the key of %s has the fingerprint %s, which is not the pinned %s", v.Name,
			strings.Join(k.fingerprints, " "), strings.Join(v.Fingerprints, " "))
	}
	if v.KeyArmored && !k.armored {
		return fmt.Errorf("the key of %s is not in ASCII armour", v.Name)
	}
	if !v.KeyArmored {
		data = k.binary
	}
	return r.create(v.KeyPath, data)
}

func (r *run) sourceThere(v vendor, _ []string) (bool, string, error) {
	path, err := r.source(v)
	if err != nil || path == "" {
		return false, v.SourcePath + " is not there", err
	}
	return true, path, nil
}

func (r *run) writeSource(_ context.Context, v vendor, _ []string) error {
	if _, _, err := r.sys.read(v.SourcePath); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there, names another repository and is left as it is", v.SourcePath)
	}
	return r.create(v.SourcePath, []byte(v.SourceText))
}

// source is the file that names the vendor's repository; "" = none does. Where
// a person added it under another name, that is the one: two files that name
// one repository with two keys stop apt altogether.
func (r *run) source(v vendor) (string, error) {
	if v.Repository != "" {
		return r.names(v.SourcePath, v.SourceMark)
	}
	paths := []string{v.SourcePath, aptList}
	entries, err := os.ReadDir(r.sys.path(aptParts))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		path := filepath.Join(aptParts, e.Name())
		if forms["{source}"].MatchString(path) && path != v.SourcePath {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		if found, err := r.names(path, v.SourceMark); err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}

// names is the path when a line of the file that is no comment holds the mark.
func (r *run) names(path, mark string) (string, error) {
	data, _, err := r.sys.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); strings.EqualFold(line, "Enabled: no") {
			return "", nil
		}
		if !strings.HasPrefix(line, "#") && strings.Contains(line, mark) {
			return path, nil
		}
	}
	return "", nil
}

func (r *run) packagesThere(_ vendor, missing []string) (bool, string, error) {
	return false, "not installed: " + strings.Join(missing, " "), nil
}

// installPackages records what it is about to install, and after it what came
// along: dependencies are taken back with what needed them.
func (r *run) installPackages(ctx context.Context, v vendor, missing []string) error {
	before, err := r.packages(ctx)
	if err != nil {
		return err
	}
	refresh := r.aptRefresh
	add := "apt-install"
	if r.host.Family == familyDNF {
		refresh, add = r.dnfRefresh, "dnf-install"
	}
	if err := refresh(ctx, v, missing); err != nil {
		return err
	}
	var plan []Change
	for _, p := range missing {
		plan = append(plan, Change{Kind: ChangePackage, Name: p})
	}
	if _, err := r.record(plan...); err != nil {
		return err
	}
	r.tell("%s", strings.Join(missing, " "))
	_, failure := r.must(ctx, add, missing...)
	after, err := r.packages(context.WithoutCancel(ctx))
	if err == nil {
		err = r.recordNew(before, after)
	}
	return errors.Join(failure, err)
}

func (r *run) recordNew(before, after map[string]string) error {
	var changes []Change
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] != after[name] {
			changes = append(changes, Change{Kind: ChangePackage, Name: name, Before: before[name], After: after[name]})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	_, err := r.record(changes...)
	return err
}

// packages is every installed package and its version.
func (r *run) packages(ctx context.Context) (map[string]string, error) {
	name := "dpkg-list"
	if r.host.Family == familyDNF {
		name = "rpm-list"
	}
	o, err := r.must(ctx, name)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(o.stdout) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		if len(cells) == 3 && (cells[2] == "installed" || strings.HasPrefix(cells[2], "triggers-")) {
			all[cells[0]] = cells[1]
		}
	}
	return all, nil
}
