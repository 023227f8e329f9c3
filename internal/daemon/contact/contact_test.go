package contact

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// A sandbox is in contact with a destination from a decision to its completion, and not
// only in the time in which it began.
func TestContacted(t *testing.T) {
	dir := t.TempDir()
	log, err := auditlog.Open(filepath.Join(dir, "audit"), auditlog.Options{})
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, log.Close()) })
	contacts := &Contacts{Dir: filepath.Join(dir, "audit"), Index: filepath.Join(dir, "index"), Worker: func() int { return 0 }}
	begin := func(host, action string) *audit.Exchange {
		t.Helper()
		x := &audit.Exchange{}
		e := x.Decide(audit.ClassHTTP, audit.HTTPActivity("GET"))
		e.Unmapped.Sallyport.SandboxID, e.Unmapped.Sallyport.Sandbox = "id-of-demo", "demo"
		e.Destination = &audit.Endpoint{Hostname: host}
		if e.Action = audit.ActionAllowed; action == "deny" {
			e.Action = audit.ActionDenied
		}
		must.OK(t, log.Append(t.Context(), e))
		return x
	}
	end := func(x *audit.Exchange) {
		t.Helper()
		must.OK(t, log.Append(t.Context(), x.Complete(audit.HTTPActivity("GET"))))
	}
	after, since := uint64(0), time.Time{}
	asked := func(what string, stored bool, want ...string) {
		t.Helper()
		began := time.Now()
		hosts, last, err := contacts.Of(t.Context(), "id-of-demo", after, since)
		if err != nil || !slices.Equal(hosts, want) {
			t.Errorf("%s: %q, %v, want %q", what, hosts, err, want)
		}
		if stored {
			after, since = last, began
		}
	}
	asked("nothing yet", true)
	slow := begin("slow.example", "allow")
	end(begin("fast.example", "allow"))
	begin("denied.example", "deny")
	asked("one has ended, one has not", true, "fast.example", "slow.example")
	asked("the one that has not", true, "slow.example")
	end(slow)
	asked("it has ended, for a version that is not stored", false, "slow.example")
	asked("and for one that is", true, "slow.example")
	asked("it is over", true)
	late := begin("late.example", "allow")
	done := late.Complete(audit.HTTPActivity("GET")) // which is in the log only later
	time.Sleep(2 * time.Millisecond)                 // the events' times are of whole milliseconds
	asked("one that ends", true, "late.example")
	must.OK(t, log.Append(t.Context(), done))
	asked("it had ended before", true)
	begin("lost.example", "allow") // and no completion comes
	asked("one that never ends", true, "lost.example")
	asked("nor later", true, "lost.example")
	stop := audit.Change("sandbox/demo", "stopped")
	stop.Unmapped.Sallyport.SandboxID, stop.Unmapped.Sallyport.Sandbox = "id-of-demo", "demo"
	must.OK(t, log.Append(t.Context(), stop))
	begin("restarted.example", "allow")
	asked("the sandbox has stopped, and has started again", true, "lost.example", "restarted.example")
	asked("only what began since", true, "restarted.example")
	must.OK(t, log.Append(t.Context(), stop))
	asked("it has stopped once more", true, "restarted.example")
	asked("and nothing is open", true)
	begin("new.example", "allow")
	asked("a new one", true, "new.example")
	contacts.Forget("id-of-demo")
	asked("it is another sandbox", true)
}
