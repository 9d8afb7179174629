package environment

import (
	"context"
	"fmt"
	"slices"

	"berth/guestapi"
)

var _ HostState = (*Prober)(nil)

// File is the content of a system file, CodeNotFound where there is none.
func (p *Prober) File(ctx context.Context, path string) ([]byte, error) {
	data, _, err := newProbe(p.cfg).file(ctx, path, guestapi.MaxFileRead)
	return data, err
}

// Package is the version of an installed package; "" = it is not installed.
func (p *Prober) Package(ctx context.Context, name string) (string, error) {
	have, err := newProbe(p.cfg).installed(ctx, []string{name})
	return have[name], err
}

// Unit is what systemd says of a unit's start at boot.
func (p *Prober) Unit(ctx context.Context, name string) (string, error) {
	return newProbe(p.cfg).systemctl(ctx, "is-enabled", name)
}

// Member reports whether the group files list the user in the group.
func (p *Prober) Member(ctx context.Context, name, user string) (bool, error) {
	look := newProbe(p.cfg)
	look.readGroups(ctx)
	if reason, missed := look.unknown[FactGroupConfigured]; missed {
		return false, fmt.Errorf("the groups: %s", reason)
	}
	return slices.Contains(look.groups[name].members, user), nil
}
