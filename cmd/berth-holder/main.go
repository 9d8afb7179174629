// Command berth-holder keeps one program in a pseudo-terminal. The guest starts
// it; it is not run by hand.
package main

import (
	"fmt"
	"os"

	"berth/holder"
)

func main() {
	if err := holder.Run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
