package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
)

// ladderTimeout bounds the look at what engines need: its facts have their own
// deadlines, and one that hangs must not hold up the other findings for long.
const ladderTimeout = 20 * time.Second

// checkEngines climbs the rungs between the machine and an engine that sees its
// GPU, as far as they can be seen without starting anything.
func checkEngines(ctx context.Context, api API) []berth.Finding {
	ctx, cancel := context.WithTimeout(ctx, ladderTimeout)
	defer cancel()
	p, err := api.Plan(ctx, berth.ProbeRequest{Kind: berth.OperationSetup, Target: berth.Target{Host: berth.LocalHost}})
	switch {
	case errors.Is(err, berth.CodeNotFound): // this daemon has no environments
		return nil
	case err != nil:
		return []berth.Finding{finding("engines", findingUnknown, err)}
	case p.Facts == nil:
		return []berth.Finding{{Check: "engines", Status: findingUnknown, Detail: "nothing could be found out about this machine"}}
	}
	return ladder(p)
}

// ladder makes a finding of each rung. Sessions need none of it, so what is only
// not there yet is a warning; what is there and broken fails.
func ladder(p berth.Plan) []berth.Finding {
	f := p.Facts
	out := []berth.Finding{rungBus(f)}
	if f.GPU.OnBus > 0 || len(f.GPU.Cards) > 0 {
		out = append(out, rungModule(p), rungCards(f))
	}
	out = append(out, rungDocker(p))
	if len(f.GPU.Cards) > 0 && f.Docker.Reachable {
		out = append(out, rungDevice(p))
	}
	for _, w := range p.Warnings {
		if w.Reason == string(berth.WarnVersions) {
			out = append(out, berth.Finding{Check: "engine-check", Status: findingWarn, Detail: w.Message, Fix: strings.Join(w.Commands, "; ")})
		}
	}
	for _, u := range f.Unknown {
		out = append(out, berth.Finding{Check: "unknown", Status: findingUnknown, Detail: u.Fact + ": " + u.Reason})
	}
	return out
}

func rungBus(f *berth.Facts) berth.Finding {
	r := berth.Finding{Check: "gpu-bus", Status: findingOK, Detail: fmt.Sprintf("%d NVIDIA cards on the bus", f.GPU.OnBus)}
	if f.GPU.OnBus == 0 && len(f.GPU.Cards) == 0 {
		r.Detail = "no NVIDIA card: engines run on the CPU, where their release can"
	}
	return r
}

func rungModule(p berth.Plan) berth.Finding {
	f := p.Facts
	mismatch := func(b berth.PlanNote) bool { return b.Reason == string(berth.BlockDriverMismatch) }
	r := berth.Finding{Check: "gpu-driver", Status: findingOK, Detail: "driver " + f.GPU.Module}
	switch {
	case f.GPU.Module == "" && f.OS.WSL > 0: // the module is Windows's
		r.Detail = "the driver is that of Windows"
	case f.GPU.Module == "":
		r.Status, r.Detail = findingWarn, "the NVIDIA driver is not loaded"
		r.Fix = "install the driver of your distribution, then restart"
		if f.GPU.Nouveau {
			r.Detail += ", nouveau is"
		}
	case slices.ContainsFunc(p.Blockers, mismatch):
		r.Status, r.Fix = findingFail, "restart the machine"
		r.Detail = fmt.Sprintf("the driver that runs is %s and its library is %s", f.GPU.Module, f.GPU.Library)
	}
	return r
}

func rungCards(f *berth.Facts) berth.Finding {
	r := berth.Finding{Check: "gpu-cards", Status: findingOK}
	switch {
	case f.GPU.SMIError != "":
		r.Status, r.Detail, r.Fix = findingFail, "nvidia-smi fails: "+f.GPU.SMIError, "berth probe"
	case len(f.GPU.Cards) == 0:
		r.Status, r.Detail, r.Fix = findingWarn, "the driver shows no card", "berth probe"
	default:
		r.Detail = fmt.Sprintf("%d cards: %s", len(f.GPU.Cards), f.GPU.Cards[0].Name)
	}
	return r
}

func rungDocker(p berth.Plan) berth.Finding {
	f, d := p.Facts, p.Facts.Docker
	r := berth.Finding{Check: "docker", Status: findingOK, Detail: fmt.Sprintf("%s, API %s", d.Version, d.API)}
	switch {
	case d.Reachable:
	case d.CLI == "" && d.Socket == "":
		r.Status, r.Detail, r.Fix = findingWarn, "Docker is not installed: engines run in containers", "berth setup --environment"
	case f.User.GroupConfigured && !f.User.GroupEffective:
		r.Status, r.Detail, r.Fix = findingWarn, "the group docker is not effective in this login yet", "log out and in again, then: berth up"
	default:
		r.Status, r.Detail, r.Fix = findingWarn, "Docker does not answer you: "+d.Error, "berth setup --environment"
		if b := dockerBlocker(p); b != nil { // a setup would say the same
			if r.Fix = b.Message; len(b.Commands) > 0 {
				r.Fix = strings.Join(b.Commands, "; ")
			}
		}
	}
	return r
}

// dockerBlocker is what stands against Docker here, and a person must mend; nil =
// nothing.
func dockerBlocker(p berth.Plan) *berth.PlanNote {
	for i, b := range p.Blockers {
		switch berth.BlockerReason(b.Reason) {
		case berth.BlockDockerSnap, berth.BlockDockerRootless, berth.BlockDockerDesktop, berth.BlockPodmanDocker, berth.BlockDockerUnrecognised,
			berth.BlockDockerAccess, berth.BlockDockerService, berth.BlockDockerCLI, berth.BlockGroupManual, berth.BlockDistribution, berth.BlockManualInstall,
			berth.BlockImmutableOS, berth.BlockNoSystemd:
			return &p.Blockers[i]
		}
	}
	return nil
}

// rungDevice looks whether a container can be given the card that the plan
// chose: by its UUID through CDI, else through the runtime.
func rungDevice(p berth.Plan) berth.Finding {
	f := p.Facts
	r := berth.Finding{Check: "gpu-device", Status: findingOK}
	uuid := p.GPU
	if uuid == "" {
		uuid = f.GPU.Cards[0].UUID
	}
	listed := slices.Contains(f.Docker.CDIDevices, "nvidia.com/gpu="+uuid) || slices.Contains(f.Toolkit.Devices, uuid) || slices.Contains(f.Toolkit.Devices, "nvidia.com/gpu="+uuid)
	switch {
	case f.Docker.CDI && listed:
		r.Detail = "CDI lists " + uuid
	case slices.Contains(f.Docker.Runtimes, "nvidia"):
		r.Detail = "the runtime nvidia is configured"
	default:
		r.Status, r.Fix = findingWarn, "berth setup --environment"
		r.Detail = "no container can be given the card " + uuid
	}
	return r
}
