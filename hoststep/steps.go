package hoststep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// StepStatus is how a step ended.
type StepStatus string

// The statuses.
const (
	Satisfied StepStatus = "satisfied" // it was so already
	Applied   StepStatus = "applied"   // it is so now
	Failed    StepStatus = "failed"
	NotRun    StepStatus = "not_run" // a step before it failed
)

// Valid reports whether the status is one of the above.
func (s StepStatus) Valid() bool {
	return s == Satisfied || s == Applied || s == Failed || s == NotRun
}

// StepResult is one step of a result.
type StepResult struct {
	ID       string     `json:"id"`
	Status   StepStatus `json:"status"`
	ExitCode int        `json:"exit_code,omitempty"` // of the program that failed; 0 = no program did
	Stderr   string     `json:"stderr,omitempty"`    // its last words, at most 2000 bytes
	Detail   string     `json:"detail,omitempty"`    // for a person
}

// run is one run of the helper.
type run struct {
	sys    system
	recipe recipe
	req    Request
	host   distribution
	uid    int // of the invoking user
	exec   runner
	fetch  fetcher
	ledger *ledger
	say    io.Writer // lines for the person who waits; used by several at once
	now    func() time.Time
	tick   time.Duration // between two looks at a lock
	beat   time.Duration // between two signs of life of a step; 0 = none are given
	wait   time.Duration // longest wait for one

	component   Component // that the step of now belongs to, for the record
	step        string
	dockerRan   bool    // Docker answered when the run began
	edited      *edited // daemon.json, when this run changed it
	refreshDone bool
	cdiDone     bool                      // the specification was looked after in this run
	planned     map[ChangeKind][]UndoItem // of an undo: what its last checks found
}

// step is one row of the closed table. check says whether it is so already and
// in which words; apply makes it so.
type step struct {
	id    string
	what  string // what apply does, for a person
	check func(*run, context.Context) (done bool, detail string, err error)
	apply func(*run, context.Context) error
}

// row is a step and the components that want it: any one of them is enough.
type row struct {
	step
	of []Component
}

var toolkits = []Component{NVIDIAToolkit, NVIDIAToolkitBase}

// table is every step of an apply, in order. Nothing else is ever done.
func table() []row {
	engine, daemon := []Component{DockerEngine}, []Component{NVIDIARuntime, EnableCDI, DockerRestart}
	return []row{
		{step{"package_conflicts", "", (*run).noConflicts, nil}, engine},
		{step{"install_key.docker", "fetching Docker's signing key", vendorCheck(dockerVendor, (*run).keyThere), vendorApply(dockerVendor, (*run).installKey)}, engine},
		{step{"install_key.nvidia", "fetching NVIDIA's signing key", vendorCheck(nvidiaVendor, (*run).keyThere), vendorApply(nvidiaVendor, (*run).installKey)}, toolkits},
		{step{"write_source.docker", "adding Docker's repository", vendorCheck(dockerVendor, (*run).sourceThere), vendorApply(dockerVendor, (*run).writeSource)}, engine},
		{step{"write_source.nvidia", "adding NVIDIA's repository", vendorCheck(nvidiaVendor, (*run).sourceThere), vendorApply(nvidiaVendor, (*run).writeSource)}, toolkits},
		{step{"install_packages.docker", "installing Docker", vendorCheck(dockerVendor, (*run).packagesThere), vendorApply(dockerVendor, (*run).installPackages)}, engine},
		{step{"install_packages.nvidia", "installing the NVIDIA container toolkit", vendorCheck(nvidiaVendor, (*run).packagesThere), vendorApply(nvidiaVendor, (*run).installPackages)}, toolkits},
		{step{"nvidia_runtime", "adding the nvidia runtime to daemon.json", editCheck(NVIDIARuntime), editApply(NVIDIARuntime)}, []Component{NVIDIARuntime}},
		{step{"enable_cdi", "turning CDI on in daemon.json", editCheck(EnableCDI), editApply(EnableCDI)}, []Component{EnableCDI}},
		{step{"nvidia_cdi", "writing the CDI specification", (*run).cdiThere, (*run).makeCDI}, []Component{NVIDIACDI}},
		{step{"docker_reload", "having Docker read its runtimes", (*run).runtimeLoaded, (*run).reloadDocker}, []Component{NVIDIARuntime}},
		{step{"docker_restart", "restarting Docker", (*run).configLoaded, (*run).restartDocker}, daemon},
		{step{"docker_service", "turning docker.service on", (*run).serviceOn, (*run).turnServiceOn}, []Component{DockerService}},
		{step{"docker_group", "adding the user to group docker", (*run).inGroup, (*run).joinGroup}, []Component{DockerGroup}},
	}
}

// steps is what this request asks for.
func (r *run) steps() []row {
	if r.req.Action == Undo {
		return undoTable()
	}
	return slices.DeleteFunc(table(), func(row row) bool {
		return !slices.ContainsFunc(row.of, r.req.Parameters.has)
	})
}

