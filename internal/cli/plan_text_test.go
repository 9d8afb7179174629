package cli

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"berth"
)

var updatePlans = flag.Bool("update-plans", false, "write the golden plans of testdata/plan again")

const planDigest = "sha256:7d0f3c1a9be2445566778899aabbccddeeff00112233445566778899aabbccdd"

func freshPlan() berth.Plan {
	free, enough := int64(300e9), true
	return berth.Plan{
		V: 1, Digest: planDigest, Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "vllm"}, Availability: berth.SetupRequired,
		Release: &berth.ReleaseRef{ID: "vllm-0.31.0-r1", Engine: "vllm", Version: "0.31.0"}, Elevation: true, Relogin: true,
		GPUs: []berth.GPU{{UUID: "GPU-1", Name: "NVIDIA GeForce RTX 4090"}}, GPU: "GPU-1",
		DownloadBytes: 10224470647, RequiredBytes: 30064771072, FreeBytes: &free, DiskSufficient: &enough, DiskPath: "/var/lib/containerd",
		HostStep: &berth.HostStepParameters{User: "ada"}, Recipe: &berth.RecipeRef{ID: "linux-r2"},
		Changes: []berth.Change{
			{Code: berth.ChangeAddRepository, Text: "Add the package repository of Docker, with its signing key", Why: "Docker comes from its makers; the key is checked by its fingerprint", Elevated: true},
			{Code: berth.ChangeInstallPackages, Text: "Install docker-ce, docker-ce-cli, containerd.io, nvidia-container-toolkit-base", Why: "nothing that is installed is upgraded or removed", Elevated: true},
			{Code: berth.ChangeAddToGroup, Text: "Add ada to group docker", Why: "berth talks to Docker as you, never as root", Elevated: true},
			{Code: berth.ChangePullImage, Text: "Pull the check image nvcr.io/nvidia/cuda", Why: "it is small, and has nvidia-smi in it", Bytes: 90e6},
			{Code: berth.ChangeRunCheck, Text: "Run it once on NVIDIA GeForce RTX 4090", Why: "a container must get the GPU before the large image is pulled"},
			{Code: berth.ChangePullImage, Text: "Pull vllm 0.31.0", Why: "by its digest, so that it is what the release names", Bytes: 10134470647},
		},
		Warnings: []berth.PlanNote{
			{Reason: string(berth.WarnDockerGroup), Message: "Group docker gives ada the rights of root on this machine: who can use Docker can change any file."},
			{Reason: string(berth.WarnLinger), Message: "When you log out, the system ends berth's daemon, and an engine that nobody tends ends after a while. To keep them, run the command.", Commands: []string{"sudo loginctl enable-linger ada"}},
		},
		Notices: []string{"The image contains software under the NVIDIA CUDA Toolkit EULA."},
	}
}

