package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// operatorStore is where operators are asked: the real store, without a process between.
type operatorStore struct {
	*approval.Store
	mu       sync.Mutex
	watchers map[string]chan struct{}
	failure  atomic.Pointer[error]
}

func newOperatorStore(t *testing.T) *operatorStore {
	t.Helper()
	f := &operatorStore{watchers: map[string]chan struct{}{}}
	s, err := approval.Open(approval.Options{Path: filepath.Join(t.TempDir(), "approvals.json"), Wake: func(id string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if c := f.watchers[id]; c != nil {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}})
	must.OK(t, err)
	f.Store = s
	return f
}

func (f *operatorStore) Ask(_ context.Context, q approval.Question) (approval.Verdict, error) {
	if err := f.failure.Load(); err != nil {
		return approval.Verdict{}, *err
	}
	return f.Store.Ask(q)
}

func (f *operatorStore) Watch(id string) (<-chan struct{}, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{}, 1)
	f.watchers[id] = c
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, id)
	}
}

// waiting returns the requests that wait once there are n.
func (f *operatorStore) waiting(t *testing.T, n int) []approval.Request {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		list, _, _ := f.List()
		if len(list) == n {
			return list
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d: %+v", len(list), n, list)
		}
	}
}

func (f *operatorStore) answer(t *testing.T, id string, a approval.Answer) {
	t.Helper()
	if _, err := f.Answer(id, a, operator); err != nil {
		t.Error(err)
	}
}

var operator = approval.Operator{Name: "alice", UID: "1000"}

func asking(f *operatorStore) option {
	return func(o *gateway.Options) { o.Approvals = f }
}

// approvals runs a test for every way in, version in and version out, under a
// policy that has requests approved.
func approvals(t *testing.T, settings policy.Approvals, test func(t *testing.T, m *versionEnv, f *operatorStore)) {
	for _, way := range []string{"transparent", "explicit"} {
		for _, pair := range []struct{ version, upstream, scheme string }{
			{"h1", "h1", "https"}, {"h2", "h2", "https"}, {"h1", "h2", "https"}, {"h1", "h1", "http"},
		} {
			t.Run(fmt.Sprintf("%s/%s/%s to %s", way, pair.scheme, pair.version, pair.upstream), func(t *testing.T) {
				t.Parallel()
				f := newOperatorStore(t)
				m := newVersionEnv(t, way, pair.version, pair.upstream, pair.scheme, asking(f))
				m.policy(m.approve(settings))
				test(t, m, f)
			})
		}
	}
}

// approve wants approval for each request.
func (m *versionEnv) approve(settings policy.Approvals) func(policy.Input) policy.Decision {
	return func(in policy.Input) policy.Decision {
		d := m.allow(in)
		if in.Phase == policy.PhaseRequest {
			d.Action, d.Rule, d.Reason, d.Approvals = policy.Approve, "ask", "a person decides", &settings
		}
		return d
	}
}

// arrivals has the upstream count and say what it gets.
func (m *versionEnv) arrivals() *atomic.Int32 {
	var n atomic.Int32
	m.handle("/", func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Sallyport-Approval", "forged")
		fmt.Fprintf(w, "%s %s %d %s %v", r.Method, r.URL, r.ContentLength, body, err)
	})
	return &n
}

// outcome is what became of a request.
type outcome struct {
	status int
	header http.Header
	body   string
	err    error
}

// send makes a request behind the test's back.
func (m *versionEnv) send(r *http.Request) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		resp, err := m.client.Do(r)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		done <- outcome{resp.StatusCode, resp.Header, string(body), err}
	}()
	return done
}

func (s outcome) want(t *testing.T, status int, parts ...string) {
	t.Helper()
	if s.err != nil || s.status != status {
		t.Fatalf("got %d %v %.300s, want %d", s.status, s.err, s.body, status)
	}
	for _, p := range parts {
		if !strings.Contains(s.body, p) {
			t.Errorf("%q is not in %q", p, s.body)
		}
	}
}

