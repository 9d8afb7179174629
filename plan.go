package berth

import "strings"

// OperationKind is what an operation does.
type OperationKind string

// The operation kinds.
const (
	OperationSetup  OperationKind = "setup"
	OperationUpdate OperationKind = "update"
	OperationRemove OperationKind = "remove"
)

// Valid reports whether the kind is one of the above.
func (k OperationKind) Valid() bool {
	return k == OperationSetup || k == OperationUpdate || k == OperationRemove
}

// Target is what an operation changes: the environment of a host, or one engine
// on it.
type Target struct {
	Host   string `json:"host"`
	Engine string `json:"engine,omitempty"` // "" = the environment itself
}

// ChangeCode names one change of the system. Codes are part of the plan's
// digest and never change their meaning.
type ChangeCode string

// The changes of a setup, in the order in which they are made, and those of a
// removal.
const (
	ChangeAddRepository    ChangeCode = "add_repository"    // params vendor
	ChangeInstallPackages  ChangeCode = "install_packages"  // params packages
	ChangeConfigureRuntime ChangeCode = "configure_runtime" // the nvidia runtime in daemon.json
	ChangeEnableCDI        ChangeCode = "enable_cdi"        // features.cdi in daemon.json
	ChangeGenerateCDI      ChangeCode = "generate_cdi"      // the CDI specification
	ChangeEnableService    ChangeCode = "enable_service"    // docker.service
	ChangeAddToGroup       ChangeCode = "add_to_group"      // params user, group
	ChangeRestartDocker    ChangeCode = "restart_docker"    // params running_containers
	ChangePullImage        ChangeCode = "pull_image"        // params image; no elevation
	ChangeRunCheck         ChangeCode = "run_check"         // params image, gpu; no elevation
	ChangeStopContainers   ChangeCode = "stop_containers"   // removal
	ChangeRemoveImage      ChangeCode = "remove_image"      // removal
	ChangeRemoveCaches     ChangeCode = "remove_caches"     // removal
	ChangeRemoveModels     ChangeCode = "remove_models"     // removal
	ChangeRemoveRecord     ChangeCode = "remove_record"     // removal
	ChangeUndo             ChangeCode = "undo"              // of the environment: params step, path
)

// Change is one thing that an operation would do.
type Change struct {
	Code     ChangeCode        `json:"code"`
	Text     string            `json:"text"` // what, for a person
	Why      string            `json:"why"`  // not in the digest
	Params   map[string]string `json:"params,omitempty"`
	Elevated bool              `json:"elevated"`        // is done by the host step, as root
	Bytes    int64             `json:"bytes,omitempty"` // that it downloads; 0 = none, or not known; not in the digest
}

// BlockerReason says why a plan cannot be carried out.
type BlockerReason string

// The blockers.
const (
	BlockUnknownFact        BlockerReason = "unknown_fact"
	BlockArchitecture       BlockerReason = "unsupported_architecture"
	BlockDriverMissing      BlockerReason = "driver_missing"
	BlockDriverTooOld       BlockerReason = "driver_too_old"
	BlockDriverMismatch     BlockerReason = "driver_mismatch"
	BlockNoGPU              BlockerReason = "no_gpu"
	BlockComputeCapability  BlockerReason = "compute_capability_too_low"
	BlockDockerSnap         BlockerReason = "docker_snap"
	BlockDockerRootless     BlockerReason = "docker_rootless"
	BlockDockerDesktop      BlockerReason = "docker_desktop_only"
	BlockPodmanDocker       BlockerReason = "podman_docker"
	BlockDockerUnrecognised BlockerReason = "docker_unrecognised"
	BlockImmutableOS        BlockerReason = "immutable_os"
	BlockDistribution       BlockerReason = "distribution_not_qualified"
	BlockManualInstall      BlockerReason = "manual_install" // a family that berth does not install on: the commands are listed
	BlockManifest           BlockerReason = "manifest_unavailable"
	BlockDisk               BlockerReason = "insufficient_disk"
	BlockDaemonJSON         BlockerReason = "daemon_json_unreadable"
	BlockDockerAccess       BlockerReason = "docker_access_unexplained"
	BlockGroupManual        BlockerReason = "docker_group_manual"
	BlockRelogin            BlockerReason = "relogin_required"
	BlockDockerCLI          BlockerReason = "docker_cli_missing"
	BlockToolkit            BlockerReason = "toolkit_missing"
	BlockGPURuntime         BlockerReason = "gpu_runtime_not_configured"
	BlockDockerService      BlockerReason = "docker_service_inactive"
	BlockNoSystemd          BlockerReason = "no_systemd"
	BlockInstalledOther     BlockerReason = "installed_with_other_release"
	BlockEngineMismatch     BlockerReason = "engine_mismatch"
	BlockRecipeRefused      BlockerReason = "recipe_refused"
	BlockRelease            BlockerReason = "release_not_for_platform"
	BlockPackageConflict    BlockerReason = "package_conflict"
	BlockNotInstalled       BlockerReason = "not_installed" // removal of what is not there
	BlockWSL1               BlockerReason = "wsl1"
	BlockStaleCDI           BlockerReason = "stale_cdi_spec" // a file in /etc/cdi shadows the fresh one, and is not ours
)

// WarningReason says what a person should know before consent. Warnings never
// block and are not in the digest.
type WarningReason string

