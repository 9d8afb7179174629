package sqlite

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"berth"
	"berth/durable"
)

// cell is the model of one record and the lease of the same name: what a store
// that did one call after the other would have.
type cell struct {
	begun           bool
	revision, epoch int64
	value           int64
	holder          string // "" = the lease is free
	leaseEpoch      int64
}

// step is what the contract says. The leases of the test last longer than it.
func step(c cell, q request) (cell, reply) {
	record := func(code berth.Code) reply {
		return reply{Code: code, Revision: c.revision, Epoch: c.epoch, Value: c.value}
	}
	lease := func() reply { return reply{Holder: c.holder, LeaseEpoch: c.leaseEpoch} }
	holds := c.holder != "" && c.leaseEpoch == q.LeaseEpoch
	switch q.Op {
	case "begin":
		if c.begun {
			return c, record("")
		}
		c.begun, c.revision, c.epoch, c.value = true, 0, 1, q.Value
		a := record("")
		a.Created = true
		return c, a
	case "acquire":
		if c.holder != "" && c.holder != q.Principal {
			return c, reply{Code: berth.CodeHeld, Holder: c.holder}
		}
		if c.holder == "" {
			c.holder = q.Principal
			c.leaseEpoch++
		}
		return c, lease()
	case "renew", "release":
		if !holds || c.holder != q.Principal {
			return c, reply{Code: berth.CodeFenced}
		}
		if q.Op == "renew" {
			return c, lease()
		}
		c.holder = ""
		return c, reply{}
	}
	switch {
	case q.Op == "guarded" && !holds:
		return c, reply{Code: berth.CodeFenced}
	case !c.begun:
		return c, reply{Code: berth.CodeNotFound}
	case q.Op == "get":
	case c.epoch != q.Epoch:
		return c, record(berth.CodeFenced)
	case c.revision != q.Revision:
		return c, record(berth.CodeRevisionMismatch)
	case q.Op == "takeover":
		c.epoch++
	default: // change, guarded
		c.revision++
		c.value = q.Value
	}
	return c, record("")
}

// outcome is a reply, or that none came.
type outcome struct {
	reply
	unknown bool
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[string][]porcupine.Operation{}
		for _, op := range history {
			id := op.Input.(request).ID
			parts[id] = append(parts[id], op)
		}
		var all [][]porcupine.Operation
		for _, p := range parts {
			all = append(all, p)
		}
		return all
	},
	Init: func() any { return cell{} },
	Step: func(state, input, output any) (bool, any) {
		next, want := step(state.(cell), input.(request))
		got := output.(outcome)
		got.Detail = ""
		// A call without an answer did what it would have done, at some time
		// after it was made: or never, which is after all the others.
		return got.unknown || got.reply == want, next
	},
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}

// client makes calls of every kind, most of them with the guards that it saw
// last, and writes down what came back.
type client struct {
	n       int
	socket  string
	random  *rand.Rand
	start   time.Time
	seen    map[string]reply // the newest answer by record
	leases  map[string]int64 // epoch of its own newest lease by name
	history []porcupine.Operation
	done    *atomic.Int64
}

func (c *client) draw() request {
	ops := []string{"begin", "get", "change", "change", "change", "guarded", "guarded", "takeover", "acquire", "acquire", "renew", "release"}
	q := request{
		Op: ops[c.random.IntN(len(ops))], ID: fmt.Sprintf("r%d", c.random.IntN(4)),
		Value: c.random.Int64(), Principal: fmt.Sprintf("p%d", c.n), TTL: berth.MaxLeaseTTL,
	}
	last := c.seen[q.ID]
	q.Revision, q.Epoch, q.LeaseEpoch = last.Revision, last.Epoch, c.leases[q.ID]
	switch c.random.IntN(20) { // now and then a guard that is wrong
	case 0:
		q.Revision++
	case 1:
		q.Epoch++
	case 2:
		q.LeaseEpoch++
	}
	return q
}

func (c *client) run(calls int) error {
	var conn *caller
	defer func() {
		if conn != nil {
			conn.close()
		}
	}()
	for range calls {
		if conn == nil {
			var err error
			if conn, err = dial(c.socket); err != nil {
				return err
			}
		}
		q := c.draw()
		call := time.Since(c.start).Nanoseconds()
		a, err := conn.call(q)
		op := porcupine.Operation{ClientId: c.n, Input: q, Call: call, Output: outcome{reply: a}, Return: time.Since(c.start).Nanoseconds()}
		if err != nil {
			op.Output, op.Return = outcome{unknown: true}, math.MaxInt64
			conn.close()
			conn = nil
		} else if a.Epoch != 0 {
			c.seen[q.ID] = a
		} else if a.Code == "" && a.LeaseEpoch != 0 {
			c.leases[q.ID] = a.LeaseEpoch
		}
		c.history = append(c.history, op)
		c.done.Add(1)
	}
	return nil
}