func TestHeldRequestThatIsApproved(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		arrived := m.arrivals()
		for _, body := range []string{"", "hello", strings.Repeat("x", 300_000)} {
			var from io.Reader
			if body != "" {
				from = strings.NewReader(body)
			}
			done := m.send(m.request(t, "POST", "/merge?a=secret-value", from))
			asked := f.waiting(t, 1)[0]
			s := asked.Subject
			if s.Host != "api.example.test" || s.Method != "POST" || s.Path != "/merge" || len(s.QueryKeys) != 1 || s.Rule != "ask" ||
				s.Policy != "r1" || s.Length != int64(len(body)) || asked.Reason != "a person decides" || strings.Contains(fmt.Sprint(asked), "secret-value") {
				t.Errorf("asked %+v", asked)
			}
			before := arrived.Load()
			select {
			case s := <-done:
				t.Fatalf("answered before the operator has: %+v", s)
			case <-time.After(50 * time.Millisecond):
			}
			if n := arrived.Load() - before; n != 0 {
				t.Fatal("it has left before it was approved")
			}
			f.answer(t, asked.ID, approval.Answer{Approve: true})
			got := <-done
			got.want(t, 200, fmt.Sprintf("POST /merge?a=secret-value %d %s <nil>", len(body), body))
			if h := got.header.Get("Sallyport-Approval"); h != "" {
				t.Errorf("an upstream says %q", h)
			}
			decisions, _ := m.settled(t)
			d := decisions[len(decisions)-1]
			a := d.Unmapped.Sallyport.Approval
			if d.Unmapped.Sallyport.Decision != "allow" || a == nil || a.ID != asked.ID || a.Operator != "alice" || a.UID != "1000" || a.Span != "once" {
				t.Errorf("decision %+v %+v", d.Unmapped.Sallyport, a)
			}
		}
		// It was for those alone.
		done := m.send(m.request(t, "POST", "/merge?a=secret-value", nil))
		f.answer(t, f.waiting(t, 1)[0].ID, approval.Answer{Note: "enough"})
		got := <-done
		got.want(t, 403, "a person decides; denied by alice: enough", "approval: ")
		if arrived.Load() != 3 {
			t.Errorf("%d arrived", arrived.Load())
		}
	})
}

// The path that an operator is shown is the one that leaves, byte for byte.
func TestApprovedTargetIsWhatLeaves(t *testing.T) {
	t.Parallel()
	for _, raw := range []bool{false, true} {
		approvals(t, policy.Approvals{}, func(t *testing.T, m *versionEnv, f *operatorStore) {
			ask := m.approve(policy.Approvals{})
			m.policy(func(in policy.Input) policy.Decision {
				d := ask(in)
				d.RawPath = raw
				return d
			})
			var sent string
			m.handle("/", func(w http.ResponseWriter, r *http.Request) { sent, _, _ = strings.Cut(r.RequestURI, "?") })
			for _, path := range []string{"/merge", "/a%3fb", "/%6derge/%e2%82%ac", "/a%2fb%20c", "/a//b"} {
				if raw && strings.Contains(path, "//") {
					continue // denied
				}
				sent = ""
				r := m.request(t, "POST", "/", nil)
				plain, err := url.PathUnescape(path)
				must.OK(t, err)
				r.URL.Path, r.URL.RawPath = plain, path
				done := m.send(r)
				asked := f.waiting(t, 1)[0]
				f.answer(t, asked.ID, approval.Answer{Approve: true})
				(<-done).want(t, 200)
				if asked.Subject.Target != sent || sent == "" {
					t.Errorf("%s, raw %v: approved was %q, and %q left", path, raw, asked.Subject.Target, sent)
				}
			}
		})
	}
}

func TestHeldRequestThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{Timeout: policy.Duration(3 * time.Second)}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		arrived := m.arrivals()
		done := m.send(m.request(t, "PUT", "/x", strings.NewReader("hello")))
		id := f.waiting(t, 1)[0].ID
		got := <-done
		got.want(t, 403, "no operator has approved it in 3s")
		decisions, _ := m.settled(t)
		s := decisions[len(decisions)-1].Unmapped.Sallyport
		if got.header.Get("Sallyport-Approval") != id || s.Decision != "deny" || s.Approval.ID != id || arrived.Load() != 0 {
			t.Errorf("%v, %+v, %d arrived", got.header, s, arrived.Load())
		}
		if _, err := f.Answer(id, approval.Answer{Approve: true}, operator); err == nil {
			t.Error("it can be approved still")
		}
	})
}

