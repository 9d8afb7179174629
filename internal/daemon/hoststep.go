package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/gowebpki/jcs"

	"berth"
	"berth/environment"
	"berth/guestapi"
	"berth/hoststep"
)

// hostSteps is the privileged helper as the environment room knows it: the form
// of its files, translated between the wire's words and the helper's own.
type hostSteps struct {
	recipe berth.RecipeRef // zero = that of the helper of this build
}

var _ environment.HostSteps = hostSteps{}

// Recipe of the helper of this build.
func (h hostSteps) Recipe() berth.RecipeRef {
	if h.recipe.ID != "" {
		return h.recipe
	}
	r := hoststep.ThisRecipe()
	return berth.RecipeRef{ID: r.ID, Digest: r.Digest}
}

func parameters(p berth.HostStepParameters) hoststep.Parameters {
	out := hoststep.Parameters{User: p.User, Arch: p.Arch, Family: p.Family, Distro: p.Distro, Version: p.Version,
		Stops: p.Stops, Changes: append([]int64{}, p.Changes...)}
	for _, c := range p.Components {
		out.Components = append(out.Components, hoststep.Component(c))
	}
	return out
}

// ParametersDigest as the helper computes it again.
func (hostSteps) ParametersDigest(p berth.HostStepParameters) (string, error) {
	return hoststep.ParametersDigest(parameters(p)), nil
}

// Files of a step.
func (hostSteps) Files(stepID string) (request, result string) {
	return stepID + hoststep.RequestSuffix, stepID + hoststep.ResultSuffix
}

// Request is the content of the request file, read back as the helper will.
func (hostSteps) Request(operation string, s berth.HostStep, at time.Time) ([]byte, error) {
	data, err := json.Marshal(hoststep.Request{
		Schema: hoststep.Schema, StepID: s.ID, OperationID: operation, Action: hoststep.Action(s.Action),
		Recipe:     hoststep.Recipe{ID: s.Recipe.ID, Digest: s.Recipe.Digest},
		Parameters: parameters(s.Parameters), ParametersDigest: s.ParametersDigest,
		Nonce: s.Nonce, Revision: s.Revision, RequestedAt: at.UTC(),
	})
	if err != nil {
		return nil, berth.Errorf(berth.CodeInternal, "encode the request: %w", err)
	}
	if _, err := hoststep.ParseRequest(data); err != nil {
		return nil, err
	}
	return data, nil
}

const (
	maxAccounts = 1 << 20 // bytes of passwd and of group
	maxLinks    = 40      // on the way to a program, as the kernel has it
)

// TrustHelper goes from the root to the program, link by link, and looks whether
// nobody else can change anything on the way: what sudo starts is what it was.
func (hostSteps) TrustHelper(ctx context.Context, g environment.Guest, program string, uid int) error {
	passwd, _, err := g.ReadFile(ctx, "/etc/passwd", maxAccounts)
	group, _, err2 := g.ReadFile(ctx, "/etc/group", maxAccounts)
	private := -1
	if err == nil && err2 == nil {
		private = hoststep.PrivateGroup(passwd, group, uid)
	}
	at, rest, links := "/", strings.Split(strings.Trim(path.Clean(program), "/"), "/"), 0
	for {
		info, err := g.Stat(ctx, at, false)
		if err != nil {
			return berth.Errorf(berth.CodeHostStepInvalid, "look at %s: %w", at, err).WithFact("path", at)
		}
		mode, private := info.Mode&0o7777, private
		if info.ACL {
			private = -1
		}
		if info.Type == guestapi.FileSymlink {
			mode = 0o755 // its own means nothing
		}
		if err := hoststep.Owned(mode, info.UID, info.GID, uid, private); err != nil {
			return berth.Errorf(berth.CodeHostStepInvalid, "%s, which root would run, is not safe: %s %w", program, at, err).
				WithFact("path", at).WithHint("make berth's programs, and the directories above them, yours or root's alone, then: berth op resume")
		}
		if info.Type == guestapi.FileSymlink {
			if links++; links > maxLinks {
				return berth.Errorf(berth.CodeHostStepInvalid, "too many links lead to %s", program).WithFact("path", at)
			}
			target := info.Target
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at), target)
			}
			at, rest = "/", append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
			continue
		}
		if len(rest) == 0 {
			return nil
		}
		at, rest = path.Join(at, rest[0]), rest[1:]
	}
}

