package environment

import (
	"fmt"
	"slices"
	"strings"

	"berth"
)

// RemovalInput is all that a removal is judged from. Of what was not asked, or
// got no answer, the field is nil or zero; that is never taken for "none".
type RemovalInput struct {
	Target        berth.Target
	Facts         berth.Facts
	Installations []berth.Installation // of the host
	// Containers are our own journalled ones of the engine, by name or id.
	Containers []string
	// ImageUsers and CheckImageUsers are the containers, not among Containers,
	// that use the engine image or the check image; nil = Docker was not asked.
	ImageUsers      *[]string
	CheckImageUsers *[]string
	CacheBytes      int64 // of this release; 0 = none, or not known
	ModelBytes      int64 // of the store; 0 = none, or not known
	RetainModels    bool

	// Undo is what host steps recorded, for the environment itself, in the order
	// in which it is taken back.
	Undo     []UndoEntry
	Recipe   berth.RecipeRef
	Manifest *Manifest
}

// UndoEntry is one recorded change of a host step and what becomes of it.
type UndoEntry struct {
	Change    berth.HostChange
	Component string // of the recipe; "" = Change.Step names it
	Kept      string // why it stays: it is no longer as it was made, or others use it; "" = it is taken back
}

// JudgeRemoval decides what a removal would do: of an engine what is ours, of
// the environment what a host step changed and is still as it made it. Nothing
// that others use, and nothing that was there before, is in it. It is pure, and
// its plan has its digest. What is installed is the plan's Release and Image.
func JudgeRemoval(in RemovalInput) berth.Plan {
	r := &removal{in: in, judgement: judgement{f: &in.Facts, in: JudgeInput{Kind: berth.OperationRemove, Target: in.Target, Recipe: in.Recipe, Manifest: in.Manifest}, plan: berth.Plan{
		V: 1, Kind: berth.OperationRemove, Target: in.Target,
		Blockers: []berth.PlanNote{}, Warnings: []berth.PlanNote{}, Changes: []berth.Change{}, GPUs: []berth.GPU{},
		RetainModels: in.RetainModels, DockerRoot: in.Facts.Docker.Root, Facts: &in.Facts,
	}}}
	if in.Target.Engine == "" {
		r.environment()
	} else {
		r.engine()
	}
	p := &r.plan
	if !r.clear() {
		p.Changes, p.HostStep, p.Recipe, p.Manifest = []berth.Change{}, nil, nil, ""
	}
	p.Elevation = p.HostStep != nil
	p.Availability = berth.Supported
	if !r.clear() {
		p.Availability = berth.PrerequisiteBlocked
	}
	return sealed(*p)
}

type removal struct {
	judgement
	in RemovalInput
}

func (r *removal) engine() {
	have := installationOf(r.in.Installations, r.in.Target)
	if have == nil {
		r.block(berth.BlockNotInstalled, fmt.Sprintf("%s is not installed here, so there is nothing to remove.", r.in.Target.Engine), "engine", r.in.Target.Engine)
		return
	}
	image := have.Image
	r.plan.Release, r.plan.Image, r.plan.CheckImage, r.plan.Platform = &berth.ReleaseRef{ID: have.Release.ID, Engine: have.Release.Engine, Version: have.Release.Version}, &image, have.CheckImage, have.Platform
	if !r.known(FactDockerDaemon, true) {
		return
	}
	r.stopOwn(*have)
	r.images(*have)
	cache := r.change(berth.ChangeRemoveCaches, false, "Remove the caches of release "+have.Release.ID, "they are of no use to another", "release", have.Release.ID)
	if r.in.CacheBytes > 0 {
		cache.Why += "; this frees " + bytesInWords(r.in.CacheBytes)
	}
	r.models(*have)
	r.change(berth.ChangeRemoveRecord, false, "Forget that "+have.Engine+" is installed", "it goes last, so that a removal that was interrupted can be taken up again",
		"engine", have.Engine, "release", have.Release.ID)
}

