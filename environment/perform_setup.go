package environment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"berth"
)

// checkArgv prints the UUIDs of the cards that the container sees.
var checkArgv = []string{"nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"}

const maxTail = 1000 // bytes of a program's output in an error

// imageResource names an image among what an operation owns.
func imageResource(i berth.Image) string { return "image:" + i.Reference() }

// prepare shows that a container sees the chosen GPU, before the engine's image
// moves one byte. Without a GPU there is only Docker to see.
func (h *provisioner) prepare(ctx context.Context, act opAct) (opEvent, error) {
	plan := act.State.Op.Plan
	done := opEvent{Kind: evPrepared}
	if plan.CheckImage == nil || plan.GPU == "" {
		facts, err := h.look(ctx, true)
		if err != nil {
			return opEvent{}, err
		}
		return done, rungDocker(facts)
	}
	route := act.State.Route
	if route == routeNone {
		return opEvent{}, rungFailed("gpu_route", "Docker has neither a CDI device nor the nvidia runtime for %s", plan.GPU)
	}
	if err := h.fetch(ctx, act, *plan.CheckImage, "check"); err != nil {
		return opEvent{}, err
	}
	act.Report(berth.Progress{Stage: "check", Note: "a container looks for " + plan.GPU})
	c := Check{Image: *plan.CheckImage, Argv: checkArgv, GPU: plan.GPU}
	if route != routeRuntime {
		c.CDIDevice = string(route)
	}
	r, err := h.Containers.Check(ctx, c)
	if err != nil {
		return opEvent{}, fmt.Errorf("check %s: %w", plan.GPU, err)
	}
	return done, judgeCheck(r, plan.GPU, route)
}

// judgeCheck passes a check that ended well and printed the card's own line.
func judgeCheck(r CheckResult, gpu string, route gpuRoute) error {
	if r.ExitCode == 0 {
		for line := range strings.Lines(r.Stdout) {
			if strings.EqualFold(strings.TrimSpace(line), gpu) {
				return nil
			}
		}
	}
	why := fmt.Sprintf("it ended with %d", r.ExitCode)
	if r.ExitCode == 0 {
		why = "it saw other cards, or none"
	}
	err := rungFailed("container_gpu", "a container does not see %s: %s", gpu, why)
	if hint := explain(r.Stdout+"\n"+r.Stderr, poolsUnknown); hint != "" {
		err = err.WithHint(hint)
	}
	return err.
		WithFact("gpu", gpu).WithFact("route", string(route)).WithFact("exit_code", strconv.Itoa(r.ExitCode)).
		WithFact("stdout", outputTail(r.Stdout)).WithFact("stderr", outputTail(r.Stderr))
}

func outputTail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxTail {
		s = s[len(s)-maxTail:]
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "")
	}
	return s
}

// fetch pulls an image that Docker itself says is absent, as the operation's own:
// that is recorded first, so that no crash makes it a stranger's.
func (h *provisioner) fetch(ctx context.Context, act opAct, image berth.Image, stage string) error {
	there, err := h.Containers.ImagePresent(ctx, image)
	if err != nil {
		return fmt.Errorf("look for %s: %w", image.Reference(), err)
	}
	if there {
		return nil
	}
	if err := act.Own(ctx, imageResource(image)); err != nil {
		return fmt.Errorf("record %s as owned: %w", image.Reference(), err)
	}
	first := berth.Progress{Stage: "download", Total: image.DownloadBytes, Unit: "bytes"}
	if stage != "" {
		first.Note = stage
	}
	act.Report(first)
	if err := h.Containers.Pull(ctx, image, act.Report); err != nil {
		return err // it names the image
	}
	return nil
}

func (h *provisioner) pull(ctx context.Context, act opAct) (opEvent, error) {
	plan := act.State.Op.Plan
	if plan.Image == nil {
		return opEvent{}, berth.Errorf(berth.CodeReleaseInvalid, "the plan has no image")
	}
	return opEvent{Kind: evPulled}, h.fetch(ctx, act, *plan.Image, "")
}

// verify climbs the ladder once more on what is there now, and notes the
// versions. A change of one of them later asks for a new climb.
func (h *provisioner) verify(ctx context.Context, act opAct) (opEvent, error) {
	plan := act.State.Op.Plan
	facts, err := h.look(ctx, true)
	if err != nil {
		return opEvent{}, err
	}
	if err := climb(facts, *plan); err != nil {
		return opEvent{}, err
	}
	if act.State.Op.Target.Engine != "" {
		if plan.Image == nil {
			return opEvent{}, berth.Errorf(berth.CodeReleaseInvalid, "the plan has no image")
		}
		there, err := h.Containers.ImagePresent(ctx, *plan.Image)
		if err != nil {
			return opEvent{}, fmt.Errorf("look for %s: %w", plan.Image.Reference(), err)
		}
		if !there {
			return opEvent{}, berth.Errorf(berth.CodeImageNotFound, "the image %s is not there any more", plan.Image.Reference()).WithHint("berth op resume pulls it again")
		}
	}
	return opEvent{Kind: evVerified, Versions: versionsOf(facts, plan.GPU)}, nil
}

// climb goes up the rungs that the facts can show. The container's own rung was
// climbed before the pull.
func climb(f berth.Facts, p berth.Plan) error {
	if p.GPU != "" {
		if err := climbGPU(f, p.GPU); err != nil {
			return err
		}
	}
	if err := rungDocker(f); err != nil {
		return err
	}
	if p.GPU != "" && routeOf(f, p.GPU) == routeNone {
		return rungFailed("gpu_route", "Docker has neither a CDI device nor the nvidia runtime for %s", p.GPU)
	}
	return nil
}

