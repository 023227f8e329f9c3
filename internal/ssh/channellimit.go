package ssh

import (
	"fmt"
	"sync"
)

// channelLimit bounds the channels that are open. Each may have to keep a window's bytes
// (RFC 4254, section 5.2) that a client has sent and nobody has taken, which is 2 MiB
// in golang.org/x/crypto/ssh and cannot be set: what all of them keep is bounded by
// their number.
type channelLimit struct {
	most, ofKey int

	mu  sync.Mutex
	all int
	of  map[string]int // by key
}

func newChannelLimit(most, ofKey int) *channelLimit {
	return &channelLimit{most: most, ofKey: ofKey, of: map[string]int{}}
}

// enter makes a place for one of a key's, until leave, or says why there is none.
func (r *channelLimit) enter(key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.of[key] >= r.ofKey:
		return fmt.Errorf("%d sessions and forwarded connections are open by this key, and no more can be: end some", r.ofKey)
	case r.all >= r.most:
		return fmt.Errorf("%d sessions and forwarded connections are open by all keys, and no more can be: try again later", r.most)
	}
	r.all++
	r.of[key]++
	return nil
}

func (r *channelLimit) leave(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.of[key]--; r.of[key] == 0 {
		delete(r.of, key)
	}
}
