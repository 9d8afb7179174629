package container

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	moby "github.com/moby/moby/client"

	"berth"
)

// RunSpec describes a program that runs once, sees nothing of the network and
// can change nothing: the check of a GPU.
type RunSpec struct {
	Image   berth.Image   // must be there: nothing is pulled
	Argv    []string      // replaces the image's command and entry point; at least one
	GPU     GPU           // the card that it is given
	Timeout time.Duration // of the program; 0 = 2 min, at most an hour
}

// Result is how it ended.
type Result struct {
	Exit           int
	Stdout, Stderr []byte // at most MaxRunOutput each
	Truncated      bool   // there was more
	OOMKilled      bool
}

// Bounds of RunOnce.
const (
	MaxRunOutput  = 1 << 20
	maxRunTimeout = time.Hour
	runPids       = 256
	runUser       = "65534:65534" // nobody: it needs nothing of anybody's
	runLogBytes   = 8 << 20
	// removeWithin is how long the removal of a container may take after the
	// caller has gone.
	removeWithin = 30 * time.Second
)

func (s RunSpec) validate() error {
	if err := s.Image.Validate(); err != nil {
		return err
	}
	if len(s.Argv) == 0 || len(s.Argv) > 256 {
		return invalid("a program to run is missing")
	}
	for _, a := range s.Argv {
		if !clean(a) || len(a) > 64<<10 {
			return invalid("argument %.80q cannot be passed", a)
		}
	}
	if s.Timeout < 0 || s.Timeout > maxRunTimeout {
		return invalid("timeout %s is not between 0 and %s", s.Timeout, maxRunTimeout)
	}
	return s.GPU.validate()
}

// RunOnce runs a program in a container to its end and removes the container,
// also when ctx ends. A program that fails is a Result, not an error. Errors:
// CodeImageNotFound when the daemon does not have the image, CodeCheckFailed when
// the card could not be given (fact "reason": cdi_off, cdi_device_unknown,
// no_device_driver, no_runtime, toolkit), CodeStartFailed, CodeTimeout (with what
// it said so far in the Result), CodeInterrupted, CodeDockerUnreachable.
func (c *Client) RunOnce(ctx context.Context, spec RunSpec) (Result, error) {
	if err := spec.validate(); err != nil {
		return Result{}, err
	}
	ref, err := refOf(spec.Image)
	if err != nil {
		return Result{}, err
	}
	e, err := c.createCheck(ctx, spec, ref)
	if err != nil {
		return Result{}, err
	}
	defer c.discard(ctx, e, false)
	id := e.ID
	running, cancel := context.WithTimeout(ctx, orElse(spec.Timeout, 2*time.Minute))
	defer cancel()
	exit, err := c.runToEnd(running, id, ref)
	if err != nil && !errors.Is(err, berth.CodeTimeout) {
		return Result{}, err
	}
	res := Result{Exit: exit}
	// What it said is worth having when it was too slow, too.
	if logErr := c.output(context.WithoutCancel(ctx), id, &res); err == nil {
		err = logErr
	}
	return res, err
}

func (c *Client) createCheck(ctx context.Context, spec RunSpec, ref string) (Entry, error) {
	conf := &container.Config{Image: ref, Entrypoint: spec.Argv[:1], Cmd: spec.Argv[1:], User: runUser, NetworkDisabled: true,
		Labels: map[string]string{LabelPurpose: string(PurposeCheck)}}
	host := hardened(runPids, runLogBytes)
	host.NetworkMode = "none"
	host.ReadonlyRootfs = true
	host.Init = new(bool) // an init would turn a program that is not there into one that failed
	spec.GPU.apply(conf, host)
	return c.create(ctx, Entry{Purpose: PurposeCheck, Image: spec.Image, GPU: spec.GPU.UUID}, conf, host, berth.CodeCheckFailed)
}

// create writes a container into the journal, where there is one, makes it and
// answers the entry with its id. Where that fails nothing is left of either. Of
// what Docker may still make, because its answer was lost, the journal's line is
// kept: a later Reconcile finds it by that.
func (c *Client) create(ctx context.Context, e Entry, conf *container.Config, host *container.HostConfig, gpuCode berth.Code) (Entry, error) {
	e.Token = rand.Text()
	conf.Labels[LabelToken] = e.Token
	if c.cfg.Journal != nil {
		if err := c.cfg.Journal.Write(ctx, e); err != nil {
			return e, berth.Errorf(berth.AsError(err).Code, "a container of %s could not be written down, and was not made: %w", conf.Image, err)
		}
	}
	var err error
	if e.ID, err = c.askFor(ctx, conf, host, e.Name, conf.Image, gpuCode); err == nil && c.cfg.Journal != nil {
		err = c.cfg.Journal.Made(ctx, e.Token, e.ID)
	}
	if err != nil {
		c.discard(ctx, e, answerLost(err))
	}
	return e, err
}

// answerLost reports whether Docker may have done what it was asked for all the
// same.
func answerLost(err error) bool {
	return errors.Is(err, berth.CodeInterrupted) || errors.Is(err, berth.CodeTimeout) ||
		errors.Is(err, berth.CodeDockerUnreachable) && berth.AsError(err).Facts["reason"] == "lost"
}

