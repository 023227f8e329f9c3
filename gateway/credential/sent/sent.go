// Package sent holds the secrets that were sent to upstreams for each sandbox, so that package
// scrub finds them when an upstream sends them back.
//
// Guarantees: a secret is among them, and saved where there is a [Keep], before the request
// that is sent with it; none that a request under way was sent with, or that has an expiry
// and has not expired, is dropped for others.
package sent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/decode"
	"sallyport/gateway/credential/scrub"
)

// Bounds of what is looked for in the answers to one sandbox. A credential that
// is sent as a bearer token has two values, and two more for each version of it.
const (
	Max      = 256
	maxBytes = 256 << 10
	// maxReached bounds the hosts that are told apart; with more of them every
	// host counts as one that got a credential.
	maxReached = 1024
	// maxUses bounds the injections that are recognised; there is one for each
	// rule and version.
	maxUses = 256
	// expiredFor is how long a value has expired before it may be dropped for that: an
	// upstream's clock can be behind, and some accept a token for a while after its end.
	expiredFor = 5 * time.Minute
	// undated is how many values without an expiry, of one credential, values with one do
	// not displace: a sandbox can have a source issue many tokens, but no such secret.
	undated = 16
)

// ErrTooMany is the error if so many credentials are in use by requests under way, or
// have not expired, that no more can be looked for in responses.
var ErrTooMany = errors.New("too many credentials are in use or have not expired")

// BySandbox holds the Secrets of each sandbox. The zero BySandbox is empty. It
// is safe for concurrent use.
type BySandbox struct {
	// Keep keeps them over restarts. It is set before the first use. Default: they end with
	// the process.
	Keep Keep

	memory decode.Memory // for decoding what is searched

	mu   sync.Mutex
	by   map[string]*Secrets                                // by the sandbox's ID
	sets map[[sha256.Size]byte]weak.Pointer[scrub.Scrubber] // by what they look for
}

// Decoding is the memory that is held to decode responses, in bytes.
func (x *BySandbox) Decoding() int { return x.memory.Used() }

// Of returns a sandbox's Secrets, the same one until Forget.
func (x *BySandbox) Of(id string) *Secrets {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.by[id]
	if e == nil {
		if x.by == nil {
			x.by = map[string]*Secrets{}
		}
		e = &Secrets{sets: x, id: id}
		e.scrubber.Within(x.memory.Share())
		x.by[id] = e
	}
	return e
}

// Forget drops a sandbox's values. Requests under way keep them.
func (x *BySandbox) Forget(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.by, id)
}

// scrubber returns the one Scrubber for some values: sandboxes that use the same
// credentials share it.
func (x *BySandbox) scrubber(values []*value) *scrub.Scrubber {
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

// Secrets are the secrets that were sent to upstreams for one sandbox, each version of
// each, as credential.Lease.Values has it. Any response to the sandbox is searched for them. They are
// kept longer than the leases, until the sandbox is forgotten, and over restarts where there
// is a Keep.
//
// Beyond Max values or 256 KiB, values are dropped: those that have expired first, then
// those without an expiry that were sent the longest ago. None is dropped that a request
// under way was sent with, or that has an expiry and has not expired: a sandbox can have a
// source issue one token after the other. It is safe for concurrent use.
type Secrets struct {
	scrubber scrub.Scrubber // for all values, whichever they are
	sets     *BySandbox
	id       string      // of the sandbox
	loaded   atomic.Bool // see Load

	saving sync.Mutex // one save after the other; taken before mu, which no save holds

	mu      sync.Mutex
	current *scrub.Scrubber   // whose index scrubber uses; keeps it in sets
	values  map[string]*value // by text
	bytes   int
	uses    map[credential.InjectionKey]*Use
	clock   uint64              // one more with each use
	reached map[string]struct{} // by host
	sent    map[Host]struct{}
	gone    [][]byte // values that were dropped and are saved still
}

type value struct {
	text, name string
	length     int  // see credential.Lease.Length; of the first lease that had it
	public     bool // see credential.Value.Public; not any more once it was injected
	saved      bool
	expires    time.Time // zero: not known to expire
	open       int       // uses that have not been released
	last       uint64    // use
}

// Use is the values that one request was sent with.
type Use struct{ values []*value }

// Format prints no value.
func (e *Secrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("REDACTED")) }

// Scrubber looks for all values, also for those that are added while it is in use.
func (e *Secrets) Scrubber() *scrub.Scrubber { return &e.scrubber }

// Reached reports whether a credential was sent to a host for the sandbox, on any port: a
// program on one port can serve what came in on another.
func (e *Secrets) Reached(host string) bool {
	if e.scrubber.None() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.reached[host]
	return ok || len(e.reached) >= maxReached
}

// Sent reports whether a named credential was sent to a host for the sandbox.
func (e *Secrets) Sent(host, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.sent[Host{host, name}]
	return ok || len(e.sent) >= maxReached
}

