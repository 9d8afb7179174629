package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// Statuses of a finding.
const (
	findingOK      = "ok"
	findingWarn    = "warn"
	findingFail    = "fail"
	findingUnknown = "unknown"
)

// doctorTimeout bounds each question to something that may not answer.
const doctorTimeout = 3 * time.Second

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, each finding with its fix",
		Long: `Check what berth needs of this machine, with or without a daemon. Each finding
comes with its fix. The exit status is 1 when something fails; a warning is
something that works less well than it could.`,
		Example: "berth doctor\nberth doctor --json | jq '.findings[] | select(.status != \"ok\")'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

// findingList is the document of doctor.
type findingList struct {
	V        int             `json:"v"`
	Findings []berth.Finding `json:"findings"`
}

func (a *app) doctor(ctx context.Context) error {
	paths, err := a.paths()
	if err != nil {
		return err
	}
	findings := a.findings(ctx, paths)
	failed := 0
	for _, f := range findings {
		if f.Status == findingFail {
			failed++
		}
	}
	if a.flags.json {
		err = a.answer(findingList{version1, findings})
	} else {
		err = a.printFindings(findings)
	}
	if err != nil {
		return err
	}
	if failed > 0 {
		return exitStatus(berth.ExitFailed)
	}
	return nil
}

func (a *app) findings(ctx context.Context, paths berth.Paths) []berth.Finding {
	var all []berth.Finding
	add := func(f ...berth.Finding) { all = append(all, f...) }
	add(checkDir("state-dir", paths.State, "--state-dir"))
	add(checkDir("runtime-dir", paths.Runtime, "--runtime-dir"))
	add(checkDir("machine-dir", paths.Machine, "--machine-dir"))
	add(checkSocketPath(paths), a.checkXDGRuntime(), checkLinger(a.env.Getenv), checkCgroup(), checkPidfd())
	self, err := a.env.Executable()
	if err != nil {
		add(berth.Finding{Check: "program", Status: findingUnknown, Detail: "the path of this program is not known: " + err.Error()})
	} else {
		_, holder := checkBeside(self, "berth-holder")
		add(checkVersion(ctx, self, daemonProgram), checkVersion(ctx, self, "berth-guest"), holder)
	}
	add(a.checkTerm(), a.checkLocale())
	add(a.checkDaemon(ctx, paths)...)
	return all
}

func (a *app) printFindings(findings []berth.Finding) error {
	style := map[string]string{findingOK: styleGood, findingWarn: styleWarn, findingFail: styleError, findingUnknown: styleDim}
	for _, f := range findings {
		pad := fmt.Sprintf("%-8s", f.Status)
		if err := a.printf("%s%-15s %s\n", a.styled(a.env.Stdout, style[f.Status], pad), f.Check, oneLine(f.Detail, 0)); err != nil {
			return err
		}
		if f.Fix != "" {
			if err := a.printf("%24sfix: %s\n", "", oneLine(f.Fix, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkDaemon asks the daemon, its guest and its standing problems.
func (a *app) checkDaemon(ctx context.Context, paths berth.Paths) []berth.Finding {
	api, err := a.ownClient()
	if err != nil {
		return []berth.Finding{finding("daemon", findingFail, err)}
	}
	asking, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	s, err := api.Status(asking)
	if errors.Is(err, berth.CodeDaemonNotRunning) {
		return []berth.Finding{{Check: "daemon", Status: findingWarn, Detail: "no daemon answers at " + paths.DaemonSocket(), Fix: "berth up"}}
	}
	if err != nil {
		return []berth.Finding{finding("daemon", findingFail, err)}
	}
	out := []berth.Finding{{Check: "daemon", Status: findingOK, Detail: fmt.Sprintf("version %s, pid %d", s.Daemon.Version, s.Daemon.PID)}}
	if s.Daemon.Version != berth.Version() {
		out[0].Status, out[0].Fix = findingWarn, "berth down && berth up"
		out[0].Detail += "; this program is " + berth.Version()
	}
	switch {
	case !s.Guest.Reachable:
		out = append(out, berth.Finding{Check: "guest", Status: findingFail, Detail: "the guest does not answer: " + s.Guest.Error, Fix: "berth down && berth up"})
	case s.Guest.Version != berth.Version():
		out = append(out, berth.Finding{Check: "guest", Status: findingWarn, Detail: "version " + s.Guest.Version + "; this program is " + berth.Version(), Fix: "berth up --replace-guest"})
	default:
		out = append(out, berth.Finding{Check: "guest", Status: findingOK, Detail: fmt.Sprintf("version %s, pid %d", s.Guest.Version, s.Guest.PID)})
	}
	for _, p := range s.Problems {
		status := findingFail
		if p.Code == berth.CodeGuestOutdated { // it works, less well than it could
			status = findingWarn
		}
		out = append(out, berth.Finding{Check: string(p.Code), Status: status, Detail: p.Detail, Fix: p.Hint})
	}
	return append(out, checkEngines(ctx, api)...)
}

// finding makes a finding of an error, with its hint as the fix.
func finding(check, status string, err error) berth.Finding {
	e := berth.AsError(err)
	return berth.Finding{Check: check, Status: status, Detail: e.Error(), Fix: e.Hint}
}
