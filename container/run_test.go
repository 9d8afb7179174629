package container

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	moby "github.com/moby/moby/client"

	"berth"
	"berth/internal/lab"
)

// checkImage pulls the check image from a registry of the test.
func checkImage(t *testing.T, c *Client) berth.Image {
	t.Helper()
	image := lab.NewRegistry(t).Push(t, "lab/check", lab.CheckImage(t))
	if err := c.Pull(within(t, time.Minute), image, nil); err != nil {
		t.Fatal(err)
	}
	return image
}

// containers counts all containers of the daemon.
func containers(t *testing.T, d *lab.Daemon) int {
	t.Helper()
	all, err := raw(t, d).ContainerList(context.WithoutCancel(t.Context()), moby.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(all.Items)
}

// ways are those in which a generation gives a card.
func ways(g lab.Generation) []GPUMode {
	if g == lab.Docker20 {
		return []GPUMode{GPURequest, GPURuntime}
	}
	return []GPUMode{GPUCDI}
}

func TestRunOnceSeesTheCard(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		image := checkImage(t, c)
		for _, mode := range ways(d.Generation) {
			for _, uuid := range d.GPUs {
				res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/usr/bin/nvidia-smi", "-L"}, GPU: GPU{mode, uuid}})
				if err != nil || res.Exit != 0 || strings.Count(string(res.Stdout), "UUID:") != 1 || !strings.Contains(string(res.Stdout), uuid) {
					t.Errorf("%s %s: %+v %s, %v", mode, uuid, res, res.Stdout, err)
				}
			}
			_, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/usr/bin/nvidia-smi"}, GPU: GPU{mode, "GPU-ffffffff-0000-4000-8000-00000000dead"}})
			want := map[GPUMode]string{GPUCDI: "cdi_device_unknown", GPURequest: "toolkit", GPURuntime: "toolkit"}[mode]
			wantReason(t, err, berth.CodeCheckFailed, want)
		}
		// Without a card it sees none, and that is a result, not an error.
		res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/usr/bin/nvidia-smi"}})
		if err != nil || res.Exit != 6 {
			t.Errorf("without a card: %+v, %v", res, err)
		}
		if n := containers(t, d); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
}

// The way that was chosen does not work on this Docker: it is said, and no other
// is tried.
func TestRunOnceNeverFallsBack(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		image := checkImage(t, c)
		wrong := map[GPUMode]string{GPUCDI: "cdi_off"}
		if d.Generation != lab.Docker20 {
			wrong = map[GPUMode]string{GPURequest: "no_device_driver", GPURuntime: "no_runtime"}
		}
		for mode, reason := range wrong {
			_, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/usr/bin/nvidia-smi"}, GPU: GPU{mode, d.GPUs[0]}})
			wantReason(t, err, berth.CodeCheckFailed, reason)
		}
		if n := containers(t, d); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
}

// seen is what /bin/probe of the lab's images says of its container.
type seen struct {
	UID, GID   int
	CapEff     string
	NoNewPrivs bool
	RootWrites bool
	Interfaces []string
	PidsMax    string
	Env        []string
	PID1       string
	ShmBytes   int64
	Args       []string
}

func TestRunOnceIsContained(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: checkImage(t, c), Argv: []string{"/bin/probe"}})
		if err != nil || res.Exit != 0 {
			t.Fatalf("%+v %s, %v", res, res.Stderr, err)
		}
		var s seen
		if err := json.Unmarshal(res.Stdout, &s); err != nil {
			t.Fatal(err)
		}
		if s.UID != 65534 || s.GID != 65534 || strings.Trim(s.CapEff, "0") != "" || !s.NoNewPrivs || s.RootWrites || s.PidsMax != "256" {
			t.Errorf("%+v", s)
		}
		if slices.ContainsFunc(s.Interfaces, func(i string) bool { return i != "lo" && !strings.HasPrefix(i, "ifb") }) {
			t.Errorf("it has a network: %v", s.Interfaces)
		}
		if !slices.Contains(s.Env, "NVIDIA_VISIBLE_DEVICES=void") {
			t.Errorf("an image could ask for all cards: %v", s.Env)
		}
	})
}

