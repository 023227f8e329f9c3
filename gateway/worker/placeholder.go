package worker

import (
	"context"
	"fmt"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/placeholder"
	"sallyport/policy"
)

// placeholdersOf are those that a sandbox may hold, nil for none.
func (w *Worker) placeholdersOf(id string) *placeholder.Set {
	set, _ := w.placeholders.Load(id)
	s, _ := set.(*placeholder.Set)
	return s
}

// decideName decides on a look-up. A name with a placeholder in it is a way out of its own.
func (w *Worker) decideName(ctx context.Context, in policy.Input) policy.Decision {
	d := w.engine.Decide(ctx, in)
	if name := w.placeholdersOf(in.Sandbox.ID).OfName(in.Destination.Host); name != "" {
		return policy.Decision{
			Action: policy.Deny, Rule: placeholder.Rule, RuleType: "floor", Revision: d.Revision,
			Reason: fmt.Sprintf("the name has the placeholder of credential %q in it", name),
		}
	}
	return d
}

// nameRecorder records refused look-ups. One of a name with a placeholder is a finding.
type nameRecorder struct{ in *Worker }

// Enqueue implements resolver.Recorder.
func (r nameRecorder) Enqueue(e *audit.Event) error {
	if e.Rule == nil || e.Rule.Name != placeholder.Rule || e.Query == nil {
		return r.in.audit.Enqueue(e)
	}
	x := &e.Unmapped.Sallyport
	if name := r.in.placeholdersOf(x.SandboxID).OfName(e.Query.Hostname); name != "" {
		x.Found = []audit.CredentialUse{{Name: name}}
	}
	if err := r.in.audit.Enqueue(e); err != nil {
		return err
	}
	return r.in.audit.Enqueue(gateway.Exfiltration(e))
}
