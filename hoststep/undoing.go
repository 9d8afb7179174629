package hoststep

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// LeftAlone is a recorded change that an undo did not take back.
type LeftAlone struct {
	Kind   ChangeKind `json:"kind"`
	Path   string     `json:"path,omitempty"`
	Name   string     `json:"name,omitempty"`
	Reason string     `json:"reason"`
}

// undoTable is every step of an undo. It looks at the record and at nothing
// else, and each step at its own kind: what joined last leaves first.
func undoTable() []row {
	steps := []struct {
		kind ChangeKind
		what string
		do   func(*run, context.Context, []UndoItem) error
	}{
		{ChangeGroup, "taking the user out of the group", (*run).leaveGroup},
		{ChangeService, "turning services off that were off before", (*run).turnOff},
		{ChangeJSON, "taking our keys out of daemon.json", (*run).dropKeys},
		{ChangePackage, "removing the packages that were installed", (*run).dropPackages},
		{ChangeFile, "removing the files that were written", (*run).dropFiles},
	}
	var rows []row
	for _, s := range steps {
		rows = append(rows, row{step: step{
			id: "undo_" + string(s.kind), what: s.what,
			check: func(r *run, ctx context.Context) (bool, string, error) {
				items, err := r.undoItems(ctx, s.kind)
				if err != nil {
					return false, "", err
				}
				r.planned[s.kind] = items
				return len(r.todo(s.kind)) == 0, itemNames(r.todo(s.kind)), nil
			},
			apply: func(r *run, ctx context.Context) error { return s.do(r, ctx, r.todo(s.kind)) },
		}})
	}
	return rows
}

// todo is what the last check found that is to be taken back.
func (r *run) todo(kind ChangeKind) []UndoItem {
	return slices.DeleteFunc(slices.Clone(r.planned[kind]), func(i UndoItem) bool { return i.Action == UndoNothing })
}

func itemNames(items []UndoItem) string {
	var names []string
	for _, i := range items {
		names = append(names, i.Change.Path+i.Change.Name)
	}
	return strings.Join(names, " ")
}

// undoItems plans one kind from the record and from the machine as it is now.
func (r *run) undoItems(ctx context.Context, kind ChangeKind) ([]UndoItem, error) {
	data, err := r.ledger.load()
	if err != nil {
		return nil, err
	}
	inForce, _, err := ParseChanges(data)
	if err != nil {
		return nil, err
	}
	inForce = slices.DeleteFunc(inForce, func(c Change) bool {
		wanted := c.Kind == kind || kind == ChangeFile && c.Kind == ChangePackage // a source goes after what it serves
		return !wanted || !r.req.Parameters.has(c.Component)
	})
	// At that time a package that is still on record and installed is one that
	// was left: nobody need be asked again who needs it.
	facts, err := r.undoFacts(ctx, kind, inForce)
	if err != nil {
		return nil, err
	}
	items := PlanUndo(inForce, r.req.Parameters.Components, facts)
	return slices.DeleteFunc(items, func(i UndoItem) bool { return i.Change.Kind != kind }), nil
}