// Eight clients, a server that is killed again and again: what they saw must be
// what a store that does one call after the other could have answered.
func TestLinearizable(t *testing.T) {
	const clients, calls, kills = 8, 600, 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := startServer(t)
	var done atomic.Int64
	all := make([]*client, clients)
	errs := make([]error, clients)
	var running sync.WaitGroup
	start := time.Now()
	for n := range all {
		all[n] = &client{
			n: n, socket: s.socket, random: rand.New(rand.NewPCG(seed, uint64(n+1))), start: start,
			seen: map[string]reply{}, leases: map[string]int64{}, done: &done,
		}
		running.Go(func() { errs[n] = all[n].run(calls) })
	}
	for i := range int64(kills) {
		at := (i*clients*calls + random.Int64N(clients*calls)) / kills
		waitFor(t, "the calls before the next kill", func() bool { return done.Load() >= at })
		s.restart()
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var history []porcupine.Operation
	counts, unknown := map[string]int{}, 0
	for _, c := range all {
		history = append(history, c.history...)
		for _, op := range c.history {
			out := op.Output.(outcome)
			if out.unknown {
				unknown++
			} else {
				counts[fmt.Sprintf("%s:%s", op.Input.(request).Op, out.Code)]++
			}
			if out.Code == berth.CodeInternal || out.Code == berth.CodeStoreFailed {
				t.Fatalf("%+v: %s", op.Input, out.Detail)
			}
		}
	}
	t.Logf("%d calls in %v, %d kills, %d without an answer: %v", len(history), time.Since(start), kills, unknown, counts)
	for _, must := range []string{"change:", "change:revision_mismatch", "change:fenced", "takeover:", "acquire:", "acquire:held", "renew:", "renew:fenced", "release:", "guarded:", "guarded:fenced"} {
		if counts[must] == 0 {
			t.Errorf("no call came out as %s", must)
		}
	}
	if unknown == 0 {
		t.Error("no kill met a call")
	}
	wantLinear(t, history, porcupine.Ok)
	s.p.kill()
	checkAfterKills(t, s.path, counts["change:"]+counts["guarded:"])
}

func wantLinear(t *testing.T, history []porcupine.Operation, want porcupine.CheckResult) {
	t.Helper()
	start := time.Now()
	result, info := porcupine.CheckOperationsVerbose(model, history, time.Minute) // out of time is Unknown
	if result == want {
		t.Logf("checked %d calls in %v", len(history), time.Since(start))
		return
	}
	picture := filepath.Join(t.ArtifactDir(), "history.html")
	if err := porcupine.VisualizePath(model, info, picture); err != nil {
		t.Error(err)
	}
	t.Fatalf("the history is %s, want %s; see %s (go test -artifacts)", result, want, picture)
}

// checkAfterKills wants a sound file whose events are those of its changes.
func checkAfterKills(t *testing.T, path string, acked int) {
	t.Helper()
	s := openStore(t, Config{Path: path})
	integrity(t, s)
	page, err := s.List(t.Context(), durable.Query{})
	if err != nil {
		t.Fatal(err)
	}
	changes := int64(0)
	for _, r := range page.Records {
		changes += r.Revision
	}
	if changes < int64(acked) {
		t.Fatalf("%d changes were acknowledged, %d are there", acked, changes)
	}
	wantSequence(t, s, changes)
}

// The check can fail: each of these histories has one answer that no store
// could have given.
func TestLinearizableSeesAnomalies(t *testing.T) {
	begun := porcupine.Operation{Call: 0, Return: 1, Input: request{Op: "begin", ID: "r"}, Output: outcome{reply: reply{Created: true, Epoch: 1}}}
	op := func(call, end int64, q request, a reply) porcupine.Operation {
		q.ID = "r"
		return porcupine.Operation{Call: call, Return: end, Input: q, Output: outcome{reply: a}}
	}
	lost := func(call int64, q request) porcupine.Operation {
		q.ID = "r"
		return porcupine.Operation{Call: call, Return: math.MaxInt64, Input: q, Output: outcome{unknown: true}}
	}
	first := request{Op: "change", Epoch: 1, Value: 7}
	changed := reply{Revision: 1, Epoch: 1, Value: 7}
	for name, test := range map[string]struct {
		history []porcupine.Operation
		want    porcupine.CheckResult
	}{
		"a lost update":                 {[]porcupine.Operation{op(2, 3, first, changed), op(4, 5, request{Op: "get"}, reply{Epoch: 1})}, porcupine.Illegal},
		"two winners":                   {[]porcupine.Operation{op(2, 5, first, changed), op(3, 4, first, changed)}, porcupine.Illegal},
		"an overlapping read":           {[]porcupine.Operation{op(2, 5, first, changed), op(3, 4, request{Op: "get"}, reply{Epoch: 1})}, porcupine.Ok},
		"an unknown that happened":      {[]porcupine.Operation{lost(2, first), op(8, 9, request{Op: "get"}, changed)}, porcupine.Ok},
		"an unknown that did not":       {[]porcupine.Operation{lost(2, first), op(8, 9, request{Op: "get"}, reply{Epoch: 1})}, porcupine.Ok},
		"an unknown that was undone":    {[]porcupine.Operation{lost(2, first), op(4, 5, request{Op: "get"}, changed), op(8, 9, request{Op: "get"}, reply{Epoch: 1})}, porcupine.Illegal},
		"an unknown before it was made": {[]porcupine.Operation{op(2, 3, request{Op: "get"}, changed), lost(4, first)}, porcupine.Illegal},
		"two holders": {[]porcupine.Operation{
			op(2, 3, request{Op: "acquire", Principal: "p"}, reply{Holder: "p", LeaseEpoch: 1}),
			op(4, 5, request{Op: "acquire", Principal: "q"}, reply{Holder: "q", LeaseEpoch: 2}),
		}, porcupine.Illegal},
		"a write under a lease given back": {[]porcupine.Operation{
			op(2, 3, request{Op: "acquire", Principal: "p"}, reply{Holder: "p", LeaseEpoch: 1}),
			op(4, 5, request{Op: "release", Principal: "p", LeaseEpoch: 1}, reply{}),
			op(6, 7, request{Op: "guarded", LeaseEpoch: 1, Epoch: 1, Value: 7}, changed),
		}, porcupine.Illegal},
	} {
		if got := porcupine.CheckOperations(model, append([]porcupine.Operation{begun}, test.history...)); got != (test.want == porcupine.Ok) {
			t.Errorf("%s: legal %v, want %s", name, got, test.want)
		}
	}
}
