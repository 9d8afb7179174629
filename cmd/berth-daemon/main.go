// Command berth-daemon is the daemon. `berth up` starts it; it is a program of
// its own so that the command line does not carry, and at every start set up,
// the libraries of the store and the API.
package main

import (
	"context"
	"os"

	"berth"
	"berth/internal/daemon"
)

func main() {
	os.Exit(berth.ExitCode(daemon.Run(context.Background(), os.Args[1:], os.Stderr)))
}
