// labdaemon is berth-daemon on a machine that stands in for this one, which the
// variable BERTH_LAB_MACHINE names. Built with the tag "failpoints" it can be
// made to end itself at any of them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"berth/internal/daemon"
)

func main() {
	var machine daemon.Standin
	if err := json.Unmarshal([]byte(os.Getenv("BERTH_LAB_MACHINE")), &machine); err != nil {
		fmt.Fprintln(os.Stderr, "BERTH_LAB_MACHINE:", err)
		os.Exit(2)
	}
	if err := daemon.RunOn(context.Background(), os.Args[1:], os.Stderr, machine); err != nil {
		os.Exit(1)
	}
}
