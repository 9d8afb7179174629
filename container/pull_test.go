package container

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	moby "github.com/moby/moby/client"

	"berth"
	"berth/internal/lab"
)

var anImage = berth.Image{Repository: "registry.invalid/none/here", Digest: "sha256:" + strings.Repeat("ab", 32)}

// watch keeps the reports of a pull and holds what they promise.
type watch struct {
	t    *testing.T
	seen []berth.Progress
}

func (w *watch) report(p berth.Progress) {
	if n := len(w.seen); n > 0 {
		last := w.seen[n-1]
		if p.Done < last.Done || p.Total < last.Total || p.DoneUnpack < last.DoneUnpack {
			w.t.Errorf("the progress went back: %+v after %+v", p, last)
		}
	}
	if p.Done > p.Total || p.DoneUnpack > p.Total {
		w.t.Errorf("more than there is: %+v", p)
	}
	w.seen = append(w.seen, p)
}

func (w *watch) last() berth.Progress {
	if len(w.seen) == 0 {
		return berth.Progress{}
	}
	return w.seen[len(w.seen)-1]
}

func TestPull(t *testing.T) {
	reg := lab.NewRegistry(t)
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		repo := "pull/plain" + string(d.Generation)
		image := reg.Push(t, repo, lab.RandomImage(t, 3<<20, 1<<20))
		reg.Break(repo, lab.Fault{BytesPerSecond: 6 << 20})
		if present, err := c.ImagePresent(t.Context(), image); err != nil || present {
			t.Fatalf("present before: %t, %v", present, err)
		}
		w := &watch{t: t}
		if err := c.Pull(within(t, time.Minute), image, w.report); err != nil {
			t.Fatal(err)
		}
		if present, err := c.ImagePresent(t.Context(), image); err != nil || !present {
			t.Fatalf("present after: %t, %v", present, err)
		}
		p := w.last()
		if p.Done != p.Total || p.DoneUnpack != p.Total || p.Total != image.DownloadBytes {
			t.Errorf("ended with %+v, want %d bytes", p, image.DownloadBytes)
		}
		if !slices.ContainsFunc(w.seen, func(p berth.Progress) bool { return p.Done > 0 && p.Done < p.Total && p.Stage == "download" }) {
			t.Errorf("no part of the download was shown: %+v", w.seen)
		}
		// One that is there asks nobody.
		n := reg.Requests(repo)
		if err := c.Pull(t.Context(), image, w.report); err != nil || reg.Requests(repo) != n {
			t.Errorf("pulled again: %v, %d requests more", err, reg.Requests(repo)-n)
		}
	})
}

// Layers that Docker has are no work, and not counted as such.
func TestPullCountsOnlyWhatIsMissing(t *testing.T) {
	reg := lab.NewRegistry(t)
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		base, grown := lab.RandomImagePair(t, []int{2 << 20}, []int{1 << 20})
		first := reg.Push(t, "share/base"+string(d.Generation), base)
		second := reg.Push(t, "share/more"+string(d.Generation), grown)
		if err := c.Pull(within(t, time.Minute), first, nil); err != nil {
			t.Fatal(err)
		}
		w := &watch{t: t}
		if err := c.Pull(within(t, time.Minute), second, w.report); err != nil {
			t.Fatal(err)
		}
		if got, want := w.last().Total, second.DownloadBytes-first.DownloadBytes; got != want {
			t.Errorf("counted %d bytes, want %d", got, want)
		}
	})
}

