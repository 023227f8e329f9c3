//go:build !race

package credential

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// renewed is a source each of whose readings is another secret, which has a life.
type renewed struct {
	life  time.Duration
	count atomic.Int64
}

func (r *renewed) TTL() time.Duration { return r.life }

func (r *renewed) Read(context.Context) (Material, error) {
	n := r.count.Add(1)
	return Material{Version: fmt.Sprint(n), Fields: map[string]Secret{"token": NewSecret(fmt.Sprintf("sk-the-secret-of-reading-%d", n))}}, nil
}

// overwritten waits until memory holds zeros alone.
func overwritten(t *testing.T, what string, text []byte) {
	t.Helper()
	must.Soon(t, what+" is overwritten", func() bool {
		runtime.GC()
		return len(bytes.Trim(text, "\x00")) == 0
	})
}

// A secret is in memory for as long as something may use it, and is overwritten then: when it
// has been replaced and no lease of it is left, when its time is over though nobody asks, and
// when its sources go.
func TestSecretsAreOverwritten(t *testing.T) {
	to := Binding{Host: "api.example.com", Port: 443, Verified: true}
	lease := func(b *Broker) (l *Lease, text []byte) {
		l, err := b.Lease(t.Context(), "key", to)
		must.OK(t, err)
		r, err := http.NewRequest("GET", "https://api.example.com/", nil)
		must.OK(t, err)
		must.OK(t, l.Apply(r, policy.Inject{}))
		if r.Header.Get("Authorization") != "Bearer "+l.secret.material.Fields["token"].Reveal() {
			t.Error(r.Header)
		}
		return l, l.secret.material.Fields["token"].text
	}
	bound := func(string, string, uint16) bool { return true }
	b := New(Options{Sources: map[string]Source{"key": &renewed{life: time.Hour}}, Bound: bound})
	l, text := lease(b)
	b.Forget("key")
	_, next := lease(b)
	runtime.GC()
	runtime.GC()
	if time.Sleep(10 * time.Millisecond); string(text) != "sk-the-secret-of-reading-1" {
		t.Errorf("what a lease may use is %q", text)
	}
	runtime.KeepAlive(l)
	l = nil
	overwritten(t, "what was replaced", text)
	if string(next) != "sk-the-secret-of-reading-2" {
		t.Errorf("what is in use is %q", next)
	}
	b.Replace(map[string]Source{"key": &renewed{life: time.Hour}}, "")
	overwritten(t, "what a reload has dropped", next)
	_, text = lease(b)
	if string(text) != "sk-the-secret-of-reading-1" {
		t.Errorf("%q", text)
	}
	short := New(Options{Sources: map[string]Source{"key": &renewed{life: 20 * time.Millisecond}}, Bound: bound})
	_, text = lease(short)
	overwritten(t, "what has expired", text)
	runtime.KeepAlive(short)
	runtime.KeepAlive(b)

	if err := gob.NewEncoder(new(bytes.Buffer)).Encode(NewSecret("sk-0123456789abcdef")); err == nil {
		t.Error("a secret was encoded")
	}
}
