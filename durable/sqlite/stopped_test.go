package sqlite

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"berth"
)

// hold acquires a lease and then writes and renews under it for ever, whatever
// the answers. It tells each: "acquired EPOCH", then "write CODE REVISION" and
// "renew CODE".
func hold(socket string) {
	c, err := dial(socket)
	if err != nil {
		panic(err)
	}
	must := func(q request) reply {
		q.ID, q.Principal, q.TTL = "job", "first", holderLease
		a, err := c.call(q)
		if err != nil {
			panic(err)
		}
		return a
	}
	must(request{Op: "begin"})
	epoch := must(request{Op: "acquire"}).LeaseEpoch
	fmt.Println("acquired", epoch)
	for {
		now := must(request{Op: "get"})
		a := must(request{Op: "guarded", LeaseEpoch: epoch, Revision: now.Revision, Epoch: now.Epoch, Value: 1})
		fmt.Println("write", code(a), a.Revision)
		fmt.Println("renew", code(must(request{Op: "renew", LeaseEpoch: epoch})))
	}
}

func code(a reply) string {
	if a.Code == "" {
		return "ok"
	}
	return string(a.Code)
}

// A holder that was stopped past the end of its lease wakes up and goes on as if
// nothing had happened, with the record's newest revision in its hand. Every
// write of it is refused, and every attempt to renew.
func TestStoppedHolderIsFenced(t *testing.T) {
	s := startServer(t)
	holder := startProgram(t, roleHolder, socketVar+"="+s.socket)
	if got := holder.line(t); got != "acquired 1" {
		t.Fatalf("the holder says %q", got)
	}
	for range 5 {
		if got := holder.line(t); !strings.HasPrefix(got, "write ok ") {
			t.Fatalf("the holder says %q", got)
		}
		if got := holder.line(t); got != "renew ok" {
			t.Fatalf("the holder says %q", got)
		}
	}
	if err := holder.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the holder stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", holder.cmd.Process.Pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})

	c, err := dial(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	call := func(q request) reply {
		t.Helper()
		q.ID, q.Principal, q.TTL = "job", "second", berth.MaxLeaseTTL
		a, err := c.call(q)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := call(request{Op: "acquire"}); a.Code != berth.CodeHeld || a.Holder != "first" {
		t.Fatalf("a stopped holder's lease that is not over: %+v", a)
	}
	var lease reply
	waitFor(t, "the lease is over", func() bool {
		lease = call(request{Op: "acquire"})
		return lease.Code == ""
	})
	if lease.LeaseEpoch != 2 {
		t.Fatalf("taken over as %+v", lease)
	}
	taken := call(request{Op: "get"})
	write := func() {
		t.Helper()
		now := call(request{Op: "get"})
		if a := call(request{Op: "guarded", LeaseEpoch: 2, Revision: now.Revision, Epoch: now.Epoch, Value: 2}); a.Code != "" {
			t.Fatalf("the new holder's write: %+v", a)
		}
	}
	write()

	if err := holder.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	refused := map[string]int{}
	for refused["write"] < 50 || refused["renew"] < 50 {
		var what, answer string
		var revision int64
		line := holder.line(t)
		if n, _ := fmt.Sscan(line, &what, &answer, &revision); n < 2 {
			t.Fatalf("the holder says %q", line)
		}
		switch {
		case answer == string(berth.CodeFenced):
			refused[what]++
			if refused["write"]%10 == 0 {
				write() // the new one goes on meanwhile
			}
		case answer != "ok", refused["write"]+refused["renew"] > 0, revision > taken.Revision:
			t.Fatalf("after the takeover at revision %d the old holder says %q", taken.Revision, line)
		} // else: an answer that it was stopped before it could tell
	}
	if last := call(request{Op: "get"}); last.Value != 2 {
		t.Fatalf("the record has the old holder's value: %+v", last)
	}
	t.Logf("refused: %v", refused)
}
