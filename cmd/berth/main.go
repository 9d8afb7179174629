// Command berth is the command line and, as `berth daemon`, the daemon.
package main

import (
	"context"
	"crypto/rand"
	"os"
	"os/signal"
	"syscall"

	"berth"
	"berth/internal/cli"
	"berth/internal/daemon"
)

func main() { os.Exit(run()) }

func run() int {
	// `berth daemon` is what `berth up` starts. It is no command of the command
	// line: its arguments and its output are for `up` alone.
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		return berth.ExitCode(daemon.Run(context.Background(), os.Args[2:], os.Stderr))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal asks, the second one ends us whatever we wait for.
	context.AfterFunc(ctx, stop)
	return cli.Run(ctx, cli.OSEnv(rand.Reader))
}
