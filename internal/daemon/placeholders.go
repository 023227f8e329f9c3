package daemon

import (
	"slices"

	"sallyport/gateway/placeholder"
	"sallyport/policy"
	"sallyport/sandbox"
)

// given are the placeholders that a sandbox's commands get: of the credentials that a rule
// gives the sandbox, one for each variable.
func (d *daemon) given(i sandbox.Info) (given []sandbox.Placeholder, env map[string]string) {
	cfg := d.inForce.Load()
	for _, c := range cfg.Credentials {
		if c.Placeholder == nil || env[c.Placeholder.Env] != "" {
			continue
		}
		if !slices.ContainsFunc(cfg.EgressAuth, func(r policy.EgressAuthRule) bool {
			return r.AuthRef == c.Name && r.Sandboxes.Picks(i.Name, i.Tags()) && (i.Lineage == nil || r.Inherit)
		}) {
			continue
		}
		held, ok := d.placeholder(c, i.ID)
		if !ok {
			continue
		}
		if env == nil {
			env = map[string]string{}
		}
		env[c.Placeholder.Env] = held.Text
		given = append(given, sandbox.Placeholder{Variable: c.Placeholder.Env, Credential: c.Name, Of: i.ID})
	}
	return given, env
}

func (d *daemon) placeholder(c policy.Credential, id string) (placeholder.Held, bool) {
	shape, err := c.Placeholder.Shape(c.Name)
	if err != nil { // it was checked
		return placeholder.Held{}, false
	}
	return placeholder.Derive(d.placeholderKey, id, c.Name, shape), true
}

// heldBy are the placeholders that a sandbox may hold: those that its commands were given,
// and those of the sandboxes that it is a fork of.
func (d *daemon) heldBy(id string) (held []placeholder.Held) {
	if d.sandboxes == nil {
		return nil
	}
	for _, i := range d.sandboxes.Identities() {
		if i.ID == id {
			return d.holds(i)
		}
	}
	return nil
}

func (d *daemon) holds(i sandbox.Info) (held []placeholder.Held) {
	for _, p := range i.Placeholders {
		at := slices.IndexFunc(d.credentials(), func(c policy.Credential) bool { return c.Name == p.Credential && c.Placeholder != nil })
		if at < 0 {
			continue
		}
		h, ok := d.placeholder(d.credentials()[at], p.Of)
		if ok && !slices.Contains(held, h) {
			held = append(held, h)
		}
	}
	return held
}