func TestPullOfAContainerdStore(t *testing.T) {
	reg := lab.NewRegistry(t)
	d := lab.PrivateDocker(t, lab.Docker28, lab.Options{ContainerdStore: true, GPUs: []string{lab.GPU0}})
	c := client(t, d)
	image := reg.Push(t, "store/check", lab.CheckImage(t))
	reg.Break("store/check", lab.Fault{BytesPerSecond: 4 << 20})
	w := &watch{t: t}
	if err := c.Pull(within(t, time.Minute), image, w.report); err != nil {
		t.Fatal(err)
	}
	if p := w.last(); p.Done != p.Total || p.Total == 0 || p.Total > image.DownloadBytes+64<<10 {
		t.Errorf("ended with %+v, want about %d bytes", p, image.DownloadBytes)
	}
	res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/usr/bin/nvidia-smi"}, GPU: GPU{GPUCDI, lab.GPU0}})
	if err != nil || strings.TrimSpace(string(res.Stdout)) != lab.GPU0 {
		t.Fatalf("%+v, %v", res, err)
	}
	// The id of an image is another one here; who uses it is found all the same.
	made, err := raw(t, d).ContainerCreate(t.Context(), moby.ContainerCreateOptions{Name: "user", Config: &container.Config{Image: image.Reference()}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.RemoveImage(t.Context(), image), berth.CodeResourceInUse)
	if _, err := raw(t, d).ContainerRemove(t.Context(), made.ID, moby.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveImage(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	bad := reg.Push(t, "store/corrupt", lab.RandomImage(t, 1<<20))
	reg.Break("store/corrupt", lab.Fault{AtByte: 1000, Corrupt: true})
	wantCode(t, c.Pull(within(t, time.Minute), bad, nil), berth.CodeDigestMismatch)
	missing := bad
	missing.Digest = anImage.Digest
	wantCode(t, c.Pull(within(t, time.Minute), missing, nil), berth.CodeImageNotFound)
}

// Whatever a registry does wrong has its name, and the pull ends.
func TestPullFailures(t *testing.T) {
	reg := lab.NewRegistry(t)
	closed := lab.NewRegistry(t)
	gone := closed.Push(t, "gone/image", lab.RandomImage(t, 1000))
	closed.Close()
	for name, c := range map[string]struct {
		fault  lab.Fault
		code   berth.Code
		reason string
	}{
		"404":          {lab.Fault{Status: 404}, berth.CodeImageNotFound, ""},
		"401":          {lab.Fault{Status: 401}, berth.CodePullFailed, "auth_refused"},
		"403":          {lab.Fault{Status: 403}, berth.CodePullFailed, "auth_refused"},
		"429":          {lab.Fault{Status: 429}, berth.CodePullFailed, "rate_limited"},
		"503":          {lab.Fault{Status: 503}, berth.CodeRegistryUnreachable, ""},
		"lying digest": {lab.Fault{LieManifest: true}, berth.CodeDigestMismatch, ""},
		"corrupt":      {lab.Fault{Corrupt: true, AtByte: 1000}, berth.CodeDigestMismatch, ""},
		"stalls":       {lab.Fault{Stall: true, AtByte: 100_000}, berth.CodePullFailed, "stalled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, d *lab.Daemon) {
				t.Parallel()
				repo := "fail/" + strings.ReplaceAll(name, " ", "-") + string(d.Generation)
				image := reg.Push(t, repo, lab.RandomImage(t, 1<<20))
				reg.Break(repo, c.fault)
				cl := client(t, d, func(cfg *Config) {
					cfg.PullTries = 2
					// A busy machine says nothing for seconds; only where silence is the
					// fault may it be taken for one so soon.
					if cfg.PullStall = 30 * time.Second; c.fault.Stall {
						cfg.PullStall = 700 * time.Millisecond
					}
				})
				wantReason(t, cl.Pull(within(t, time.Minute), image, nil), c.code, c.reason)
				if present, err := cl.ImagePresent(t.Context(), image); err != nil || present {
					t.Errorf("present: %t, %v", present, err)
				}
			})
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, d *lab.Daemon) {
			t.Parallel()
			wantCode(t, client(t, d).Pull(within(t, time.Minute), gone, nil), berth.CodeRegistryUnreachable)
		})
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, d *lab.Daemon) {
			t.Parallel()
			// How long a resolver thinks about it is not the matter here.
			c := client(t, d, func(cfg *Config) { cfg.PullStall = 20 * time.Second })
			wantCode(t, c.Pull(within(t, time.Minute), anImage, nil), berth.CodeRegistryUnreachable)
		})
	})
}

// A registry that stalls once, and one that cuts the connection once, cost time
// and nothing else.
func TestPullIsTakenUpAgain(t *testing.T) {
	reg := lab.NewRegistry(t)
	for name, fault := range map[string]lab.Fault{
		"stall": {Stall: true, AtByte: 300_000, Times: 1},
		"cut":   {Cut: true, AtByte: 300_000, Times: 1},
		"503":   {Status: 503, Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, d *lab.Daemon) {
				t.Parallel()
				repo := "again/" + name + string(d.Generation)
				image := reg.Push(t, repo, lab.RandomImage(t, 1<<20, 2<<20))
				reg.Break(repo, fault)
				// Docker itself waits 5 s before it asks a registry again that had cut the
				// connection; that is no stall.
				stall := 8 * time.Second
				if fault.Stall {
					stall = 3 * time.Second
				}
				cl := client(t, d, func(cfg *Config) { cfg.PullStall = stall })
				w := &watch{t: t}
				if err := cl.Pull(within(t, time.Minute), image, w.report); err != nil {
					t.Fatal(err)
				}
				if p := w.last(); p.Done != image.DownloadBytes || p.Total != image.DownloadBytes {
					t.Errorf("ended with %+v, want %d bytes", p, image.DownloadBytes)
				}
			})
		})
	}
}

