package credential

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"

	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
)

// Bounds of what is looked for in the answers to one sandbox. A credential that
// is sent as a bearer token has two values, and two more for each version of it.
const (
	MaxSent      = 256
	maxSentBytes = 256 << 10
	// maxReached bounds the hosts that are told apart; with more of them every
	// host counts as one that got a credential.
	maxReached = 1024
	// maxUses bounds the injections that are recognised; there is one for each
	// rule and version.
	maxUses = 256
)

// ErrTooManySecrets says that requests under way have so many credentials that no more
// can be looked for in what is answered.
var ErrTooManySecrets = errors.New("requests under way use too many credentials")

// SentBySandbox holds an Exposure for each sandbox. The zero Exposures is empty. It
// is safe for concurrent use.
type SentBySandbox struct {
	memory decode.Memory // for decoding what is searched

	mu   sync.Mutex
	by   map[string]*SentSecrets                            // by the sandbox's ID
	sets map[[sha256.Size]byte]weak.Pointer[scrub.Scrubber] // by what they look for
}

// Decoding is how many bytes of memory are held to decode answers.
func (x *SentBySandbox) Decoding() int { return x.memory.Used() }

// Of returns a sandbox's Exposure, which it has until Forget.
func (x *SentBySandbox) Of(id string) *SentSecrets {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.by[id]
	if e == nil {
		if x.by == nil {
			x.by = map[string]*SentSecrets{}
		}
		e = &SentSecrets{sets: x}
		e.scrubber.Within(x.memory.Share())
		x.by[id] = e
	}
	return e
}

// Forget drops a sandbox's values. Requests still under way keep them.
func (x *SentBySandbox) Forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.by, id)
}

// scrubber returns the one Scrubber for some values: sandboxes that use the same
// credentials share it.
func (x *SentBySandbox) scrubber(values []*sentValue) *scrub.Scrubber {
	h := sha256.New()
	write := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	for _, v := range values {
		write(v.name)
		write(v.text)
		write(strconv.Itoa(v.length))
		write(strconv.FormatBool(v.public))
	}
	key := [sha256.Size]byte(h.Sum(nil))
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.sets[key].Value(); s != nil {
		return s
	}
	maps.DeleteFunc(x.sets, func(_ [sha256.Size]byte, p weak.Pointer[scrub.Scrubber]) bool { return p.Value() == nil })
	list := make([]scrub.Value, len(values))
	for i, v := range values {
		list[i] = scrub.Value{Text: v.text, Length: v.length, Found: scrub.Found{Name: v.name, Public: v.public}}
	}
	s := scrub.New(list)
	if x.sets == nil {
		x.sets = map[[sha256.Size]byte]weak.Pointer[scrub.Scrubber]{}
	}
	x.sets[key] = weak.Make(s)
	return s
}

// SentSecrets is what has been sent to upstreams for one sandbox, and might come
// back in any answer to it: each version of each secret, as Lease.Values has it.
// It is kept in memory, for longer than the leases, until the sandbox leaves.
//
// Of more than MaxSent values, or 256 KiB, those go that were sent the longest
// ago and that no request under way was sent with. It is safe for concurrent use.
type SentSecrets struct {
	scrubber scrub.Scrubber // for all values, whichever they are
	sets     *SentBySandbox

	mu      sync.Mutex
	current *scrub.Scrubber       // whose index scrubber uses; keeps it in sets
	values  map[string]*sentValue // by text
	bytes   int
	uses    map[*composed]*Use
	clock   uint64              // one more with each use
	reached map[string]struct{} // by host
	sent    map[sentTo]struct{}
}

// sentTo is a credential that a host was sent.
type sentTo struct{ host, name string }

type sentValue struct {
	text, name string
	length     int    // see Lease.length; of the first lease that had it
	public     bool   // see Value.Public; not any more once it was injected
	open       int    // uses that have not been released
	last       uint64 // use
}

// Use is what one request was sent with.
type Use struct{ values []*sentValue }

