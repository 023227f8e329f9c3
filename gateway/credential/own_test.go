package credential_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
)

// engine makes secrets of ten seconds.
type engine struct {
	mu    sync.Mutex
	said  []string
	count int
}

func (e *engine) say(format string, a ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said = append(e.said, fmt.Sprintf(format, a...))
}

func (e *engine) all() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.said, ", ")
}

func (e *engine) Read(context.Context) (credential.Material, error) {
	return credential.Material{}, errors.New("read for no sandbox")
}

func (e *engine) For(sandbox string) credential.OwnSource { return &own{engine: e, sandbox: sandbox} }

type own struct {
	engine  *engine
	sandbox string
	version string
}

func (o *own) Read(context.Context) (credential.Material, error) {
	if o.version == "" {
		o.engine.mu.Lock()
		o.engine.count++
		o.version = fmt.Sprint(o.sandbox, o.engine.count)
		o.engine.mu.Unlock()
		o.engine.say("make %s", o.version)
	} else {
		o.engine.say("renew %s", o.version)
	}
	return credential.Material{
		Fields:  map[string]credential.Secret{"token": credential.NewSecret("a-token-for-" + o.version)},
		Version: o.version, Expires: time.Now().Add(10 * time.Second),
	}, nil
}

func (*own) TTL() time.Duration { return credential.UntilExpiry }
func (o *own) Discard(string)   { o.version = "" }
func (o *own) End()             { o.engine.say("end %s", o.version) }

func TestEachSandboxHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{}
		var told []string
		b := credential.New(credential.Options{
			Sources: map[string]credential.Source{"key": e},
			Bound:   func(string, string, uint16) bool { return true },
			OnRead: func(_ string, r credential.Reading, _ error) {
				e.mu.Lock()
				defer e.mu.Unlock()
				told = append(told, fmt.Sprint(r.Sandbox, " ", r.Version, " ", r.Renewed))
			},
		})
		lease := func(sandbox, want string) {
			t.Helper()
			to := api
			to.Sandbox = sandbox
			l, err := b.Lease(t.Context(), "key", to)
			must.OK(t, err)
			if l.Version != want || l.Values()[0].Reveal() != "a-token-for-"+want {
				t.Errorf("sandbox %s got %s, want %s", sandbox, l.Version, want)
			}
		}
		said := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := e.all(); got != want {
				t.Errorf("the engine was asked: %s, want %s", got, want)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.said = nil
		}
		lease("a", "a1")
		lease("b", "b2")
		lease("a", "a1")
		said("make a1, make b2")

		time.Sleep(8 * time.Second) // nobody asks
		synctest.Wait()
		got := strings.Split(e.all(), ", ")
		if slices.Sort(got); !slices.Equal(got, []string{"renew a1", "renew b2"}) {
			t.Errorf("before their expiry: %q", got)
		}
		if slices.Sort(told); !slices.Equal(told, []string{"a a1 false", "a a1 true", "b b2 false", "b b2 true"}) {
			t.Errorf("told %q", told)
		}
		e.mu.Lock()
		e.said = nil
		e.mu.Unlock()

		b.Replace(map[string]credential.Source{"key": e}, "")
		lease("a", "a1")
		said("")
		b.Retain(func(name, sandbox string) bool { return name == "key" && sandbox == "b" })
		said("end a1")
		to := api
		to.Sandbox = "b"
		if is, err := b.Refresh(t.Context(), "key", to, "b2"); !is || err != nil {
			t.Errorf("refreshing: %v, %v", is, err)
		}
		lease("b", "b3")
		said("make b3")
		if _, found, err := b.Contains(t.Context(), "a-token-for-b3"); !found || err != nil {
			t.Errorf("what a sandbox has is not looked for: %v", err)
		}
		b.Replace(map[string]credential.Source{"key": &engine{}}, "")
		said("end b3")
		time.Sleep(time.Minute)
		said("") // and renewed no more
	})
}
