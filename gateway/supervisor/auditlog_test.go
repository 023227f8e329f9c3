package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
)

func newAuditLog(t *testing.T) (*AuditLog, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "audit")
	trail, err := OpenAuditLog(dir, auditlog.Options{Logger: slog.New(slog.DiscardHandler)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = trail.Close() })
	return trail, dir
}

func event() *audit.Event {
	return audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
}

// numbers of a log's events, which must be 1, 2, ….
func numbers(t *testing.T, dir string) (n uint64) {
	t.Helper()
	for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Metadata.Sequence != n {
			t.Fatalf("event %d has number %d", n, e.Metadata.Sequence)
		}
	}
	return n
}

// A log that cannot be opened when its writer has died refuses events, and
// heals when the next process is tried.
func TestAuditLogCannotBeOpened(t *testing.T) {
	trail, dir := newAuditLog(t)
	if err := trail.Append(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	h, err := trail.handOver()
	if err != nil {
		t.Fatal(err)
	}
	_ = h.File.Close() // the process dies
	aside := dir + ".aside"
	if err := errors.Join(os.Rename(dir, aside), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := trail.takeBack(); err == nil {
		t.Fatal("a file was opened as a log")
	}
	if err := trail.Append(t.Context(), event()); !errors.Is(err, auditlog.ErrUnwritable) {
		t.Errorf("appending meanwhile: %v", err)
	}
	for range 2 {
		if _, err := trail.handOver(); err == nil {
			t.Fatal("what is not open was handed over")
		}
	}
	if err := errors.Join(os.Remove(dir), os.Rename(aside, dir)); err != nil {
		t.Fatal(err)
	}
	if h, err = trail.handOver(); err != nil || h.Next != 2 {
		t.Fatalf("handed over at %d, %v", h.Next, err)
	}
	_ = h.File.Close()
	if err := trail.takeBack(); err != nil {
		t.Fatal(err)
	}
	if err := trail.Append(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	if n := numbers(t, dir); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	if got := trail.Stats().Events; got != 2 {
		t.Errorf("%d events were counted, want 2", got)
	}
}

// segmentsIn makes a worker's segments.
func segmentsIn(dir string) func(first uint64) (*os.File, error) {
	return func(first uint64) (*os.File, error) {
		return os.Create(filepath.Join(dir, fmt.Sprintf("%020d.jsonl", first)))
	}
}

// A process that does not answer is ended, and the daemon writes what it was to
// write, without a second time what it had written all the same.
func TestAuditLogIsNotAnswered(t *testing.T) {
	for name, written := range map[string]bool{"nothing written": false, "written": true} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			trail.patience = 100 * time.Millisecond
			handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
				if written {
					_ = w.log.Append(ctx, events...)
				}
				<-ctx.Done()
				return ctx.Err()
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := trail.Append(ctx, event()); err != nil {
				t.Errorf("appending: %v", err)
			}
			if n := numbers(t, dir); n != 1 {
				t.Errorf("%d events, want 1", n)
			}
		})
	}
}

// Events that are too large for one call are written nevertheless.
func TestAuditLogLarge(t *testing.T) {
	trail, dir := newAuditLog(t)
	handTo(t, trail, dir, writes)
	var events []*audit.Event
	for range 5 {
		events = append(events, says(strings.Repeat("<", 100_000))) // six times as much in a call, of which 1 MiB is the most
	}
	if err := trail.Append(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
	if n := numbers(t, dir); n != 5 {
		t.Errorf("%d events, want 5", n)
	}
}

// The log says how many events it lacks, since its queue was full, or since the process that is
// to write them refused for too long.
func TestAuditLogLacks(t *testing.T) {
	for name, refuses := range map[string]bool{"queue": false, "refusal": true} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			release := make(chan struct{})
			w := handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
				<-release
				if refuses {
					return errors.New("no")
				}
				return writes(ctx, w, events)
			})
			lost := 0
			if refuses {
				lost = 1
				must.OK(t, trail.Enqueue(event()))
			}
			for !refuses && lost < 3 {
				if err := trail.Enqueue(event()); errors.Is(err, auditlog.ErrFull) {
					lost++
				} else if err != nil {
					t.Fatal(err)
				}
			}
			close(release)
			trail.Flush()
			must.OK(t, w.end())
			for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
				must.OK(t, err)
				if e.Unmapped.Sallyport.State == audit.StateDropped {
					lost -= e.Count
				}
			}
			if lost != 0 {
				t.Errorf("the log does not say of %d events that they are missing", lost)
			}
		})
	}
}

