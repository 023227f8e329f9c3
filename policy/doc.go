// Package policy decides what may leave a sandbox, and with which credential.
//
// The egress and egressAuth rules of sallyport.yaml become data of an embedded
// Rego policy (decision.rego), and a security team's own Rego joins it through
// the sets deny, approve, allow and inject of packages below sallyport.team.
// Precedence is deny, approve, allow; what nothing speaks about is denied. A
// decision looks its rules up by destination and sandbox, so that it costs the
// same for ten rules and for ten thousand.
//
// It guarantees that a decision is made by one policy from beginning to end, that
// whatever cannot be evaluated in time to one well-formed answer is denied, that
// an egressAuth rule's destination is reached as that rule says or not at all,
// and that a credential is only ever named for a destination that an egressAuth
// rule binds it to, over TLS. Rego runs with no way out of the evaluation: no
// network, no environment, no randomness.
//
// It does not read requests, hold secrets or judge addresses: whoever asks hands
// over what was seen, in the form that [NormalizePath] and [Input] describe. It
// does not stop a team's Rego from allowing too much.
package policy
