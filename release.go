package berth

import (
	"fmt"
	"regexp"
	"strings"
)

// Release is the pinned description of one engine version: what is pulled, and
// what the machine must have. It is immutable by ID: the same ID with another
// content is refused.
type Release struct {
	V       int    `json:"v"`  // 1
	ID      string `json:"id"` // "vllm-0.31.0-r1"
	Engine  string `json:"engine"`
	Version string `json:"version"` // of the engine, as its makers write it
	// Images by platform ("linux/amd64"). A release has no image for a platform
	// whose digest is not known: none is ever invented.
	Images map[string]Image `json:"images"`
	// CheckImages by platform: a small image with nvidia-smi, which shows that a
	// container sees the GPU before an engine image moves one byte. Empty for a
	// release that needs no GPU.
	CheckImages map[string]Image `json:"check_images,omitempty"`
	// MinComputeCapability ("8.0") makes it a GPU release; "" = it runs on the CPU.
	MinComputeCapability string `json:"min_compute_capability,omitempty"`
	MinDriver            string `json:"min_driver,omitempty"` // "580.0"; "" = not known
	RequiredDiskBytes    int64  `json:"required_disk_bytes"`  // at the image store, unpacked; 0 = not known
	Port                 int    `json:"port"`                 // that the engine listens on inside its container
	Health               string `json:"health"`               // path that answers 200 when it serves
	// Args are the engine's argument templates by setting, filled in when a model
	// is loaded: "context_length" → ["--max-model-len", "{}"].
	Args          map[string][]string `json:"args,omitempty"`
	Formats       []Format            `json:"formats,omitempty"`
	Architectures []Architecture      `json:"architectures,omitempty"`
	Models        []CuratedModel      `json:"models,omitempty"`
	Notices       []string            `json:"notices,omitempty"` // licences to show before consent
	Unknown       []string            `json:"unknown,omitempty"` // facts that nobody published, in words
	Source        string              `json:"source"`            // where digests and facts come from
}

// NeedsGPU reports whether the release runs only with a GPU.
func (r Release) NeedsGPU() bool { return r.MinComputeCapability != "" }

// Image is a container image pinned by digest.
type Image struct {
	Repository        string `json:"repository"`                   // "docker.io/vllm/vllm-openai"
	Digest            string `json:"digest"`                       // "sha256:…"
	DownloadBytes     int64  `json:"download_bytes,omitempty"`     // compressed; 0 = not known
	UncompressedBytes int64  `json:"uncompressed_bytes,omitempty"` // 0 = not known
}

// Reference is the image as a registry client takes it: repository@digest.
func (i Image) Reference() string { return i.Repository + "@" + i.Digest }

// Format is a weight format that an engine loads.
type Format struct {
	Name                 string `json:"name"`
	MinComputeCapability string `json:"min_compute_capability,omitempty"` // "" = the release's
}

// Architecture is a model architecture with the engine's parsers for it.
type Architecture struct {
	Name            string `json:"name"` // a trailing * stands for any rest
	ToolParser      string `json:"tool_parser,omitempty"`
	ReasoningParser string `json:"reasoning_parser,omitempty"`
}

// CuratedModel is a small model that is known to run.
type CuratedModel struct {
	Repository string `json:"repository"`
	Revision   string `json:"revision"` // commit
	Format     string `json:"format"`
	Bytes      int64  `json:"bytes"`
}

// ReleaseRef names a release in a plan or an installation.
type ReleaseRef struct {
	ID      string `json:"id"`
	Engine  string `json:"engine"`
	Version string `json:"version"`
}

// ReleaseView is a release as it is listed: with what this berth knows of it.
type ReleaseView struct {
	Release
	Embedded bool `json:"embedded"` // came with this program; else it was added
}

// InstallationStatus is where an installation stands.
type InstallationStatus string

// The installation states. A removing one stays until the record itself goes.
const (
	InstallationReady    InstallationStatus = "ready"
	InstallationRemoving InstallationStatus = "removing"
)

// Valid reports whether the status is one of the above.
func (s InstallationStatus) Valid() bool {
	return s == InstallationReady || s == InstallationRemoving
}