// The durable number is told to the log's writer, and is never less than before. Flush writes
// what is queued; then Append alone goes on.
func TestAuditLogDurable(t *testing.T) {
	trail, dir := newAuditLog(t)
	if n := trail.Durable(); n != 0 {
		t.Errorf("%d in an empty log", n)
	}
	if err := trail.Append(t.Context(), event(), event()); err != nil {
		t.Fatal(err)
	}
	h, err := trail.handOver()
	if err != nil {
		t.Fatal(err)
	}
	if n := trail.Durable(); n != 2 {
		t.Errorf("%d while the log changes hands, want 2", n)
	}
	here, there := pair(t)
	side := ipc.New(here, ipc.Options{})
	child := ipc.New(there, ipc.Options{Methods: map[ipc.Method]ipc.Handler{
		workerapi.MethodStats: ipc.Handle(func(context.Context, ipc.None) (auditlog.Stats, error) { return auditlog.Stats{Events: 5}, nil }),
	}})
	var ends sync.WaitGroup
	ends.Go(func() { _ = side.Serve() })
	ends.Go(func() { _ = child.Serve() })
	trail.setWorker(side, nil)
	if n := trail.Durable(); n != 7 {
		t.Errorf("%d with a worker that has written 5 more, want 7", n)
	}
	_ = side.Close()
	ends.Wait()
	if n := trail.Durable(); n != 7 {
		t.Errorf("%d when the worker is gone, want 7", n)
	}
	_ = h.File.Close()
	if err := trail.takeBack(); err != nil {
		t.Fatal(err)
	}
	if err := trail.Enqueue(event()); err != nil {
		t.Fatal(err)
	}
	trail.Flush()
	if n := numbers(t, dir); n != 3 {
		t.Errorf("%d events after Flush, want 3", n)
	}
	if err := trail.Enqueue(event()); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("queueing after Flush: %v", err)
	}
	if err := trail.Append(t.Context(), event()); err != nil {
		t.Errorf("appending after Flush: %v", err)
	}
}

// A worker that cuts the log does not have numbers given twice: neither those that the
// daemon had written, nor those that are known from elsewhere.
func TestAuditLogIsCut(t *testing.T) {
	for name, tt := range map[string]struct{ reached, seen uint64 }{
		"the daemon's records": {}, "the worker's records": {reached: 9}, "records that were seen": {seen: 9},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			known := uint64(0)
			trail, err := OpenAuditLog(dir, auditlog.Options{}, func() uint64 { return known })
			if err != nil {
				t.Fatal(err)
			}
			defer trail.Close()
			if err := trail.Append(t.Context(), event(), event(), event()); err != nil {
				t.Fatal(err)
			}
			h, err := trail.handOver()
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(h.File.Truncate(0), h.File.Close()); err != nil {
				t.Fatal(err)
			}
			known = tt.reached
			trail.Seen(auditlog.Entry{Number: tt.seen, Event: event()})
			if err := trail.takeBack(); err != nil {
				t.Fatal(err)
			}
			next := event()
			if err := trail.Append(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			if err := trail.Close(); err != nil {
				t.Fatal(err)
			}
			var last *audit.Event
			said := false
			for e := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
				if e != nil {
					last, said = e, said || e.Unmapped.Sallyport.State == "audit-truncated"
				}
			}
			if last == nil || last.ID() != next.ID() || last.Metadata.Sequence <= max(3, tt.reached, tt.seen) || !said {
				t.Errorf("the next event is %+v; the log says that it was cut: %v", last, said)
			}
			if got := trail.Stats().Events; got > 20 {
				t.Errorf("%d events were counted", got)
			}
		})
	}
}

// A bad line of a worker that has ended does not keep out what it was to write.
func TestAuditLogBesideDamage(t *testing.T) {
	trail, _ := newAuditLog(t)
	one, other := event(), event()
	if err := trail.Append(t.Context(), event()); err != nil {
		t.Fatal(err)
	}
	h, err := trail.handOver()
	if err != nil {
		t.Fatal(err)
	}
	line := append([]byte("bad\n"), encoded(t, one)...)
	if _, err := h.File.WriteAt(line, h.Size); err != nil {
		t.Fatal(err)
	}
	_ = h.File.Close()
	if err := trail.takeBack(); err != nil {
		t.Fatal(err)
	}
	if err := trail.owed.ask(nil, []*audit.Event{one, other}); err != nil {
		t.Fatal(err)
	}
	if missing, err := trail.missing(t.Context(), []*audit.Event{one, other}, 0); err != nil || len(missing) != 1 || missing[0] != other {
		t.Errorf("%d are missing, %v", len(missing), err)
	}
}

// encoded is an event as a log has it under the number 3.
func encoded(t *testing.T, e *audit.Event) []byte {
	t.Helper()
	copied := *e
	copied.Metadata.Sequence = 3
	line, err := json.Marshal(&copied)
	if err != nil {
		t.Fatal(err)
	}
	return append(line, '\n')
}
