package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// edited is a daemon.json that this run changed, as it was before the first
// change, so that it can be put back when Docker does not start with it.
type edited struct {
	was     []byte // nil = it was not there
	mode    fs.FileMode
	changes []Change
}

// dockerInfo is what `docker info` says of the daemon that runs.
type dockerInfo struct {
	ServerVersion     string
	Runtimes          map[string]json.RawMessage
	CDISpecDirs       []string
	ContainersRunning int
}

// info is nil when no daemon answers. The exit code is no sign: older clients
// end with 0 although nobody answered.
func (r *run) info(ctx context.Context) (*dockerInfo, error) {
	o, err := r.do(ctx, "docker-info")
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var info dockerInfo
	if json.Unmarshal([]byte(o.stdout), &info) != nil || info.ServerVersion == "" {
		return nil, nil
	}
	return &info, nil
}

// config is daemon.json as an object; one that is not there is empty.
func (r *run) config() (o object, data []byte, mode fs.FileMode, err error) {
	data, info, err := r.sys.read(daemonJSON)
	if errors.Is(err, fs.ErrNotExist) {
		return object{}, nil, 0o644, nil
	}
	if err != nil {
		return nil, nil, 0, err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return object{}, data, info.Mode().Perm(), nil // Docker takes an empty file for no settings
	}
	if o, err = parseObject(data); err != nil {
		return nil, nil, 0, fmt.Errorf("%s cannot be merged with: %w", daemonJSON, err)
	}
	return o, data, info.Mode().Perm(), nil
}

func (r *run) edit(c Component) jsonEdit {
	i := slices.IndexFunc(r.recipe.DaemonJSON, func(e jsonEdit) bool { return e.Component == c })
	return r.recipe.DaemonJSON[i]
}

// editCheck is satisfied by the file or by the daemon that runs: a setting that
// was given as an option of the service must not be in the file as well, or
// Docker does not start.
func editCheck(c Component) func(*run, context.Context) (bool, string, error) {
	return func(r *run, ctx context.Context) (bool, string, error) {
		o, _, _, err := r.config()
		if err != nil {
			return false, "", err
		}
		e := r.edit(c)
		below, _, err := o.child(e.Parent)
		if err != nil {
			return false, "", fmt.Errorf("%q of %s: %w", e.Parent, daemonJSON, err)
		}
		value, there := below.get(e.Key)
		// A runtime of that name is the user's own way to it; a switch must be on.
		if there && (c == NVIDIARuntime || string(value) == e.Value) {
			return true, daemonJSON + " has " + e.Parent + "." + e.Key, nil
		}
		info, err := r.info(ctx)
		if err != nil {
			return false, "", err
		}
		if info != nil && !there && info.has(c) {
			return true, "Docker " + info.ServerVersion + " has it without " + daemonJSON, nil
		}
		return false, daemonJSON + " lacks " + e.Parent + "." + e.Key, nil
	}
}

func (i *dockerInfo) has(c Component) bool {
	switch c {
	case NVIDIARuntime:
		_, ok := i.Runtimes["nvidia"]
		return ok
	case EnableCDI:
		return len(i.CDISpecDirs) > 0
	}
	return true
}

func editApply(c Component) func(*run, context.Context) error {
	return func(r *run, ctx context.Context) error {
		o, was, mode, err := r.config()
		if err != nil {
			return err
		}
		e := r.edit(c)
		below, made, err := o.child(e.Parent)
		if err != nil {
			return err
		}
		old, _ := below.get(e.Key)
		change := Change{Kind: ChangeJSON, Path: daemonJSON, Name: e.Parent + "." + e.Key, Value: e.Value, Old: string(old), NewParent: made}
		next := o.set(e.Parent, below.set(e.Key, json.RawMessage(e.Value)).compact())
		changes, err := r.replaceConfig(ctx, next, was, mode, change)
		if err != nil {
			return err
		}
		if r.edited == nil {
			r.edited = &edited{was: was, mode: mode}
		}
		r.edited.changes = append(r.edited.changes, changes...)
		return nil
	}
}

