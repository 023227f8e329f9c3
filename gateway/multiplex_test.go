package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/policy"
)

// Requests that are under way at once each have a decision, a credential and an
// answer of their own, whatever they share.
func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, m *versionEnv) {
		m.credential("key", token)
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			if in.Request == nil {
				return d
			}
			switch {
			case strings.HasPrefix(in.Request.Path, "/denied"):
				return policy.Decision{Reason: "not this path"}
			case strings.HasPrefix(in.Request.Path, "/key"):
				d.Inject = inject("key")(in).Inject
			}
			return d
		})
		const each = 30
		kinds := []string{"/plain", "/denied", "/key"}
		if m.scheme == "http" {
			kinds = kinds[:2] // no credential goes in the clear
		}
		var arrived atomic.Int64
		all := make(chan struct{})
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if arrived.Add(1) == int64(each*(len(kinds)-1)) {
				close(all)
			}
			select {
			case <-all: // of them are here
			case <-time.After(patience):
				t.Errorf("%s waited for others in vain", r.URL.Path)
			}
			w.Header().Set("X-Key", fmt.Sprint(len(r.Header.Get("Authorization"))))
			fmt.Fprintf(w, "%s %s", r.URL.Path, body)
		})
		var work sync.WaitGroup
		for i := range each {
			for _, kind := range kinds {
				work.Go(func() {
					path, body := fmt.Sprint(kind, i), strings.Repeat(fmt.Sprint(i), 5000)
					resp, err := m.client.Do(m.request(t, "POST", path, strings.NewReader(body)))
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					got, err := io.ReadAll(resp.Body)
					switch {
					case err != nil:
						t.Error(err)
					case kind == "/denied":
						if resp.StatusCode != 403 {
							t.Errorf("%s: %d", path, resp.StatusCode)
						}
					case resp.StatusCode != 200 || string(got) != path+" "+body:
						t.Errorf("%s: %d %.100s", path, resp.StatusCode, got)
					case (resp.Header.Get("X-Key") != "0") != (kind == "/key"):
						t.Errorf("%s: a credential of length %s", path, resp.Header.Get("X-Key"))
					}
				})
			}
		}
		work.Wait()
		decisions, completions := m.settled(t)
		if want := each * (len(kinds) - 1); len(completions) != want {
			t.Errorf("%d completions, want %d", len(completions), want)
		}
		var allowed int
		for _, d := range decisions {
			if d.Action != audit.ActionAllowed {
				continue
			}
			allowed++
			path := d.HTTPRequest.URL.Path
			if keyed := len(d.Unmapped.Sallyport.Credentials) > 0; keyed != strings.HasPrefix(path, "/key") {
				t.Errorf("%s used %v", path, d.Unmapped.Sallyport.Credentials)
			}
			if c := completions[d.ID()]; c == nil || c.HTTPRequest.URL.Path != path || c.StatusID != audit.StatusSuccess {
				t.Errorf("%s was completed by %+v", path, c)
			}
		}
		if n := m.conns.Load(); m.upstream == "h2" && n > int64(len(kinds)-1) {
			t.Errorf("%d connections to an upstream that multiplexes, for %d credentials", n, len(kinds)-1)
		}
	})
}

// Two connections of one sandbox share those to the upstream, two sandboxes do
// not, nor do two credentials.
func TestUpstreamConnectionsAreSharedWithinASandbox(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			w := newNetEnv(t)
			w.credential("key", token)
			w.policy(func(in policy.Input) policy.Decision {
				d := w.allow(in)
				if in.Request != nil && in.Request.Path == "/key" {
					d.Inject = inject("key")(in).Inject
				}
				return d
			})
			o := w.origin("api.example.test", version, true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) })
			seen := map[string][]string{} // connection upstream -> who used it
			for _, who := range []string{"sandbox", "another connection of it", "client elsewhere"} {
				dial := dialler(w.steer)
				if who == "client elsewhere" {
					dial = w.connect
				}
				for _, path := range []string{"/", "/key", "/", "/key"} {
					_, conn := get(t, w.agent("h2", true, dial, false), o.url("https", path))
					if name := strings.TrimPrefix(who, "another connection of ") + path; !slices.Contains(seen[conn], name) {
						seen[conn] = append(seen[conn], name)
					}
				}
			}
			var shared []string
			for _, users := range seen {
				shared = append(shared, strings.Join(users, " and "))
			}
			slices.Sort(shared)
			want := []string{"client elsewhere/", "client elsewhere/key", "sandbox/ and it/", "sandbox/key and it/key"}
			if diff := cmp.Diff(shared, want); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The certificate on a connection is for one name, and a client that takes it
// for more is sent elsewhere without harm to what else it does there.
func TestConnectionThatIsReusedForAnotherName(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
	other := w.origin("other.example.test", "h2", true)
	other.handle("/", func(http.ResponseWriter, *http.Request) { t.Error("the other host was reached") })
	c := w.frames(w.steer, o)
	for range 3 {
		for _, test := range []struct {
			authority string
			status    string
		}{
			{fmt.Sprintf("api.example.test:%d", o.port), "200"},
			{fmt.Sprintf("other.example.test:%d", o.port), "421"},
			{fmt.Sprintf("API.Example.Test:%d", o.port), "200"},
			{"api.example.test:1", "421"},
			{"api.example.test", "200"}, // clients leave the port out
			{"127.1", "400"},
			{"", "400"},
		} {
			answer := c.ask(t, field{":method", "GET"}, field{":scheme", "https"}, field{":path", "/"}, field{":authority", test.authority})
			if answer.status != test.status {
				t.Errorf("%q: %s %s, want %s", test.authority, answer.status, answer.body, test.status)
			}
		}
	}
	for _, name := range w.zone.names() {
		if name != "api.example.test" {
			t.Errorf("%s was looked up", name)
		}
	}
}

// A connection that is shared by many requests can end under them.
func TestUpstreamThatSaysGoodbye(t *testing.T) {
	w := newNetEnv(t)
	o := w.origin("api.example.test", "h2", true)
	begun := make(chan struct{}, 1)
	finish := make(chan struct{})
	o.handle("/slow", func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-finish
		io.WriteString(w, "whole")
	})
	o.handle("/bye", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close") }) // GOAWAY
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {})
	client := w.agent("h2", true, w.steer, false)
	answer := make(chan string, 1)
	go func() {
		_, body := get(t, client, o.url("https", "/slow"))
		answer <- body
	}()
	<-begun
	for range 5 {
		for _, path := range []string{"/bye", "/"} {
			if resp, body := get(t, client, o.url("https", path)); resp.StatusCode != 200 {
				t.Errorf("%s: %d %s", path, resp.StatusCode, body)
			}
		}
	}
	close(finish)
	if got := await(t, answer); got != "whole" {
		t.Errorf("the request under way got %q", got)
	}
	w.settled(t)
	for deadline := time.Now().Add(patience); o.open.Load() > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", o.open.Load())
		}
	}
}