func TestHeldRequestWhoseClientGoes(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		arrived := m.arrivals()
		for _, body := range []io.Reader{nil, strings.NewReader("hello")} {
			ctx, cancel := context.WithCancel(t.Context())
			done := m.send(m.request(t, "POST", "/x", body).WithContext(ctx))
			id := f.waiting(t, 1)[0].ID
			cancel()
			<-done
			f.waiting(t, 0)
			if _, err := f.Answer(id, approval.Answer{Approve: true}, operator); !errors.Is(err, approval.ErrUnknown) {
				t.Errorf("it can be approved still: %v", err)
			}
		}
		if arrived.Load() != 0 {
			t.Error("it arrived")
		}
	})
}

func TestPolledRequest(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{Answer: policy.AnswerPoll}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		arrived := m.arrivals()
		ask := func(body string) outcome { return <-m.send(m.request(t, "POST", "/x", strings.NewReader(body))) }
		first := ask("hello")
		first.want(t, 428)
		var said struct {
			Approval string
			Retry    int    `json:"retry_after"`
			Hint     string `json:"what_to_do"`
		}
		id := f.waiting(t, 1)[0].ID
		if err := json.Unmarshal([]byte(first.body), &said); err != nil || said.Approval != id || said.Retry == 0 || !strings.Contains(said.Hint, "Send the same request again") ||
			first.header.Get("Sallyport-Approval") != id || first.header.Get("Retry-After") == "" {
			t.Errorf("%v %s %v", err, first.body, first.header)
		}
		if again := ask("hello"); again.status != 428 || again.header.Get("Sallyport-Approval") != id {
			t.Errorf("asked again: %+v", again)
		}
		f.answer(t, id, approval.Answer{Approve: true})
		other := ask("Hello")
		if other.status != 428 || other.header.Get("Sallyport-Approval") == id {
			t.Errorf("another body: %+v", other)
		}
		ask("hello").want(t, 200, "POST /x 5 hello")
		ask("hello").want(t, 428)
		f.answer(t, other.header.Get("Sallyport-Approval"), approval.Answer{})
		ask("Hello").want(t, 403, "denied by alice")
		if arrived.Load() != 1 {
			t.Errorf("%d arrived", arrived.Load())
		}
	})
}

// A change of the policy decides again about what waits.
func TestHeldRequestWhosePolicyChanges(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		arrived := m.arrivals()
		done := m.send(m.request(t, "POST", "/x", strings.NewReader("hello")))
		old := f.waiting(t, 1)[0]
		m.policy(func(in policy.Input) policy.Decision {
			d := m.approve(policy.Approvals{})(in)
			d.Revision = "r2"
			return d
		})
		m.gateway.Redecide()
		var asked approval.Request
		for asked.ID == "" || asked.ID == old.ID {
			asked = f.waiting(t, 1)[0]
		}
		if asked.Subject.Policy != "r2" {
			t.Errorf("asked %+v", asked)
		}
		if _, err := f.Answer(old.ID, approval.Answer{Approve: true}, operator); err == nil {
			t.Error("the old one can be approved still")
		}
		m.policy(m.allow)
		m.gateway.Redecide()
		got := <-done
		got.want(t, 200, "hello")
		f.waiting(t, 0)

		m.policy(m.approve(policy.Approvals{}))
		done = m.send(m.request(t, "POST", "/x", nil))
		f.waiting(t, 1)
		m.policy(func(in policy.Input) policy.Decision { return policy.Decision{Reason: "not any more"} })
		m.gateway.Redecide()
		got = <-done
		got.want(t, 403, "not any more")
		if arrived.Load() != 1 {
			t.Errorf("%d arrived", arrived.Load())
		}
	})
}

