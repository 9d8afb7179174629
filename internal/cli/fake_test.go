package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fakeAPI answers what a test put into it. What a test does not set fails.
type fakeAPI struct {
	status    func() (berth.Status, error)
	sessions  []berth.Session
	created   []berth.SessionSpec
	keys      []string
	createErr []error // of the first calls
	log       func(berth.LogRequest) (berth.LogChunk, error)
	follow    []berth.LogChunk
	wait      func(context.Context) (berth.Session, error)
	kill      func(ref string) (berth.KillResult, error)
	remove    func(ref string, force bool) error
	input     []berth.InputRequest
	screen    berth.Screen
	events    []berth.Event
	viewer    Viewer
	err       error // of everything that is not set

	EnvironmentAPI // nil: no test of sessions calls it
}

func (f *fakeAPI) fail() error {
	if f.err != nil {
		return f.err
	}
	return errors.New("the test did not expect that call")
}

func (f *fakeAPI) Status(context.Context) (berth.Status, error) {
	if f.status == nil {
		return berth.Status{}, f.fail()
	}
	return f.status()
}
func (f *fakeAPI) Shutdown(context.Context) error     { return f.fail() }
func (f *fakeAPI) ReplaceGuest(context.Context) error { return f.fail() }
func (f *fakeAPI) Create(_ context.Context, spec berth.SessionSpec, key string) (berth.Session, error) {
	f.created, f.keys = append(f.created, spec), append(f.keys, key)
	if n := len(f.created); n <= len(f.createErr) && f.createErr[n-1] != nil {
		return berth.Session{}, f.createErr[n-1]
	}
	return f.sessions[0], nil
}
func (f *fakeAPI) Sessions(_ context.Context, filter berth.SessionFilter) ([]berth.Session, error) {
	if f.err != nil {
		return nil, f.err
	}
	list := []berth.Session{}
	for _, s := range f.sessions {
		if filter.Match(s) {
			list = append(list, s)
		}
	}
	return list, nil
}
func (f *fakeAPI) Session(_ context.Context, ref string) (berth.Session, error) {
	for _, s := range f.sessions {
		if s.Name == ref || s.ID == ref {
			return s, nil
		}
	}
	return berth.Session{}, berth.Errorf(berth.CodeNotFound, "there is no session %q", ref)
}
func (f *fakeAPI) Resize(_ context.Context, ref string, size berth.Size) (berth.Session, error) {
	s, err := f.Session(context.Background(), ref)
	s.Size = size
	return s, err
}
func (f *fakeAPI) Signal(_ context.Context, ref, _ string) error {
	_, err := f.Session(context.Background(), ref)
	return err
}
func (f *fakeAPI) Kill(_ context.Context, ref string) (berth.KillResult, error) { return f.kill(ref) }
func (f *fakeAPI) Remove(_ context.Context, ref string, force bool) error {
	return f.remove(ref, force)
}
func (f *fakeAPI) Input(_ context.Context, _ string, in berth.InputRequest) error {
	f.input = append(f.input, in)
	return f.err
}
func (f *fakeAPI) Screen(context.Context, string, bool) (berth.Screen, error) {
	return f.screen, f.err
}
func (f *fakeAPI) Log(_ context.Context, _ string, q berth.LogRequest) (berth.LogChunk, error) {
	return f.log(q)
}
func (f *fakeAPI) FollowLog(_ context.Context, _ string, _ berth.LogRequest, do func(berth.LogChunk) error) error {
	for _, c := range f.follow {
		if err := do(c); err != nil {
			return err
		}
	}
	return f.err
}
func (f *fakeAPI) Wait(ctx context.Context, _ string) (berth.Session, error) { return f.wait(ctx) }
func (f *fakeAPI) Export(_ context.Context, _, format string, w io.Writer) error {
	if f.err != nil {
		return f.err
	}
	_, err := io.WriteString(w, format)
	return err
}
func (f *fakeAPI) Events(ctx context.Context, from int64, do func(berth.Event) error) error {
	return f.PastEvents(ctx, from, do)
}
func (f *fakeAPI) PastEvents(_ context.Context, from int64, do func(berth.Event) error) error {
	for _, e := range f.events {
		if e.Seq >= from {
			if err := do(e); err != nil {
				return err
			}
		}
	}
	return f.err
}
func (f *fakeAPI) View(context.Context, string, berth.AttachRequest) (Viewer, error) {
	return f.viewer, f.err
}

// outcome is what a command line came to.
type outcome struct {
	code           int
	stdout, stderr string
}

// testEnv is an Env around a fake, with nothing of this machine in it.
func testEnv(t *testing.T, api API, vars map[string]string, stdin io.Reader, args ...string) (Env, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var out, errs bytes.Buffer
	if vars == nil {
		vars = map[string]string{}
	}
	if vars["HOME"] == "" {
		vars["HOME"] = t.TempDir()
	}
	return Env{
		Args: args, Stdin: stdin, Stdout: &out, Stderr: &errs,
		Getenv:     func(name string) string { return vars[name] },
		Environ:    func() []string { return nil },
		Executable: func() (string, error) { return "/nonexistent/berth", nil },
		Now:        func() time.Time { return testNow },
		Random:     rand.Reader,
		Connect:    func(berth.Paths) (API, error) { return api, nil },
	}, &out, &errs
}

func runCLI(t *testing.T, api API, args ...string) outcome {
	t.Helper()
	env, out, errs := testEnv(t, api, nil, strings.NewReader(""), args...)
	code := Run(t.Context(), env)
	return outcome{code, out.String(), errs.String()}
}

func session(name string, state berth.SessionState) berth.Session {
	return berth.Session{
		ID: "s-0123456789abcdef", Name: name, State: state, Host: berth.LocalHost, Argv: []string{"sleep", "60"},
		Size: berth.DefaultSize, CreatedAt: testNow.Add(-90 * time.Minute), Generation: 1,
	}
}
