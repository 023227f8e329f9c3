package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sallyport/internal/test/must"
)

// A sink is added by a reload, gets what is recorded, and holds the data path while too much
// waits for it. The records that it missed come when it is back, over a crash of the daemon
// too.
func TestSinks(t *testing.T) {
	r, client := newProxyRig(t)
	var mu sync.Mutex
	got := map[string]bool{}
	var away atomic.Bool
	siem := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for line := range strings.Lines(string(body)) {
			var e struct {
				Metadata struct {
					UID string `json:"uid"`
				} `json:"metadata"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			got[e.Metadata.UID] = true
		}
	}))
	defer siem.Close()
	has := func(id string) bool { mu.Lock(); defer mu.Unlock(); return got[id] }
	r.configure(strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: none} # not %[2]s", 1)+
		"proxy: {listen: \"127.0.0.1:3128\"}\naudit:\n  segmentSize: 1048576\n  sinks:\n  - {name: siem, type: https, url: '"+siem.URL+"', addresses: [127.0.0.0/8], batch: {wait: 100ms}, spool: {bytes: 1MiB}}\n", ruleConfig)
	r.ok("reload")
	tested := r.ok("audit", "sink", "test", "siem")
	if !strings.Contains(tested, "200 OK") {
		t.Errorf("a test: %s", tested)
	}
	deny := func(n int) (id string) {
		t.Helper()
		resp, err := client.Get(fmt.Sprintf("http://h%d.unlisted.example.test/%s", n, strings.Repeat("x", 7000)))
		must.OK(t, err)
		defer resp.Body.Close()
		return resp.Header.Get("Sallyport-Decision")
	}
	first := deny(0)
	r.await("a denial at the SIEM", func() bool { return has(first) })
	away.Store(true)
	var last string
	for n := range 200 {
		last = deny(n + 1)
	}
	var err error
	r.await("the hold", func() bool {
		err = fetch(client)
		return err != nil && strings.Contains(err.Error(), "503") && strings.Contains(err.Error(), "sinks")
	})
	for _, words := range [][]string{{"status"}, {"doctor"}, {"audit", "sink", "ls"}} {
		if out := r.sallyport(words...).stdout; !strings.Contains(out, "takes nothing since") || !strings.Contains(out, "503") {
			t.Errorf("%q says nothing of it: %s", words, out)
		}
	}
	r.kill(9)
	r.up()
	r.await("the hold after a restart", func() bool { err = fetch(client); return err != nil && strings.Contains(err.Error(), "sinks") })
	away.Store(false)
	r.await("requests", func() bool { return fetch(client) == nil })
	r.await("the last denial at the SIEM", func() bool { return has(last) })
	r.await("the status to say so", func() bool { return !strings.Contains(r.ok("status"), "takes nothing since") })
}
