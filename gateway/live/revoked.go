package live

import (
	"reflect"
	"slices"

	"sallyport/policy"
)

// NoLonger is what the error of a Revoked begins with.
const NoLonger = "the policy no longer allows it"

// Revoked says why the policy has ended a Revocable that it had allowed. It is an error.
type Revoked struct {
	Decision policy.Decision // of now
	Again    bool            // another request like it would be allowed, otherwise
}

func (e *Revoked) Error() string { return NoLonger + ": " + e.Decision.Reason }

// Compare says why a Revocable that goes on by one decision may not go on by another,
// of now, or nil.
func Compare(now, then policy.Decision) *Revoked {
	if then.Approval != nil && now.Action == policy.Approve && now.Rule == then.Rule && now.RuleType == then.RuleType {
		now.Action = then.Action // an operator has answered that
	}
	switch {
	case now.Action != then.Action:
		if now.Action == policy.Allow || now.Action == policy.Tunnel {
			now.Reason = "it is carried otherwise by now, with action " + string(now.Action)
			return &Revoked{now, true}
		}
		return &Revoked{now, false}
	case !slices.EqualFunc(now.Inject, then.Inject, func(a, b policy.Injection) bool { return reflect.DeepEqual(a, b) }):
		now.Reason = "it goes with another credential by now"
		return &Revoked{now, true}
	case !reflect.DeepEqual(now.Upstream, then.Upstream):
		now.Reason = "it goes another way by now"
		return &Revoked{now, true}
	case tighter(now, then):
		now.Reason = "it has a limit of bytes by now that it did not begin with"
		return &Revoked{now, true}
	}
	return nil
}

// tighter tells whether one decision bounds bytes where the other did not, or not
// to as few. The rest of limits is judged when something begins.
func tighter(now, then policy.Decision) bool {
	return slices.ContainsFunc(now.Limits, func(n policy.Applied) bool {
		return n.Bytes > 0 && !slices.ContainsFunc(then.Limits, func(t policy.Applied) bool {
			return t.Name == n.Name && t.Subject == n.Subject && t.Bytes > 0 && t.Bytes <= n.Bytes
		})
	})
}
