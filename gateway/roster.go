package gateway

import "maps"

// Roster is a [ClientStore]'s clients in a process that cannot reach its file.
// The zero Roster has none. It is safe for concurrent use.
type Roster struct{ store ClientStore }

// Replace makes the list all the clients there are.
func (r *Roster) Replace(list []Client) {
	next := make(map[string]Client, len(list))
	for _, c := range list {
		c.Tags = maps.Clone(c.Tags)
		next[c.Name] = c
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.clients = next
}

// List is [ClientStore.List].
func (r *Roster) List() []Client { return r.store.List() }

// Authenticate is [ClientStore.Authenticate].
func (r *Roster) Authenticate(name, token string) (Identity, bool) {
	return r.store.Authenticate(name, token)
}

// Present is [ClientStore.Present].
func (r *Roster) Present(i Identity) bool { return r.store.Present(i) }