func (r *run) undoFacts(ctx context.Context, kind ChangeKind, changes []Change) (*UndoFacts, error) {
	f := &UndoFacts{Files: map[string]string{}, Keys: map[string]string{}, Packages: map[string]string{},
		NeededBy: map[string][]string{}, Services: map[string]string{}, Members: map[string]bool{}, Agreed: map[int64]bool{}}
	for _, seq := range r.req.Parameters.Changes {
		f.Agreed[seq] = true
	}
	for _, c := range changes {
		var err error
		switch c.Kind {
		case ChangeFile:
			if now, err := r.sys.hash(c.Path); err == nil { // one that cannot be read stays unknown
				f.Files[c.Path] = now
			}
		case ChangeJSON:
			if now, err := r.keyNow(c); err == nil {
				f.Keys[c.Path+" "+c.Name] = now
			}
		case ChangePackage:
			f.Packages[c.Name], err = r.installed(ctx, c.Name)
		case ChangeService:
			var o outcome
			if unit, known := units[c.Name]; known {
				o, err = r.do(ctx, unit.asks)
				f.Services[c.Name] = strings.TrimSpace(o.stdout)
			}
		case ChangeGroup:
			var o outcome
			o, err = r.do(ctx, "group")
			cells := strings.Split(strings.TrimSpace(o.stdout), ":")
			f.Members[c.Name+" "+c.Value] = slices.Contains(strings.Split(cells[len(cells)-1], ","), c.Value)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(f.Packages) > 0 && kind == ChangePackage {
		if info, err := r.info(ctx); err != nil {
			return nil, err
		} else if info != nil {
			f.Running = info.ContainersRunning
		}
		if err := r.mayStop(f.Running); err != nil {
			return nil, err
		}
		if err := r.whoNeeds(ctx, changes, f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// units that a run can turn on, with the commands that ask and turn off.
var units = map[string]struct{ asks, off string }{
	"docker.service": {"docker-enabled", "docker-off"},
	refreshUnit:      {"refresh-enabled", "refresh-off"},
}

func (r *run) keyNow(c Change) (string, error) {
	o, _, _, err := r.config()
	if err != nil {
		return "", err
	}
	parent, key, _ := strings.Cut(c.Name, ".")
	below, _, err := o.child(parent)
	if err != nil {
		return "", err
	}
	value, there := below.get(key)
	if !there {
		return "", nil
	}
	return canonicalJSON(string(value)), nil
}

// whoNeeds asks the package manager what would have to go with our packages. A
// package that takes somebody else's with it is left, and so is what that one
// needs itself: the question is asked again until nothing foreign would go.
func (r *run) whoNeeds(ctx context.Context, changes []Change, f *UndoFacts) error {
	var ours []string
	for _, c := range changes {
		if c.Before == "" && f.Agreed[c.Seq] && f.Packages[c.Name] != "" && (f.Running == 0 || r.req.Parameters.has(DockerRestart) || !dockerItself(c.Name)) {
			ours = append(ours, c.Name)
		}
	}
	for len(ours) > 0 {
		foreign, err := r.goesWith(ctx, ours, ours...)
		if err != nil {
			return err
		}
		if len(foreign) == 0 {
			for _, name := range ours {
				f.NeededBy[name] = nil
			}
			return nil
		}
		var free []string
		for _, name := range ours {
			one := foreign
			if len(ours) > 1 {
				if one, err = r.goesWith(ctx, ours, name); err != nil {
					return err
				}
			}
			if len(one) == 0 {
				free = append(free, name)
				continue
			}
			f.NeededBy[name] = one
		}
		if len(free) == len(ours) { // only together do they take something with them
			for _, name := range ours {
				f.NeededBy[name] = foreign
			}
			return nil
		}
		ours = free
	}
	return nil
}

// goesWith is what besides ours would be removed with the packages.
func (r *run) goesWith(ctx context.Context, ours []string, names ...string) (foreign []string, err error) {
	if r.host.Family == familyDNF {
		o, err := r.do(ctx, "rpm-simulate", ours...) // rpm refuses as a whole what would break something
		if err != nil || o.code == 0 {
			return nil, err
		}
		return []string{plainTail(o.stderr+o.stdout, 200)}, nil
	}
	o, err := r.must(ctx, "apt-simulate", names...)
	if err != nil {
		return nil, err
	}
	for _, gone := range simulated(o.stdout) {
		if !containsBare(ours, gone) {
			foreign = append(foreign, gone)
		}
	}
	return foreign, nil
}

// undone records that changes were taken back.
func (r *run) undone(items ...UndoItem) error {
	var lines []Change
	for _, i := range items {
		c := i.Change
		lines = append(lines, Change{Kind: c.Kind, Path: c.Path, Name: c.Name, Component: c.Component, Undoes: c.Seq})
	}
	_, err := r.record(lines...)
	return err
}

func (r *run) leaveGroup(ctx context.Context, items []UndoItem) error {
	for _, i := range items {
		if _, err := r.must(ctx, "group-drop", i.Change.Value); err != nil {
			return err
		}
		if err := r.undone(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) turnOff(ctx context.Context, items []UndoItem) error {
	for _, i := range items {
		if _, err := r.must(ctx, units[i.Change.Name].off); err != nil {
			return err
		}
		if err := r.undone(i); err != nil {
			return err
		}
	}
	return nil
}

// dropKeys takes our keys out, newest first. A file that is as we left it comes
// back byte for byte from the copy that was kept.
func (r *run) dropKeys(ctx context.Context, items []UndoItem) error {
	for _, i := range items {
		if err := r.dropKey(i.Change); err != nil {
			return err
		}
		if err := r.undone(i); err != nil {
			return err
		}
	}
	info, err := r.info(ctx)
	if err != nil || info == nil {
		return err
	}
	if !r.req.Parameters.has(DockerRestart) {
		r.tell("Docker forgets this at its next start")
		return nil
	}
	if err := r.mayStop(info.ContainersRunning); err != nil {
		return err
	}
	_, err = r.must(ctx, "docker-restart")
	return err
}

// mayStop refuses to stop more containers than the plan said: that is another
// plan, and nobody agreed to it. Without the consent to a restart none is stopped.
func (r *run) mayStop(running int) error {
	agreed := r.req.Parameters.Stops
	if !r.req.Parameters.has(DockerRestart) || agreed < 0 || running <= agreed {
		return nil
	}
	return fmt.Errorf("%d containers run in Docker now, and stopping %d was agreed to: look at the plan again", running, agreed)
}

func (r *run) dropKey(c Change) error {
	o, data, mode, err := r.config()
	if err != nil {
		return err
	}
	if sha(data) == c.After {
		if c.Backup == "" {
			return r.sys.remove(daemonJSON)
		}
		if was, _, err := r.sys.read(c.Backup); err == nil && sha(was) == c.Before {
			return r.sys.write(daemonJSON, was, mode)
		}
	}
	parent, key, _ := strings.Cut(c.Name, ".")
	below, _, err := o.child(parent)
	if err != nil {
		return err
	}
	if c.Old != "" {
		below = below.set(key, json.RawMessage(c.Old))
	} else {
		below = below.without(key)
	}
	o = o.set(parent, below.compact())
	if len(below) == 0 && c.NewParent {
		o = o.without(parent)
	}
	next, err := o.indented()
	if err != nil {
		return err
	}
	if bytes.Equal(next, data) {
		return fmt.Errorf("%s would stay as it is", daemonJSON)
	}
	return r.sys.write(daemonJSON, next, mode)
}

func (r *run) dropPackages(ctx context.Context, items []UndoItem) error {
	var names []string
	for _, i := range items {
		names = append(names, i.Change.Name)
	}
	drop := "rpm-remove"
	if r.host.Family == familyAPT {
		drop = "apt-remove"
		if err := r.waitForLocks(ctx); err != nil {
			return err
		}
		o, err := r.must(ctx, "apt-simulate", names...) // all together, right before
		if err != nil {
			return err
		}
		for _, gone := range simulated(o.stdout) {
			if !containsBare(names, gone) {
				return fmt.Errorf("%s would go as well, which is not ours", gone)
			}
		}
	}
	if _, err := r.must(ctx, drop, names...); err != nil {
		return err
	}
	return r.undone(items...)
}

func (r *run) dropFiles(_ context.Context, items []UndoItem) error {
	for _, i := range items {
		if err := r.sys.remove(i.Change.Path); err != nil {
			return err
		}
		if err := r.undone(i); err != nil {
			return err
		}
	}
	return nil
}

// leftAlone is what of the record is still there after an undo, as its last
// checks found it. What they found gone is struck out.
func (r *run) leftAlone() (left []LeftAlone, err error) {
	var gone []UndoItem
	for _, row := range undoTable() {
		for _, i := range r.planned[ChangeKind(strings.TrimPrefix(row.id, "undo_"))] {
			if i.Gone {
				gone = append(gone, i)
				continue
			}
			left = append(left, LeftAlone{i.Change.Kind, i.Change.Path, i.Change.Name, i.Reason})
		}
	}
	if len(gone) > 0 {
		err = r.undone(gone...)
	}
	return left, err
}
