package credential

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

// Saved is what SentSecrets keeps over a restart: values and hosts, the oldest first. It
// holds secrets.
type Saved struct {
	Values []SavedValue
	Sent   []SavedHost
	Gone   [][]byte `json:",omitempty"` // values to drop; of what is to be added alone
}

// SavedValue is a value that answers are searched for.
type SavedValue struct {
	Name   string // of the credential
	Text   []byte
	Length int
	Public bool
	// Expires is zero for a value that is not known to expire.
	Expires time.Time `json:",omitzero"`
}

// SavedHost is a host that a credential was sent to.
type SavedHost struct{ Host, Name string }

// Keep keeps what is searched for over restarts. Its methods' errors end the request.
type Keep interface {
	// Load returns what was saved of a sandbox, or client, by its ID.
	Load(ctx context.Context, id string) (Saved, error)
	// Save adds to it, durably.
	Save(ctx context.Context, id string, more Saved) error
}

// Add adds what more has, within the bounds of SentSecrets. It drops what they drop; without
// more.Gone, the oldest first. The error is ErrTooManySecrets if there is no room: all of it
// is there, and must not be saved.
func (s *Saved) Add(more Saved) error {
	has := func(list []SavedValue, text []byte) int {
		return slices.IndexFunc(list, func(o SavedValue) bool { return bytes.Equal(o.Text, text) })
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
	over := func() bool { return len(s.Values) > 1 && (len(s.Values) > MaxSent || size > maxSentBytes) }
	if over() {
		for _, v := range droppable(s.Values, func(v SavedValue) (string, time.Time) { return v.Name, v.Expires }, dated) {
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
		return ErrTooManySecrets
	}
	return nil
}

// Load takes over what was saved before a restart, or of the sandbox that this is a fork
// of, once. Call it before a request is sent. The error wraps ErrUnsaved.
func (e *SentSecrets) Load(ctx context.Context) error {
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
		e.values = make(map[string]*sentValue)
	}
	for _, v := range kept.Values {
		if e.values[string(v.Text)] == nil {
			e.clock++
			e.values[string(v.Text)] = &sentValue{text: string(v.Text), name: v.Name, length: v.Length, public: v.Public, saved: true, expires: v.Expires, last: e.clock}
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

// save saves the values of use, and the host, unless they are. e.mu is held: no request is
// sent with a value that is not saved.
func (e *SentSecrets) save(ctx context.Context, use *Use, to SavedHost) error {
	if e.sets.Keep == nil {
		return nil
	}
	more := Saved{Gone: e.gone}
	for _, v := range use.values {
		if !v.saved {
			more.Values = append(more.Values, SavedValue{v.name, []byte(v.text), v.length, v.public, v.expires})
		}
	}
	if _, known := e.sent[to]; !known && len(e.sent) < maxReached {
		more.Sent = []SavedHost{to}
	}
	if len(more.Values)+len(more.Sent) == 0 {
		return nil
	}
	if err := e.sets.Keep.Save(ctx, e.id, more); err != nil {
		return errors.Join(ErrUnsaved, err)
	}
	for _, v := range use.values {
		v.saved = true
	}
	e.gone = nil
	return nil
}

// reach notes that a credential is sent to a host. e.mu is held.
func (e *SentSecrets) reach(to SavedHost) {
	if len(e.reached) < maxReached {
		if e.reached == nil {
			e.reached = make(map[string]struct{})
		}
		e.reached[to.Host] = struct{}{}
	}
	if len(e.sent) < maxReached {
		if e.sent == nil {
			e.sent = make(map[SavedHost]struct{})
		}
		e.sent[to] = struct{}{}
	}
}