// Receipt reads a result file. It is a claim.
func (hostSteps) Receipt(data []byte) (berth.Receipt, error) {
	r, err := hoststep.ParseResult(data)
	if err != nil {
		return berth.Receipt{}, berth.Errorf(berth.CodeHostStepFailed, "%w", err)
	}
	out := berth.Receipt{
		StepID: r.StepID, Nonce: r.Nonce, Revision: r.Revision, Action: string(r.Action),
		Recipe:           berth.RecipeRef{ID: r.Recipe.ID, Digest: r.Recipe.Digest},
		ParametersDigest: r.ParametersDigest, Outcome: berth.ReceiptFailed, LogTail: r.LogTail, ErrorCode: r.ErrorCode,
	}
	if r.Outcome == hoststep.Completed {
		out.Outcome = berth.ReceiptCompleted
	}
	if out.LogTail == "" {
		out.LogTail = r.Error
	}
	for _, s := range r.Steps {
		out.Steps = append(out.Steps, berth.ReceiptStep{ID: s.ID, Status: string(s.Status), ExitCode: s.ExitCode, Detail: s.Detail})
	}
	return out, nil
}

// Undo reads what the helper recorded and says what would become of each. What
// only root can see of it is the helper's to judge again.
func (hostSteps) Undo(ctx context.Context, now environment.HostState) ([]environment.UndoEntry, error) {
	data, err := now.File(ctx, hoststep.ChangesPath)
	if errors.Is(err, berth.CodeNotFound) {
		return []environment.UndoEntry{}, nil
	}
	if err != nil {
		return nil, err
	}
	changes, _, err := hoststep.ParseChanges(data)
	if err != nil {
		return nil, berth.Errorf(berth.CodeRecordUnreadable, "%s: %w", hoststep.ChangesPath, err)
	}
	facts := undoFacts(ctx, now, changes)
	entries := []environment.UndoEntry{}
	for _, item := range hoststep.PlanUndo(changes, nil, &facts) {
		if item.Gone {
			continue
		}
		c := item.Change
		entries = append(entries, environment.UndoEntry{
			Change:    berth.HostChange{Step: c.Step, Kind: string(c.Kind), Path: c.Path, Name: c.Name, Before: c.Before, After: c.After, Value: c.Value, User: c.User, Seq: c.Seq, At: c.At},
			Component: string(c.Component), Kept: item.Reason,
		})
	}
	return entries, nil
}

// undoFacts looks at the things that were changed. What cannot be looked at is
// left out, and is then left alone.
func undoFacts(ctx context.Context, now environment.HostState, changes []hoststep.Change) hoststep.UndoFacts {
	f := hoststep.UndoFacts{
		Files: map[string]string{}, Keys: map[string]string{}, Packages: map[string]string{},
		NeededBy: map[string][]string{}, Services: map[string]string{}, Members: map[string]bool{},
	}
	for _, c := range changes {
		switch c.Kind {
		case hoststep.ChangeFile:
			if sum, err := fileSum(ctx, now, c.Path); err == nil {
				f.Files[c.Path] = sum
			}
		case hoststep.ChangeJSON:
			if value, err := jsonKey(ctx, now, c.Path, c.Name); err == nil {
				f.Keys[c.Path+" "+c.Name] = value
			}
		case hoststep.ChangePackage:
			if version, err := now.Package(ctx, c.Name); err == nil {
				f.Packages[c.Name] = version
				f.NeededBy[c.Name] = nil // the helper asks the package manager before it acts
			}
		case hoststep.ChangeService:
			if state, err := now.Unit(ctx, c.Name); err == nil {
				f.Services[c.Name] = state
			}
		case hoststep.ChangeGroup:
			if in, err := now.Member(ctx, c.Name, c.Value); err == nil {
				f.Members[c.Name+" "+c.Value] = in
			}
		}
	}
	return f
}

// fileSum is the SHA-256 of a file in hex; "" = it is not there.
func fileSum(ctx context.Context, now environment.HostState, path string) (string, error) {
	data, err := now.File(ctx, path)
	if errors.Is(err, berth.CodeNotFound) {
		return "", nil
	}
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:]), err
}

// jsonKey is the value of "parent.key" in RFC 8785 form; "" = it is not there.
func jsonKey(ctx context.Context, now environment.HostState, path, name string) (string, error) {
	data, err := now.File(ctx, path)
	if errors.Is(err, berth.CodeNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	raw := json.RawMessage(data)
	for part := range strings.SplitSeq(name, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return "", err
		}
		if raw = object[part]; raw == nil {
			return "", nil
		}
	}
	form, err := jcs.Transform(raw)
	if err != nil { // RFC 8785 libraries take documents; a bare value is compared as it is
		form = bytes.TrimSpace(raw)
	}
	return string(form), nil
}
