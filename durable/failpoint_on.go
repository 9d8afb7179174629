//go:build failpoints

package durable

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var failpointHits atomic.Int64

// Failpoint is a point of FailpointNames: the process ends here, as by kill -9,
// when BERTH_FAILPOINT says so.
func Failpoint(name string) {
	want, count, counted := strings.Cut(os.Getenv(FailpointVar), ":")
	if want != name {
		return
	}
	at := int64(1)
	if counted {
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n < 1 {
			panic(FailpointVar + ": not a number of times: " + count)
		}
		at = n
	}
	if failpointHits.Add(1) != at {
		return
	}
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		panic(err)
	}
	select {} // until the signal is there
}
