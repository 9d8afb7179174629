package environment

import (
	"slices"
	"strconv"
	"strings"

	"berth"
)

// Covers reports whether a consent still holds for a later plan: the target is
// the same and, but for a removal, release and image are. A host step must be by
// the manifest that was agreed to. Whether something privileged is new is
// NewlyPrivileged's question.
func Covers(consent berth.Consent, plan berth.Plan) bool {
	if consent.Digest == "" || consent.Target != plan.Target {
		return false
	}
	if plan.Kind == berth.OperationRemove {
		return true
	}
	if plan.HostStep != nil && consent.Manifest != plan.Manifest {
		return false
	}
	return consent.Release == releaseIDOf(plan) && consent.Image == imageDigestOf(plan)
}

// NewlyPrivileged names what the new plan would do as root that the old one
// would not: a component, another user or machine, another recipe, or a restart
// that stops more containers. Empty = nothing.
func NewlyPrivileged(old, new berth.Plan) []string {
	var out []string
	for _, c := range new.Changes {
		if c.Elevated && !slices.ContainsFunc(old.Changes, func(o berth.Change) bool { return o.Elevated && allows(o, c) }) {
			out = append(out, string(c.Code))
		}
	}
	h := new.HostStep
	if h == nil {
		return out
	}
	o := old.HostStep
	if o == nil {
		return append(out, h.Components...)
	}
	for _, c := range h.Components {
		if !slices.Contains(o.Components, c) {
			out = append(out, c)
		}
	}
	if o.User != h.User || o.Arch != h.Arch || o.Family != h.Family || o.Distro != h.Distro || o.Version != h.Version {
		out = append(out, "parameters")
	}
	if old.Recipe == nil || new.Recipe == nil || *old.Recipe != *new.Recipe {
		out = append(out, "recipe")
	}
	return out
}

// allows reports whether who agreed to one change agreed to the other.
func allows(o, c berth.Change) bool {
	if o.Code != c.Code {
		return false
	}
	switch c.Code {
	case berth.ChangeRestartDocker:
		return restartAllows(o.Params["running_containers"], c.Params["running_containers"])
	case berth.ChangeInstallPackages: // fewer are left once some are there
		return subset(c.Params["packages"], o.Params["packages"])
	}
	if len(o.Params) != len(c.Params) {
		return false
	}
	for k, v := range c.Params {
		if o.Params[k] != v {
			return false
		}
	}
	return true
}

// restartAllows: a number that was not known covers any, and one covers a lower.
func restartAllows(old, new string) bool {
	if old == new || old == "unknown" {
		return true
	}
	a, err := strconv.Atoi(old)
	if err != nil {
		return false
	}
	b, err := strconv.Atoi(new)
	return err == nil && b <= a
}

func subset(words, of string) bool {
	have := strings.Fields(of)
	for w := range strings.FieldsSeq(words) {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}
