package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
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
type hostSteps struct{}

var _ environment.HostSteps = hostSteps{}

// Recipe of the helper of this build.
func (hostSteps) Recipe() berth.RecipeRef {
	r := hoststep.ThisRecipe()
	return berth.RecipeRef{ID: r.ID, Digest: r.Digest}
}

func parameters(p berth.HostStepParameters) hoststep.Parameters {
	out := hoststep.Parameters{User: p.User, Arch: p.Arch, Family: p.Family, Distro: p.Distro, Version: p.Version}
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
func (hostSteps) Undo(ctx context.Context, g environment.Guest) ([]environment.UndoEntry, error) {
	data, _, err := g.ReadFile(ctx, hoststep.ChangesPath, hoststep.MaxChanges)
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
	facts := undoFacts(ctx, g, changes)
	entries := []environment.UndoEntry{}
	for _, item := range hoststep.PlanUndo(changes, nil, &facts) {
		if item.Gone {
			continue
		}
		c := item.Change
		entries = append(entries, environment.UndoEntry{
			Change:    berth.HostChange{Step: c.Step, Kind: string(c.Kind), Path: c.Path, Name: c.Name, Before: c.Before, After: c.After, At: c.At},
			Component: string(c.Component), Kept: item.Reason,
		})
	}
	return entries, nil
}

const undoReadTimeout = 5 * time.Second

// undoFacts looks at the things that were changed. What cannot be looked at is
// left out, and is then left alone.
func undoFacts(ctx context.Context, g environment.Guest, changes []hoststep.Change) hoststep.UndoFacts {
	f := hoststep.UndoFacts{
		Files: map[string]string{}, Keys: map[string]string{}, Packages: map[string]string{},
		NeededBy: map[string][]string{}, Services: map[string]string{}, Members: map[string]bool{},
	}
	for _, c := range changes {
		ctx, cancel := context.WithTimeout(ctx, undoReadTimeout)
		switch c.Kind {
		case hoststep.ChangeFile:
			if sum, ok := fileSum(ctx, g, c.Path); ok {
				f.Files[c.Path] = sum
			}
		case hoststep.ChangeJSON:
			if value, ok := jsonKey(ctx, g, c.Path, c.Name); ok {
				f.Keys[c.Path+" "+c.Name] = value
			}
		case hoststep.ChangePackage:
			if version, ok := packageVersion(ctx, g, c.Name); ok {
				f.Packages[c.Name] = version
				f.NeededBy[c.Name] = nil // the helper asks the package manager before it acts
			}
		case hoststep.ChangeService:
			if r, err := g.Exec(ctx, guestapi.Exec{Argv: []string{"systemctl", "is-enabled", c.Name}, TimeoutMS: undoReadTimeout.Milliseconds()}); err == nil {
				f.Services[c.Name] = strings.TrimSpace(string(r.Stdout))
			}
		case hoststep.ChangeGroup:
			if in, ok := member(ctx, g, c.Name, c.Value); ok {
				f.Members[c.Name+" "+c.Value] = in
			}
		}
		cancel()
	}
	return f
}

func fileSum(ctx context.Context, g environment.Guest, path string) (sum string, ok bool) {
	data, _, err := g.ReadFile(ctx, path, guestapi.MaxFileRead)
	switch {
	case errors.Is(err, berth.CodeNotFound):
		return "", true
	case err != nil:
		return "", false
	}
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:]), true
}

// jsonKey is the value of "parent.key" in RFC 8785 form; "" = it is not there.
func jsonKey(ctx context.Context, g environment.Guest, path, name string) (value string, ok bool) {
	data, _, err := g.ReadFile(ctx, path, guestapi.MaxFileRead)
	if errors.Is(err, berth.CodeNotFound) {
		return "", true
	}
	var doc map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &doc) != nil {
		return "", false
	}
	parent, key, _ := strings.Cut(name, ".")
	raw := doc[parent]
	if key != "" && raw != nil {
		var inner map[string]json.RawMessage
		if json.Unmarshal(raw, &inner) != nil {
			return "", false
		}
		raw = inner[key]
	}
	if raw == nil {
		return "", true
	}
	form, err := jcs.Transform(raw)
	if err != nil { // RFC 8785 libraries take documents; a bare value is compared as it is
		form = bytes.TrimSpace(raw)
	}
	return string(form), true
}

func packageVersion(ctx context.Context, g environment.Guest, name string) (version string, ok bool) {
	r, err := g.Exec(ctx, guestapi.Exec{Argv: []string{"dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}", name}, TimeoutMS: undoReadTimeout.Milliseconds()})
	if err == nil {
		status, version, _ := strings.Cut(string(r.Stdout), " ")
		if r.Code == 0 && strings.HasPrefix(status, "ii") {
			return strings.TrimSpace(version), true
		}
		return "", r.Code <= 1
	}
	if !errors.Is(err, berth.CodeCommandNotFound) {
		return "", false
	}
	r, err = g.Exec(ctx, guestapi.Exec{Argv: []string{"rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}", name}, TimeoutMS: undoReadTimeout.Milliseconds()})
	if err != nil {
		return "", false
	}
	if r.Code != 0 {
		return "", true
	}
	return strings.TrimSpace(string(r.Stdout)), true
}

func member(ctx context.Context, g environment.Guest, group, user string) (in, ok bool) {
	data, _, err := g.ReadFile(ctx, "/etc/group", guestapi.MaxFileRead)
	if err != nil {
		return false, false
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		fields := strings.Split(line, ":")
		if len(fields) == 4 && fields[0] == group {
			return slices.Contains(strings.Split(fields[3], ","), user), true
		}
	}
	return false, true
}
