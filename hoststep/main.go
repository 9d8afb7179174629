package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Codes of a result's Error. They are the error catalogue's.
const (
	ErrorInvalid = "host_step_invalid" // refused; nothing was done
	ErrorFailed  = "host_step_failed"  // a step failed
)

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	Completed     Outcome = "completed"
	OutcomeFailed Outcome = "failed"
)

// Result is the content of a result file.
type Result struct {
	Schema           int          `json:"schema"`
	StepID           string       `json:"step_id"`
	OperationID      string       `json:"operation_id,omitempty"`
	Action           Action       `json:"action,omitempty"`
	Recipe           Recipe       `json:"recipe"` // of this build
	ParametersDigest string       `json:"parameters_digest,omitempty"`
	Nonce            string       `json:"nonce,omitempty"` // "" = the request could not be read
	Revision         int64        `json:"revision"`
	Outcome          Outcome      `json:"outcome"`
	ExitCode         int          `json:"exit_code"`            // of the program that failed; 0 = none did
	ErrorCode        string       `json:"error_code,omitempty"` // ErrorInvalid or ErrorFailed
	Error            string       `json:"error,omitempty"`
	LogTail          string       `json:"log_tail,omitempty"` // of what was shown, at most 16 KiB
	Steps            []StepResult `json:"steps"`              // never nil
	Left             []LeftAlone  `json:"left,omitempty"`     // of an undo
	FinishedAt       time.Time    `json:"finished_at"`
}

// MaxResult is the largest result in bytes that ParseResult reads.
const MaxResult = 1 << 20

// ParseResult reads a result file. It is a claim, and is checked for its form only.
func ParseResult(data []byte) (Result, error) {
	var r Result
	if len(data) > MaxResult {
		return r, errors.New("the result is too large")
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return Result{}, fmt.Errorf("the result cannot be read: %w", err)
	}
	if r.Schema != Schema || r.Outcome != Completed && r.Outcome != OutcomeFailed || r.Action != "" && !r.Action.Valid() {
		return Result{}, errors.New("the result is not one of this schema")
	}
	if slices.ContainsFunc(r.Steps, func(s StepResult) bool { return !s.Status.Valid() }) {
		return Result{}, errors.New("a step of the result has a status that is not known")
	}
	if len(r.LogTail) > maxLog {
		r.LogTail = strings.ToValidUTF8(r.LogTail[len(r.LogTail)-maxLog:], "")
	}
	return r, nil
}

const maxLog = 16 << 10

// Exit codes of the helper.
const (
	ExitCompleted = 0
	ExitFailed    = 1 // the result says why
	ExitNoResult  = 2 // nothing was written: usage, a folder that is not trusted, a full disk
)

const usage = `usage: berth-hoststep [--json] FOLDER/STEP` + RequestSuffix + `
       berth-hoststep --recipe

Makes this machine ready for engines in containers, as the request says.
Run it as root, with sudo or pkexec; berth shows the command.
`

// machine is what the helper touches. main gets the real one; there is no
// argument and no variable that changes it.
type machine struct {
	root   string
	recipe recipe
	exec   runner
	fetch  fetcher
	now    func() time.Time
	tick   time.Duration
	beat   time.Duration
	wait   time.Duration
}

// Main is the helper: it parses the arguments, runs and says the exit code.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	caller := map[string]string{"PKEXEC_UID": getenv("PKEXEC_UID"), "SUDO_UID": getenv("SUDO_UID")}
	os.Clearenv()                  // nothing else of the caller's is for root to heed: SSL_CERT_FILE, for one
	signal.Ignore(syscall.SIGPIPE) // a terminal that went away ends no installation
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	m := machine{
		root: "/", recipe: frozen(), exec: execute,
		fetch: httpsFetch(&http.Transport{DisableKeepAlives: true}),
		now:   time.Now, tick: time.Second, beat: 20 * time.Second, wait: 15 * time.Minute,
	}
	return m.main(ctx, args, func(name string) string { return caller[name] }, stdout, stderr)
}

func (m machine) main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	asJSON := len(args) > 0 && args[0] == "--json"
	if asJSON {
		args = args[1:]
	}
	if len(args) == 1 && args[0] == "--recipe" && !asJSON {
		fmt.Fprintf(stdout, "%s %s\n", m.recipe.ID, digestOf(m.recipe)) //nolint:errcheck // nobody may be listening
		return ExitCompleted
	}
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		fmt.Fprint(stderr, usage) //nolint:errcheck // nobody may be listening
		return ExitNoResult
	}
	say := stdout
	if asJSON {
		say = stderr
	}
	result, err := m.serve(ctx, args[0], getenv, say)
	if err != nil {
		fmt.Fprintf(stderr, "berth-hoststep: %v\n", err) //nolint:errcheck // nobody may be listening
		return ExitNoResult
	}
	if asJSON {
		_ = json.NewEncoder(stdout).Encode(result)
	}
	if result.Outcome != Completed && len(result.Steps) == 0 {
		fmt.Fprintf(say, "%s\n", result.Error) //nolint:errcheck // nobody may be listening
	}
	if result.Outcome != Completed {
		return ExitFailed
	}
	return ExitCompleted
}

