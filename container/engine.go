package container

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	moby "github.com/moby/moby/client"

	"berth"
)

// State is what Docker says of a container.
type State struct {
	Present   bool // false = there is no such container; the rest is zero
	Status    string
	Running   bool
	Exit      int
	OOMKilled bool
	PID       int // of its first process, on the host; 0 = none
	Error     string
	Started   time.Time // zero = never
	Finished  time.Time // zero = not yet
	Ports     map[int]int
	Image     string // id of what it runs
}

// StopHow is how a stop was confirmed.
type StopHow string

// The ways.
const (
	StopExited StopHow = "exited" // it is there and runs no more
	StopAbsent StopHow = "absent" // there is no such container
)

// Stopped answers Stop. Confirmed says that it runs no more; without it nobody
// knows, and Reason says why: it may hold its card still.
type Stopped struct {
	Confirmed bool
	How       StopHow // "" = not confirmed
	Reason    string
	Exit      int
}

// Create writes an engine's container into the journal and makes it; it does not
// start it. What nobody remembers is never made. It answers Docker's id.
//
// CodeImageNotFound when the image is not there (nothing is pulled),
// CodeInvalidArgument, CodeConflict when the name is taken, and the journal's own.
func (c *Client) Create(ctx context.Context, spec Spec) (string, error) {
	if c.cfg.Journal == nil {
		return "", berth.Errorf(berth.CodeInternal, "container: this client has no journal and may make no engine's container")
	}
	if err := spec.Validate(); err != nil {
		return "", err
	}
	if err := c.resolveMounts(ctx, spec.Mounts); err != nil {
		return "", err
	}
	ref, err := refOf(spec.Image)
	if err != nil {
		return "", err
	}
	conf, host := spec.config(ref)
	e, err := c.create(ctx, Entry{Name: spec.Name, Purpose: PurposeEngine, Engine: spec.Engine,
		Instance: spec.Instance, Image: spec.Image, GPU: spec.GPU.UUID}, conf, host, berth.CodeStartFailed)
	if err != nil {
		return "", err
	}
	return e.ID, nil
}

// resolveMounts follows the links of what is mounted, where the host can be asked.
func (c *Client) resolveMounts(ctx context.Context, mounts []Mount) error {
	if c.cfg.Resolve == nil {
		return nil
	}
	for _, m := range mounts {
		real, err := c.cfg.Resolve(ctx, m.Source)
		if err != nil {
			return err
		}
		if err := keptAway(real); err != nil {
			return err
		}
	}
	return nil
}

// ours gives the journal's entry of a container, or CodeIdentityMismatch.
func (c *Client) ours(ctx context.Context, id string) (Entry, error) {
	if c.cfg.Journal == nil {
		return Entry{}, berth.Errorf(berth.CodeInternal, "container: this client has no journal")
	}
	entries, err := c.cfg.Journal.Entries(ctx)
	if err != nil {
		return Entry{}, err
	}
	if i := slices.IndexFunc(entries, func(e Entry) bool { return e.ID != "" && e.ID == id }); i >= 0 {
		return entries[i], nil
	}
	return Entry{}, berth.Errorf(berth.CodeIdentityMismatch, "container %.80q is not in the journal: it is not berth's", id)
}

// Start starts a container that Create made. CodeStartFailed (fact "reason" as
// for RunOnce when it is about the card), CodeConflict with the reason port_taken.
func (c *Client) Start(ctx context.Context, id string) error {
	e, err := c.ours(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*c.cfg.CallTimeout) // hooks of the toolkit take their time
	defer cancel()
	if _, err := c.docker().ContainerStart(ctx, id, moby.ContainerStartOptions{}); err != nil {
		return startFailed(err, "start container "+e.Name, berth.CodeStartFailed)
	}
	return nil
}

