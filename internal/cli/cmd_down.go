package cli

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// downDeadline bounds how long a daemon may take to stop: it has open streams
// to end and a store to close, no program to wait for.
const downDeadline = 15 * time.Second

func newDown(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the daemon; everything it runs goes on",
		Long: `Stop the daemon and wait until it is gone. Sessions go on: the next berth up
finds them. Where no daemon runs there is nothing to do, and that is success.`,
		Example: `berth down
berth down && berth up        # after an upgrade`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.down(cmd.Context()) },
	}
}

// downAnswer says whether a daemon was there to stop.
type downAnswer struct {
	V       int  `json:"v"`
	Stopped bool `json:"stopped"`
	PID     int  `json:"pid,omitempty"`
}

func (a *app) down(ctx context.Context) error {
	api, err := a.ownClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, downDeadline)
	defer cancel()
	status, err := api.Status(ctx)
	if errors.Is(err, berth.CodeDaemonNotRunning) {
		return a.downNothing()
	}
	daemon := status.Daemon
	if errors.Is(err, berth.CodeDaemonStopping) {
		if daemon, err = a.recordedDaemon(); err != nil {
			return err
		}
	} else if err != nil {
		return err
	} else if err := askToStop(ctx, api); err != nil {
		return err
	}
	stop := a.progress("waiting for the daemon to stop")
	err = awaitGone(ctx, daemon)
	stop()
	if err != nil {
		return err
	}
	if a.flags.json {
		return a.answer(downAnswer{version1, true, daemon.PID})
	}
	return a.printf("the daemon (pid %d) has stopped; %d sessions go on\n", daemon.PID, status.Sessions.Running)
}

// askToStop asks a daemon to stop. One that stops already, or is gone, needs no
// asking.
func askToStop(ctx context.Context, api API) error {
	err := api.Shutdown(ctx)
	if errors.Is(err, berth.CodeDaemonStopping) || errors.Is(err, berth.CodeDaemonNotRunning) {
		return nil
	}
	return err
}

// downNothing answers where nobody listens: also no daemon may be left that
// holds the state directory without answering.
func (a *app) downNothing() error {
	if d, err := a.recordedDaemon(); err == nil {
		if alive, err := processAlive(d.PID, d.StartTime); err == nil && alive {
			return berth.Errorf(berth.CodeDaemonUnreachable, "the daemon (pid %d) runs but does not answer", d.PID)
		}
	}
	if a.flags.json {
		return a.answer(downAnswer{V: version1})
	}
	a.note("no daemon is running")
	return nil
}

// recordedDaemon reads daemon.json, which stays behind after a kill -9.
func (a *app) recordedDaemon() (berth.Daemon, error) {
	paths, err := a.paths()
	if err != nil {
		return berth.Daemon{}, err
	}
	data, err := berth.ReadFile(paths.DaemonJSON(), 64<<10)
	if err != nil {
		return berth.Daemon{}, berth.Errorf(berth.CodeDaemonUnreachable, "find the daemon's process: %w", err)
	}
	var d berth.Daemon
	if err := json.Unmarshal(data, &d); err != nil || d.PID <= 0 || d.StartTime == 0 {
		return d, berth.Errorf(berth.CodeRecordUnreadable, "%s does not name a process", paths.DaemonJSON())
	}
	return d, nil
}

// awaitGone waits until the process is gone, so that whoever comes next finds
// the lock and the socket free.
func awaitGone(ctx context.Context, d berth.Daemon) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		alive, err := processAlive(d.PID, d.StartTime)
		if err != nil || !alive {
			return err
		}
		select {
		case <-ctx.Done():
			return berth.Errorf(berth.CodeTimeout, "the daemon (pid %d) is still there after %s", d.PID, downDeadline).
				WithHint("look at logs/daemon.log in the state directory")
		case <-tick.C:
		}
	}
}
