package environment

import (
	"context"

	"berth"
	"berth/durable"
)

// BeginReinstall begins a removal that keeps the models, with the setup that
// follows it in the same record. The call is the consent to the removal with the
// digest approve, "" = to what is planned now; the setup asks its own. Repeated
// with the same key it answers the same removal, also after the setup has begun.
func (s *Service) BeginReinstall(ctx context.Context, key string, target berth.Target, release, approve string) (berth.Operation, bool, error) {
	if target.Engine == "" {
		return berth.Operation{}, false, berth.Errorf(berth.CodeInvalidArgument, "only an engine is reinstalled")
	}
	if err := s.valid(berth.OperationSetup, target, release); err != nil {
		return berth.Operation{}, false, err
	}
	fingerprint, err := durable.Fingerprint(map[string]any{"reinstall": target, "release": release, "approve": approve})
	if err != nil {
		return berth.Operation{}, false, err
	}
	if approve == "" {
		removal, err := s.PlanRemoval(ctx, target, true)
		if err != nil {
			return berth.Operation{}, false, err
		}
		approve = removal.Digest
	}
	return s.begin(ctx, clientKey(key), fingerprint, berth.Operation{
		Kind: berth.OperationRemove, Target: target, RetainModels: true, ApprovedDigest: approve,
		FollowUp: &berth.FollowUp{Target: target, Release: release},
	})
}

// beginFollowUp begins the setup after a removal. Its key is derived from the
// removal, so whichever daemon does it, and however often, there is one.
func (s *Service) beginFollowUp(ctx context.Context, f berth.FollowUp) (string, error) {
	b := berth.BeginOperation{Kind: berth.OperationSetup, Target: f.Target, Release: f.Release}
	fingerprint, err := durable.Fingerprint(b)
	if err != nil {
		return "", err
	}
	op, _, err := s.begin(ctx, f.Key, fingerprint, berth.Operation{Kind: b.Kind, Target: b.Target, Release: b.Release})
	return op.ID, err
}

// followUpKey is the idempotency key of the setup after a removal.
func followUpKey(removal string) string { return "follow-up:" + removal }
