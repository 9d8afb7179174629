package environment

import (
	"context"
	"fmt"
	"slices"

	"berth"
)

// examineRemoval makes the plan of a removal.
func (p *performer) examineRemoval(ctx context.Context, h *provisioner, q question, facts berth.Facts, insts []berth.Installation) (berth.Plan, error) {
	in := RemovalInput{Target: q.target, Facts: facts, Installations: insts, RetainModels: q.retainModels, Recipe: p.cfg.HostSteps.Recipe()}
	var err error
	if in.Manifest, err = p.manifest(q.consent); err != nil {
		return berth.Plan{}, err
	}
	if q.target.Engine == "" {
		if in.Undo, err = p.cfg.HostSteps.Undo(ctx, h.State); err != nil {
			return berth.Plan{}, fmt.Errorf("read what host steps changed on %s: %w", q.target.Host, err)
		}
		return JudgeRemoval(in), nil
	}
	if have := installationOf(insts, q.target); have != nil {
		h.users(ctx, *have, &in)
	}
	return JudgeRemoval(in), nil
}

// users fills in who uses the images. What Docker does not say stays unknown:
// the removal asks again before it removes anything.
func (h *provisioner) users(ctx context.Context, have berth.Installation, in *RemovalInput) {
	own, err := h.Containers.Owned(ctx, have.Engine)
	if err != nil {
		return
	}
	in.Containers = own
	others := func(image berth.Image) *[]string {
		all, err := h.Containers.ImageUsers(ctx, image)
		if err != nil {
			return nil
		}
		all = slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(own, id) })
		slices.Sort(all)
		return &all
	}
	in.ImageUsers = others(have.Image)
	if have.CheckImage != nil {
		in.CheckImageUsers = others(*have.CheckImage)
	}
}