func (r *removal) stopOwn(have berth.Installation) {
	own := slices.Sorted(slices.Values(r.in.Containers))
	text := "Unload what " + have.Engine + " has loaded"
	if len(own) > 0 {
		text = "Stop and remove " + count(len(own), "container") + " of " + have.Engine
	}
	r.change(berth.ChangeStopContainers, false, text, "only those that berth started; when a stop cannot be confirmed, nothing is removed",
		"engine", have.Engine, "containers", strings.Join(own, " "))
}

// images takes the engine image unless another container uses it, and the check
// image only if it is ours, no other installation names it, and nobody uses it.
func (r *removal) images(have berth.Installation) {
	if users := r.in.ImageUsers; have.Found {
		r.keep("the image of "+have.Engine, "it was there before")
	} else if users != nil && len(*users) > 0 {
		r.keep("the image of "+have.Engine, "containers that are not berth's use it: "+strings.Join(firstFew(*users, 4), ", "))
	} else {
		r.change(berth.ChangeRemoveImage, false, "Remove the image of "+have.Engine+" "+have.Release.Version, "unless a container that is not berth's uses it by then; it is never forced",
			"image", have.Image.Reference())
	}
	for _, image := range have.Superseded {
		r.change(berth.ChangeRemoveImage, false, "Remove the image of an earlier release of "+have.Engine, "an update put another in its place; unless a container uses it by then",
			"image", image.Reference())
	}
	check := have.CheckImage
	if check == nil || check.Digest == have.Image.Digest {
		return
	}
	shared := slices.ContainsFunc(r.in.Installations, func(o berth.Installation) bool {
		return o.Engine != have.Engine && (o.CheckImage != nil && o.CheckImage.Digest == check.Digest || o.Image.Digest == check.Digest)
	})
	switch users := r.in.CheckImageUsers; {
	case shared:
		r.keep("the check image", "another engine was set up with it")
	case users != nil && len(*users) > 0:
		r.keep("the check image", "containers that are not berth's use it: "+strings.Join(firstFew(*users, 4), ", "))
	default:
		r.change(berth.ChangeRemoveImage, false, "Remove the check image", "berth pulled it, and no other engine needs it", "image", check.Reference())
	}
}

func (r *removal) models(have berth.Installation) {
	var others []string
	for _, o := range r.in.Installations {
		if o.Engine != have.Engine && (o.Host == have.Host || o.Host == "" || have.Host == "") {
			others = append(others, o.Engine)
		}
	}
	slices.Sort(others)
	switch {
	case r.in.RetainModels:
		r.keep("the models", "that was asked for")
	case len(others) > 0:
		r.keep("the models", "they are also those of "+strings.Join(others, ", "))
	default:
		c := r.change(berth.ChangeRemoveModels, false, "Remove all models", "no other engine is installed; without --models they stay")
		if r.in.ModelBytes > 0 {
			c.Why += "; this frees " + bytesInWords(r.in.ModelBytes)
		}
	}
}

// keep tells what stays, and why.
func (r *removal) keep(what, why string) {
	r.plan.Notices = append(r.plan.Notices, "Kept: "+what+" ("+why+").")
}

// environment takes back what host steps did here, through the same helper.
func (r *removal) environment() {
	for _, i := range r.in.Installations {
		if i.Host == r.in.Target.Host || i.Host == "" || r.in.Target.Host == "" {
			r.block(berth.BlockInstalledOther, fmt.Sprintf("%s is installed here and needs the environment. Remove it first: berth remove %s", i.Engine, i.Engine),
				"engine", i.Engine, "installed", i.Release.ID)
		}
	}
	var n needs
	var agreed []int64
	others := r.othersThanMe()
	undone := 0
	for _, u := range r.in.Undo {
		switch {
		case u.Kept != "":
			r.keep(undoSubject(u.Change), u.Kept)
			continue
		case r.foreign(u.Change):
			r.keep(undoSubject(u.Change), "it was done for "+u.Change.User)
			continue
		case len(others) > 0 && u.Change.Kind != "group":
			r.keep(undoSubject(u.Change), "it serves "+strings.Join(others, ", ")+" too")
			continue
		}
		undone++
		agreed = append(agreed, u.Change.Seq)
		component := u.Component
		if component == "" {
			component = u.Change.Step
		}
		if slices.Contains(componentOrder, component) {
			n.add(component)
		}
		r.change(berth.ChangeUndo, true, undoText(u.Change), "a host step of berth did it on "+u.Change.At.UTC().Format("2 January 2006"),
			"step", u.Change.Step, "kind", u.Change.Kind, "path", u.Change.Path, "name", u.Change.Name, "before", u.Change.Before, "after", u.Change.After, "value", u.Change.Value)
	}
	if undone == 0 {
		if r.clear() {
			r.block(berth.BlockNotInstalled, "No host step of berth changed anything here that is still as it was made, so there is nothing to take back.")
		}
		return
	}
	r.undoRestart(&n)
	slices.Sort(agreed)
	r.undoStep(n, agreed)
}

