// Package cli is the command line: it reads arguments, asks the daemon through
// the client, and shows the answer.
//
// The rules that every command keeps:
//
//   - Standard output has the answer and nothing else. Notes, progress and
//     errors go to standard error, so that `$(berth run -d -- CMD)` is a name.
//   - With --json the answer is one document with "v":1, or one a line where it
//     streams, and an error is the problem document.
//   - The exit status comes from the error catalogue; run, attach and wait end
//     with the program's own.
//   - Nothing asks the user's terminal a question: its answer would be typed
//     into a program, or into the shell after us.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"berth"
)

// Env is everything that a run of the command line takes from outside.
type Env struct {
	Args    []string // without the program's name
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Environ func() []string // whole environment, for the daemon that `up` starts
	// Executable is the path of this program: the others lie beside it.
	Executable func() (string, error)
	Now        func() time.Time
	Random     io.Reader
	// Connect makes the client of a daemon; it must not connect before the first
	// call. nil = the one that speaks to the daemon's socket.
	Connect func(berth.Paths) (API, error)
	// LookPath finds a program, and Attached runs one on the user's terminal with
	// its output on standard error. UserID is who we are. nil = the real ones.
	LookPath func(name string) (string, error)
	Attached func(argv []string) error
	UserID   func() int
	// Poll is how often an operation is looked at; 0 = operationPoll.
	Poll time.Duration
}

// OSEnv is the environment of the process itself.
func OSEnv(random io.Reader) Env {
	return Env{
		Args:       os.Args[1:],
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		Getenv:     os.Getenv,
		Environ:    os.Environ,
		Executable: os.Executable,
		Now:        time.Now,
		Random:     random,
	}
}

// Run runs one command line and returns its exit status. It has told the user
// about every failure before it returns.
func Run(ctx context.Context, env Env) int {
	if env.Connect == nil {
		env.Connect = connect
	}
	env.fillMachine()
	a := &app{env: env}
	root := newRoot(a)
	root.SetArgs(env.Args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return berth.ExitDone
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	err = a.classify(ctx, err)
	a.reportError(err)
	return berth.ExitCode(err)
}

// exitStatus ends the command with a status and says nothing more: it is the
// program's own, or the failure has been told already.
type exitStatus int

func (exitStatus) Error() string { return "exit status" }

// exitWith gives nil for 0, so that success is success.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return exitStatus(code)
}

// classify gives an error without a code the one it should have: what fails
// before a command runs is the command line itself, and what fails because the
// user interrupted us is an interruption.
func (a *app) classify(ctx context.Context, err error) error {
	var known *berth.Error
	if errors.As(err, &known) {
		if known.Code != berth.CodeInternal || ctx.Err() == nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || known != nil):
		return berth.Errorf(berth.CodeInterrupted, "interrupted")
	case !a.started:
		e := berth.Errorf(berth.CodeUsage, "%w", err)
		return e
	}
	return err
}
