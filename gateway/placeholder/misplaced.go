package placeholder

import (
	"fmt"
	"slices"

	"sallyport/policy"
)

// Misplaced returns an error for the first placeholder in the head that stands where a
// decision does not put the credential, nil for none.
func (h *Request) Misplaced(d policy.Decision) *MisplacedError {
	if h == nil {
		return nil
	}
	for _, s := range h.spots {
		if s.allowed(d) {
			continue
		}
		e := &MisplacedError{Credential: s.credential, where: s.String()}
		i := slices.IndexFunc(d.Inject, func(i policy.Injection) bool { return i.Credential == s.credential })
		switch {
		case i >= 0 && s.carrier && listed(d.Inject[i].Inject.Placeholder, s.place, s.name):
			e.why, e.beside = "other text stands beside it", true
		case i >= 0:
			e.place, e.why = s.entry(), "the rule does not put the credential there"
		case d.Action == policy.Deny && d.Reason != "":
			e.why = "the request is denied: " + d.Reason
		default:
			e.why = "no rule puts the credential into this request"
		}
		return e
	}
	return nil
}

// MisplacedError says that a placeholder stands where it is not replaced.
type MisplacedError struct {
	Credential string
	where, why string
	place      string // that a rule could list
	beside     bool   // other text keeps it from being replaced
}

func (e *MisplacedError) Error() string {
	return fmt.Sprintf("the placeholder of credential %q stands in %s, and %s", e.Credential, e.where, e.why)
}

// Remedy says what a sandbox or an operator can do.
func (e *MisplacedError) Remedy() string {
	const text = "A placeholder is worth nothing by itself: leave it out of what is not for the service that its credential is of. "
	if e.beside {
		return text + "Where it is replaced it stands alone, or with a scheme or a filler such as x-access-token. An operator can have a user's name sent with the credential: inject: {basic: {username: NAME, password: \"{{ .token }}\"}}."
	}
	if e.place != "" {
		return text + fmt.Sprintf("An operator can have it replaced there, where it is not removed: inject: {placeholder: [%s]} in the egressAuth rule for this destination.", e.place)
	}
	return text + fmt.Sprintf("If the credential belongs here, an operator must add an egressAuth rule with authRef: %s for this request.", e.Credential)
}

// Remedy says what a sandbox or an operator can do.
func (e *FoundError) Remedy() string {
	return (&MisplacedError{Credential: e.Credential, place: policy.PlaceBody}).Remedy()
}
