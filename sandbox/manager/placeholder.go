package manager

import (
	"fmt"
	"maps"
	"slices"

	"sallyport/sandbox"
	"sallyport/sandbox/state"
)

// maxPlaceholders bounds those that are remembered of a sandbox and those that it is a
// fork of. The oldest are forgotten: they are recognised no more, and worth as little.
const maxPlaceholders = 32

// environment is that of a sandbox's commands: the spec's, and the placeholders of the
// credentials that rules give the sandbox now. Those are on record, and known to the
// gateway, before a command has them. The caller holds the entry's lock.
func (m *Manager) environment(e *entry) (map[string]string, error) {
	if m.opt.Placeholders == nil {
		return e.Rec.Spec.Env, nil
	}
	given, env := m.opt.Placeholders(m.info(e))
	given = slices.DeleteFunc(given, func(p sandbox.Placeholder) bool { // which the user has set
		_, set := e.Rec.Spec.Env[p.Variable]
		return set || slices.Contains(e.Rec.Placeholders, p)
	})
	if len(given) > 0 {
		all := slices.Concat(e.Rec.Placeholders, given)
		all = all[max(0, len(all)-maxPlaceholders):]
		if err := m.journal.Commit(&e.Stored, func(r *state.Record) { r.Placeholders = all }); err != nil {
			return nil, fmt.Errorf("noting placeholders: %w", err)
		}
		m.publish(e.Rec.Address, m.info(e))
	}
	if len(env) == 0 {
		return e.Rec.Spec.Env, nil
	}
	env = maps.Clone(env)
	maps.Copy(env, e.Rec.Spec.Env)
	return env, nil
}
