// Command berth-guest serves the sessions of one user on one host. The host's
// driver starts it; docs/protocol.md says what it answers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"berth"
	"berth/guest"
	"berth/process/scope"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		e := berth.AsError(err)
		fmt.Fprintf(os.Stderr, "berth-guest: %s (%s)\n", e.Detail, e.Code)
		if e.Hint != "" {
			fmt.Fprintf(os.Stderr, "  %s\n", e.Hint)
		}
		os.Exit(berth.ExitCode(err))
	}
}

const usage = `usage: berth-guest serve --sessions DIR --runtime DIR --holder PATH [--log FILE]
       berth-guest version`

// heapTarget makes the collector run less often than by default while the heap
// is small: with a few sessions the screens are all there is, and a flood makes
// garbage of one frame after another.
const heapTarget = 200

func run(ctx context.Context, args []string, stderr io.Writer) error {
	if len(args) == 1 && args[0] == "version" {
		_, err := fmt.Printf("berth-guest %s (%s), protocol %d\n", berth.Version(), berth.Build(), berth.GuestProtocol)
		return err
	}
	if len(args) == 0 || args[0] != "serve" {
		return berth.Errorf(berth.CodeUsage, "nothing to do").WithHint(usage)
	}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	sessions := flags.String("sessions", "", "directory of the sessions")
	runtimeDir := flags.String("runtime", "", "directory of sockets and the lock")
	holder := flags.String("holder", "", "path of berth-holder")
	logFile := flags.String("log", "", "file to log to; standard error without it")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 {
		return berth.Errorf(berth.CodeUsage, "the arguments are not understood: %w", errors.Join(err)).WithHint(usage)
	}
	out, closeLog, err := openLog(*logFile, stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapTarget)
	}
	log := slog.New(slog.NewTextHandler(out, nil)).With("pid", os.Getpid())
	err = guest.Run(ctx, guest.Config{Sessions: *sessions, Runtime: *runtimeDir, Holder: *holder, Log: log, Scope: scope.Holders(os.Getenv)})
	if err != nil {
		log.Error("the guest ended", "error", err)
	}
	return err
}

// openLog opens the log to append to. It is opened before anything else can
// fail: a guest has nobody who reads its standard error.
func openLog(path string, stderr io.Writer) (io.Writer, func(), error) {
	if path == "" {
		return stderr, func() {}, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, berth.Errorf(berth.CodeStateDir, "the directory of the log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, berth.Errorf(berth.CodeStateDir, "the log: %w", err)
	}
	return f, func() { _ = f.Close() }, nil
}
