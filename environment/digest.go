package environment

import (
	"slices"

	"berth"
)

// digestChange is what of a change a person agrees to.
type digestChange struct {
	Code   berth.ChangeCode  `json:"code"`
	Text   string            `json:"text"`
	Params map[string]string `json:"params"`
}

// digestSetup is what is hashed of a setup or an update. Its members are fixed:
// a new one changes every digest, and with that withdraws every approval.
type digestSetup struct {
	Target    berth.Target     `json:"target"`
	Recipe    *berth.RecipeRef `json:"recipe"`
	Adopts    bool             `json:"adopts_existing"`
	Changes   []digestChange   `json:"changes"`
	Elevation bool             `json:"elevation"`
	Relogin   bool             `json:"relogin"`
	Reboot    bool             `json:"reboot"`
	Release   string           `json:"release"`
	Image     string           `json:"image"`
	Manifest  string           `json:"manifest"`
	Host      digestHost       `json:"host"`
}

type digestHost struct {
	GPUs       []string `json:"gpus"`
	Disk       string   `json:"disk"` // yes, no or unknown
	DockerRoot string   `json:"docker_root"`
}

// digestRemoval is what is hashed of a removal.
type digestRemoval struct {
	Target       berth.Target   `json:"target"`
	Release      string         `json:"release"`
	Image        string         `json:"image"`
	RetainModels bool           `json:"retain_models"`
	Changes      []digestChange `json:"changes"`
}

// PlanDigest is "sha256:…" over the RFC 8785 JSON of what p would do. Whatever
// would be done changes it; warnings, blockers, reasons, sizes, free bytes and
// the path that was measured do not. The Digest of p itself is not looked at.
func PlanDigest(p berth.Plan) (string, error) {
	if p.Kind == berth.OperationRemove {
		return digestOf(digestRemoval{
			Target: p.Target, Release: releaseIDOf(p), Image: imageDigestOf(p),
			RetainModels: p.RetainModels, Changes: digestChanges(p.Changes),
		})
	}
	return digestOf(digestSetup{
		Target: p.Target, Recipe: p.Recipe, Adopts: p.AdoptsExisting, Changes: digestChanges(p.Changes),
		Elevation: p.Elevation, Relogin: p.Relogin, Reboot: p.Reboot,
		Release: releaseIDOf(p), Image: imageDigestOf(p), Manifest: p.Manifest,
		Host: digestHost{GPUs: gpuIDs(p.GPUs), Disk: yesNoUnknown(p.DiskSufficient), DockerRoot: p.DockerRoot},
	})
}

func digestChanges(changes []berth.Change) []digestChange {
	out := make([]digestChange, 0, len(changes))
	for _, c := range changes {
		params := c.Params
		if params == nil {
			params = map[string]string{}
		}
		out = append(out, digestChange{c.Code, c.Text, params})
	}
	return out
}

// gpuIDs are sorted, because drivers list cards in an order that a boot may change.
func gpuIDs(gpus []berth.GPU) []string {
	ids := make([]string, 0, len(gpus))
	for _, g := range gpus {
		ids = append(ids, g.UUID)
	}
	slices.Sort(ids)
	return ids
}

func yesNoUnknown(b *bool) string {
	switch {
	case b == nil:
		return "unknown"
	case *b:
		return "yes"
	}
	return "no"
}

func releaseIDOf(p berth.Plan) string {
	if p.Release == nil {
		return ""
	}
	return p.Release.ID
}

func imageDigestOf(p berth.Plan) string {
	if p.Image == nil {
		return ""
	}
	return p.Image.Digest
}
