package e2e

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"time"
)

// childArg makes the test binary act as a program in a session.
const childArg = "berth-e2e-child"

// child is the program. It fails loudly on its own terminal.
func child(args []string) {
	switch args[0] {
	case "lines": // lines N FILE: numbered lines to the terminal and, byte for byte, to a file
		n, err := strconv.Atoi(args[1])
		if err != nil {
			panic(err)
		}
		lines(n, args[2])
	default:
		panic("unknown child " + args[0])
	}
}

// lines writes "line 1\r\n"… to the terminal in raw form and keeps a copy, so
// that what the session kept can be compared with what the program wrote.
func lines(n int, file string) {
	f, err := os.Create(file)
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriterSize(os.Stdout, 4096)
	both := bufio.NewWriterSize(f, 64<<10)
	for i := 1; i <= n; i++ {
		fmt.Fprintf(out, "line %d of the run\n", i)
		fmt.Fprintf(both, "line %d of the run\r\n", i)
	}
	if err := out.Flush(); err != nil {
		panic(err)
	}
	if err := both.Flush(); err != nil {
		panic(err)
	}
	if err := os.WriteFile(file+".done", nil, 0o600); err != nil {
		panic(err)
	}
	<-time.After(time.Hour)
}
