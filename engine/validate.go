package engine

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/distribution/reference"

	"berth"
)

// Bounds of a release. They are far above every real one, and small enough that
// a plan made of one can be shown and kept.
const (
	maxText       = 4096
	maxName       = 128
	maxSettings   = 128
	maxArgs       = 16
	maxList       = 512
	maxImageBytes = 1 << 44 // 16 TiB: a larger number is a fault of writing
)

var (
	settingForm  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	formatForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)
	archForm     = regexp.MustCompile(`^[A-Za-z0-9_]{1,127}\*?$`)
	parserForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	versionForm  = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,6}){0,3}$`)
	modelForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	revisionForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
	healthForm   = regexp.MustCompile(`^/[A-Za-z0-9/._-]{0,255}$`)
)

// placeholder is what a value is put in place of in an argument template.
const placeholder = "{}"

// validate checks what the root's Validate leaves to who reads foreign documents.
func validate(r berth.Release) error {
	if err := r.Validate(); err != nil {
		return berth.Errorf(berth.CodeReleaseInvalid, "%w", err)
	}
	bad := func(format string, args ...any) error {
		return berth.Errorf(berth.CodeReleaseInvalid, "release %q: "+format, append([]any{r.ID}, args...)...)
	}
	switch {
	case !plainText(r.Version, maxName):
		return bad("version has control characters")
	case !plainText(r.Source, maxText):
		return bad("source is longer than %d bytes or has control characters", maxText)
	case !healthForm.MatchString(r.Health):
		return bad("health %.80q is not a plain path", r.Health)
	case r.RequiredDiskBytes > maxImageBytes:
		return bad("required_disk_bytes %d is larger than any disk need", r.RequiredDiskBytes)
	case r.MinDriver != "" && !versionForm.MatchString(r.MinDriver):
		return bad("min_driver %.20q is not a version", r.MinDriver)
	case r.MinDriver != "" && !r.NeedsGPU():
		return bad("it has a min_driver and no min_compute_capability: does it need a GPU or not?")
	}
	for _, check := range []func(berth.Release) string{checkImages, checkArgs, checkFormats, checkArchitectures, checkModels, checkNotes} {
		if fault := check(r); fault != "" {
			return bad("%s", fault)
		}
	}
	return nil
}

// plainText reports whether s can be shown as it is.
func plainText(s string, most int) bool {
	return s != "" && len(s) <= most && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) })
}

// checkImages asks for repositories that name their registry: Docker's short
// form means another registry on another machine. The check image of a platform
// without an engine image would never be used.
func checkImages(r berth.Release) string {
	for _, images := range []map[string]berth.Image{r.Images, r.CheckImages} {
		for platform, image := range images {
			named, err := reference.ParseNormalizedNamed(image.Repository)
			if err != nil || named.Name() != image.Repository {
				return platform + ": the repository " + image.Repository + " does not name its registry"
			}
			if image.DownloadBytes > maxImageBytes || image.UncompressedBytes > maxImageBytes {
				return platform + ": the size of the image is larger than any image"
			}
		}
	}
	for platform := range r.CheckImages {
		if _, ok := r.Images[platform]; !ok {
			return "it has a check image for " + platform + " and no image"
		}
	}
	return ""
}

func checkArgs(r berth.Release) string {
	if len(r.Args) > maxSettings {
		return "args has too many settings"
	}
	for setting, template := range r.Args {
		if !settingForm.MatchString(setting) {
			return "args has a setting whose name is not made of a-z, 0-9 and _"
		}
		if len(template) == 0 || len(template) > maxArgs {
			return "args." + setting + " is empty or too long"
		}
		holes := 0
		for _, arg := range template {
			if !plainText(arg, maxName) {
				return "args." + setting + " has an empty argument, a long one or one with control characters"
			}
			holes += strings.Count(arg, placeholder)
		}
		if holes > 1 {
			return "args." + setting + " takes its value more than once"
		}
	}
	return ""
}

func checkFormats(r berth.Release) string {
	if len(r.Formats) > maxList {
		return "formats is too long"
	}
	seen := map[string]bool{}
	for _, f := range r.Formats {
		switch {
		case !formatForm.MatchString(f.Name):
			return "formats has a name that is not made of a-z, 0-9 and _ . -"
		case seen[f.Name]:
			return "formats has " + f.Name + " twice"
		case f.MinComputeCapability != "" && !r.NeedsGPU():
			return "the format " + f.Name + " asks for a compute capability, and the release needs no GPU"
		case f.MinComputeCapability != "" && !versionForm.MatchString(f.MinComputeCapability):
			return "the format " + f.Name + " has a min_compute_capability that is not a version"
		}
		seen[f.Name] = true
	}
	return ""
}

func checkArchitectures(r berth.Release) string {
	if len(r.Architectures) > maxList {
		return "architectures is too long"
	}
	seen := map[string]bool{}
	for _, a := range r.Architectures {
		switch {
		case !archForm.MatchString(a.Name):
			return "architectures has a name that is not made of letters, digits and _, with one * at its end"
		case seen[a.Name]:
			return "architectures has " + a.Name + " twice"
		case a.ToolParser != "" && !parserForm.MatchString(a.ToolParser), a.ReasoningParser != "" && !parserForm.MatchString(a.ReasoningParser):
			return "the architecture " + a.Name + " has a parser that is not a name"
		}
		seen[a.Name] = true
	}
	return ""
}

func checkModels(r berth.Release) string {
	if len(r.Models) > maxList {
		return "models is too long"
	}
	formats := map[string]bool{}
	for _, f := range r.Formats {
		formats[f.Name] = true
	}
	for _, m := range r.Models {
		switch {
		case !modelForm.MatchString(m.Repository):
			return "models has a repository that is not OWNER/NAME"
		case !revisionForm.MatchString(m.Revision):
			return "the model " + m.Repository + " has a revision that is not a commit of 40 digits"
		case !formats[m.Format]:
			return "the model " + m.Repository + " has a format that the release does not list"
		case m.Bytes <= 0 || m.Bytes > maxImageBytes:
			return "the model " + m.Repository + " has no size, or one that cannot be"
		}
	}
	return ""
}

func checkNotes(r berth.Release) string {
	for name, notes := range map[string][]string{"notices": r.Notices, "unknown": r.Unknown} {
		if len(notes) > maxArgs {
			return name + " is too long"
		}
		for _, text := range notes {
			if !plainText(text, maxText) {
				return name + " has a text that is empty, too long or has control characters"
			}
		}
	}
	return ""
}