// Add adds the values that a lease was applied with. Call it before the request is sent,
// and Release when its response has ended. lost counts the values that were dropped to
// make room, by credential. The error wraps ErrTooMany or ErrUnsaved.
func (e *Secrets) Add(ctx context.Context, l *credential.Lease) (use *Use, lost map[string]int, err error) {
	to := Host{l.Host(), l.Name}
	use, lost, saved, err := e.begin(l, to)
	if err != nil || saved {
		return use, lost, err
	}
	if err := e.save(ctx, use, to); err != nil {
		e.Release(use)
		return nil, lost, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reach(to)
	return use, lost, nil
}

// begin has the values of a lease looked for, and says whether they are saved. From then on
// they are those of a request under way.
func (e *Secrets) begin(l *credential.Lease, to Host) (use *Use, lost map[string]int, saved bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, known := l.Injected()
	use = e.uses[key] // nil for what is not to be recognised
	if use == nil {
		if use, lost, err = e.addValues(l); err != nil {
			return nil, nil, false, err
		}
		if e.uses == nil || len(e.uses) >= maxUses {
			e.uses = make(map[credential.InjectionKey]*Use)
		}
		if known {
			e.uses[key] = use
		}
	}
	e.clock++
	for _, v := range use.values {
		v.open++
		v.last = e.clock
	}
	if saved = e.sets.Keep == nil || e.unsaved(use, to).empty(); saved {
		e.reach(to)
	}
	return use, lost, saved, nil
}

// Release marks a response as ended: its values may be dropped when there is no room for
// them.
func (e *Secrets) Release(u *Use) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range u.values {
		v.open--
	}
}

// addValues adds a lease's values to those that are looked for. e.mu is held.
func (e *Secrets) addValues(l *credential.Lease) (use *Use, lost map[string]int, err error) {
	use = new(Use)
	var fresh, injected, extended []*value // injected: that were public; extended: that live longer
	size, length, expires := 0, l.Length(), l.Expires()
	for _, s := range l.Values() {
		text := s.Reveal()
		if len(text) < scrub.MinLength {
			continue
		}
		v := e.values[text]
		known := slices.IndexFunc(use.values, func(v *value) bool { return v.text == text })
		if known >= 0 {
			v = use.values[known]
		}
		if v == nil {
			v = &value{text: text, name: l.Name, length: length, public: s.Public, expires: expires}
			fresh = append(fresh, v)
			size += len(text)
		}
		if !v.expires.IsZero() && (expires.IsZero() || expires.After(v.expires)) {
			extended = append(extended, v)
		}
		if v.public && !s.Public {
			injected = append(injected, v)
		}
		if known < 0 {
			use.values = append(use.values, v)
		}
	}
	var gone []*value
	if len(fresh) > 0 {
		if gone, err = e.makeRoom(len(fresh), size, use, !expires.IsZero()); err != nil {
			return nil, nil, err
		}
	}
	for _, v := range extended {
		v.expires, v.saved = expires, false
	}
	if len(fresh)+len(injected) == 0 {
		return use, nil, nil
	}
	if e.values == nil {
		e.values = make(map[string]*value)
	}
	for _, v := range gone {
		delete(e.values, v.text)
		e.bytes -= len(v.text)
		if v.saved {
			e.gone = append(e.gone, []byte(v.text))
		}
		if lost == nil {
			lost = make(map[string]int)
		}
		lost[v.name]++
		maps.DeleteFunc(e.uses, func(_ credential.InjectionKey, u *Use) bool { return slices.Contains(u.values, v) })
	}
	for _, v := range injected {
		v.public, v.saved = false, false
	}
	for _, v := range fresh {
		e.values[v.text] = v
		e.bytes += len(v.text)
	}
	e.index()
	return use, lost, nil
}

// index has the scrubber look for the values. e.mu is held.
func (e *Secrets) index() {
	all := slices.SortedFunc(maps.Values(e.values), func(a, b *value) int { return strings.Compare(a.text, b.text) })
	e.current = e.sets.scrubber(all)
	e.scrubber.Use(e.current)
}

// makeRoom returns the values to drop so that n more of some bytes, with an expiry if dated,
// have room beside those of use. One secret alone may be larger than the bounds. e.mu is held.
func (e *Secrets) makeRoom(n, size int, use *Use, dated bool) (gone []*value, err error) {
	n, size = n+len(e.values), size+e.bytes
	if n <= Max && size <= maxBytes {
		return nil, nil
	}
	var idle []*value
	others := 0
	for _, v := range e.values {
		if slices.Contains(use.values, v) {
			continue
		}
		others++
		if v.open == 0 {
			idle = append(idle, v)
		}
	}
	slices.SortFunc(idle, func(a, b *value) int {
		return cmp.Or(cmp.Compare(a.last, b.last), strings.Compare(a.text, b.text))
	})
	for _, v := range droppable(idle, func(v *value) (string, time.Time) { return v.name, v.expires }, dated) {
		if n <= Max && size <= maxBytes {
			return gone, nil
		}
		gone = append(gone, v)
		n, size = n-1, size-len(v.text)
	}
	if others > len(gone) && (n > Max || size > maxBytes) {
		return nil, ErrTooMany
	}
	return gone, nil
}

// droppable returns the values that may be dropped for others, dated if those have an expiry,
// the first to go first. Of returns a value's credential and expiry; the list has the oldest
// first.
func droppable[T any](list []T, of func(T) (name string, expires time.Time), dated bool) (first []T) {
	now := time.Now()
	var then []T
	rest := make(map[string]int)
	for _, v := range slices.Backward(list) {
		name, expires := of(v)
		switch {
		case expires.IsZero():
			if rest[name]++; !dated || rest[name] > undated {
				then = append(then, v)
			}
		case now.Sub(expires) >= expiredFor:
			first = append(first, v)
		}
	}
	slices.Reverse(first)
	slices.Reverse(then)
	return append(first, then...)
}
