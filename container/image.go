package container

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	moby "github.com/moby/moby/client"

	"berth"
)

func hasSuffix(s string, suffixes ...string) bool {
	return slices.ContainsFunc(suffixes, func(x string) bool { return strings.HasSuffix(s, x) })
}

// hubHosts are the names under which Docker's own registry is written.
var hubHosts = []string{"docker.io", "index.docker.io", "registry-1.docker.io"}

// shortName is the repository as Docker itself writes it: "vllm/vllm-openai" for
// docker.io/vllm/vllm-openai, "busybox" for index.docker.io/library/busybox.
func shortName(repository string) (string, error) {
	host, rest, ok := strings.Cut(repository, "/")
	if ok && slices.Contains(hubHosts, host) {
		repository = "docker.io/" + rest
	}
	named, err := reference.ParseNormalizedNamed(repository)
	if err != nil {
		return "", berth.Errorf(berth.CodeInvalidArgument, "%.300q is not a repository: %w", repository, err)
	}
	return reference.FamiliarName(named), nil
}

// refOf is the image as Docker itself writes it: short name @ digest.
func refOf(image berth.Image) (string, error) {
	if err := image.Validate(); err != nil {
		return "", err
	}
	short, err := shortName(image.Repository)
	if err != nil {
		return "", err
	}
	return short + "@" + image.Digest, nil
}

// SameImage reports whether a reference as Docker writes it ("repo@digest",
// "repo:tag@digest") names the image: the same digest and the same repository
// in Docker's short form.
func SameImage(ref string, image berth.Image) bool {
	name, digest, ok := strings.Cut(ref, "@")
	if !ok || digest != image.Digest {
		return false
	}
	// A tag may stand between the name and the digest.
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	a, err1 := shortName(name)
	b, err2 := shortName(image.Repository)
	return err1 == nil && err2 == nil && a == b
}

// ImagePresent reports whether the daemon has the image by that digest under
// that repository.
func (c *Client) ImagePresent(ctx context.Context, image berth.Image) (bool, error) {
	found, err := c.inspect(ctx, image)
	return found != nil, err
}

// inspect gives the image, or nil when the daemon does not have it.
func (c *Client) inspect(ctx context.Context, image berth.Image) (*moby.ImageInspectResult, error) {
	ref, err := refOf(image)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.short(ctx)
	defer cancel()
	found, err := c.docker().ImageInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed(err, "look for image "+ref)
	}
	// A daemon that found it by something else (a name that looks like a digest)
	// did not find this one.
	if !slices.ContainsFunc(found.RepoDigests, func(d string) bool { return SameImage(d, image) }) {
		return nil, nil
	}
	return &found, nil
}

// User is a container that uses an image.
type User struct {
	ID    string
	Name  string
	State string // as Docker says it: "running", "exited", …
}

// ContainersUsing lists all containers that use the image, running or not, also
// those of images that were built from it. Nil when the image is not there: then
// nothing can use it.
func (c *Client) ContainersUsing(ctx context.Context, image berth.Image) ([]User, error) {
	found, err := c.inspect(ctx, image)
	if err != nil || found == nil {
		return nil, err
	}
	ref, err := refOf(image)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.short(ctx)
	defer cancel()
	all, err := c.docker().ContainerList(ctx, moby.ContainerListOptions{All: true})
	if err != nil {
		return nil, failed(err, "list containers")
	}
	// What descends from it only Docker can tell.
	children, err := c.docker().ContainerList(ctx, moby.ContainerListOptions{All: true, Filters: make(moby.Filters).Add("ancestor", ref)})
	if err != nil {
		return nil, failed(err, "list containers of "+ref)
	}
	var users []User
	for _, s := range append(all.Items, children.Items...) {
		descends := slices.ContainsFunc(children.Items, func(d container.Summary) bool { return d.ID == s.ID })
		if !descends && !uses(s, found.ID, image) || slices.ContainsFunc(users, func(u User) bool { return u.ID == s.ID }) {
			continue
		}
		users = append(users, User{ID: s.ID, Name: strings.TrimPrefix(first(s.Names), "/"), State: string(s.State)})
	}
	return users, nil
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// uses reports whether the container stands on the image: by the id of what it
// runs, by the manifest that it was made of, or by the name that it was made
// with.
func uses(s container.Summary, id string, image berth.Image) bool {
	if s.ImageID == id || s.ImageID == image.Digest || SameImage(s.Image, image) {
		return true
	}
	return s.ImageManifestDescriptor != nil && s.ImageManifestDescriptor.Digest.String() == image.Digest
}

// RemoveImage removes the image by its digest, never by force. One that is not
// there is removed already. Any container that uses it, running or not, is
// CodeResourceInUse with the names. Other names of the same image stay.
func (c *Client) RemoveImage(ctx context.Context, image berth.Image) error {
	ref, err := refOf(image)
	if err != nil {
		return err
	}
	users, err := c.ContainersUsing(ctx, image)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return inUse(ref, users)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*c.cfg.CallTimeout) // a large image takes its time
	defer cancel()
	_, err = c.docker().ImageRemove(ctx, ref, moby.ImageRemoveOptions{PruneChildren: true})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err): // somebody was quicker than our look
		return berth.Errorf(berth.CodeResourceInUse, "Docker keeps image %s: %w", ref, err)
	case err != nil:
		return failed(err, "remove image "+ref)
	}
	present, err := c.ImagePresent(ctx, image)
	if err != nil {
		return err
	}
	if present {
		return berth.Errorf(berth.CodeConflict, "Docker said that image %s was removed, and it is still there", ref)
	}
	return nil
}

func inUse(ref string, users []User) error {
	var names []string
	for _, u := range users[:min(len(users), 10)] {
		names = append(names, orElse(u.Name, u.ID)+" ("+u.State+")")
	}
	return berth.Errorf(berth.CodeResourceInUse, "image %s is used by %d containers: %s", ref, len(users), strings.Join(names, ", ")).
		WithFact("containers", strings.Join(names, ", ")).
		WithHint("remove those containers first; berth does not touch what it did not make")
}