var planTexts = map[string]func() berth.Plan{
	"fresh": freshPlan,
	"ready": func() berth.Plan {
		return berth.Plan{Digest: planDigest, Kind: berth.OperationSetup, Target: berth.Target{Host: "box"}, Availability: berth.Supported}
	},
	"blocked": func() berth.Plan {
		p := freshPlan()
		p.Changes, p.Warnings, p.HostStep, p.Recipe, p.Notices, p.Elevation, p.Relogin = nil, nil, nil, nil, nil, false, false
		p.Availability, p.DownloadBytes = berth.PrerequisiteBlocked, 0
		p.Blockers = []berth.PlanNote{
			{Reason: string(berth.BlockDriverTooOld), Message: "The NVIDIA driver is 570.10.01; release vllm-0.31.0-r1 needs 580.0 or newer. Install a newer driver, restart the machine, then try again.",
				Commands: []string{"sudo ubuntu-drivers install", "sudo systemctl reboot"}},
			{Reason: string(berth.BlockDisk), Message: "The image of release vllm-0.31.0-r1 needs 30 GB at /var/lib/containerd, where 12 GB are free. Free 18 GB there, then try again."},
		}
		return p
	},
	"unsupported": func() berth.Plan {
		return berth.Plan{Digest: planDigest, Kind: berth.OperationSetup, Target: berth.Target{Host: "vm", Engine: "vllm"}, Availability: berth.Unsupported, Notices: []string{"There is no provisioner for this kind of host."}}
	},
	"update": func() berth.Plan {
		p := freshPlan()
		p.Kind, p.Availability, p.Relogin, p.Warnings, p.Notices = berth.OperationUpdate, berth.Supported, false, nil, nil
		p.Changes = append(p.Changes[5:], berth.Change{Code: berth.ChangeStopContainers, Text: "Stop what vllm has loaded, and go over from vllm-0.30.0-r1", Why: "two releases never run side by side"})
		return p
	},
	"remove": func() berth.Plan {
		return berth.Plan{Digest: planDigest, Kind: berth.OperationRemove, Target: berth.Target{Host: "local", Engine: "vllm"}, Availability: berth.Supported,
			Release: &berth.ReleaseRef{ID: "vllm-0.31.0-r1", Engine: "vllm", Version: "0.31.0"},
			Changes: []berth.Change{
				{Code: berth.ChangeStopContainers, Text: "Stop and remove 2 containers of vllm", Why: "only those that berth started; when a stop cannot be confirmed, nothing is removed"},
				{Code: berth.ChangeRemoveImage, Text: "Remove the image of vllm 0.31.0", Why: "unless a container that is not berth's uses it by then; it is never forced"},
				{Code: berth.ChangeRemoveRecord, Text: "Forget that vllm is installed"},
			},
			Notices: []string{"Kept: the models (that was asked for)."}}
	},
	"hostile": func() berth.Plan { // what a host says must not move the cursor
		p := freshPlan()
		p.Changes, p.Warnings, p.Notices = nil, nil, nil
		p.Blockers = []berth.PlanNote{{Reason: "driver_missing", Message: "nvidia-smi says: \x1b[2J\x1b]0;owned\a\r\nok", Commands: []string{"echo \x1b[31m\nrm"}}}
		p.Target.Host, p.GPUs[0].Name = "bo\x1b[1mx", "NVI\x07DIA"
		return p
	},
}

func TestRenderPlan(t *testing.T) {
	for name, plan := range planTexts {
		for _, c := range []struct {
			suffix string
			width  int
			colour bool
		}{{"", 80, false}, {"_narrow", 44, false}, {"_colour", 80, true}} {
			if c.suffix != "" && name != "fresh" && name != "blocked" {
				continue
			}
			t.Run(name+c.suffix, func(t *testing.T) {
				var b strings.Builder
				if err := renderPlan(&b, plan(), c.width, c.colour, true); err != nil {
					t.Fatal(err)
				}
				file := filepath.Join("testdata", "plan", name+c.suffix+".txt")
				if *updatePlans {
					if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
						t.Fatal(err)
					}
					return
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if b.String() != string(want) {
					t.Errorf("it is shown otherwise than %s; run with -update-plans and look.\n%s", file, b.String())
				}
			})
		}
	}
}

func TestRenderPlanBounds(t *testing.T) {
	for name, plan := range planTexts {
		var b strings.Builder
		if err := renderPlan(&b, plan(), 60, false, true); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%s: %q holds a control character", name, line)
			}
			copied := strings.HasPrefix(line, "      $ ") || strings.Contains(line, "--approve")
			if n := utf8.RuneCountInString(line); n > 60 && !copied {
				t.Errorf("%s: %d characters: %s", name, n, line)
			}
			if line != strings.TrimRight(line, " ") {
				t.Errorf("%s: blanks at the end of %q", name, line)
			}
		}
	}
}

func TestPlanBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 90e6: "90 MB", 10134470647: "10 GB", 2500000000: "2.5 GB", 67645734912: "68 GB", 3e12: "3.0 TB"} {
		if got := planBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
