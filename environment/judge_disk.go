package environment

import (
	"fmt"

	"berth"
)

// diskNeed is what the judgement found about space.
type diskNeed struct {
	need       int64
	sufficient *bool  // nil = not known, or not to be checked
	path       string // that was measured; "" = none
	free       *int64 // nil = not known
	sizeless   bool   // nobody published how large the image is
}

// disk judges the space at the place where Docker keeps images. Nothing is
// needed for the environment itself, nor for an image that is there. Once a pull
// began, its layers already count as used, so free space says nothing; and where
// Docker does not answer, a recorded image may well be there.
func (j *judgement) disk() {
	r := j.in.Release
	if r == nil {
		j.size.sufficient = answer(true)
		return
	}
	if j.plan.Image == nil {
		return
	}
	present := j.in.ImagePresent
	place, fact := j.imageStore()
	if place != nil {
		j.size.path, j.size.free = place.Path, &place.FreeBytes
	}
	switch {
	case present != nil && *present:
		j.size.sufficient = answer(true)
		return
	case j.in.PullBegan, present == nil && j.recorded():
		return
	}
	j.size.need, j.size.sizeless = spaceFor(*r, *j.plan.Image)
	if j.size.need == 0 {
		return
	}
	if place == nil {
		j.blockUnknown(fact, j.unknownReason(fact))
		return
	}
	enough := place.FreeBytes >= j.size.need
	switch {
	case enough && !j.size.sizeless:
		j.size.sufficient = answer(true)
	case enough:
	case present == nil && j.dockerThere(): // the image may be there after all
	default:
		j.size.sufficient = answer(false)
		j.block(berth.BlockDisk, fmt.Sprintf("The image of release %s needs %s at %s, where %s are free. Free %s there, then try again.",
			r.ID, bytesInWords(j.size.need), place.Path, bytesInWords(place.FreeBytes), bytesInWords(j.size.need-place.FreeBytes)),
			"path", place.Path, "required_bytes", fmt.Sprint(j.size.need), "free_bytes", fmt.Sprint(place.FreeBytes))
	}
}

// spaceFor is what an image takes once it is unpacked; with sizeless, only a
// lower bound of it is known.
func spaceFor(r berth.Release, image berth.Image) (need int64, sizeless bool) {
	switch {
	case r.RequiredDiskBytes > 0:
		return r.RequiredDiskBytes, false
	case image.UncompressedBytes > 0:
		return image.UncompressedBytes + image.DownloadBytes, false
	}
	return image.DownloadBytes, true
}

// imageStore is the place that images go to: the containerd root where its image
// store is in use, and after a fresh installation, which uses it; else the
// Docker root. Of two that could be meant, the fuller one counts.
func (j *judgement) imageStore() (*berth.DiskFacts, FactName) {
	find := func(purpose string) *berth.DiskFacts {
		for i := range j.f.Disk {
			if j.f.Disk[i].Purpose == purpose {
				return &j.f.Disk[i]
			}
		}
		return nil
	}
	docker, containerd := find(DiskDockerRoot), find(DiskContainerdRoot)
	switch {
	case j.f.Docker.ContainerdStore:
		return containerd, FactFreeContainerd
	case j.f.Docker.Reachable || containerd == nil:
		return docker, FactFreeDisk
	case docker == nil || containerd.FreeBytes < docker.FreeBytes:
		return containerd, FactFreeContainerd
	}
	return docker, FactFreeDisk
}

// recorded reports whether this very image is recorded as installed.
func (j *judgement) recorded() bool {
	have := installationOf(j.in.Installations, j.in.Target)
	return have != nil && have.Image.Digest == j.plan.Image.Digest
}

func (j *judgement) dockerThere() bool {
	d := j.f.Docker
	return d.Reachable || d.Install != "" || d.CLI != "" || d.Socket != ""
}

func answer(b bool) *bool { return &b }

// bytesInWords writes a size as people read it, in units of 1000.
func bytesInWords(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n), ""
	for _, u := range []string{"kB", "MB", "GB", "TB"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, u
	}
	if value < 10 {
		return fmt.Sprintf("%.1f %s", value, unit)
	}
	return fmt.Sprintf("%.0f %s", value, unit)
}