// withToken is the id of the container that was made for a token; "" = there is
// none.
func (c *Client) withToken(ctx context.Context, token string) (string, error) {
	ctx, cancel := c.short(ctx)
	defer cancel()
	list, err := c.docker().ContainerList(ctx, moby.ContainerListOptions{All: true, Filters: moby.Filters{}.Add("label", LabelToken+"="+token)})
	if err != nil {
		return "", failed(err, "look for a container of ours")
	}
	for _, found := range list.Items {
		if found.Labels[LabelToken] == token && containerID.MatchString(found.ID) { // whatever a filter answers
			return found.ID, nil
		}
	}
	return "", nil
}

// askFor has Docker make a container and answers its id.
func (c *Client) askFor(ctx context.Context, conf *container.Config, host *container.HostConfig, name, ref string, gpuCode berth.Code) (string, error) {
	what := "create a container of " + ref
	ctx, cancel := c.short(ctx)
	defer cancel()
	made, err := c.docker().ContainerCreate(ctx, moby.ContainerCreateOptions{Config: conf, HostConfig: host, Name: name})
	if errdefs.IsNotFound(err) {
		return "", berth.Errorf(berth.CodeImageNotFound, "%s: Docker does not have that image: %w", what, err)
	}
	if err != nil {
		return "", startFailed(err, what, gpuCode)
	}
	if !containerID.MatchString(made.ID) {
		return "", berth.Errorf(berth.CodeInternal, "%s: Docker answered %.100q as its id", what, made.ID)
	}
	for _, w := range made.Warnings {
		c.cfg.Log.Warn("Docker warns", "container", made.ID, "warning", w)
	}
	return made.ID, nil
}

// runToEnd starts the container and waits until it ends.
func (c *Client) runToEnd(ctx context.Context, id, ref string) (exit int, err error) {
	what := "run " + ref
	// Waited for before it is started, so that the end of a quick one is not missed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := c.docker().ContainerWait(ctx, id, moby.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	_, startErr := c.docker().ContainerStart(ctx, id, moby.ContainerStartOptions{})
	if startErr != nil {
		cancel()
		drain(wait)
		if errors.Is(startErr, context.DeadlineExceeded) {
			return 0, berth.Errorf(berth.CodeTimeout, "%s: it did not start in time", what)
		}
		return 0, startFailed(startErr, what, berth.CodeCheckFailed)
	}
	select {
	case r := <-wait.Result:
		if r.Error != nil && r.Error.Message != "" {
			return 0, berth.Errorf(berth.CodeStartFailed, "%s: %s", what, r.Error.Message)
		}
		return int(r.StatusCode), nil
	case err := <-wait.Error:
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, berth.Errorf(berth.CodeTimeout, "%s: it did not end in time", what)
		}
		return 0, failed(err, what)
	}
}

// drain waits for the goroutine behind a wait that nobody needs any more.
func drain(wait moby.ContainerWaitResult) {
	select {
	case <-wait.Result:
	case <-wait.Error: //nolint:errcheck // it was told to end
	}
}

// output reads what the container said.
func (c *Client) output(ctx context.Context, id string, res *Result) error {
	ctx, cancel := c.short(ctx)
	defer cancel()
	var out, errs firstBytes
	out.room, errs.room = MaxRunOutput, MaxRunOutput
	if err := c.copyLogs(ctx, id, "all", &out, &errs); err != nil {
		return err
	}
	res.Stdout, res.Stderr, res.Truncated = out.data, errs.data, out.more || errs.more
	state, err := c.docker().ContainerInspect(ctx, id, moby.ContainerInspectOptions{})
	if err != nil {
		return failed(err, "look at container "+id)
	}
	if s := state.Container.State; s != nil {
		res.OOMKilled = s.OOMKilled
	}
	return nil
}

func (c *Client) copyLogs(ctx context.Context, id, tail string, out, errs io.Writer) error {
	what := "read the output of container " + id
	logs, err := c.docker().ContainerLogs(ctx, id, moby.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: tail})
	if err != nil {
		return failed(err, what)
	}
	defer logs.Close() //nolint:errcheck // it was only read
	if _, err := stdcopy.StdCopy(out, errs, io.LimitReader(logs, maxAnswer)); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return failed(err, what)
	}
	return nil
}

// firstBytes keeps the first bytes, and takes the rest without keeping it.
type firstBytes struct {
	data []byte
	room int
	more bool
}

func (b *firstBytes) Write(p []byte) (int, error) {
	keep := min(len(p), b.room-len(b.data))
	b.data = append(b.data, p[:keep]...)
	b.more = b.more || keep < len(p)
	return len(p), nil
}

// discard removes a container of ours that runs or not, also when the caller has
// gone. What cannot be removed stays in the journal for Reconcile, and so does
// what may come yet.
func (c *Client) discard(ctx context.Context, e Entry, mayCome bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	err := error(nil)
	if e.ID == "" {
		if e.ID, err = c.withToken(ctx, e.Token); err == nil && e.ID == "" && mayCome {
			c.setKept(e.Token, true)
			return
		}
	}
	if err == nil && e.ID != "" {
		err = c.forceRemove(ctx, e.ID)
	}
	if err != nil {
		c.setKept(e.Token, true)
		c.cfg.Log.Warn("a container of ours could not be removed, or looked for", "container", e.ID, "token", e.Token, "err", err)
		return
	}
	if c.cfg.Journal == nil {
		return
	}
	if err := c.cfg.Journal.Drop(ctx, e.Token); err != nil {
		c.cfg.Log.Error("the journal of containers cannot be written", "container", e.ID, "err", err)
	}
}

// forceRemove removes a container; one that is not there is removed already.
func (c *Client) forceRemove(ctx context.Context, id string) error {
	_, err := c.docker().ContainerRemove(ctx, id, moby.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return failed(err, "remove container "+id)
}