// cutter dials a daemon and can cut what it dialled.
type cutter struct {
	dial func(context.Context) (net.Conn, error)
	conn atomic.Pointer[net.Conn]
}

func (c *cutter) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err == nil {
		c.conn.Store(&conn)
	}
	return conn, err
}

// The stream to a remote host breaks in the middle: its guest was replaced, the
// network blinked. Docker gives the transfer up, and the pull begins it again.
func TestPullOverALostConnection(t *testing.T) {
	reg := lab.NewRegistry(t)
	each(t, func(t *testing.T, d *lab.Daemon) {
		repo := "lost/conn" + string(d.Generation)
		image := reg.Push(t, repo, lab.RandomImage(t, 2<<20))
		reg.Break(repo, lab.Fault{BytesPerSecond: 4 << 20})
		cut := &cutter{dial: d.Dial}
		c := client(t, d, func(cfg *Config) { cfg.Dial = cut.Dial })
		w := &watch{t: t}
		once := false
		err := c.Pull(within(t, time.Minute), image, func(p berth.Progress) {
			w.report(p)
			if p.Done > 0 && !once {
				once = true
				_ = (*cut.conn.Load()).Close()
			}
		})
		if err != nil || !once {
			t.Fatalf("%v; was cut: %t", err, once)
		}
		if !slices.ContainsFunc(w.seen, func(p berth.Progress) bool { return p.Note != "" }) {
			t.Error("nobody was told that the pull began again")
		}
	})
}

// Docker itself is restarted in the middle (a package upgrade).
func TestPullOverARestartOfDocker(t *testing.T) {
	reg := lab.NewRegistry(t)
	d := lab.PrivateDocker(t, lab.Docker26, lab.Options{})
	image := reg.Push(t, "restart/docker", lab.RandomImage(t, 2<<20))
	reg.Break("restart/docker", lab.Fault{BytesPerSecond: 4 << 20})
	c := client(t, d, func(cfg *Config) { cfg.PullBackoff, cfg.PullTries = 500*time.Millisecond, 6 })
	part, done := make(chan struct{}), make(chan error, 1)
	ctx := within(t, time.Minute)
	go func() {
		once := false
		done <- c.Pull(ctx, image, func(p berth.Progress) {
			if p.Done > 0 && !once {
				once = true
				close(part)
			}
		})
	}()
	select {
	case <-part:
	case err := <-done:
		t.Fatal(err)
	}
	d.Kill(t)
	d.Start(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestPullIsCancelled(t *testing.T) {
	reg := lab.NewRegistry(t)
	each(t, func(t *testing.T, d *lab.Daemon) {
		repo := "cancel/me" + string(d.Generation)
		image := reg.Push(t, repo, lab.RandomImage(t, 4<<20))
		reg.Break(repo, lab.Fault{BytesPerSecond: 1 << 20})
		c := client(t, d)
		ctx, cancel := context.WithCancel(within(t, time.Minute))
		defer cancel()
		err := c.Pull(ctx, image, func(p berth.Progress) {
			if p.Done > 0 {
				cancel()
			}
		})
		wantCode(t, err, berth.CodeInterrupted)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not the context's end", err)
		}
		if present, err := c.ImagePresent(t.Context(), image); err != nil || present {
			t.Errorf("present: %t, %v", present, err)
		}
		// It can be had afterwards.
		reg.Break(repo, lab.Fault{})
		if err := c.Pull(within(t, time.Minute), image, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestPullOntoAFullDisk(t *testing.T) {
	reg := lab.NewRegistry(t)
	for _, g := range []lab.Generation{lab.Docker20, lab.Docker28} {
		t.Run("docker"+string(g), func(t *testing.T) {
			t.Parallel()
			d := lab.PrivateDocker(t, g, lab.Options{DiskBytes: 32 << 20})
			image := reg.Push(t, "full/disk"+string(g), lab.RandomImage(t, 40<<20))
			wantCode(t, client(t, d).Pull(within(t, time.Minute), image, nil), berth.CodeDiskFull)
		})
	}
}

func TestPullRefusesWhatIsNotPinned(t *testing.T) {
	c := stub(t, "", "")
	for _, image := range []berth.Image{{}, {Repository: "docker.io/x/y"}, {Repository: "docker.io/x/y", Digest: "latest"}} {
		wantCode(t, c.Pull(t.Context(), image, nil), berth.CodeInvalidArgument)
	}
}
