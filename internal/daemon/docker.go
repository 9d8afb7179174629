package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth"
	"berth/container"
	"berth/environment"
)

// dockerOf is what the environment room needs of Docker, made of the container
// room's client.
type dockerOf struct {
	*container.Client
	journal container.Journal
	host    string
}

var _ environment.Containers = dockerOf{}

const (
	checkTimeout = 2 * time.Minute
	// stopGrace is how long an engine may take to end by itself.
	stopGrace = 10 * time.Second
	// registryTimeout bounds the look at an image's configuration: a few
	// kilobytes that only make a plan better.
	registryTimeout = 15 * time.Second
)

// Check runs the check image with the card.
func (d dockerOf) Check(ctx context.Context, c environment.Check) (environment.CheckResult, error) {
	gpu := container.GPU{Mode: container.GPURuntime, UUID: c.GPU}
	if c.CDIDevice != "" {
		gpu.Mode = container.GPUCDI
	}
	r, err := d.RunOnce(ctx, container.RunSpec{Image: c.Image, Argv: c.Argv, GPU: gpu, Timeout: checkTimeout})
	return environment.CheckResult{ExitCode: r.Exit, Stdout: string(r.Stdout), Stderr: string(r.Stderr)}, err
}

// ImageUsers are the containers that use the image.
func (d dockerOf) ImageUsers(ctx context.Context, image berth.Image) ([]string, error) {
	users, err := d.ContainersUsing(ctx, image)
	ids := make([]string, 0, len(users))
	for _, u := range users {
		ids = append(ids, u.ID)
	}
	return ids, err
}

// Owned are the engine's containers in the journal.
func (d dockerOf) Owned(ctx context.Context, engine string) ([]string, error) {
	entries, err := d.journal.Entries(ctx)
	var ids []string
	for _, e := range entries {
		if e.Engine == engine && e.Host == d.host && e.ID != "" { // one without an id was never started
			ids = append(ids, e.ID)
		}
	}
	return ids, err
}

// RemoveOwned stops and removes them.
func (d dockerOf) RemoveOwned(ctx context.Context, engine string) error {
	// What a check could not take away uses its image still.
	if _, err := d.Reconcile(ctx, nil); err != nil {
		return err
	}
	ids, err := d.Owned(ctx, engine)
	if err != nil {
		return err
	}
	for _, id := range ids {
		stopped, err := d.Stop(ctx, id, stopGrace)
		if err != nil {
			return err
		}
		if !stopped.Confirmed {
			return berth.Errorf(berth.CodeStopUnconfirmed, "nobody could confirm that container %.12s stopped: %s", id, stopped.Reason).WithFact("container", id)
		}
		if err := d.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// RequireCUDA reads the image's own condition from its registry: under CDI
// nobody else checks it, and it is better known before 20 GB than after.
func (d dockerOf) RequireCUDA(ctx context.Context, image berth.Image) (string, error) {
	ref, err := name.NewDigest(image.Reference())
	if err != nil {
		return "", berth.Errorf(berth.CodeInvalidArgument, "image %s: %w", image.Repository, err)
	}
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(bounded{remote.DefaultTransport}), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return "", registryError(image, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return "", registryError(image, err)
	}
	for _, v := range config.Config.Env {
		if condition, ok := strings.CutPrefix(v, "NVIDIA_REQUIRE_CUDA="); ok {
			return condition, nil
		}
	}
	return "", nil
}

// maxRegistryAnswer is more than a manifest or a configuration takes: 4 MiB.
const maxRegistryAnswer = 4 << 20

// bounded cuts answers off: a registry names the size of what it is asked for
// itself.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxRegistryAnswer), resp.Body}
	return resp, nil
}

func registryError(image berth.Image, err error) error {
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return berth.Errorf(berth.CodeImageNotFound, "%s: %w", image.Reference(), err)
	}
	return berth.Errorf(berth.CodeRegistryUnreachable, "read %s: %w", image.Reference(), err)
}
