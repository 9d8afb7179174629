package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestNoByteLostOrDoubled kills the daemon, the guest or both at random times
// while a program writes, and compares what is kept with what it wrote.
func TestNoByteLostOrDoubled(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	h := newHouse(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		victims := []string{"daemon", "guest", "both"}[round%3]
		file := fmt.Sprintf("%s/out-%d", h.dir, round)
		s := h.startSession("--", self, childArg, "lines", "60000", file)
		<-time.After(time.Duration(rng.IntN(60)) * time.Millisecond) // the moment of the kill is the point of the round
		status := h.status()
		if victims != "daemon" {
			h.kill9(status.Guest.PID)
		}
		if victims != "guest" {
			h.kill9(status.Daemon.PID)
			h.must("up")
		}
		waitUntil(t, 30*time.Second, "the program has written all", func() bool {
			_, err := os.Stat(file + ".done")
			return err == nil
		})
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		waitUntil(t, 10*time.Second, fmt.Sprintf("round %d (%s killed): all output is kept", round, victims), func() bool {
			at := h.session(s.ID)
			return at.Offsets.End == uint64(len(want))
		})
		at := h.session(s.ID)
		got = h.must("logs", s.Name, "--from", strconv.FormatUint(at.Offsets.Start, 10))
		if !bytes.Equal([]byte(got), want[at.Offsets.Start:]) {
			t.Fatalf("round %d (%s killed): the %d bytes kept from %d are not the program's own", round, victims, len(got), at.Offsets.Start)
		}
		h.must("kill", s.Name)
		h.must("rm", s.Name)
	}
}