func TestRunOnceResults(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		c := client(t, d)
		image := checkImage(t, c)
		res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/bin/probe", "exit", "7"}})
		if err != nil || res.Exit != 7 || string(res.Stdout) != "to stdout\n" || string(res.Stderr) != "to stderr\n" || res.Truncated {
			t.Errorf("%+v, %v", res, err)
		}
		res, err = c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/bin/probe", "flood", "3000000"}})
		if err != nil || res.Exit != 0 || len(res.Stdout) != MaxRunOutput || !res.Truncated {
			t.Errorf("%d bytes, %+v, %v", len(res.Stdout), res.Exit, err)
		}
		_, err = c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/bin/none"}})
		wantCode(t, err, berth.CodeStartFailed)
		_, err = c.RunOnce(within(t, time.Minute), RunSpec{Image: anImage, Argv: []string{"/bin/probe"}})
		wantCode(t, err, berth.CodeImageNotFound)
		if n := containers(t, d); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
}

// A check that hangs is over at its time, and one that nobody waits for any more
// at once; neither leaves a container, nor a line in the journal.
func TestRunOnceEndsInTime(t *testing.T) {
	each(t, func(t *testing.T, d *lab.Daemon) {
		j := newJournal(t)
		c := client(t, d, withJournal(t, j))
		image := checkImage(t, c)
		res, err := c.RunOnce(within(t, time.Minute), RunSpec{Image: image, Argv: []string{"/bin/probe", "stubborn"}, Timeout: 700 * time.Millisecond})
		wantCode(t, err, berth.CodeTimeout)
		if string(res.Stdout) != "stubborn\n" {
			t.Errorf("what it said so far: %q", res.Stdout)
		}
		ctx, cancel := context.WithCancel(within(t, time.Minute))
		timer := time.AfterFunc(700*time.Millisecond, cancel)
		defer timer.Stop()
		_, err = c.RunOnce(ctx, RunSpec{Image: image, Argv: []string{"/bin/probe", "sleep"}})
		wantCode(t, err, berth.CodeInterrupted)
		if n := containers(t, d); n != 0 {
			t.Errorf("%d containers are left", n)
		}
		if es, err := j.Entries(t.Context()); err != nil || len(es) != 0 {
			t.Errorf("the journal has %v, %v", es, err)
		}
	})
}

func TestRunOnceRefuses(t *testing.T) {
	c, err := New(Config{Dial: func(context.Context) (net.Conn, error) { panic("nothing is dialled") }})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]RunSpec{
		"no image":    {Argv: []string{"x"}},
		"no program":  {Image: anImage},
		"no uuid":     {Image: anImage, Argv: []string{"x"}, GPU: GPU{Mode: GPUCDI}},
		"all":         {Image: anImage, Argv: []string{"x"}, GPU: GPU{GPUCDI, "all"}},
		"an index":    {Image: anImage, Argv: []string{"x"}, GPU: GPU{GPURequest, "0"}},
		"two":         {Image: anImage, Argv: []string{"x"}, GPU: GPU{GPURuntime, "GPU-1111,GPU-2222"}},
		"no mode":     {Image: anImage, Argv: []string{"x"}, GPU: GPU{UUID: lab.GPU0}},
		"other mode":  {Image: anImage, Argv: []string{"x"}, GPU: GPU{"auto", lab.GPU0}},
		"a line feed": {Image: anImage, Argv: []string{"x\ny"}},
		"too long":    {Image: anImage, Argv: []string{"x"}, Timeout: 2 * time.Hour},
	} {
		_, err := c.RunOnce(t.Context(), s)
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		wantCode(t, err, berth.CodeInvalidArgument)
	}
}
