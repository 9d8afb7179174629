package hoststep

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// cdiThere is satisfied when a card is listed and the specification can be read
// by a daemon that is not root.
func (r *run) cdiThere(ctx context.Context) (bool, string, error) {
	listed, err := r.cards(ctx)
	if err != nil {
		return false, "", err
	}
	if listed == 0 {
		return false, "no nvidia.com/gpu device is listed", nil
	}
	_, info, err := r.sys.read(cdiSpec)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // another file may list them
		return false, "", err
	}
	if err == nil && info.Mode().Perm()&0o444 != 0o444 {
		return false, cdiSpec + " cannot be read by everybody", nil
	}
	if !r.refreshDone {
		if off, err := r.refreshOff(ctx); err != nil || off {
			return false, "the specification is not written again at boot", err
		}
	}
	return true, "CDI lists nvidia.com/gpu devices", nil
}

func (r *run) cards(ctx context.Context) (n int, err error) {
	o, err := r.must(ctx, "cdi-list")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(o.stdout + "\n" + o.stderr) {
		if strings.HasPrefix(strings.TrimSpace(line), "nvidia.com/gpu=") {
			n++
		}
	}
	return n, nil
}

// refreshOff reports whether the toolkit's own unit, which writes the
// specification at each boot, is there and not on. A masked one was turned off
// by somebody, and stays so.
func (r *run) refreshOff(ctx context.Context) (bool, error) {
	o, err := r.do(ctx, "refresh-enabled")
	if errors.Is(err, errAbsent) { // no systemd
		return false, nil
	}
	state := strings.TrimSpace(o.stdout)
	return state == "disabled" || state == "linked", err
}

func (r *run) makeCDI(ctx context.Context) error {
	listed, err := r.cards(ctx)
	if err != nil {
		return err
	}
	if listed == 0 {
		if err := r.generate(ctx); err != nil {
			return err
		}
	}
	if _, info, err := r.sys.read(cdiSpec); err == nil && info.Mode().Perm()&0o444 != 0o444 {
		if err := r.publish(); err != nil {
			return err
		}
	}
	off, err := r.refreshOff(ctx)
	if err != nil {
		return err
	}
	r.refreshDone = true
	if off { // a help for the next boot; the step stands without it
		if _, err := r.record(Change{Kind: ChangeService, Name: refreshUnit, Before: "disabled", After: "enabled"}); err != nil {
			return err
		}
		if o, err := r.do(ctx, "refresh-on"); err != nil || o.code != 0 {
			r.tell("%s could not be turned on: the specification must be written again after a reboot", refreshUnit)
		}
	}
	return nil
}

const refreshUnit = "nvidia-cdi-refresh.path"

func (r *run) generate(ctx context.Context) error {
	before, err := r.sys.hash(cdiSpec)
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "cdi-generate"); err != nil {
		return err
	}
	after, err := r.sys.hash(cdiSpec)
	if err != nil || after == "" {
		return errors.Join(err, errors.New("nvidia-ctk wrote no "+cdiSpec))
	}
	// What it will write is not known before; /run is gone at the next boot anyway.
	_, err = r.record(Change{Kind: ChangeFile, Path: cdiSpec, Before: before, After: after})
	return err
}

func (r *run) publish() error {
	f, err := os.OpenFile(r.sys.path(cdiSpec), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o644), f.Close())
}
