package environment

import (
	"context"
	"fmt"
	"slices"

	"berth"
	"berth/durable"
)

// unload lets everything of the engine go that it has loaded. Loads are held off
// while it does.
func (h *provisioner) unload(ctx context.Context, act opAct) (opEvent, error) {
	release, err := h.letGo(ctx, act.State.Op.Target.Engine)
	if err != nil {
		return opEvent{}, err
	}
	release()
	return opEvent{Kind: evUnloaded}, nil
}

// letGo ends what the engine has loaded and removes berth's own containers of
// it. Until release is called nothing is loaded again.
func (h *provisioner) letGo(ctx context.Context, engine string) (release func(), err error) {
	release = func() {}
	if h.Engines != nil {
		if release, err = h.Engines.Hold(ctx, engine); err != nil {
			return nil, fmt.Errorf("hold loads of %s off: %w", engine, err)
		}
		if err := h.Engines.Unload(ctx, engine); err != nil {
			release()
			return nil, fmt.Errorf("unload %s: %w", engine, err)
		}
	}
	if err := h.Containers.RemoveOwned(ctx, engine); err != nil {
		release()
		return nil, fmt.Errorf("remove the containers of %s: %w", engine, err)
	}
	return release, nil
}

// remove takes an installation away: what it holds first, its record last, so
// that a removal that breaks off anywhere is simply done again. Docker itself
// and what is not berth's own stays.
func (p *performer) remove(ctx context.Context, h *provisioner, act opAct) (opEvent, error) {
	op := act.State.Op
	done := opEvent{Kind: evRemoved}
	if op.Target.Engine == "" {
		return done, h.dropStep(ctx, act.State.Last)
	}
	inst, rec, err := p.insts.get(ctx, op.Target)
	if err != nil || inst == nil { // it was removed, but for the answer
		return done, err
	}
	// A load may have begun since the unload, so it is done under the same hold as
	// the rest.
	release, err := h.letGo(ctx, op.Target.Engine)
	if err != nil {
		return opEvent{}, err
	}
	defer release()
	if inst.Status != berth.InstallationRemoving {
		inst.Status = berth.InstallationRemoving
		if rec, err = p.insts.change(ctx, *inst, *rec); err != nil {
			return opEvent{}, err
		}
	}
	others, err := p.insts.beside(ctx, op.Target)
	if err != nil {
		return opEvent{}, err
	}
	if err := h.removeImages(ctx, act, *inst, others); err != nil {
		return opEvent{}, err
	}
	if h.Engines != nil {
		act.Report(berth.Progress{Stage: "remove", Note: "caches of " + inst.Release.ID})
		if err := h.Engines.RemoveCaches(ctx, inst.Release.ID); err != nil {
			return opEvent{}, fmt.Errorf("remove the caches of %s: %w", inst.Release.ID, err)
		}
		if !op.RetainModels && len(others) == 0 {
			act.Report(berth.Progress{Stage: "remove", Note: "models"})
			if err := h.Engines.RemoveModels(ctx); err != nil {
				return opEvent{}, fmt.Errorf("remove the models: %w", err)
			}
		}
	}
	return done, p.insts.remove(ctx, *rec)
}

// removeImages removes the engine's images and the check image, where berth
// pulled them and nobody else has a use for them.
func (h *provisioner) removeImages(ctx context.Context, act opAct, inst berth.Installation, others []berth.Installation) error {
	images := slices.Clone(inst.Superseded)
	if !inst.Found {
		images = append(images, inst.Image)
	}
	if inst.CheckImage != nil {
		images = append(images, *inst.CheckImage)
	}
	for _, image := range images {
		if _, err := h.dropImage(ctx, act, image, others); err != nil {
			return err
		}
	}
	return nil
}

// dropImage removes an image that no container of any kind uses and no other
// installation names. gone = it is not there any more.
func (h *provisioner) dropImage(ctx context.Context, act opAct, image berth.Image, others []berth.Installation) (gone bool, err error) {
	if slices.ContainsFunc(others, func(o berth.Installation) bool {
		return o.Image.Digest == image.Digest || o.CheckImage != nil && o.CheckImage.Digest == image.Digest
	}) {
		return false, nil
	}
	users, err := h.Containers.ImageUsers(ctx, image)
	if err != nil {
		return false, fmt.Errorf("look who uses %s: %w", image.Reference(), err)
	}
	if len(users) > 0 { // somebody's: it stays, and so does the image
		h.log.Info("an image stays, as containers use it", "host", h.Name, "image", image.Reference(), "containers", users)
		return false, nil
	}
	act.Report(berth.Progress{Stage: "remove", Note: "image " + image.Repository})
	err = h.Containers.RemoveImage(ctx, image)
	if err != nil && berth.AsError(err).Code == berth.CodeResourceInUse {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove %s: %w", image.Reference(), err)
	}
	return true, nil
}

// cleanUp takes back what only a running operation needs: the files of its host
// step. Packages and layers stay, as they serve the next attempt.
func (h *provisioner) cleanUp(ctx context.Context, act opAct) (opEvent, error) {
	return opEvent{Kind: evCleaned}, h.dropStep(ctx, act.State.Last)
}

// dropStep removes the files of a host step that was answered. The result may
// belong to root; the folder is the user's, so it can be removed all the same.
func (h *provisioner) dropStep(ctx context.Context, step *berth.HostStep) error {
	if step == nil {
		return nil
	}
	for _, file := range []string{step.Request, step.Result} {
		if file == "" {
			continue
		}
		if err := h.Guest.RemoveFile(ctx, file); err != nil && berth.AsError(err).Code != berth.CodeNotFound {
			h.log.Warn("a file of a host step stays", "host", h.Name, "path", file, "error", err)
		}
	}
	return nil
}

// ours reports whether an operation of this host pulled the image: this one, or
// one before it that did not come to an installation.
func (p *performer) ours(ctx context.Context, act opAct, image berth.Image) (bool, error) {
	name := imageResource(image)
	if slices.Contains(act.Owned, name) {
		return true, nil
	}
	q := durable.Query{Kind: KindOperation}
	for {
		page, err := p.cfg.Store.List(ctx, q)
		if err != nil {
			return false, err
		}
		for _, rec := range page.Records {
			if hostOf(rec) != act.State.Op.Target.Host {
				continue
			}
			owned, err := p.cfg.Store.Owned(ctx, KindOperation, rec.ID)
			if err != nil && berth.AsError(err).Code != berth.CodeNotFound { // it was archived just now
				return false, err
			}
			if slices.Contains(owned, name) {
				return true, nil
			}
		}
		if q.After = page.Next; q.After == "" {
			return false, nil
		}
	}
}
