package supervisor

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/access"
	"sallyport/gateway/credential"
	"sallyport/internal/jail"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// house is a Supervisor with its worker.
type house struct {
	supervisor *Supervisor
	view       *jail.View
	trail      *AuditLog
	audit      string
}

const houseSegment = 1 << 20

// newHouse has the process start with a policy; taken is how it has been taken
// over, if it has. The ones that follow it have not.
func newHouse(t *testing.T, doc policy.Document, taken string, change func(*Options)) *house {
	t.Helper()
	lacking := ""
	if os.Geteuid() != 0 {
		lacking = "a jail with a root of its own needs root"
	} else if _, _, e := syscall.AllThreadsSyscall(syscall.SYS_GETPID, 0, 0, 0); e == syscall.ENOTSUP {
		lacking = "a program built with cgo cannot enter a jail"
	}
	if lacking != "" {
		must.Lack(t, "%s", lacking)
	}
	base := t.TempDir()
	for _, d := range []string{base, filepath.Dir(base)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	dir := filepath.Join(base, "audit")
	trail, err := OpenAuditLog(dir, auditlog.Options{Logger: logger, SegmentSize: houseSegment}, nil)
	if err != nil {
		t.Fatal(err)
	}
	view, err := jail.OpenView(filepath.Join(base, "view"), logger)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		IDs: jail.IDs{UID: jail.Nobody, GID: jail.Nobody}, View: view, AuditLog: trail, AuditDir: dir, SegmentSize: houseSegment,
		Broker: credential.New(credential.Options{}), Logger: logger,
		Local:      func() []netip.Prefix { return nil },
		Identities: func() map[netip.Addr]policy.Sandbox { return nil },
		Clients:    func() []access.Client { return nil },
		Event:      func(string) *audit.Event { return event() },
	}
	if change != nil {
		change(&o)
	}
	w := New(o)
	if taken != "" {
		if err := view.Write(takenFile, []byte(taken)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Start(t.Context(), doc, compiled(t, doc)); err != nil {
		t.Fatal(err)
	}
	if err := view.Remove(takenFile); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan error, 1)
	go func() { watched <- w.Watch(ctx) }()
	t.Cleanup(func() {
		if err := w.Stop(time.Second); err != nil {
			t.Error(err)
		}
		cancel()
		<-watched
		if err := trail.Close(); err != nil {
			t.Error(err)
		}
	})
	return &house{w, view, trail, dir}
}

// compiled is a policy's revision.
func compiled(t *testing.T, doc policy.Document) string {
	t.Helper()
	p, err := engine.Compile(t.Context(), doc, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Revision()
}

// A process writes the log within the limits of its jail, over ends of segments,
// and so does the one that follows it when it is killed.
func TestProcess(t *testing.T) {
	h := newHouse(t, policy.Document{}, "", nil)
	w, trail := h.supervisor, h.trail
	for round := range 2 {
		for range 100 {
			e := event()
			e.Message = string(make([]byte, 2<<10)) // six times as much on disk
			if err := trail.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if round == 0 {
			pid := w.Status().PID
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); w.Status().Restarts == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("nothing follows it")
				}
			}
		}
	}
	if n := numbers(t, h.audit); n < 2*100 {
		t.Errorf("%d events", n)
	}
}
