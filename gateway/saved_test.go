package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"sallyport/gateway"
	"sallyport/gateway/credential/sent"
	"sallyport/internal/test/must"
)

// memoryKeep keeps what is searched for as long as the test.
type memoryKeep struct {
	mu     sync.Mutex
	all    map[string]sent.Saved
	saves  int
	broken error
}

func (k *memoryKeep) Load(_ context.Context, id string) (sent.Saved, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[id], k.broken
}

func (k *memoryKeep) Save(_ context.Context, id string, more sent.Saved) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broken != nil {
		return k.broken
	}
	k.saves++
	s := k.all[id]
	s.Values, s.Sent = slices.Clone(s.Values), slices.Clone(s.Sent)
	if err := s.Add(more); err != nil {
		return err
	}
	k.all[id] = s
	return nil
}

func (k *memoryKeep) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = err
}

// Answers are searched for what was sent before a restart, also for versions that the
// credential has no more. A secret that cannot be kept is not sent.
func TestSecretsOfBeforeARestart(t *testing.T) {
	t.Parallel()
	k := &memoryKeep{all: map[string]sent.Saved{}}
	start := func(secret string) *versionEnv {
		m := newVersionEnv(t, "transparent", "h1", "h1", "https", func(o *gateway.Options) { o.Keep = k })
		m.credential("key", secret)
		m.policy(m.keyed)
		m.handle("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "you sent ", token, " before") })
		return m
	}
	ask := func(m *versionEnv, path string) (int, string) {
		resp := m.do(t, m.request(t, "GET", path, nil))
		return resp.StatusCode, text(t, resp)
	}
	before := start(token)
	for range 3 {
		if status, body := ask(before, "/keyed"); status != 200 || strings.Contains(body, token) {
			t.Fatalf("%d %s", status, body)
		}
	}
	if k.saves != 1 {
		t.Errorf("three requests with one version saved %d times", k.saves)
	}
	after := start("the-next-version-of-it-0123456789")
	for _, path := range []string{"/", "/keyed", "/"} {
		if status, body := ask(after, path); status != 200 || strings.Contains(body, token) || !strings.Contains(body, "you sent ***") {
			t.Errorf("%s after a restart: %d %s", path, status, body)
		}
	}
	must.Soon(t, "a finding", func() bool { return len(after.found()) > 0 })
	if f := after.found(); f[0].Unmapped.Sallyport.Found[0].Name != "key" {
		t.Errorf("findings: %+v", f)
	}
	// A host that was reached before may not hide it either.
	after.handle("/hidden", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "unheard-of")
		_, _ = io.WriteString(w, token)
	})
	again := start("a-third-version-of-it-0123456789")
	again.handle("/hidden", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "unheard-of")
		_, _ = io.WriteString(w, token)
	})
	if status, body := ask(again, "/hidden"); status != 502 || strings.Contains(body, token) {
		t.Errorf("a coding that hides it: %d %s", status, body)
	}
	broken := start("a-fourth-version-of-it-0123456789")
	k.fail(errors.New("the disk is full of " + token))
	for _, m := range []*versionEnv{broken, again} {
		if status, body := ask(m, "/keyed"); status != 503 || strings.Contains(body, token) || !strings.Contains(body, "cannot be kept") {
			if m == broken || status != 200 {
				t.Errorf("what cannot be kept: %d %s", status, body)
			}
		}
	}
	k.fail(nil)
	if status, _ := ask(broken, "/keyed"); status != 200 {
		t.Errorf("once it can be: %d", status)
	}
}