func climbGPU(f berth.Facts, gpu string) error {
	switch {
	case f.GPU.OnBus == 0 && f.OS.WSL == 0 && !factUnknown(&f, FactPCI):
		return rungFailed("pci", "there is no NVIDIA card on the bus")
	case mismatched(f.GPU, f.OS.WSL):
		return rungFailed("driver", "the driver that runs is %s and its library is %s", f.GPU.Module, f.GPU.Library).WithHint("restart the machine, then: berth op resume")
	}
	for _, c := range f.GPU.Cards {
		if c.UUID == gpu {
			return nil
		}
	}
	return rungFailed("nvidia_smi", "nvidia-smi does not list %s", gpu)
}

func rungDocker(f berth.Facts) error {
	if f.Docker.Reachable {
		return nil
	}
	return berth.Errorf(berth.CodeDockerUnreachable, "Docker does not answer: %.300s", f.Docker.Error).WithFact("rung", "docker")
}

func rungFailed(rung, format string, a ...any) *berth.Error {
	return berth.Errorf(berth.CodeCheckFailed, format, a...).WithFact("rung", rung)
}

// versionsOf are the versions that a climb holds for. A part that is not there
// has none.
func versionsOf(f berth.Facts, gpu string) map[string]string {
	v := map[string]string{"docker": f.Docker.Version, "docker_api": f.Docker.API}
	if gpu != "" {
		v["gpu"], v["driver"], v["toolkit"] = gpu, f.GPU.Module, f.Toolkit.Version
		if f.GPU.Module == "" {
			v["driver"] = f.GPU.Library
		}
	}
	maps.DeleteFunc(v, func(_, version string) bool { return version == "" })
	return v
}

// changedVersions says what is of another version now than when the
// installation's ladder was climbed ("driver 580.95 to 590.1"), sorted; empty =
// the climb holds. What cannot be seen now is not said to have changed.
func changedVersions(in berth.Installation, f berth.Facts) []string {
	now := versionsOf(f, in.Verified["gpu"])
	var changed []string
	for part, version := range in.Verified {
		if part != "gpu" && now[part] != "" && now[part] != version {
			changed = append(changed, fmt.Sprintf("%s %s to %s", strings.ReplaceAll(part, "_", " "), version, now[part]))
		}
	}
	slices.Sort(changed)
	return changed
}

// activate records the installation. Done again it finds its own record.
func (p *performer) activate(ctx context.Context, act opAct) (opEvent, error) {
	op, plan := act.State.Op, act.State.Op.Plan
	if plan.Release == nil || plan.Image == nil {
		return opEvent{}, berth.Errorf(berth.CodeReleaseInvalid, "the plan has no release")
	}
	was, rec, err := p.insts.get(ctx, op.Target)
	if err != nil {
		return opEvent{}, err
	}
	in := berth.Installation{
		Host: op.Target.Host, Engine: op.Target.Engine, Release: *plan.Release, Image: *plan.Image, Platform: plan.Platform,
		Status: berth.InstallationReady, Device: "cpu", Verified: act.State.Versions, Operation: act.RecordID,
		InstalledAt: p.cfg.Now().UTC().Format(time.RFC3339),
	}
	if plan.GPU != "" {
		in.Device = "gpu"
	}
	mine, err := p.ours(ctx, act, in.Image)
	if err != nil {
		return opEvent{}, err
	}
	in.Found = !mine && (was == nil || was.Image.Digest != in.Image.Digest || was.Found)
	if plan.CheckImage != nil {
		ours, err := p.ours(ctx, act, *plan.CheckImage)
		if err != nil {
			return opEvent{}, err
		}
		if ours || was != nil && was.CheckImage != nil && was.CheckImage.Digest == plan.CheckImage.Digest {
			in.CheckImage = plan.CheckImage
		}
	}
	if was == nil || was.Operation != act.RecordID || was.Release.ID != in.Release.ID || was.Status != berth.InstallationReady {
		in.Superseded = supersededBy(in, was)
		if err := p.insts.put(ctx, in, rec); err != nil {
			return opEvent{}, err
		}
	}
	return opEvent{Kind: evActivated}, p.dropSuperseded(ctx, act)
}

// supersededBy are the images that in takes the place of; was may be nil.
func supersededBy(in berth.Installation, was *berth.Installation) []berth.Image {
	if was == nil {
		return nil
	}
	images := slices.Clone(was.Superseded)
	if !was.Found {
		images = append(images, was.Image)
	}
	return slices.DeleteFunc(images, func(i berth.Image) bool {
		return i.Digest == in.Image.Digest || in.CheckImage != nil && i.Digest == in.CheckImage.Digest
	})
}

// dropSuperseded removes what an update made useless. What is still used stays
// in the record: a failure here fails no update.
func (p *performer) dropSuperseded(ctx context.Context, act opAct) error {
	t := act.State.Op.Target
	in, rec, err := p.insts.get(ctx, t)
	if err != nil || in == nil || len(in.Superseded) == 0 {
		return err
	}
	h, err := p.at(t.Host)
	if err != nil {
		return err
	}
	others, err := p.insts.beside(ctx, t)
	if err != nil {
		return err
	}
	var left []berth.Image
	for _, image := range in.Superseded {
		gone, err := h.dropImage(ctx, act, image, others)
		if err != nil {
			h.log.Warn("the image of an earlier release stays", "host", h.Name, "image", image.Reference(), "error", err)
		}
		if !gone {
			left = append(left, image)
		}
	}
	if len(left) == len(in.Superseded) {
		return nil
	}
	in.Superseded = left
	_, err = p.insts.change(ctx, *in, *rec)
	return err
}
