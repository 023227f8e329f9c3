package gateway_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/approval"
)

// TestSSHApproval: an operator is asked about each request, and the client waits.
func TestSSHApproval(t *testing.T) {
	operators := newOperatorStore(t)
	l := newSSHEnv(t, askRule, func(l *sshEnv, _ fields) { l.asked = operators })
	ask := func(yes bool) (string, error) {
		type result struct {
			out string
			err error
		}
		done := make(chan result, 1)
		go func() {
			out, err := l.ssh(t, "echo approved")
			done <- result{out, err}
		}()
		r := operators.waiting(t, 1)[0]
		if s := r.Subject; s.Method != "exec" || s.Path != "/" || s.Protocol != "ssh" || s.Target != "echo approved" || len(s.Credentials) != 1 {
			t.Errorf("asked about %+v", s)
		}
		_, err := operators.Answer(r.ID, approval.Answer{Approve: yes}, approval.Operator{Name: "olga"})
		must.OK(t, err)
		got := <-done
		return got.out, got.err
	}
	if out, err := ask(true); err != nil || !strings.Contains(out, "approved\n") {
		t.Errorf("%v %s", err, out)
	}
	// A request that waits goes on when the policy needs no approval any more, and ends with
	// what allows it then.
	done := make(chan error, 1)
	go func() {
		_, err := l.ssh(t, "echo > "+l.folder+"/begun; sleep 100")
		done <- err
	}()
	operators.waiting(t, 1)
	open := l.compile(t, execRule)
	l.policy(func(in policy.Input) policy.Decision { return open.Decide(context.Background(), in) })
	l.gateway.Redecide()
	must.Soon(t, "the command runs", func() bool { _, err := os.Stat(filepath.Join(l.folder, "begun")); return err == nil })
	l.policy(func(policy.Input) policy.Decision { return policy.Decision{Action: policy.Deny, Reason: "no more"} })
	l.gateway.Redecide()
	if err := <-done; exitOf(err) == 0 {
		t.Errorf("it ended with %v", err)
	}
	asking := l.compile(t, askRule)
	l.policy(func(in policy.Input) policy.Decision { return asking.Decide(context.Background(), in) })
	if out, err := ask(false); exitOf(err) != 128 || !strings.Contains(out, "denied by olga") {
		t.Errorf("%v %s", err, out)
	}
}

// TestSSHRevoked: a command that goes on ends with its rule.
func TestSSHRevoked(t *testing.T) {
	l := newSSHEnv(t, execRule)
	done := make(chan string, 1)
	go func() {
		out, err := l.ssh(t, "echo begun > "+l.folder+"/begun; sleep 100")
		done <- fmt.Sprint(out, err)
	}()
	must.Soon(t, "the command runs", func() bool { _, err := os.Stat(filepath.Join(l.folder, "begun")); return err == nil })
	l.policy(func(policy.Input) policy.Decision { return policy.Decision{Action: policy.Deny, Reason: "no more"} })
	l.gateway.Redecide()
	select {
	case out := <-done:
		if strings.HasSuffix(out, "<nil>") {
			t.Errorf("it ended well: %s", out)
		}
	case <-time.After(soon):
		t.Error("it goes on")
	}
}

// leasedKey is a key whose lease is short at first, and ends.
type leasedKey struct {
	fields
	reads atomic.Int32
}

func (k *leasedKey) Read(ctx context.Context) (credential.Material, error) {
	m, err := k.fields.Read(ctx)
	m.Expires = time.Now().Add(5 * time.Second) // in which a session begins
	if k.reads.Add(1) > 1 {
		m.Version, m.Expires = "v2", time.Now().Add(time.Hour)
	}
	return m, err
}

// TestSSHExpiry: a session ends with the lease that it logged in with.
func TestSSHExpiry(t *testing.T) {
	l := newSSHEnv(t, execRule)
	rules := l.compile(t, execRule)
	l.broker = credential.New(credential.Options{
		Sources: map[string]credential.Source{"key": &leasedKey{fields: fields{"privateKey": l.key}}}, Bound: rules.Bound, AllowShort: rules.AllowsShort,
	})
	if out, err := l.ssh(t, "sleep 100"); exitOf(err) != 128 || !strings.Contains(out, "the lease of the credential") {
		t.Errorf("%v %s", err, out)
	}
}
