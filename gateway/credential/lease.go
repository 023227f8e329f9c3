package credential

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/gateway/credential/scrub"
	"sallyport/policy"
)

// Lease is the right to use a secret for one request to one binding. It is not
// safe for concurrent use.
type Lease struct {
	Name    string
	Version string
	// Accessor is that of the first reading of this version: see Material.
	Accessor string
	// Fresh is until when the Broker leases the same without asking its source again, in the
	// past if the next lease needs another read; zero: the source is asked for each lease, or
	// cannot be reached.
	Fresh time.Time
	// Signing is set before Apply where the injection signs requests: see policy.Inject.Signs.
	Signing Signing

	to      Binding
	secret  *secret
	short   func(credential, field string) bool // see Options.AllowShort
	applied []*composed
	signed  Secret
}

func (b Binding) String() string { return net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))) }

// on says whether port is the binding's, written as it is in a URL.
func (b Binding) on(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && uint16(n) == b.Port && port[0] != '0'
}

// Apply puts the credential into a request, in place of what the request has
// there. The zero Inject sets Authorization: Bearer with the secret's only
// field, or the one named token. It changes nothing that leaves when it returns an error,
// which never has the secret in it: one that wraps ErrNotBound when the request
// does not go to the lease's destination over https, ErrNoSecret when the
// secret lacks a field that the template names, ErrShort when such a field is
// shorter than MinSecret and may not be, ErrUnfit when the kind has no use for the secret, and a
// *RequestError when this request cannot be signed.
//
// Call StripRequest before.
func (l *Lease) Apply(r *http.Request, inject policy.Inject) error {
	if err := l.covers(r); err != nil {
		return fmt.Errorf("injecting %q: %w", l.Name, err)
	}
	c, err := l.secret.compose(inject)
	if err != nil {
		return fmt.Errorf("injecting %q: %w", l.Name, err)
	}
	if err := l.allowed(c); err != nil {
		return fmt.Errorf("injecting %q: %w", l.Name, err)
	}
	if err := c.expired(time.Now()); err != nil {
		return fmt.Errorf("injecting %q: %w", l.Name, err)
	}
	if c.sign == nil {
		c.put(r)
	} else {
		signature, err := c.sign(r, l.Signing)
		if err != nil {
			return fmt.Errorf("injecting %q: %w", l.Name, err)
		}
		l.signed = Secret{&held{[]byte(signature)}} // it is worth nothing in some minutes
	}
	l.applied = append(l.applied, c)
	return nil
}

// allowed refuses a field that is too short to be kept from who guesses.
func (l *Lease) allowed(c *composed) error {
	for _, field := range c.short {
		if !l.short(l.Name, field) {
			return fmt.Errorf("field %q: %w: set a longer one, or name the field in allowShort of the credential", field, ErrShort)
		}
	}
	return nil
}

// Signature is what Apply has signed the request with, empty where it signs none. Until the
// upstream takes it no more, whoever has it can send that request once more.
func (l *Lease) Signature() Secret { return l.signed }

// covers checks the request against the binding once more: whatever was decided
// about one destination must not be sent to another.
func (l *Lease) covers(r *http.Request) error {
	if r.URL.Scheme != "https" {
		return fmt.Errorf("%w: the request is not https", ErrNotBound)
	}
	both := [2]string{r.URL.Host, cmp.Or(r.Host, r.URL.Host)}
	for i, hostport := range both {
		if i > 0 && hostport == both[0] {
			break
		}
		host, port := strings.Trim(hostport, "[]"), "443"
		if strings.Contains(hostport, ":") { // or the error costs more than all else here
			if h, p, err := net.SplitHostPort(hostport); err == nil {
				host, port = h, p
			}
		}
		if !strings.EqualFold(strings.TrimSuffix(host, "."), l.to.Host) || !l.to.on(port) {
			return fmt.Errorf("%w: the lease is for %s, the request for %s", ErrNotBound, l.to, hostport)
		}
	}
	return nil
}

// Value is one to scrub from responses.
type Value struct {
	Secret
	// Public says that it was not injected, or as a username beside a password, so that
	// whoever finds it has learned no secret that is in use.
	Public bool
}

// Values returns what to scrub from the response: every field of the secret
// and the values that Apply composed.
func (l *Lease) Values() []Value {
	fields := l.secret.material.Fields
	values := make([]Value, 0, len(fields)+2*len(l.applied))
	for _, name := range slices.Sorted(maps.Keys(fields)) { // the same order each time
		injected := slices.ContainsFunc(l.applied, func(c *composed) bool { return slices.Contains(c.secret, name) })
		values = append(values, Value{fields[name], !injected})
	}
	for _, c := range l.applied {
		for _, t := range c.traces {
			values = append(values, Value{t, false})
		}
	}
	return values
}

// Host is that of the lease's binding.
func (l *Lease) Host() string { return l.to.Host }

// InjectionKey stands for one reading of a secret with one kind of injection: whatever leases of
// it are applied with is the same.
type InjectionKey struct{ of *composed }

// Injected returns the key of what the lease was applied with, and whether there is one: there
// is none of a lease that was applied more than once, or never.
func (l *Lease) Injected() (key InjectionKey, ok bool) {
	if len(l.applied) != 1 {
		return InjectionKey{}, false
	}
	return InjectionKey{l.applied[0]}, true
}

// Expires is when the secret does, for whatever it was made into too; zero if that is not known.
func (l *Lease) Expires() time.Time {
	m := l.secret.material
	if m.Ends.After(m.Expires) {
		return m.Ends
	}
	return m.Expires
}

// Length is that of the longest value in bytes, as far as it follows from how long
// the fields are: what a sandbox can see of it tells nothing else.
func (l *Lease) Length() (n int) {
	for _, f := range l.secret.material.Fields {
		n = max(n, len(f.Reveal()))
	}
	for _, c := range l.applied {
		n = max(n, c.length)
	}
	return n
}

// secret is one reading of a source with what was derived from it.
type secret struct {
	material Material

	once   sync.Once
	fields *scrub.Scrubber // finds the fields

	mu       sync.Mutex
	composed map[kind]*composed
}

// maxComposed bounds secret.composed; there is one injection for each rule that
// names the credential.
const maxComposed = 256

func (s *secret) scrubber() *scrub.Scrubber {
	s.once.Do(func() {
		s.fields = newScrubber(slices.Collect(maps.Values(s.material.Fields)))
	})
	return s.fields
}

func (s *secret) compose(inject policy.Inject) (*composed, error) {
	key, err := kindOf(inject)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.composed[key]; ok {
		return c, nil
	}
	c, err := key.compose(s.material.Fields)
	if err != nil {
		return nil, err
	}
	if s.composed == nil || len(s.composed) >= maxComposed {
		s.composed = make(map[kind]*composed)
	}
	s.composed[key] = c
	return c, nil
}

// Cached says whether the source of the secret may have another one by now.
func (l *Lease) Cached() bool { return l.secret.material.Cached }

// Material returns a copy of the leased secret, for a broker that leases on behalf of
// another process.
func (l *Lease) Material() Material {
	m := l.secret.material
	m.Fields = maps.Clone(m.Fields)
	return m
}

func newScrubber(secrets []Secret) *scrub.Scrubber {
	values := make([]scrub.Value, len(secrets))
	for i, s := range secrets {
		values[i].Text = s.Reveal()
	}
	return scrub.New(values)
}
