package sent

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
)

// ErrUnsaved is the error if what a request is sent with cannot be noted for after a
// restart, or what was noted cannot be read.
var ErrUnsaved = errors.New("what answers are searched for cannot be kept")

// Saved is what Secrets keeps over a restart: values and hosts, the oldest first. It
// holds secrets.
type Saved struct {
	Values []Value
	Sent   []Host
	Gone   [][]byte `json:",omitempty"` // values to drop; of what is to be added alone
}

// Value is a value that answers are searched for.
type Value struct {
	Name   string // of the credential
	Text   []byte
	Length int
	Public bool
	// Expires is zero for a value that is not known to expire.
	Expires time.Time `json:",omitzero"`
}

// Host is a host that a credential was sent to.
type Host struct{ Host, Name string }

// Keep keeps what is searched for over restarts. Its methods' errors end the request.
type Keep interface {
	// Load returns what was saved of a sandbox, or client, by its ID.
	Load(ctx context.Context, id string) (Saved, error)
	// Save adds to it, durably.
	Save(ctx context.Context, id string, more Saved) error
}

// Add adds what more has, within the bounds of Secrets. It drops what they drop; without
// more.Gone, the oldest first. The error is ErrTooMany if there is no room: all of it
// is there, and must not be saved.
func (s *Saved) Add(more Saved) error {
	has := func(list []Value, text []byte) int {
		return slices.IndexFunc(list, func(o Value) bool { return bytes.Equal(o.Text, text) })
	}
	drop := func(text []byte) {
		if i := has(s.Values, text); i >= 0 {
			s.Values = slices.Delete(s.Values, i, i+1)
		}
	}
	for _, text := range more.Gone {
		drop(text)
	}
	dated := true
	for _, v := range more.Values {
		dated = dated && !v.Expires.IsZero()
		if i := has(s.Values, v.Text); i >= 0 {
			v.Public = v.Public && s.Values[i].Public
			drop(v.Text)
		}
		s.Values = append(s.Values, v)
	}
	size := 0
	for _, v := range s.Values {
		size += len(v.Text)
	}
	over := func() bool { return len(s.Values) > 1 && (len(s.Values) > Max || size > maxBytes) }
	if over() {
		for _, v := range droppable(s.Values, func(v Value) (string, time.Time) { return v.Name, v.Expires }, dated) {
			if !over() {
				break
			}
			size -= len(v.Text)
			drop(v.Text)
		}
	}
	for _, h := range more.Sent {
		if !slices.Contains(s.Sent, h) && len(s.Sent) < maxReached {
			s.Sent = append(s.Sent, h)
		}
	}
	if over() {
		return ErrTooMany
	}
	return nil
}

// Load takes over what was saved before a restart, or of the sandbox that this is a fork
// of, once. Call it before a request is sent. The error wraps ErrUnsaved.
func (e *Secrets) Load(ctx context.Context) error {
	if e.loaded.Load() || e.sets.Keep == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loaded.Load() {
		return nil
	}
	saved, err := e.sets.Keep.Load(ctx, e.id)
	if err != nil {
		return errors.Join(ErrUnsaved, err)
	}
	var kept Saved
	_ = kept.Add(saved) // without room, nothing that a newer version has written is dropped
	if e.values == nil {
		e.values = make(map[string]*value)
	}
	for _, v := range kept.Values {
		if e.values[string(v.Text)] == nil {
			e.clock++
			e.values[string(v.Text)] = &value{text: string(v.Text), name: v.Name, length: v.Length, public: v.Public, saved: true, expires: v.Expires, last: e.clock}
			e.bytes += len(v.Text)
		}
	}
	for _, h := range kept.Sent {
		e.reach(h)
	}
	if len(kept.Values) > 0 {
		e.index()
	}
	e.loaded.Store(true)
	return nil
}

// save saves the values of use, and the host, unless they are. Requests whose values are
// saved already do not wait for it.
func (e *Secrets) save(ctx context.Context, use *Use, to Host) error {
	e.saving.Lock()
	defer e.saving.Unlock()
	e.mu.Lock()
	more := e.unsaved(use, to)
	if more.empty() { // by another request, meanwhile
		e.mu.Unlock()
		return nil
	}
	more.Gone, e.gone = e.gone, nil
	e.mu.Unlock()

	err := e.sets.Keep.Save(ctx, e.id, more)

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.gone = append(more.Gone, e.gone...)
		return errors.Join(ErrUnsaved, err)
	}
	for _, s := range more.Values {
		// It is not saved if it has changed meanwhile.
		if v := e.values[string(s.Text)]; v != nil && v.public == s.Public && v.expires.Equal(s.Expires) {
			v.saved = true
		}
	}
	return nil
}

// unsaved is what of a use is not saved. e.mu is held.
func (e *Secrets) unsaved(use *Use, to Host) (more Saved) {
	for _, v := range use.values {
		if !v.saved {
			more.Values = append(more.Values, Value{v.name, []byte(v.text), v.length, v.public, v.expires})
		}
	}
	if _, known := e.sent[to]; !known && len(e.sent) < maxReached {
		more.Sent = []Host{to}
	}
	return more
}

func (s Saved) empty() bool { return len(s.Values)+len(s.Sent) == 0 }

// reach notes that a credential is sent to a host. e.mu is held.
func (e *Secrets) reach(to Host) {
	if len(e.reached) < maxReached {
		if e.reached == nil {
			e.reached = make(map[string]struct{})
		}
		e.reached[to.Host] = struct{}{}
	}
	if len(e.sent) < maxReached {
		if e.sent == nil {
			e.sent = make(map[Host]struct{})
		}
		e.sent[to] = struct{}{}
	}
}
