package container

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lab"
)

func TestInfo(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		info, err := c.Info(within(t, 10*time.Second))
		if err != nil || !info.Reachable || info.Err != nil {
			t.Fatalf("%+v, %v", info, err)
		}
		if info.Engine != EngineDocker || info.OSType != "linux" || info.Architecture == "" || info.Rootless || info.LiveRestore || info.ContainerdStore {
			t.Errorf("%+v", info)
		}
		if info.Root != filepath.Join(d.Dir, "data") {
			t.Errorf("root %q", info.Root)
		}
		if !strings.HasPrefix(info.Version, string(d.Generation)+".") {
			t.Errorf("version %q", info.Version)
		}
		switch d.Generation {
		case lab.Docker20:
			if info.API != "1.41" || info.CDI || !slices.Contains(info.Runtimes, "nvidia") {
				t.Errorf("%+v", info)
			}
		case lab.Docker26: // CDI is on, and the daemon does not say what it found
			if info.API != "1.45" || !info.CDI || info.DevicesListed || len(info.CDIDevices) > 0 {
				t.Errorf("%+v", info)
			}
		case lab.Docker28:
			want := []string{cdiKind + lab.GPU0, cdiKind + lab.GPU1}
			if !info.CDI || !info.DevicesListed || !slices.Equal(info.CDIDevices, want) {
				t.Errorf("%+v", info)
			}
		}
		subnets, err := c.Subnets(within(t, 10*time.Second))
		if err != nil || len(subnets) != 1 || !strings.HasPrefix(subnets[0], "198.18.") {
			t.Errorf("subnets %v, %v", subnets, err)
		}
	})
}

