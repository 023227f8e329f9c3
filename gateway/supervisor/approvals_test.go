package supervisor

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/access"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy"
	"sallyport/policy/approval"
)

func question() approval.Question {
	return approval.Question{
		Reason: "a person decides", Held: true, Timeout: time.Minute,
		Subject: approval.Subject{
			SandboxID: "box", Protocol: "tls", Host: bound, Port: 443, Method: "POST", Path: "/x", Rule: "ask",
			Query: strings.Repeat("0a", 32), Body: strings.Repeat("0b", 32),
		},
	}
}

// newCounter is a scene whose questions go to a store.
func newCounter(t *testing.T) (*scene, *approval.Store) {
	t.Helper()
	s := newScene(t)
	store, err := approval.Open(approval.Options{Path: filepath.Join(t.TempDir(), "approvals.json"), Wake: s.supervisor.Answered})
	if err != nil {
		t.Fatal(err)
	}
	s.supervisor.o.Approvals = store
	s.supervisor.o.Identities = func() map[netip.Addr]policy.Sandbox {
		return map[netip.Addr]policy.Sandbox{{}: {Name: "agent", ID: "box", Session: "s-1"}}
	}
	s.supervisor.o.Clients = func() []access.Client { return []access.Client{{Name: "ci", ID: "client-1"}} }
	return s, store
}

// A process's questions are bounded, and of those whom the daemon knows, by the names that it
// knows them by.
func TestQuestionsToOperators(t *testing.T) {
	s, store := newCounter(t)
	for name, tt := range map[string]struct {
		change func(*approval.Question)
		ok     bool
	}{
		"a request":                      {func(*approval.Question) {}, true},
		"a client's":                     {func(q *approval.Question) { q.Subject.SandboxID = "client-1" }, true},
		"nobody's":                       {func(q *approval.Question) { q.Subject.SandboxID = "other" }, false},
		"without a host":                 {func(q *approval.Question) { q.Subject.Host = "" }, false},
		"a long host":                    {func(q *approval.Question) { q.Subject.Host = strings.Repeat("a", 300) }, false},
		"a long rule":                    {func(q *approval.Question) { q.Subject.Rule = strings.Repeat("a", 2000) }, false},
		"a digest that is none":          {func(q *approval.Question) { q.Subject.Body = "../../etc" }, false},
		"a digest in capitals":           {func(q *approval.Question) { q.Subject.Body = strings.Repeat("0B", 32) }, false},
		"many names":                     {func(q *approval.Question) { q.Subject.QueryKeys = make([]string, 1000) }, false},
		"a path and no method":           {func(q *approval.Question) { q.Subject.Method = "" }, false},
		"a negative length":              {func(q *approval.Question) { q.Subject.Length = -7 }, false},
		"a length that is not exact":     {func(q *approval.Question) { q.Subject.Length = 1 << 53 }, false},
		"longer than anybody would wait": {func(q *approval.Question) { q.Timeout = 1 << 62 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			q := question()
			q.Subject.Sandbox, q.Subject.Session = "somebody else", "s-2"
			tt.change(&q)
			var v approval.Verdict
			err := s.child.Call(t.Context(), workerapi.MethodAsk, q, &v)
			if (err == nil) != tt.ok || (v.State == approval.Pending) != tt.ok {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
	list, _, _ := store.List()
	for _, r := range list {
		if r.Subject.SandboxID == "box" && (r.Subject.Sandbox != "agent" || r.Subject.Session != "s-1") ||
			r.Subject.SandboxID == "client-1" && (r.Subject.Sandbox != "ci" || r.Subject.Session != "") {
			t.Errorf("listed %+v", r.Subject)
		}
	}
	if len(list) != 2 {
		t.Errorf("%d are listed", len(list))
	}
	// Of another sandbox nothing is withdrawn.
	for _, r := range list {
		if err := s.child.Call(t.Context(), workerapi.MethodWithdraw, workerapi.WithdrawRequest{Sandbox: "other", ID: r.ID}, &ipc.None{}); err != nil {
			t.Error(err)
		}
	}
	if list, _, _ := store.List(); len(list) != 2 {
		t.Errorf("%d are listed", len(list))
	}
}

// However many requests wait for a person, a lease is given at once.
func TestWhatWaitsKeepsNothingWaiting(t *testing.T) {
	s, store := newCounter(t)
	for range 2 * maxCalls {
		if err := s.child.Call(t.Context(), workerapi.MethodAsk, question(), &approval.Verdict{}); err != nil {
			t.Fatal(err)
		}
	}
	if list, _, _ := store.List(); len(list) != approval.MaxPending {
		t.Errorf("%d wait", len(list))
	}
	var got workerapi.LeaseReply
	call := workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Verified: true, Policy: revision}
	if err := s.child.Call(t.Context(), workerapi.MethodLease, call, &got); err != nil || got.Fields["token"] == "" {
		t.Errorf("%v", err)
	}
}

// Without a store every question fails, which denies.
func TestNobodyToAsk(t *testing.T) {
	s, _ := newCounter(t)
	s.supervisor.o.Approvals = nil
	var v approval.Verdict
	err := s.child.Call(t.Context(), workerapi.MethodAsk, question(), &v)
	var remote *ipc.RemoteError
	if !errors.As(err, &remote) || v.State != "" {
		t.Errorf("%+v, %v", v, err)
	}
}
