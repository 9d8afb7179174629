// Command berth is the command line.
package main

import (
	"context"
	"crypto/rand"
	"os"
	"os/signal"
	"syscall"

	"berth/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal asks, the second one ends us whatever we wait for.
	context.AfterFunc(ctx, stop)
	return cli.Run(ctx, cli.OSEnv(rand.Reader))
}
