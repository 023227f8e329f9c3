package credential

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// SinkLogin returns the fields of the named credential for a sink of the audit log. Its
// errors are Lease's: ErrNotBound when the configuration names it for no such sink.
func (b *Broker) SinkLogin(ctx context.Context, name, sink string) (map[string]Secret, error) {
	e, ok := b.current.Load().entries[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("leasing %q: %w: add it to credentials in sallyport.yaml", name, ErrUnknown)
	case !slices.Contains(e.sinks, sink):
		return nil, fmt.Errorf("leasing %q for the audit sink %s: %w: audit.sinks in sallyport.yaml does not name it for that", name, sink, ErrNotBound)
	}
	s, err := e.get(ctx, b.timeout)
	if err != nil {
		return nil, fmt.Errorf("leasing %q: %w", name, err)
	}
	return maps.Clone(s.material.Fields), nil
}