// Format keeps the values out of whatever prints an Exposure.
func (e *SentSecrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// Scrubber looks for all values that there are, also for those that come while
// it is in use.
func (e *SentSecrets) Scrubber() *scrub.Scrubber { return &e.scrubber }

// Reached says whether a host has been sent a credential for the sandbox, on
// whichever port: what listens on one can serve what came in on another.
func (e *SentSecrets) Reached(host string) bool {
	if e.scrubber.None() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.reached[host]
	return ok || len(e.reached) >= maxReached
}

// Sent says whether a host has been sent a credential for the sandbox.
func (e *SentSecrets) Sent(host, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.sent[sentTo{host, name}]
	return ok || len(e.sent) >= maxReached
}

// Add takes in what a lease has been applied with. Call it before the request
// is sent, and Release when its answer has ended. lost counts what went to make
// room, by credential. The error is ErrTooManySecrets.
func (e *SentSecrets) Add(l *Lease) (use *Use, lost map[string]int, err error) {
	var key *composed // nil: not to be recognised
	if len(l.applied) == 1 {
		key = l.applied[0]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	use = e.uses[key]
	if use == nil {
		if use, lost, err = e.addValues(l); err != nil {
			return nil, nil, err
		}
		if e.uses == nil || len(e.uses) >= maxUses {
			e.uses = make(map[*composed]*Use)
		}
		if key != nil {
			e.uses[key] = use
		}
	}
	e.clock++
	for _, v := range use.values {
		v.open++
		v.last = e.clock
	}
	if len(e.reached) < maxReached {
		if e.reached == nil {
			e.reached = make(map[string]struct{})
		}
		e.reached[l.to.Host] = struct{}{}
	}
	if len(e.sent) < maxReached {
		if e.sent == nil {
			e.sent = make(map[sentTo]struct{})
		}
		e.sent[sentTo{l.to.Host, l.Name}] = struct{}{}
	}
	return use, lost, nil
}

// Release says that the answer has ended: the values may go when there is no
// room for them any more.
func (e *SentSecrets) Release(u *Use) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range u.values {
		v.open--
	}
}

// addValues adds a lease's values to those that are looked for. e.mu is held.
func (e *SentSecrets) addValues(l *Lease) (use *Use, lost map[string]int, err error) {
	use = new(Use)
	var fresh, injected []*sentValue // injected: that were public
	size, length := 0, l.length()
	for _, s := range l.Values() {
		text := s.Reveal()
		if len(text) < scrub.MinLength {
			continue
		}
		v := e.values[text]
		known := slices.IndexFunc(use.values, func(v *sentValue) bool { return v.text == text })
		if known >= 0 {
			v = use.values[known]
		}
		if v == nil {
			v = &sentValue{text: text, name: l.Name, length: length, public: s.Public}
			fresh = append(fresh, v)
			size += len(text)
		}
		if v.public && !s.Public {
			injected = append(injected, v)
		}
		if known < 0 {
			use.values = append(use.values, v)
		}
	}
	if len(fresh)+len(injected) == 0 {
		return use, nil, nil
	}
	gone, err := e.makeRoom(len(fresh), size, use)
	if err != nil {
		return nil, nil, err
	}
	if e.values == nil {
		e.values = make(map[string]*sentValue)
	}
	for _, v := range gone {
		delete(e.values, v.text)
		e.bytes -= len(v.text)
		if lost == nil {
			lost = make(map[string]int)
		}
		lost[v.name]++
		maps.DeleteFunc(e.uses, func(_ *composed, u *Use) bool { return slices.Contains(u.values, v) })
	}
	for _, v := range injected {
		v.public = false
	}
	for _, v := range fresh {
		e.values[v.text] = v
		e.bytes += len(v.text)
	}
	all := slices.SortedFunc(maps.Values(e.values), func(a, b *sentValue) int { return strings.Compare(a.text, b.text) })
	e.current = e.sets.scrubber(all)
	e.scrubber.Use(e.current)
	return use, lost, nil
}

// makeRoom says which values go so that there is room for n more of some bytes beside
// those that a use has already. One secret alone may be larger than the bounds.
func (e *SentSecrets) makeRoom(n, size int, use *Use) (gone []*sentValue, err error) {
	n, size = n+len(e.values), size+e.bytes
	if n <= MaxSent && size <= maxSentBytes {
		return nil, nil
	}
	var idle []*sentValue
	busy := false
	for _, v := range e.values {
		switch {
		case slices.Contains(use.values, v):
		case v.open == 0:
			idle = append(idle, v)
		default:
			busy = true
		}
	}
	slices.SortFunc(idle, func(a, b *sentValue) int {
		return cmp.Or(cmp.Compare(a.last, b.last), strings.Compare(a.text, b.text))
	})
	for _, v := range idle {
		if n <= MaxSent && size <= maxSentBytes {
			return gone, nil
		}
		gone = append(gone, v)
		n, size = n-1, size-len(v.text)
	}
	if busy && (n > MaxSent || size > maxSentBytes) {
		return nil, ErrTooManySecrets
	}
	return gone, nil
}