func TestInfoOfACDIThatIsOff(t *testing.T) {
	d := lab.PrivateDocker(t, lab.Docker26, lab.Options{GPUs: []string{lab.GPU0}, NoCDI: true, LiveRestore: true})
	c := client(t, d)
	info, err := c.Info(within(t, 10*time.Second))
	if err != nil || info.CDI || !info.LiveRestore {
		t.Errorf("%+v, %v", info, err)
	}
	// A daemon that goes is not reachable, and one that comes back is, with the
	// same client.
	d.Stop(t)
	info, err = c.Info(within(t, 10*time.Second))
	if err != nil || info.Reachable {
		t.Errorf("%+v, %v", info, err)
	}
	wantCode(t, info.Err, berth.CodeDockerUnreachable)
	d.Start(t)
	if info, err = c.Info(within(t, 10*time.Second)); err != nil || !info.Reachable {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestInfoOfTheContainerdStore(t *testing.T) {
	d := lab.PrivateDocker(t, lab.Docker28, lab.Options{ContainerdStore: true})
	info, err := client(t, d).Info(within(t, 10*time.Second))
	if err != nil || !info.ContainerdStore || !info.CDI || !info.DevicesListed || len(info.CDIDevices) > 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// stub serves fixed answers for /version and /info.
func stub(t *testing.T, version, info string) *Client {
	t.Helper()
	return stubHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.50")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
		case strings.HasSuffix(r.URL.Path, "/version"):
			_, _ = io.WriteString(w, version)
		case strings.HasSuffix(r.URL.Path, "/info"):
			_, _ = io.WriteString(w, info)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
}

func stubHandler(t *testing.T, h http.Handler) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Config{Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}, CallTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// What answers with 200 is not Docker for that: a proxy, a daemon whose own back
// end is gone, another engine.
func TestInfoIsJudgedByContent(t *testing.T) {
	const version = `{"Version":"28.2.0","ApiVersion":"1.50"}`
	for name, c := range map[string]struct{ version, info string }{
		"a page":        {`<html>hello</html>`, `<html>hello</html>`},
		"nothing":       {`{}`, `{}`},
		"server errors": {version, `{"ID":"x","ServerVersion":"28.2.0","ServerErrors":["Cannot connect to the Docker daemon"]}`},
		"no version":    {version, `{"ID":"x","ServerErrors":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := stub(t, c.version, c.info).Info(t.Context())
			if err != nil || info.Reachable {
				t.Fatalf("%+v, %v", info, err)
			}
			if info.Err == nil {
				t.Fatal("no reason")
			}
		})
	}
	info, err := stub(t, `{"Version":"5.4.2","ApiVersion":"1.41","Components":[{"Name":"Podman Engine","Version":"5.4.2"}]}`,
		`{"ID":"x","ServerVersion":"5.4.2","SecurityOptions":["name=seccomp,profile=default","name=rootless","name=selinux"]}`).Info(t.Context())
	if err != nil || info.Engine != EnginePodman || !info.Rootless || !info.SELinux {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestUnreachableSaysWhy(t *testing.T) {
	dir := t.TempDir()
	dial := func(path string) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) }
	}
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	for name, c := range map[string]struct {
		dial   func(context.Context) (net.Conn, error)
		code   berth.Code
		reason string
	}{
		"no socket":   {dial(filepath.Join(dir, "none.sock")), berth.CodeDockerUnreachable, "no_socket"},
		"nobody":      {dial(dead), berth.CodeDockerUnreachable, "refused"},
		"not allowed": {func(context.Context) (net.Conn, error) { return nil, fmt.Errorf("dial: %w", os.ErrPermission) }, berth.CodeDockerUnreachable, "permission"},
		"the guest is gone": {func(context.Context) (net.Conn, error) {
			return nil, berth.Errorf(berth.CodeHostUnreachable, "no guest")
		}, berth.CodeHostUnreachable, ""},
		"a guest finds no socket": {func(context.Context) (net.Conn, error) {
			return nil, berth.Errorf(berth.CodeNotFound, "dial").WithFact("errno", "ENOENT")
		}, berth.CodeDockerUnreachable, "no_socket"},
		"a guest finds nobody": {func(context.Context) (net.Conn, error) {
			return nil, berth.Errorf(berth.CodeNotFound, "dial").WithFact("errno", "ECONNREFUSED")
		}, berth.CodeDockerUnreachable, "refused"},
		"a guest may not": {func(context.Context) (net.Conn, error) {
			return nil, berth.Errorf(berth.CodeForbidden, "dial").WithFact("errno", "EACCES")
		}, berth.CodeDockerUnreachable, "permission"},
	} {
		t.Run(name, func(t *testing.T) {
			cl, err := New(Config{Dial: c.dial})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			info, err := cl.Info(t.Context())
			if err != nil || info.Reachable {
				t.Fatalf("%+v, %v", info, err)
			}
			wantReason(t, info.Err, c.code, c.reason)
			_, err = cl.ImagePresent(t.Context(), anImage)
			wantReason(t, err, c.code, c.reason)
			wantReason(t, cl.Pull(t.Context(), anImage, nil), c.code, c.reason)
		})
	}
}

// A daemon that takes the connection and says nothing must not hold anybody up.
func TestSilentDaemon(t *testing.T) {
	over := make(chan struct{})
	c := stubHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	defer close(over)
	c.cfg.CallTimeout = 300 * time.Millisecond
	info, err := c.Info(t.Context())
	if err != nil || info.Reachable {
		t.Fatalf("%+v, %v", info, err)
	}
	wantCode(t, info.Err, berth.CodeTimeout)
}

func TestAnswersAreBounded(t *testing.T) {
	c := stubHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.50")
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			return
		}
		_, _ = io.WriteString(w, `{"ID":"`)
		chunk := strings.Repeat("x", 1<<20)
		for range 2 * maxAnswer >> 20 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	}))
	c.cfg.CallTimeout = 20 * time.Second
	if info, err := c.Info(t.Context()); err != nil || info.Reachable {
		t.Fatalf("%+v, %v", info, err)
	}
}

func TestAPIAtLeast(t *testing.T) {
	for v, want := range map[string]bool{"1.41": false, "1.49": false, "1.50": true, "1.51": true, "2.0": true, "1": false, "": false, "1.x": false, "1.5": false} {
		if got := apiAtLeast(v, 1, 50); got != want {
			t.Errorf("%q: %t", v, got)
		}
	}
}