// all runs the steps in order until one fails.
func (r *run) all(ctx context.Context) (results []StepResult, err error) {
	for _, row := range r.steps() {
		result := StepResult{ID: row.id, Status: NotRun}
		if err == nil {
			r.step, r.component = row.id, ""
			if i := slices.IndexFunc(row.of, r.req.Parameters.has); i >= 0 {
				r.component = row.of[i]
			}
			result, err = r.one(ctx, row.step)
			fmt.Fprintf(r.say, "%-10s %s%s\n", result.Status, row.id, prefixed("  ", result.Detail)) //nolint:errcheck // nobody may be listening
		}
		results = append(results, result)
	}
	return results, err
}

// one checks, applies and checks again. What a program claims is not what counts.
func (r *run) one(ctx context.Context, s step) (StepResult, error) {
	result := StepResult{ID: s.id, Status: Failed}
	fail := func(err error) (StepResult, error) {
		result.Detail = plainTail(err.Error(), 2000)
		if f, ok := errors.AsType[*failure](err); ok {
			result.ExitCode, result.Stderr = f.code, f.stderr
		}
		return result, err
	}
	if ctx.Err() != nil {
		return fail(fmt.Errorf("interrupted: %w", context.Cause(ctx)))
	}
	done, detail, err := s.check(r, ctx)
	if err != nil {
		return fail(err)
	}
	if done {
		result.Status, result.Detail = Satisfied, plainTail(detail, 2000)
		return result, nil
	}
	if s.apply == nil {
		return fail(errors.New(detail))
	}
	r.tell("%s", s.what)
	stop := r.signsOfLife(s.what)
	err = s.apply(r, ctx)
	stop()
	if err != nil {
		return fail(err)
	}
	done, detail, err = s.check(r, ctx)
	if err != nil {
		return fail(err)
	}
	if !done {
		return fail(fmt.Errorf("it was done and still is not so: %s", detail))
	}
	result.Status, result.Detail = Applied, plainTail(detail, 2000)
	return result, nil
}

// signsOfLife tells that a step goes on: a download of packages takes minutes.
// stop ends that.
func (r *run) signsOfLife(what string) (stop func()) {
	if r.beat <= 0 {
		return func() {}
	}
	ended, over := make(chan struct{}), make(chan struct{})
	began := r.now()
	go func() {
		defer close(over)
		tick := time.NewTicker(r.beat)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				r.tell("still %s, for %s", what, r.now().Sub(began).Round(time.Second))
			}
		}
	}()
	return func() {
		close(ended)
		<-over
	}
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + strings.ReplaceAll(s, "\n", " · ")
}

func (r *run) tell(format string, args ...any) {
	fmt.Fprintf(r.say, "%-10s %s\n", "…", fmt.Sprintf(format, args...)) //nolint:errcheck // nobody may be listening
}

// failure is a program that ended badly.
type failure struct {
	what   string
	code   int
	stderr string
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s ended with %d%s", f.what, f.code, prefixed(": ", plainTail(f.stderr, 400)))
}

// do starts a command of the recipe. An exit code is not an error.
func (r *run) do(ctx context.Context, name string, values ...string) (outcome, error) {
	c, err := r.recipe.fill(r.req.Action, name, values...)
	if err != nil {
		return outcome{code: -1}, err
	}
	return r.exec(ctx, c)
}

// must is do for a command that has to end with 0.
func (r *run) must(ctx context.Context, name string, values ...string) (outcome, error) {
	o, err := r.do(ctx, name, values...)
	if err != nil {
		return o, err
	}
	if o.code != 0 {
		return o, failed(name, o)
	}
	return o, nil
}

func failed(what string, o outcome) *failure {
	words := o.stderr
	if strings.TrimSpace(words) == "" {
		words = o.stdout
	}
	return &failure{what: what, code: o.code, stderr: plainTail(words, 2000)}
}

// record writes a change down, before it is made.
func (r *run) record(changes ...Change) ([]Change, error) {
	for i := range changes {
		c := &changes[i]
		c.Operation, c.StepID, c.Step = r.req.OperationID, r.req.StepID, r.step
		if c.Component == "" {
			c.Component = r.component
		}
		c.User, c.At = r.req.Parameters.User, r.now().UTC()
	}
	changes, err := r.ledger.append(changes...)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", ChangesPath, err)
	}
	return changes, nil
}

// create writes a file that is not there or whose old content is nobody's.
func (r *run) create(path string, data []byte) error {
	before, err := r.sys.hash(path)
	if err != nil {
		return err
	}
	if _, err := r.record(Change{Kind: ChangeFile, Path: path, Before: before, After: sha(data)}); err != nil {
		return err
	}
	return r.sys.write(path, data, 0o644)
}