// replaceConfig puts a new daemon.json in place once dockerd itself has found
// it valid, with the old one kept aside.
func (r *run) replaceConfig(ctx context.Context, next object, was []byte, mode fs.FileMode, change Change) ([]Change, error) {
	data, err := next.indented()
	if err != nil {
		return nil, err
	}
	temp := filepath.Join(filepath.Dir(daemonJSON), ".daemon.json.berth-"+random())
	if err := r.sys.prepare(daemonJSON, temp, data, mode); err != nil {
		return nil, err
	}
	drop := func(err error) ([]Change, error) {
		return nil, errors.Join(err, r.sys.remove(temp))
	}
	o, err := r.do(ctx, "dockerd-validate", temp)
	switch {
	case err != nil:
		return drop(err)
	case o.code != 0 && strings.Contains(o.stderr, "unknown flag: --validate"): // before Docker 23: the restart will show
	case o.code != 0:
		return drop(failed("dockerd --validate", o))
	}
	change.After = sha(data)
	if was != nil {
		change.Before, change.Backup = sha(was), backupDir+"/daemon.json."+sha(was)
		if err := r.sys.write(change.Backup, was, 0o600); err != nil {
			return drop(err)
		}
	}
	changes, err := r.record(change)
	if err != nil {
		return drop(err)
	}
	return changes, r.sys.swap(temp, daemonJSON)
}

// runtimeLoaded says whether the daemon that runs knows the runtime. Docker reads
// its runtimes again when it is told to, and no container stops for that; where
// it is going to be restarted, that does it.
func (r *run) runtimeLoaded(ctx context.Context) (bool, string, error) {
	info, err := r.info(ctx)
	switch {
	case err != nil:
		return false, "", err
	case info == nil:
		return true, "Docker does not answer: it loads its settings when it starts", nil
	case info.has(NVIDIARuntime):
		return true, "Docker " + info.ServerVersion + " has the runtime", nil
	case r.mayRestart():
		return true, "the restart loads it", nil
	}
	return false, "Docker runs without the runtime", nil
}

// reloadDocker tells Docker to read its settings, which it does on its own time.
// Settings that it does not take then, it would not start with either.
func (r *run) reloadDocker(ctx context.Context) error {
	_, err := r.must(ctx, "docker-reload")
	if err == nil {
		err = r.awaitRuntime(ctx)
	}
	if err == nil {
		return nil
	}
	return r.putBack(ctx, r.withJournal(ctx, err), "docker-reload")
}

func (r *run) awaitRuntime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadWithin)
	defer cancel()
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	for {
		info, err := r.info(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if info != nil && info.has(NVIDIARuntime) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("docker does not take the runtime while it runs; add it and restart Docker yourself: nvidia-ctk runtime configure --runtime=docker")
		case <-ticker.C:
		}
	}
}

// reloadWithin is how long Docker may take to read its settings.
const reloadWithin = 10 * time.Second

// configLoaded says whether the daemon that runs has what was asked for. One
// that does not run loads it when it starts; one that may not be restarted at
// its next start.
func (r *run) configLoaded(ctx context.Context) (bool, string, error) {
	info, err := r.info(ctx)
	if err != nil {
		return false, "", err
	}
	if info == nil {
		return true, "Docker does not answer: it loads its settings when it starts", nil
	}
	var lacks []string
	for _, c := range []Component{NVIDIARuntime, EnableCDI} {
		if r.req.Parameters.has(c) && !info.has(c) {
			lacks = append(lacks, string(c))
		}
	}
	if r.req.Parameters.has(DockerRestart) && r.hookIsNewer() {
		lacks = append(lacks, "the toolkit's hook, which Docker looks for at its start alone")
	}
	switch {
	case len(lacks) == 0:
		return true, "Docker " + info.ServerVersion + " runs with it", nil
	case !r.mayRestart():
		return true, "Docker loads this at its next start: " + strings.Join(lacks, ", "), nil
	}
	return false, "Docker runs without " + strings.Join(lacks, ", "), nil
}

// mayRestart: with consent, or when no container of anybody's can be running in
// a Docker that did not run when this began.
func (r *run) mayRestart() bool { return r.req.Parameters.has(DockerRestart) || !r.dockerRan }

// hookIsNewer reports whether a hook of the toolkit was installed after the
// daemon started. What cannot be read is no reason to restart anything.
func (r *run) hookIsNewer() bool {
	_, pid, err := r.sys.read(dockerPID)
	if err != nil {
		return false
	}
	for _, hook := range []string{"/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-container-runtime-hook"} {
		var st syscall.Stat_t
		if syscall.Stat(r.sys.path(hook), &st) == nil && time.Unix(st.Ctim.Unix()).After(pid.ModTime()) {
			return true
		}
	}
	return false
}

func (r *run) restartDocker(ctx context.Context) error {
	if info, err := r.info(ctx); err != nil {
		return err
	} else if info != nil && r.dockerRan {
		if err := r.mayStop(info.ContainersRunning); err != nil {
			return err
		}
	}
	// Each start counts towards the limit of a unit; one that is at it would go
	// down and not come up.
	if _, err := r.do(ctx, "docker-forgive"); err != nil {
		return err
	}
	_, err := r.must(ctx, "docker-restart")
	if err == nil {
		var info *dockerInfo
		if info, err = r.info(ctx); err == nil && info == nil {
			err = errors.New("docker does not answer after the restart")
		}
	}
	if err == nil {
		return nil
	}
	return r.putBack(ctx, r.withJournal(ctx, err), "docker-restart")
}