// Inspect gives the state of any container.
func (c *Client) Inspect(ctx context.Context, id string) (State, error) {
	ctx, cancel := c.short(ctx)
	defer cancel()
	found, err := c.docker().ContainerInspect(ctx, id, moby.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return State{}, nil
	}
	if err != nil {
		return State{}, failed(err, "look at container "+id)
	}
	in := found.Container
	if in.State == nil {
		return State{}, berth.Errorf(berth.CodeDockerUnreachable, "Docker says nothing of the state of container %s", id)
	}
	s := State{Present: true, Status: string(in.State.Status), Running: in.State.Running, Exit: in.State.ExitCode,
		OOMKilled: in.State.OOMKilled, PID: in.State.Pid, Error: in.State.Error, Image: in.Image,
		Started: moment(in.State.StartedAt), Finished: moment(in.State.FinishedAt)}
	if in.NetworkSettings != nil {
		s.Ports = map[int]int{}
		for port, bindings := range in.NetworkSettings.Ports {
			for _, b := range bindings {
				if n, ok := portNumber(b.HostPort); ok && b.HostIP.IsLoopback() {
					s.Ports[int(port.Num())] = n
				}
			}
		}
	}
	return s, nil
}

// moment reads Docker's times, of which year 1 means never.
func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// Output is the last lines of what a container said, at most MaxRunOutput bytes
// of each stream.
func (c *Client) Output(ctx context.Context, id string, lines int) (stdout, stderr []byte, err error) {
	ctx, cancel := c.short(ctx)
	defer cancel()
	out, errs := firstBytes{room: MaxRunOutput}, firstBytes{room: MaxRunOutput}
	err = c.copyLogs(ctx, id, tailOf(lines), &out, &errs)
	return out.data, errs.data, err
}

// Stop ends a container of ours: TERM, and KILL after grace. It looks afterwards:
// only what Docker then says is gone or exited is confirmed. It fails only for a
// container that is not ours, or a journal that cannot be read; no answer is an
// unconfirmed stop.
func (c *Client) Stop(ctx context.Context, id string, grace time.Duration) (Stopped, error) {
	if _, err := c.ours(ctx, id); err != nil {
		return Stopped{}, err
	}
	return c.stop(ctx, id, grace), nil
}

func (c *Client) stop(ctx context.Context, id string, grace time.Duration) Stopped {
	seconds := int(max(0, min(grace, time.Hour)).Seconds())
	stopping, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+c.cfg.CallTimeout)
	defer cancel()
	_, stopErr := c.docker().ContainerStop(stopping, id, moby.ContainerStopOptions{Timeout: &seconds})
	// Whatever was answered: what counts is what is there now.
	s, err := c.Inspect(ctx, id)
	switch {
	case err != nil:
		return Stopped{Reason: err.Error()}
	case !s.Present:
		return Stopped{Confirmed: true, How: StopAbsent}
	case !s.Running && s.PID == 0:
		return Stopped{Confirmed: true, How: StopExited, Exit: s.Exit}
	case stopErr != nil && !errdefs.IsNotFound(stopErr):
		return Stopped{Reason: failed(stopErr, "stop").Error()}
	}
	return Stopped{Reason: "Docker answered the stop, and the container is " + s.Status + " still"}
}

// Remove removes a container of ours that has stopped, and then its entry in the
// journal. One that runs is CodeStopUnconfirmed; one that is not there is removed
// already.
func (c *Client) Remove(ctx context.Context, id string) error {
	e, err := c.ours(ctx, id)
	if err != nil {
		return err
	}
	return c.remove(ctx, e)
}

func (c *Client) remove(ctx context.Context, e Entry) error {
	id := e.ID
	if id == "" { // it was never made
		return c.cfg.Journal.Drop(ctx, e.Token)
	}
	removing, cancel := c.short(ctx)
	defer cancel()
	_, err := c.docker().ContainerRemove(removing, id, moby.ContainerRemoveOptions{RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		s, lookErr := c.Inspect(ctx, id)
		if lookErr != nil {
			return lookErr
		}
		if s.Running {
			return berth.Errorf(berth.CodeStopUnconfirmed, "container %s runs: it is not removed", id)
		}
		if s.Present {
			return failed(err, "remove container "+id)
		}
	}
	return c.cfg.Journal.Drop(ctx, e.Token)
}