// The warnings.
const (
	WarnAddressPools WarningReason = "address_pools_covered"
	WarnDockerGroup  WarningReason = "docker_group_is_root"
	WarnLiveRestore  WarningReason = "live_restore_off"
	WarnLinger       WarningReason = "linger_off"
	WarnCPUOnly      WarningReason = "cpu_only" // said aloud: this release runs on the CPU
	WarnGPUBusy      WarningReason = "gpu_in_use"
	WarnRebootDue    WarningReason = "reboot_due"
	WarnPackageLock  WarningReason = "package_lock_held"
	WarnDerivative   WarningReason = "derivative_distribution"
	WarnUnknownSize  WarningReason = "size_unknown"
	WarnVersions     WarningReason = "versions_changed" // since an engine here was last checked
)

// PlanNote is a blocker or a warning: the reason as its Reason, and what a
// person needs to act on it.
type PlanNote struct {
	Reason   string            `json:"reason"` // a BlockerReason or a WarningReason
	Message  string            `json:"message"`
	Params   map[string]string `json:"params,omitempty"`
	Commands []string          `json:"commands,omitempty"` // to run by hand, where berth will not
}

// RecipeRef names the closed list of privileged steps of one build of
// berth-hoststep.
type RecipeRef struct {
	ID     string `json:"id"`
	Digest string `json:"digest"`
}

// Plan is what a change would do. What is approved is its Digest, and only what
// has that digest is done.
type Plan struct {
	V              int                 `json:"v"`
	Digest         string              `json:"digest"` // "sha256:…"
	Kind           OperationKind       `json:"kind"`
	Target         Target              `json:"target"`
	Availability   Availability        `json:"availability"`
	Blockers       []PlanNote          `json:"blockers"`            // never nil; none = it can be carried out
	Warnings       []PlanNote          `json:"warnings"`            // never nil
	Changes        []Change            `json:"changes"`             // never nil, in order
	Recipe         *RecipeRef          `json:"recipe,omitempty"`    // nil = no host step
	HostStep       *HostStepParameters `json:"host_step,omitempty"` // what the host step would be given; nil = none
	Release        *ReleaseRef         `json:"release,omitempty"`
	Image          *Image              `json:"image,omitempty"`
	CheckImage     *Image              `json:"check_image,omitempty"`
	Platform       string              `json:"platform,omitempty"`
	ImagePresent   *bool               `json:"image_present,omitempty"` // by digest; nil = not known
	Manifest       string              `json:"manifest,omitempty"`      // id of the environment manifest
	AdoptsExisting bool                `json:"adopts_existing"`         // a Docker that works is used as it is
	Elevation      bool                `json:"elevation"`
	Relogin        bool                `json:"relogin"`         // may become necessary
	Reboot         bool                `json:"reboot"`          // may become necessary
	GPUs           []GPU               `json:"gpus"`            // never nil
	GPU            string              `json:"gpu,omitempty"`   // UUID of the one that the check uses
	DiskSufficient *bool               `json:"disk_sufficient"` // nil = not known
	DiskPath       string              `json:"disk_path,omitempty"`
	DockerRoot     string              `json:"docker_root,omitempty"`
	DownloadBytes  int64               `json:"download_bytes"` // 0 = nothing, or not known
	RequiredBytes  int64               `json:"required_bytes"`
	FreeBytes      *int64              `json:"free_bytes,omitempty"` // nil = not known
	RetainModels   bool                `json:"retain_models,omitempty"`
	Notices        []string            `json:"notices,omitempty"`
	Facts          *Facts              `json:"facts,omitempty"` // what it was judged from; not kept in operations
}

// Feasible reports whether nothing stands against it.
func (p *Plan) Feasible() bool { return len(p.Blockers) == 0 }

// ProbeRequest is the body of POST /v1/plans.
type ProbeRequest struct {
	Kind         OperationKind `json:"kind,omitempty"` // "" = setup
	Target       Target        `json:"target"`
	Release      string        `json:"release,omitempty"` // id; "" = the newest of the engine
	RetainModels bool          `json:"retain_models,omitempty"`
}

// Refusal is the first reason why the plan cannot be carried out, as the error
// that an operation of it fails with; nil = it can.
func (p Plan) Refusal() *Error {
	if len(p.Blockers) == 0 {
		if p.Availability != Unsupported {
			return nil
		}
		why := "this kind of host cannot be set up"
		if len(p.Notices) > 0 {
			why = p.Notices[0]
		}
		return Errorf(CodeUnsupported, "%s", why)
	}
	first := p.Blockers[0]
	code := blockerCode(BlockerReason(first.Reason))
	if p.Availability == Unsupported {
		code = CodeUnsupported // nothing that a person does there makes it possible
	}
	err := Errorf(code, "%s", first.Message).WithFact("reason", first.Reason)
	for k, v := range first.Params {
		if k != "reason" {
			err = err.WithFact(k, v)
		}
	}
	switch {
	case len(first.Commands) > 0:
		err = err.WithHint("run: " + strings.Join(first.Commands, "; "))
	case first.Reason == string(BlockNotInstalled) && p.Target.Engine != "":
		err = err.WithHint("berth engine ls shows what is installed")
	case first.Reason == string(BlockNotInstalled):
		err = err.WithHint("there is nothing to do")
	}
	return err
}

func blockerCode(r BlockerReason) Code {
	switch r {
	case BlockRelogin:
		return CodeReloginRequired
	case BlockRecipeRefused:
		return CodeHostStepInvalid
	case BlockRelease, BlockManifest:
		return CodeReleaseNotFound
	case BlockInstalledOther, BlockEngineMismatch:
		return CodeConflict
	case BlockNotInstalled:
		return CodeNotFound
	}
	return CodePrerequisiteBlocked
}
