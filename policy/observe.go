package policy

// enforced is the policy without what observe mode lifts.
func (p *Policy) enforced() *Policy { return p }
