package credential

import "maps"

// Material returns what was leased, for a broker that leases on behalf of
// another process.
func (l *Lease) Material() Material {
	m := l.secret.material
	m.Fields = maps.Clone(m.Fields)
	return m
}