// A body that is larger than what is kept of it is not approved once; for longer
// it leaves as a stream, whole, and is not read ahead the next time.
func TestHeldRequestWithALargeBody(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{Body: 64 << 10}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		m.handle("/", func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
		})
		const size = 5 << 20
		done := m.send(m.request(t, "POST", "/x/1", bytes.NewReader(make([]byte, size))))
		asked := f.waiting(t, 1)[0]
		if asked.Subject.Length != -1 || asked.Subject.Body != "" {
			t.Errorf("asked %+v", asked)
		}
		if _, err := f.Answer(asked.ID, approval.Answer{Approve: true}, operator); !errors.Is(err, approval.ErrAnswer) {
			t.Errorf("once: %v", err)
		}
		f.answer(t, asked.ID, approval.Answer{Approve: true, Span: approval.Period, For: time.Hour, Pattern: approval.Pattern{Path: "/x/*"}})
		want := fmt.Sprint(size, " <nil>")
		got := <-done
		got.want(t, 200, want)
		got = <-m.send(m.request(t, "POST", "/x/2", bytes.NewReader(make([]byte, size))))
		got.want(t, 200, want)
		f.waiting(t, 0)
	})
}

// Where nobody can be asked, or too many are, nothing leaves.
func TestApprovalThatCannotBeAskedFor(t *testing.T) {
	t.Parallel()
	f := newOperatorStore(t)
	m := newVersionEnv(t, "transparent", "h2", "h2", "https", asking(f))
	m.policy(m.approve(policy.Approvals{}))
	arrived := m.arrivals()
	broken := errors.New("the daemon has gone")
	f.failure.Store(&broken)
	got := <-m.send(m.request(t, "GET", "/x", nil))
	got.want(t, 403, "no operator can be asked now")
	if strings.Contains(got.body, broken.Error()) {
		t.Errorf("the cause is the operator's: %s", got.body)
	}
	f.failure.Store(nil)
	var all []<-chan outcome
	for i := range approval.MaxPending {
		all = append(all, m.send(m.request(t, "GET", fmt.Sprint("/", i), nil)))
	}
	list := f.waiting(t, approval.MaxPending)
	got = <-m.send(m.request(t, "GET", "/more", nil))
	got.want(t, 403, "too many requests wait for approval")
	// One answer for the session is for all that it covers.
	f.answer(t, list[0].ID, approval.Answer{Approve: true, Span: approval.Session, Pattern: approval.Pattern{Path: "/*"}})
	for _, done := range all {
		got = <-done
		got.want(t, 200)
	}
	if n := arrived.Load(); n != approval.MaxPending {
		t.Errorf("%d arrived", n)
	}
}

// A waiting request does not keep the gateway from ending.
func TestShutdownLetsGo(t *testing.T) {
	t.Parallel()
	f := newOperatorStore(t)
	m := newVersionEnv(t, "transparent", "h1", "h1", "https", asking(f))
	m.policy(m.approve(policy.Approvals{}))
	m.arrivals()
	done := m.send(m.request(t, "GET", "/x", nil))
	f.waiting(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.gateway.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	got := <-done
	got.want(t, 503, "shutting down")
	f.waiting(t, 0)
}

// A rule that wants approval for a connection that can be read is asked about
// each of its requests.
func TestApprovalOfAConnection(t *testing.T) {
	t.Parallel()
	approvals(t, policy.Approvals{}, func(t *testing.T, m *versionEnv, f *operatorStore) {
		m.arrivals()
		m.policy(func(in policy.Input) policy.Decision {
			d := m.allow(in)
			if in.Phase == policy.PhaseConnect {
				d.Action, d.Rule, d.Reason = policy.Approve, "door", "a person opens"
			}
			return d
		})
		for _, path := range []string{"/a", "/b"} {
			done := m.send(m.request(t, "GET", path, nil))
			asked := f.waiting(t, 1)[0]
			if asked.Subject.Path != path || asked.Subject.Rule != "door" || asked.Reason != "a person opens" {
				t.Errorf("asked %+v", asked)
			}
			f.answer(t, asked.ID, approval.Answer{Approve: true})
			got := <-done
			got.want(t, 200, "GET "+path)
		}
	})
}