// serve answers one request. An error means that there is no result.
func (m machine) serve(ctx context.Context, path string, getenv func(string) string, say io.Writer) (Result, error) {
	if os.Geteuid() != 0 {
		return Result{}, errors.New("this must run as root: use sudo or pkexec")
	}
	uid, err := invoker(getenv, os.Getuid())
	if err != nil {
		return Result{}, err
	}
	f, err := openFolder(path, uid)
	if err != nil {
		return Result{}, err
	}
	defer f.close()
	data, err := f.read()
	if err != nil {
		return Result{}, err
	}
	result := Result{Schema: Schema, StepID: f.step, Recipe: Recipe{m.recipe.ID, digestOf(m.recipe)}, Steps: []StepResult{}}
	log := &tail{limit: maxLog}
	m.perform(ctx, data, uid, &inTurn{w: io.MultiWriter(log, quiet{say})}, &result)
	result.LogTail, result.FinishedAt = plainTail(string(log.data), maxLog), m.now().UTC()
	out, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return Result{}, err
	}
	return result, f.write(append(out, '\n'))
}

// inTurn lets one write after the other.
type inTurn struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *inTurn) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(p)
}

// quiet is a writer whose failures end nothing.
type quiet struct{ io.Writer }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.Writer.Write(p)
	return len(p), nil
}

// perform judges the request and does what it asks for, into the result.
func (m machine) perform(ctx context.Context, data []byte, uid int, say io.Writer, result *Result) {
	refuse := func(code string, err error) {
		result.Outcome, result.ErrorCode, result.Error = OutcomeFailed, code, plainTail(err.Error(), 2000)
		if f, ok := errors.AsType[*failure](err); ok {
			result.ExitCode = f.code
			if f.stderr != "" {
				fmt.Fprintln(say, f.stderr) //nolint:errcheck // it is a buffer and a quiet writer
			}
		}
	}
	req, err := ParseRequest(data)
	if err != nil {
		refuse(ErrorInvalid, err)
		return
	}
	if req.StepID != result.StepID {
		refuse(ErrorInvalid, invalid("the name of the file is not that of the step in it"))
		return
	}
	result.OperationID, result.Action, result.Nonce, result.Revision = req.OperationID, req.Action, req.Nonce, req.Revision
	result.ParametersDigest = req.ParametersDigest
	r := &run{sys: system{m.root}, recipe: m.recipe, req: req, uid: uid, exec: m.exec, fetch: m.fetch, say: say, now: m.now, tick: m.tick, beat: m.beat, wait: m.wait,
		planned: map[ChangeKind][]UndoItem{}}
	if err := r.accept(ctx); err != nil {
		refuse(ErrorInvalid, err)
		return
	}
	if r.ledger, err = r.takeLedger(ctx); err != nil {
		refuse(ErrorFailed, err)
		return
	}
	defer r.ledger.close()
	info, err := r.info(ctx)
	if err != nil {
		refuse(ErrorFailed, err)
		return
	}
	r.dockerRan = info != nil
	result.Steps, err = r.all(ctx)
	if err == nil && req.Action == Undo {
		result.Left, err = r.leftAlone()
	}
	if err != nil {
		refuse(ErrorFailed, err)
		return
	}
	result.Outcome = Completed
}

// accept holds the request against this build and this machine.
func (r *run) accept(ctx context.Context) error {
	p := r.req.Parameters
	if r.req.Recipe.ID != r.recipe.ID || r.req.Recipe.Digest != digestOf(r.recipe) {
		return invalid("the request is for the recipe of another build")
	}
	if r.req.ParametersDigest != ParametersDigest(p) {
		return invalid("the digest is not that of the parameters")
	}
	var known bool
	if r.host, known = r.recipe.distribution(p.Distro, p.Version, p.Arch); !known || r.host.Family != p.Family {
		return invalid("the recipe does not know this distribution")
	}
	data, err := os.ReadFile(r.sys.path(osRelease)) // a link to /usr/lib as a rule
	if err != nil {
		return err
	}
	o, err := r.must(ctx, "uname")
	if err != nil {
		return err
	}
	if release(data, "ID") != p.Distro || release(data, "VERSION_ID") != p.Version || strings.TrimSpace(o.stdout) != p.Arch {
		return invalid("the parameters are not of this machine")
	}
	return nil
}

// release is a value of os-release, by the last line that sets it.
func release(data []byte, key string) (value string) {
	for line := range bytes.Lines(data) {
		if v, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(key+"=")); ok {
			value = strings.Trim(string(v), `"'`)
		}
	}
	return value
}

func (r *run) takeLedger(ctx context.Context) (*ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	for said := false; ; said = true {
		l, err := openLedger(r.sys)
		if !errors.Is(err, errBusy) {
			return l, err
		}
		if !said {
			r.tell("waiting: %v", err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-ticker.C:
		}
	}
}
