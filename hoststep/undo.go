package hoststep

import (
	"slices"
	"strings"
)

// UndoAction is how a change is taken back.
type UndoAction string

// The actions of undoing.
const (
	UndoNothing UndoAction = "nothing"        // left alone, or already gone: Reason says which
	UndoFile    UndoAction = "remove_file"    // a file that was not there before
	UndoKey     UndoAction = "remove_key"     // a key of daemon.json, or its old value again
	UndoPackage UndoAction = "remove_package" // a package that was absent before
	UndoService UndoAction = "disable_service"
	UndoMember  UndoAction = "remove_member" // the user out of the group
)

// UndoFacts is how the changed things are now. In each map a thing that is not
// listed is not known, and is left alone.
type UndoFacts struct {
	Files    map[string]string   // path → SHA-256 in hex; "" = absent
	Keys     map[string]string   // "path parent.key" → the value in RFC 8785 form; "" = absent
	Packages map[string]string   // name → installed version; "" = not installed
	NeededBy map[string][]string // name → packages that would have to go with it and are not ours
	Services map[string]string   // unit → what systemctl is-enabled says
	Members  map[string]bool     // "group user" → is a member
	Running  int                 // containers that run
	// Agreed are the numbers of the changes that may be taken back; nil = all.
	Agreed map[int64]bool
}

// UndoItem is one change and what becomes of it.
type UndoItem struct {
	Change Change     `json:"change"`
	Action UndoAction `json:"action"`
	Reason string     `json:"reason,omitempty"` // why it is left alone, with UndoNothing
	Gone   bool       `json:"gone,omitempty"`   // with UndoNothing: there is nothing left to take back
}

// PlanUndo decides what of the changes in force (ParseChanges) is taken back,
// in the order in which it is done. Only what is still exactly as it was made
// is touched. components nil = all of them; DockerRestart among them consents
// to stopping containers that run. facts nil lists every change with the action
// that it would get if nothing had changed since: for a plan before the consent.
func PlanUndo(inForce []Change, components []Component, facts *UndoFacts) []UndoItem {
	var items []UndoItem
	for _, kind := range []ChangeKind{ChangeGroup, ChangeService, ChangeJSON, ChangePackage, ChangeFile} {
		for _, c := range slices.Backward(inForce) {
			if c.Kind != kind || components != nil && !slices.Contains(components, c.Component) {
				continue
			}
			item := judge(c, facts, components == nil || slices.Contains(components, DockerRestart))
			if item.Action == UndoFile && servesStill(c, items) {
				item.Action, item.Reason = UndoNothing, "packages from it stay installed, and are kept up to date from it"
			}
			items = append(items, item)
		}
	}
	return items
}

// servesStill reports whether the file is the key or the source of packages
// that an item before it leaves installed.
func servesStill(c Change, items []UndoItem) bool {
	step, vendor, _ := strings.Cut(c.Step, ".")
	if step != "install_key" && step != "write_source" {
		return false
	}
	return slices.ContainsFunc(items, func(i UndoItem) bool {
		return i.Change.Kind == ChangePackage && i.Action == UndoNothing && !i.Gone && serves(vendor, i.Change.Name)
	})
}

func judge(c Change, facts *UndoFacts, mayStop bool) UndoItem {
	item := UndoItem{Change: c, Action: UndoNothing}
	leave, gone, do := item.leave, item.gone, item.do
	f := facts
	if f == nil {
		f = unchanged(c)
	}
	if f.Agreed != nil && !f.Agreed[c.Seq] {
		return leave("it was not agreed to")
	}
	switch c.Kind {
	case ChangeFile:
		now, known := f.Files[c.Path]
		switch {
		case !known:
			return leave(unknown)
		case now == "":
			return gone()
		case c.Before != "":
			return leave("it was there before, with other content")
		case now != c.After:
			return leave("it was changed since")
		}
		return do(UndoFile)
	case ChangeJSON:
		now, known := f.Keys[c.Path+" "+c.Name]
		switch {
		case !known:
			return leave(unknown)
		case now == "":
			return gone()
		case now != canonicalJSON(c.Value):
			return leave("it was changed since")
		}
		return do(UndoKey)
	case ChangePackage:
		return judgePackage(item, f, mayStop)
	case ChangeService:
		switch now, known := f.Services[c.Name]; {
		case !known:
			return leave(unknown)
		case now != "enabled":
			return gone()
		case c.Before != "disabled":
			return leave("it was " + c.Before + " before")
		}
		return do(UndoService)
	case ChangeGroup:
		switch in, known := f.Members[c.Name+" "+c.Value]; {
		case !known:
			return leave(unknown)
		case !in:
			return gone()
		}
		return do(UndoMember)
	}
	return leave("this build does not know such a change")
}

func judgePackage(item UndoItem, f *UndoFacts, mayStop bool) UndoItem {
	c := item.Change
	now, known := f.Packages[c.Name]
	needed, looked := f.NeededBy[c.Name]
	switch {
	case c.Before != "":
		return item.leave("version " + c.Before + " was installed before")
	case !known:
		return item.leave(unknown)
	case now == "":
		return item.gone()
	case f.Running > 0 && !mayStop && dockerItself(c.Name):
		return item.leave("containers run in it")
	case !looked:
		return item.leave(unknown)
	case len(needed) > 0:
		return item.leave("it is needed by " + strings.Join(needed, ", "))
	}
	return item.do(UndoPackage)
}

const unknown = "it could not be looked at"

func (i UndoItem) leave(reason string) UndoItem { i.Reason = reason; return i }

func (i UndoItem) gone() UndoItem {
	i.Gone = true
	return i.leave("it is not there any more")
}

func (i UndoItem) do(a UndoAction) UndoItem { i.Action = a; return i }

// dockerItself: what containers need to go on running.
func dockerItself(name string) bool { return slices.Contains(dockerPackages, name) }

// unchanged is the facts under which the change is as it was made.
func unchanged(c Change) *UndoFacts {
	return &UndoFacts{
		Files:    map[string]string{c.Path: c.After},
		Keys:     map[string]string{c.Path + " " + c.Name: canonicalJSON(c.Value)},
		Packages: map[string]string{c.Name: "installed"},
		NeededBy: map[string][]string{c.Name: nil},
		Services: map[string]string{c.Name: "enabled"},
		Members:  map[string]bool{c.Name + " " + c.Value: true},
	}
}

// canonicalJSON is a JSON value in one form for comparison; what is not JSON
// stays as it is and equals nothing.
func canonicalJSON(raw string) string {
	if form := canonical(rawJSON(raw)); form != nil {
		return string(form)
	}
	return raw
}

type rawJSON string

// MarshalJSON makes the bytes count as they are.
func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }
