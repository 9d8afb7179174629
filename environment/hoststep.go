package environment

import (
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"berth"
	"berth/guestapi"
)

// The actions of a host step.
const (
	actionApply = "apply"
	actionUndo  = "undo"
)

const (
	maxResult  = 1 << 20 // bytes of a result file
	nonceBytes = 20      // 160 bits: nobody guesses one
	// unsureLooks is how often nobody could say whether the helper runs before
	// its request, which is gone by then, is taken for withdrawn.
	unsureLooks = 5
)

func newNonce(random io.Reader) (string, error) {
	b := make([]byte, nonceBytes)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", fmt.Errorf("draw a nonce: %w", err)
	}
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)), nil
}

// handOut writes the request into the user's own folder on the host. It is safe
// to do again: the file is replaced as a whole.
func (h *provisioner) handOut(ctx context.Context, act opAct) (opEvent, error) {
	step := *act.State.Op.HostStep
	uid, err := h.stepDir(ctx)
	if err != nil {
		return opEvent{}, err
	}
	if err := h.steps.TrustHelper(ctx, h.Guest, h.Helper[0], uid); err != nil {
		return opEvent{}, err
	}
	request, result := h.steps.Files(step.ID)
	step.Request, step.Result = path.Join(h.StepDir, request), path.Join(h.StepDir, result)
	step.Command = append(append([]string{}, h.Helper...), step.Request)
	data, err := h.steps.Request(act.RecordID, step, h.now())
	if err != nil {
		return opEvent{}, berth.Errorf(berth.CodeHostStepInvalid, "the request of the host step: %w", err)
	}
	if err := h.Guest.WriteFile(ctx, step.Request, data, 0o600); err != nil {
		return opEvent{}, fmt.Errorf("write the request of the host step: %w", err)
	}
	return opEvent{Kind: evHandedOut, Step: &step}, nil
}

// stepDir makes the folder of the requests, and says whose it is. The helper
// refuses one that anybody else may enter, so it is looked at here, where the
// reason can be told.
func (h *provisioner) stepDir(ctx context.Context) (uid int, err error) {
	if err := h.Guest.MkdirAll(ctx, h.StepDir, 0o700); err != nil {
		return 0, fmt.Errorf("make the folder of the host steps: %w", err)
	}
	info, err := h.Guest.Stat(ctx, h.StepDir, false)
	if err != nil {
		return 0, fmt.Errorf("look at the folder of the host steps: %w", err)
	}
	if info.Type != guestapi.FileDir || info.Mode&0o777 != 0o700 {
		return 0, berth.Errorf(berth.CodeStateDir, "%s is not a directory of mode 0700", h.StepDir).
			WithFact("path", h.StepDir).WithHint("remove it, or give it mode 0700, then: berth op resume")
	}
	return info.UID, nil
}

// awaitReceipt waits until the helper left its result. A receipt that somebody
// sends ends the wait from outside.
func (h *provisioner) awaitReceipt(ctx context.Context, act opAct) (opEvent, error) {
	step := *act.State.Op.HostStep
	for {
		r, err := h.result(ctx, step)
		if err != nil {
			return opEvent{}, err
		}
		if r != nil {
			h.dropRequest(ctx, step)
			return opEvent{Kind: evReceipt, Receipt: r}, nil
		}
		if err := h.pause(ctx); err != nil {
			return opEvent{}, err
		}
	}
}

// dropRequest takes the request of an answered step away: it asks root for
// nothing any more, also not by a password prompt that still stands somewhere.
func (h *provisioner) dropRequest(ctx context.Context, step berth.HostStep) {
	if err := h.Guest.RemoveFile(ctx, step.Request); err != nil && !errors.Is(err, berth.CodeNotFound) {
		h.log.Warn("the request of an answered host step stays", "host", h.Name, "path", step.Request, "error", err)
	}
}

// result reads what the helper left; nil = nothing yet, or the host does not
// answer now. The file's name is the step's own, so one that speaks of another
// step is no answer to anything.
func (h *provisioner) result(ctx context.Context, step berth.HostStep) (*berth.Receipt, error) {
	data, _, err := h.Guest.ReadFile(ctx, step.Result, maxResult)
	switch {
	case errors.Is(err, berth.CodeTooLarge):
		return nil, berth.Errorf(berth.CodeHostStepFailed, "the result of the host step is larger than %d bytes", maxResult).WithFact("path", step.Result)
	case err != nil:
		return nil, nil
	}
	r, err := h.steps.Receipt(data)
	if err != nil {
		return nil, berth.Errorf(berth.CodeHostStepFailed, "the result of the host step cannot be read: %w", err).WithFact("path", step.Result)
	}
	if r.ErrorCode == string(berth.CodeHostStepInvalid) && r.Outcome == berth.ReceiptFailed && (r.Nonce == "" || r.Nonce == step.Nonce) {
		// It did nothing: it could not read the request (then it says so under no
		// nonce), or it is of another build, whose recipe it names instead.
		return nil, berth.Errorf(berth.CodeHostStepInvalid, "the helper refused the request: %.300s", lastLine(r.LogTail)).WithFact("path", step.Result)
	}
	if r.Nonce != step.Nonce || r.StepID != step.ID || r.Revision != step.Revision || r.ParametersDigest != step.ParametersDigest || r.Recipe != step.Recipe || r.Action != step.Action {
		return nil, berth.Errorf(berth.CodeHostStepFailed, "the result at %s is not of this host step", step.Result).WithFact("path", step.Result)
	}
	return &r, nil
}

// withdraw takes the request back. When the helper has read it already, what it
// leaves is awaited: nobody here can stop what runs as root, and nothing of it
// is left behind unseen.
func (h *provisioner) withdraw(ctx context.Context, act opAct) (opEvent, error) {
	step := *act.State.Op.HostStep
	request, result := h.steps.Files(step.ID)
	step.Request, step.Result = path.Join(h.StepDir, request), path.Join(h.StepDir, result)
	unsure := 0
	for {
		err := h.Guest.RemoveFile(ctx, step.Request)
		if err != nil && !errors.Is(err, berth.CodeNotFound) {
			unsure++
		} else {
			r, err := h.result(ctx, step)
			if err != nil {
				return opEvent{}, err
			}
			if r != nil {
				return opEvent{Kind: evReceipt, Receipt: r}, nil
			}
			runs, err := h.helperRuns(ctx, step.Request)
			switch {
			case err != nil:
				unsure++
			case !runs:
				return h.gone(ctx, step)
			}
		}
		if unsure >= unsureLooks {
			return opEvent{Kind: evWithdrawn}, nil
		}
		if err := h.pause(ctx); err != nil {
			return opEvent{}, err
		}
	}
}

// gone looks once more for a result, since the helper may have ended between two
// looks.
func (h *provisioner) gone(ctx context.Context, step berth.HostStep) (opEvent, error) {
	r, err := h.result(ctx, step)
	if err != nil || r != nil {
		return opEvent{Kind: evReceipt, Receipt: r}, err
	}
	return opEvent{Kind: evWithdrawn}, nil
}

// helperRuns reports whether a process has the request among its arguments: the
// helper, or the sudo that still asks for its password.
func (h *provisioner) helperRuns(ctx context.Context, request string) (bool, error) {
	r, err := h.Guest.Exec(ctx, guestapi.Exec{Argv: []string{"pgrep", "-f", "--", quoteRegexp(request)}, TimeoutMS: 5000, MaxOutput: 4096})
	switch {
	case errors.Is(err, berth.CodeCommandNotFound): // then nobody can tell; see unsureLooks
		return false, err
	case err != nil:
		return false, err
	case r.Code == 0:
		return true, nil
	case r.Code == 1:
		return false, nil
	}
	return false, berth.Errorf(berth.CodeInternal, "pgrep ended with %d", r.Code)
}

// quoteRegexp escapes for POSIX extended expressions, which pgrep reads.
func quoteRegexp(s string) string {
	var b strings.Builder
	for _, c := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// pause waits for the time between two looks, or for a nudge.
func (h *provisioner) pause(ctx context.Context) error {
	t := time.NewTimer(h.every)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-h.nudged():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
