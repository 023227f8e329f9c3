package daemon

import (
	"context"
	"fmt"
	"slices"

	"sallyport/internal/api"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/policy/finding"
	"sallyport/policy/limit"
)

// limits are the counters as the API sees them.
type limits struct{ d *daemon }

func (l limits) List(ctx context.Context) ([]api.Limit, error) {
	counts, err := l.d.supervisor.Limits(ctx)
	if err != nil {
		return nil, err
	}
	names := l.sandboxes()
	list := make([]api.Limit, 0, len(counts))
	for _, n := range counts {
		item := api.Limit{Name: n.Limit, Per: n.Per, Subject: n.Subject, Used: n.Used, Most: n.Most}
		if n.Every > 0 && n.Every != limit.Forever {
			item.Resets = n.Ends()
		}
		if n.Per == policy.PerSandbox {
			item.Sandbox = names[n.Subject]
		}
		list = append(list, item)
	}
	return list, nil
}

// sandboxes are the names of sandboxes and of users of the explicit proxy by ID.
func (l limits) sandboxes() map[string]string {
	names := map[string]string{}
	for _, c := range l.d.clients.List() {
		names[c.ID] = c.Name
	}
	if l.d.sandboxes != nil {
		for _, i := range l.d.sandboxes.List() {
			names[i.ID] = i.Name
		}
	}
	return names
}

func (l limits) Reset(ctx context.Context, by approval.Operator, name, subject string) (int, error) {
	counts, err := l.d.supervisor.Limits(ctx)
	if err != nil {
		return 0, err
	}
	if err := l.known(name, counts); err != nil {
		return 0, err
	}
	what := fmt.Sprintf("limit %s of %s", name, subject)
	if subject == "" {
		subject, what = limit.Every, "limit "+name
	}
	names := l.sandboxes()
	if l.d.sandboxes != nil {
		// A fork's counter is its lineage's.
		if i, err := l.d.sandboxes.Get(subject); err == nil && i.Lineage != nil {
			subject = i.Lineage.Root
		}
	}
	for _, n := range counts {
		if n.Limit == name && n.Per == policy.PerSandbox && names[n.Subject] == subject {
			subject = n.Subject
		}
	}
	e := l.d.changed("limit/"+name, what, "reset")
	e.Actor = actor(by)
	return l.d.supervisor.ResetLimit(ctx, name, subject, e)
}

// known is an error for a name that nothing has: it is most likely misspelled.
func (l limits) known(name string, counts []limit.Count) error {
	var names []string
	for _, limit := range l.d.inForce.Load().Limits {
		names = append(names, limit.Name)
	}
	for _, n := range counts {
		names = append(names, n.Limit)
	}
	near := finding.Nearest(name, names)
	switch {
	case slices.Contains(names, name):
		return nil
	case near != "":
		return fmt.Errorf("%w: %q: did you mean %q?", api.ErrNoLimit, name, near)
	}
	return fmt.Errorf("%w: %q: `sallyport limits` shows those in use", api.ErrNoLimit, name)
}
