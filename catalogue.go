package berth

// The codes. Each has a line in the catalogue below, which docs/errors.md is
// generated from.
const (
	CodeInternal          Code = "internal"
	CodeInvalidArgument   Code = "invalid_argument"
	CodeNotFound          Code = "not_found"
	CodeConflict          Code = "conflict"
	CodeNameTaken         Code = "name_taken"
	CodeAmbiguous         Code = "ambiguous"
	CodeRevisionMismatch  Code = "revision_mismatch"
	CodeFenced            Code = "fenced"
	CodeHeld              Code = "held"
	CodeUnauthorized      Code = "unauthorized"
	CodeForbidden         Code = "forbidden"
	CodeMethodNotAllowed  Code = "method_not_allowed"
	CodeTooLarge          Code = "too_large"
	CodeInterrupted       Code = "interrupted"
	CodeTimeout           Code = "timeout"
	CodeUsage             Code = "usage"
	CodeDaemonNotRunning  Code = "daemon_not_running"
	CodeDaemonStopping    Code = "daemon_stopping"
	CodeDaemonUnreachable Code = "daemon_unreachable"
	CodeDaemonFailed      Code = "daemon_failed"
	CodeAlreadyRunning    Code = "already_running"
	CodeForeignSocket     Code = "foreign_socket"
	CodeSocketPathTooLong Code = "socket_path_too_long"
	CodeStateDir          Code = "state_dir_unusable"
	CodeRuntimeDir        Code = "runtime_dir_unusable"
	CodeStoreNewer        Code = "store_newer"
	CodeStoreFailed       Code = "store_failed"
	CodeDiskFull          Code = "disk_full"
	CodeConfigInvalid     Code = "config_invalid"
	CodeConfigUnknownKey  Code = "config_unknown_key"
	CodeListenerTaken     Code = "listener_taken"
	CodeHostUnreachable   Code = "host_unreachable"
	CodeGuestOutdated     Code = "guest_outdated"
	CodeGuestFailed       Code = "guest_failed"
	CodeCommandNotFound   Code = "command_not_found"
	CodeCwdUnusable       Code = "cwd_unusable"
	CodeStartFailed       Code = "start_failed"
	CodeSessionEnded      Code = "session_ended"
	CodeSessionLive       Code = "session_live"
	CodeSessionLost       Code = "session_lost"
	CodeInvalidOffset     Code = "invalid_offset"
	CodeOffsetGone        Code = "offset_gone"
	CodeGenerationChanged Code = "generation_changed"
	CodeReadOnly          Code = "read_only"
	CodeNotATerminal      Code = "not_a_terminal"
	CodeRecordUnreadable  Code = "record_unreadable"
	CodeKillIncomplete    Code = "kill_incomplete"
	CodeUncontained       Code = "uncontained"
	CodeLogGap            Code = "log_gap"

	// Environments and operations.
	CodePlanChanged         Code = "plan_changed"
	CodeConsentRequired     Code = "consent_required"
	CodeReceiptConflict     Code = "receipt_conflict"
	CodePrerequisiteBlocked Code = "prerequisite_blocked"
	CodeReloginRequired     Code = "relogin_required"
	CodeRebootRequired      Code = "reboot_required"
	CodeElevationDeclined   Code = "elevation_declined"
	CodeHostStepInvalid     Code = "host_step_invalid"
	CodeHostStepFailed      Code = "host_step_failed"
	CodeIdentityMismatch    Code = "identity_mismatch"
	CodeStopUnconfirmed     Code = "stop_unconfirmed"
	CodeResourceInUse       Code = "resource_in_use"
	CodeUnsupported         Code = "unsupported"
	CodeReleaseInvalid      Code = "release_invalid"
	CodeReleaseNotFound     Code = "release_not_found"
	CodeDockerUnreachable   Code = "docker_unreachable"
	CodePullFailed          Code = "pull_failed"
	CodeRegistryUnreachable Code = "registry_unreachable"
	CodeImageNotFound       Code = "image_not_found"
	CodeDigestMismatch      Code = "digest_mismatch"
	CodeCheckFailed         Code = "check_failed"
	CodeOperationLive       Code = "operation_live"
	CodeOperationCancelled  Code = "operation_cancelled"
)

// CatalogueEntry says what one code means to each kind of reader.
type CatalogueEntry struct {
	Code    Code
	Status  int    // HTTP status
	Exit    int    // exit status of the command line
	Meaning string // one sentence
	Hint    string // the next step where the error gives none of its own; "" = none
}

// Catalogue looks a code up.
func Catalogue(c Code) (CatalogueEntry, bool) {
	for _, e := range catalogue {
		if e.Code == c {
			return e, true
		}
	}
	return CatalogueEntry{}, false
}

