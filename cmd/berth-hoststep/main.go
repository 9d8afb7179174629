// Command berth-hoststep does the privileged part of making a machine ready. A
// person runs it with sudo or pkexec; berth shows the command.
package main

import (
	"os"

	"berth/hoststep"
)

func main() {
	os.Exit(hoststep.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
