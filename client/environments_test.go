package client

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"berth"
)

// A caller that gives no key gets one for each call, so that two of its calls
// are two operations and one that net/http sends twice is one.
func TestBeginOperationMakesAKey(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) > 2 {
			w.WriteHeader(http.StatusOK)
		} else {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = io.WriteString(w, `{"v":1,"id":"op-1","phase":"checking"}`)
	}))
	ctx := within(t, 5*time.Second)
	for _, key := range []string{"", "", "mine"} {
		op, created, err := c.BeginOperation(ctx, berth.BeginOperation{Kind: berth.OperationSetup}, key)
		if err != nil || op.ID != "op-1" || op.Phase != berth.PhaseChecking || created != (key == "") {
			t.Errorf("%q: %+v %v %v", key, op, created, err)
		}
	}
	if len(keys[0]) < 20 || keys[0] == keys[1] || keys[2] != "mine" {
		t.Errorf("keys %q", keys)
	}
}

// What a caller gives as a name cannot reach another path.
func TestNamesStayInTheirPath(t *testing.T) {
	var paths []string
	var mu sync.Mutex
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.Method+" "+r.URL.EscapedPath())
		refuse(w, berth.Errorf(berth.CodeNotFound, "no"))
	}))
	ctx := within(t, 5*time.Second)
	_, err1 := c.Operation(ctx, "../reset")
	_, err2 := c.CancelOperation(ctx, "a/b")
	_, err3 := c.Engine(ctx, "x?y")
	_, err4 := c.Release(ctx, "../..")
	_, err5 := c.Diagnostics(ctx, "a b")
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, berth.CodeNotFound) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
	want := []string{
		"GET /v1/operations/..%2Freset", "POST /v1/operations/a%2Fb/cancel", "GET /v1/engines/x%3Fy",
		"GET /v1/releases/..%2F..", "GET /v1/environments/a%20b/diagnostics",
	}
	for i := range want {
		if i >= len(paths) || paths[i] != want[i] {
			t.Errorf("asked %q, want %q", paths, want)
			break
		}
	}
}

// A list that is not there is an empty list: nobody loops over nil by mistake.
func TestEmptyLists(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(map[string]int{"v": 1}) }))
	ctx := within(t, 5*time.Second)
	envs, err1 := c.Environments(ctx)
	ops, err2 := c.Operations(ctx, "")
	engines, err3 := c.Engines(ctx)
	releases, err4 := c.Releases(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil || envs == nil || ops == nil || engines == nil || releases == nil {
		t.Errorf("%v: %v %v %v %v", err, envs, ops, engines, releases)
	}
}