// Installation is an engine set up on a host.
type Installation struct {
	Host     string             `json:"host"`
	Engine   string             `json:"engine"`
	Release  ReleaseRef         `json:"release"`
	Image    Image              `json:"image"`
	Platform string             `json:"platform"` // "linux/amd64"
	Status   InstallationStatus `json:"status"`
	Device   string             `json:"device"` // "gpu" or "cpu": which one it was verified with
	// Found says that the image was there before this engine was set up: it stays
	// when the engine is removed.
	Found bool `json:"found,omitempty"`
	// CheckImage is set only when this installation, or one before it, pulled it.
	CheckImage *Image `json:"check_image,omitempty"`
	// Superseded are images of earlier releases that an update put another in
	// place of and that are still there, as containers use them. They go with the
	// next update or removal.
	Superseded []Image `json:"superseded,omitempty"`
	// Verified are the versions under which the verify ladder was climbed; any
	// change of one asks for a new climb.
	Verified    map[string]string `json:"verified,omitempty"`
	Operation   string            `json:"operation"` // that made it
	Revision    int64             `json:"revision"`
	InstalledAt string            `json:"installed_at"` // RFC 3339
}

var (
	releaseID  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	repository = regexp.MustCompile(`^[a-z0-9]+([.:_-][a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`)
	dotted     = regexp.MustCompile(`^[0-9]+(\.[0-9]+){0,3}$`)
)

// ValidEngine reports whether s can name an engine or a release.
func ValidEngine(s string) bool { return releaseID.MatchString(s) }

// ValidDigest reports whether s is a SHA-256 digest as registries write it.
func ValidDigest(s string) bool { return digestForm.MatchString(s) }

// Validate checks an image. CodeInvalidArgument.
func (i Image) Validate() error {
	if !repository.MatchString(i.Repository) || len(i.Repository) > 255 {
		return Errorf(CodeInvalidArgument, "%.300q is not a repository", i.Repository)
	}
	if !ValidDigest(i.Digest) {
		return Errorf(CodeInvalidArgument, "%.100q is not a digest", i.Digest)
	}
	if i.DownloadBytes < 0 || i.UncompressedBytes < 0 {
		return Errorf(CodeInvalidArgument, "image %s has a negative size", i.Repository)
	}
	return nil
}

// Validate checks a release as a whole. CodeInvalidArgument with the field.
func (r Release) Validate() error {
	bad := func(format string, args ...any) error {
		return Errorf(CodeInvalidArgument, "release %.80q: "+format, append([]any{r.ID}, args...)...)
	}
	switch {
	case r.V != 1:
		return bad("v is %d; this berth reads 1", r.V)
	case !ValidEngine(r.ID):
		return bad("id is not made of a-z, 0-9 and . _ - (64 at most)")
	case !ValidEngine(r.Engine):
		return bad("engine %.80q is not a name", r.Engine)
	case r.Version == "" || len(r.Version) > 64:
		return bad("version is missing or too long")
	case len(r.Images) == 0:
		return bad("it has no image")
	case r.NeedsGPU() && !dotted.MatchString(r.MinComputeCapability):
		return bad("min_compute_capability %.20q is not a version", r.MinComputeCapability)
	case r.MinDriver != "" && !dotted.MatchString(r.MinDriver):
		return bad("min_driver %.20q is not a version", r.MinDriver)
	case !r.NeedsGPU() && len(r.CheckImages) > 0:
		return bad("it needs no GPU, yet has a check image")
	case r.RequiredDiskBytes < 0:
		return bad("required_disk_bytes is negative")
	case r.Port < 1 || r.Port > 65535:
		return bad("port %d is not a port", r.Port)
	case !strings.HasPrefix(r.Health, "/"):
		return bad("health %.80q is not a path", r.Health)
	case r.Source == "":
		return bad("source is missing: say where the digests come from")
	}
	for platform, image := range r.Images {
		if err := validPlatformImage(platform, image); err != nil {
			return bad("%w", err)
		}
		if _, ok := r.CheckImages[platform]; r.NeedsGPU() && !ok {
			return bad("it has no check image for %s", platform)
		}
	}
	for platform, image := range r.CheckImages {
		if err := validPlatformImage(platform, image); err != nil {
			return bad("check image: %w", err)
		}
	}
	return nil
}

func validPlatformImage(platform string, image Image) error {
	if platform != "linux/amd64" && platform != "linux/arm64" {
		return fmt.Errorf("%.40q is not a platform that berth knows", platform)
	}
	return image.Validate()
}