// putBack undoes this run's changes of daemon.json after Docker failed to start
// with them, and starts it again as it was.
func (r *run) putBack(ctx context.Context, cause error, start string) error {
	if r.edited == nil {
		return cause
	}
	ctx = context.WithoutCancel(ctx) // not now: a machine without its Docker is worse than a late answer
	var err error
	if r.edited.was == nil {
		err = r.sys.remove(daemonJSON)
	} else {
		err = r.sys.write(daemonJSON, r.edited.was, r.edited.mode)
	}
	if err != nil {
		return errors.Join(cause, fmt.Errorf("%s could not be put back: %w", daemonJSON, err))
	}
	var undone []Change
	for _, c := range r.edited.changes {
		undone = append(undone, Change{Kind: c.Kind, Path: c.Path, Name: c.Name, Component: c.Component, Undoes: c.Seq})
	}
	if _, err := r.record(undone...); err != nil {
		return errors.Join(cause, err)
	}
	r.edited = nil
	r.tell("%s was put back as it was", daemonJSON)
	_, _ = r.do(ctx, "docker-forgive")
	if _, err := r.must(ctx, start); err != nil {
		return fmt.Errorf("%w; %s was put back, and Docker still does not start", cause, daemonJSON)
	}
	return fmt.Errorf("%w; %s was put back as it was and Docker runs with it", cause, daemonJSON)
}

// withJournal adds the service's last words, which say why it did not start.
func (r *run) withJournal(ctx context.Context, err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	if o, asked := r.do(context.WithoutCancel(ctx), "docker-journal"); asked == nil && o.code == 0 {
		f.stderr = plainTail(f.stderr+"\n"+o.stdout, 2000)
	}
	return err
}

func (r *run) serviceOn(ctx context.Context) (bool, string, error) {
	enabled, err := r.do(ctx, "docker-enabled")
	if err != nil {
		return false, "", err
	}
	active, err := r.do(ctx, "docker-active")
	if err != nil {
		return false, "", err
	}
	e, a := strings.TrimSpace(enabled.stdout), strings.TrimSpace(active.stdout)
	return e == "enabled" && a == "active", plainTail("docker.service is "+e+" and "+a, 80), nil
}

func (r *run) turnServiceOn(ctx context.Context) error {
	enabled, err := r.do(ctx, "docker-enabled")
	if err != nil {
		return err
	}
	if was := strings.TrimSpace(enabled.stdout); was != "enabled" {
		if _, err := r.record(Change{Kind: ChangeService, Name: "docker.service", Before: plainTail(was, 40), After: "enabled"}); err != nil {
			return err
		}
	}
	// A unit that failed too often is not started again until that is forgotten.
	if _, err := r.do(ctx, "docker-forgive"); err != nil {
		return err
	}
	if _, err := r.must(ctx, "docker-on"); err != nil {
		return r.putBack(ctx, r.withJournal(ctx, err), "docker-on")
	}
	return nil
}

// inGroup also settles who the user is: the one who runs this, and not root.
func (r *run) inGroup(ctx context.Context) (bool, string, error) {
	user := r.req.Parameters.User
	o, err := r.must(ctx, "passwd", user)
	if err != nil {
		return false, "", err
	}
	account := strings.Split(strings.TrimSpace(o.stdout), ":")
	if len(account) < 4 || account[0] != user {
		return false, "", errors.New("the user database gives no such user")
	}
	uid, err := strconv.Atoi(account[2])
	switch {
	case err != nil:
		return false, "", errors.New("the user database gives no user id")
	case uid == 0:
		return false, "", errors.New("this user is root, who needs no group")
	case uid != r.uid:
		return false, "", errors.New("this user is not the one who runs the helper")
	}
	o, err = r.do(ctx, "group")
	if err != nil {
		return false, "", err
	}
	if o.code == 2 {
		return false, "", errors.New("there is no group docker: Docker's package makes it")
	}
	group := strings.Split(strings.TrimSpace(o.stdout), ":")
	if o.code != 0 || len(group) != 4 || group[0] != "docker" {
		return false, "", failed("getent group docker", o)
	}
	if slices.Contains(strings.Split(group[3], ","), user) || group[2] == account[3] {
		return true, user + " is in group docker", nil
	}
	return false, user + " is not in group docker", nil
}

func (r *run) joinGroup(ctx context.Context) error {
	user := r.req.Parameters.User
	if _, err := r.record(Change{Kind: ChangeGroup, Name: "docker", Value: user}); err != nil {
		return err
	}
	_, err := r.must(ctx, "group-add", user)
	return err
}