// CatalogueEntries lists the catalogue in its order. The caller owns the slice.
func CatalogueEntries() []CatalogueEntry { return append([]CatalogueEntry(nil), catalogue[:]...) }

var catalogue = [...]CatalogueEntry{
	{CodeInternal, 500, ExitFailed, "Something failed that nobody foresaw.", "look at the daemon's log: logs/daemon.log in the state directory"},
	{CodeInvalidArgument, 400, ExitUsage, "A value in the request is not allowed.", ""},
	{CodeUsage, 400, ExitUsage, "The command line is not understood.", "see --help of the command"},
	{CodeNotFound, 404, ExitNotFound, "There is no such record.", "berth ps --all lists what there is"},
	{CodeConflict, 409, ExitRefused, "The request contradicts something that exists.", ""},
	{CodeNameTaken, 409, ExitRefused, "A live session has that name.", "choose another name, or end that session"},
	{CodeAmbiguous, 409, ExitRefused, "The text fits more than one record.", "use the id"},
	{CodeRevisionMismatch, 412, ExitRefused, "The record changed since it was read.", "read it again and repeat the change"},
	{CodeFenced, 409, ExitRefused, "The writer's epoch is over: another took its place.", "stop; read the record again before any further write"},
	{CodeHeld, 409, ExitRefused, "Another principal holds the lease.", "wait until it expires, or ask its holder"},
	{CodeUnauthorized, 401, ExitRefused, "The caller did not show who it is.", "send the token of this listener, or use the unix socket"},
	{CodeForbidden, 403, ExitRefused, "The caller may not do that.", ""},
	{CodeMethodNotAllowed, 405, ExitUsage, "The path exists, but not with this method.", ""},
	{CodeTooLarge, 413, ExitUsage, "The request is larger than its bound.", ""},
	{CodeInterrupted, 499, ExitInterrupted, "The caller stopped waiting.", ""},
	{CodeTimeout, 504, ExitFailed, "It took longer than was allowed.", ""},
	{CodeDaemonNotRunning, 503, ExitFailed, "No daemon serves this state directory.", "start it with: berth up"},
	{CodeDaemonStopping, 503, ExitFailed, "The daemon is stopping; what it runs goes on.", "connect again in a moment"},
	{CodeDaemonUnreachable, 503, ExitFailed, "A daemon holds the state directory but does not answer.", "look at logs/daemon.log in the state directory"},
	{CodeDaemonFailed, 500, ExitFailed, "The daemon ended while it started.", "look at logs/daemon.log in the state directory"},
	{CodeAlreadyRunning, 409, ExitRefused, "Another daemon serves this state directory.", "use that one, or give another --state-dir"},
	{CodeForeignSocket, 409, ExitRefused, "Something that berth did not make is at the path of its socket.", "look at it and move it away, or give another --runtime-dir"},
	{CodeSocketPathTooLong, 400, ExitFailed, "The path of a socket would be longer than the system allows.", "give a shorter --runtime-dir"},
	{CodeStateDir, 500, ExitFailed, "The state directory cannot be used.", "give it to your user with mode 0700, or give another --state-dir"},
	{CodeRuntimeDir, 500, ExitFailed, "The runtime directory cannot be used.", "give it to your user with mode 0700, or give another --runtime-dir"},
	{CodeStoreNewer, 500, ExitFailed, "The state was written by a newer berth; nothing was touched.", "run that newer version, or give another --state-dir"},
	{CodeStoreFailed, 500, ExitFailed, "The store could not write or read; the daemon stops rather than go on.", "check the disk of the state directory, then: berth up"},
	{CodeDiskFull, 507, ExitFailed, "The disk is full.", "free some space, then repeat the command"},
	{CodeConfigInvalid, 400, ExitUsage, "The config file cannot be used.", "mend the line that is named"},
	{CodeConfigUnknownKey, 400, ExitUsage, "The config file has a key that berth does not know.", "remove or correct the line that is named"},
	{CodeListenerTaken, 409, ExitFailed, "The address of a listener is taken; the daemon runs on without it.", "end the program that holds it, or set another address in the config file"},
	{CodeHostUnreachable, 503, ExitFailed, "The host cannot be reached now; what runs there is unknown, not dead.", "berth doctor"},
	{CodeGuestOutdated, 501, ExitRefused, "The guest on that host is older than what this asks for; its sessions go on.", "berth up --replace-guest"},
	{CodeGuestFailed, 500, ExitFailed, "The guest could not be started.", "look at logs/guest.log in the state directory"},
	{CodeCommandNotFound, 422, ExitFailed, "The program to run is not there or is not executable.", "check its name and the PATH of the session"},
	{CodeCwdUnusable, 422, ExitFailed, "The directory to start in cannot be entered.", "give another with --cwd"},
	{CodeStartFailed, 500, ExitFailed, "The program could not be started.", ""},
	{CodeSessionEnded, 409, ExitRefused, "The session's program has ended.", "berth logs shows its output; berth rm removes it"},
	{CodeSessionLive, 409, ExitRefused, "The session's program still runs.", "end it first with: berth kill, or use rm --force"},
	{CodeSessionLost, 410, ExitFailed, "The session went with its host or its holder.", "berth rm removes what is left"},
	{CodeInvalidOffset, 400, ExitUsage, "The offset is past the end of the output: the asker's count is wrong.", "start again without an offset"},
	{CodeOffsetGone, 410, ExitFailed, "The output at that offset is no longer kept.", "start from the first offset kept"},
	{CodeGenerationChanged, 409, ExitRefused, "The session has been started again since.", "start again without an offset"},
	{CodeReadOnly, 403, ExitRefused, "This viewer may only look.", "attach again without --read-only"},
	{CodeNotATerminal, 400, ExitUsage, "The command needs a terminal.", "run it in a terminal, or use -d, send, screen and logs"},
	{CodeRecordUnreadable, 500, ExitFailed, "A file of a session is damaged; the others are not touched.", "berth rm removes the session that is named"},
	{CodeKillIncomplete, 500, ExitFailed, "Some processes of the session are still there.", ""},
	{CodeUncontained, 409, ExitFailed, "The program has no cgroup of its own here, so processes that left its groups cannot be found for certain.", ""},
	{CodeLogGap, 410, ExitFailed, "A part of the output was not recorded.", ""},
	{CodePlanChanged, 409, ExitNeedsPerson, "What would be done is no longer what was approved; nothing was changed.", "look at the new plan and approve it: berth op show"},
	{CodeConsentRequired, 409, ExitNeedsPerson, "The change needs the consent of a person.", "look at the plan, then repeat with --approve DIGEST, or --yes"},
	{CodeReceiptConflict, 409, ExitRefused, "The receipt is not for the host step that waits, or was used before.", "read the operation again: berth op show"},
	{CodePrerequisiteBlocked, 409, ExitNeedsPerson, "The machine lacks something that berth will not change.", "do what the blocker says, then: berth op resume"},
	{CodeReloginRequired, 409, ExitNeedsPerson, "The new group is not effective in this login yet.", "log out and in again, then: berth up; the operation goes on by itself"},
	{CodeRebootRequired, 409, ExitNeedsPerson, "The machine must be restarted before the operation can go on.", "restart it; the operation goes on by itself"},
	{CodeElevationDeclined, 409, ExitNeedsPerson, "The privileged step was declined.", "berth op resume asks again"},
	{CodeHostStepInvalid, 400, ExitFailed, "The helper refused the request of the privileged step.", "run the berth-hoststep of the same build as the daemon"},
	{CodeHostStepFailed, 500, ExitFailed, "The privileged step failed.", "mend what its log says, then: berth op resume"},
	{CodeIdentityMismatch, 409, ExitRefused, "Something of that name is there, and is not what berth made.", "look at it; berth adopts and removes nothing"},
	{CodeStopUnconfirmed, 409, ExitFailed, "Nobody could confirm that a container stopped; nothing was removed.", "end it by hand, then: berth op resume"},
	{CodeResourceInUse, 409, ExitRefused, "Something else uses it.", ""},
	{CodeUnsupported, 422, ExitFailed, "This kind of host cannot do that.", ""},
	{CodeReleaseInvalid, 400, ExitUsage, "The release document cannot be used.", "mend the field that is named"},
	{CodeReleaseNotFound, 404, ExitNotFound, "There is no such release for this platform.", "berth engine ls shows what there is"},
	{CodeDockerUnreachable, 503, ExitFailed, "Docker does not answer.", "berth doctor"},
	{CodePullFailed, 502, ExitFailed, "The image could not be pulled; what arrived is kept.", "berth op resume goes on from there"},
	{CodeRegistryUnreachable, 503, ExitFailed, "The registry cannot be reached.", "check the network, then: berth op resume"},
	{CodeImageNotFound, 404, ExitFailed, "The registry does not have that image.", ""},
	{CodeDigestMismatch, 502, ExitFailed, "What the registry sent is not what its digest says.", "berth op resume fetches it again"},
	{CodeCheckFailed, 409, ExitFailed, "The check container did not see the GPU.", "do what the detail says, then: berth op resume"},
	{CodeOperationLive, 409, ExitRefused, "An operation is not over yet.", "wait for it, or: berth op cancel"},
	{CodeOperationCancelled, 409, ExitFailed, "The operation was cancelled.", "berth op resume takes it up again"},
}