// foreign reports a change that was made for another user of this machine.
func (r *removal) foreign(c berth.HostChange) bool {
	return c.User != "" && r.f.User.Name != "" && c.User != r.f.User.Name
}

// othersThanMe are the other users for whom something here is in force, sorted.
func (r *removal) othersThanMe() []string {
	var names []string
	for _, u := range r.in.Undo {
		if r.foreign(u.Change) && !slices.Contains(names, u.Change.User) {
			names = append(names, u.Change.User)
		}
	}
	slices.Sort(names)
	return names
}

// undoRestart asks for what the helper needs in order to change a Docker that
// runs: the consent to stop containers.
func (r *removal) undoRestart(n *needs) {
	d := r.f.Docker
	if !n.has(compDockerEngine, compRuntime, compEnableCDI) || !d.Reachable && d.Service != "active" {
		return
	}
	n.add(compDockerRestart)
	text, running := "Stop Docker and the containers that run", "unknown"
	switch {
	case d.Reachable && d.Running == 0:
		text, running = "Stop Docker; no container runs", "0"
	case d.Reachable:
		text, running = "Stop Docker and "+count(d.Running, "container")+" that run"+map[bool]string{true: "s"}[d.Running == 1], fmt.Sprint(d.Running)
	}
	r.change(berth.ChangeRestartDocker, true, text, "its packages or its configuration are changed under it; what stays of it is started again", "running_containers", running)
}

func (r *removal) undoStep(n needs, agreed []int64) {
	for _, fact := range []FactName{FactDistribution, FactArchitecture, FactUser} {
		if !r.known(fact, true) {
			return
		}
	}
	if r.in.Manifest == nil {
		why, next := r.whyNotHere(berth.BlockManifest)
		r.block(berth.BlockManifest, why+" "+next)
		return
	}
	if why := r.refusedByRecipe(needs{}); why != "" {
		r.block(berth.BlockRecipeRefused, "The helper for privileged steps would refuse this: "+why+".", "recipe", r.in.Recipe.ID)
		return
	}
	os := r.f.OS
	r.plan.Manifest = r.in.Manifest.ID
	r.plan.Recipe = &berth.RecipeRef{ID: r.in.Recipe.ID, Digest: r.in.Recipe.Digest}
	r.plan.HostStep = &berth.HostStepParameters{User: r.f.User.Name, Arch: os.Architecture, Family: os.Family, Distro: os.ID, Version: os.Version, Components: n.list(),
		Stops: r.stops(n), Changes: agreed}
}

func undoSubject(c berth.HostChange) string {
	switch c.Kind {
	case "package":
		return "package " + c.Name
	case "group":
		return "membership of " + orElseUser(c.Value) + " in " + c.Name
	case "service":
		return "service " + c.Name
	}
	return c.Path
}

func orElseUser(name string) string {
	if name == "" {
		return "the user"
	}
	return name
}

func undoText(c berth.HostChange) string {
	switch c.Kind {
	case "package":
		return "Remove package " + c.Name + " " + c.After
	case "group":
		return "Take " + orElseUser(c.Value) + " out of group " + c.Name
	case "service":
		return "Stop starting " + c.Name + " at boot"
	}
	if c.Kind == "json" {
		return "Take " + c.Name + " back out of " + c.Path
	}
	if c.Before == "" {
		return "Remove " + c.Path
	}
	return "Put " + c.Path + " back as it was"
}
