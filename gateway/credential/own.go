package credential

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// PerSandbox is a Source that makes a secret for each sandbox, such as an engine of Vault.
// The Broker does not call its Read.
type PerSandbox interface {
	Source
	// For returns the source of the secret of the sandbox with an ID, or of the host's
	// own for an empty one. It does not read.
	For(sandbox string) OwnSource
}

// OwnSource is the source of one sandbox's secret. The Broker reads it again before what it
// gave expires, whether somebody asks or not.
type OwnSource interface {
	Remote
	// End gives up what was read, and what is being read: no more is. It does not wait.
	End()
}

// Discarding is a Remote source that would give out again what it gave, or renew it,
// unless it is told not to: Discard says that a version was not taken where it was sent.
type Discarding interface{ Discard(version string) }

// owned are the secrets that sandboxes have of their own of one credential.
type owned struct {
	source PerSandbox
	of     *entry

	mu   sync.Mutex
	each map[string]*entry // by sandbox; nil: it has ended
}

func (o *owned) entry(sandbox string) *entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.each[sandbox]
	if e == nil {
		e = &entry{
			source: o.source.For(sandbox), grace: o.of.grace, cache: o.of.cache, sandbox: sandbox, timed: true,
			timeout: o.of.timeout, onRead: o.of.onRead, log: o.of.log,
		}
		if o.each != nil {
			o.each[sandbox] = e
		} else { // for a request that was late
			e.end()
		}
	}
	return e
}

func (o *owned) list() []*entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.each))
}

// takeOver takes the secrets of a credential whose source is the same.
func (o *owned) takeOver(before *entry) {
	if before == nil || before.owned == nil || !reflect.TypeOf(o.source).Comparable() || before.owned.source != o.source {
		return
	}
	before.owned.mu.Lock()
	defer before.owned.mu.Unlock()
	o.each, before.owned.each = before.owned.each, nil
}

// end gives up the secrets of the sandboxes that keep does not report true of.
func (o *owned) end(keep func(sandbox string) bool) {
	if o == nil {
		return
	}
	o.mu.Lock()
	var ended []*entry
	maps.DeleteFunc(o.each, func(sandbox string, e *entry) bool {
		if keep(sandbox) {
			return false
		}
		ended = append(ended, e)
		return true
	})
	o.mu.Unlock()
	for _, e := range ended {
		e.end()
		e.source.(OwnSource).End()
	}
}

// close gives up all of them, and there are no more.
func (o *owned) close() {
	if o == nil {
		return
	}
	o.end(func(string) bool { return false })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.each = nil
}
