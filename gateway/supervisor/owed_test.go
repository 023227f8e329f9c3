package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// writer is a worker that does with what it is told to append as a test says.
type writer struct {
	log         *auditlog.Log
	side, child *ipc.Peer // the daemon's and its own
	why         error     // it was ended, if it was
	gone        chan struct{}
	back        error // of the log's way back
}

// handTo hands a log over to a writer.
func handTo(t *testing.T, trail *AuditLog, dir string, appends func(context.Context, *writer, []*audit.Event) error) *writer {
	t.Helper()
	h, err := trail.handOver()
	must.OK(t, err)
	w := &writer{gone: make(chan struct{})}
	w.log, err = auditlog.Continue(h, auditlog.Options{Cluster: trail.opts.Cluster, Node: trail.opts.Node, Segment: segmentsIn(dir)})
	must.OK(t, err)
	here, there := pair(t)
	w.side = ipc.New(here, ipc.Options{})
	w.child = ipc.New(there, ipc.Options{Methods: map[ipc.Method]ipc.Handler{
		workerapi.MethodAppend: ipc.Handle(func(ctx context.Context, c workerapi.AppendRequest) (ipc.None, error) {
			return ipc.None{}, appends(ctx, w, c.Events)
		}),
	}})
	var served sync.WaitGroup
	served.Go(func() { _ = w.child.Serve() })
	go func() { // what the supervisor does
		defer close(w.gone)
		_ = w.side.Serve()
		<-w.child.Done()
		w.back = errors.Join(w.log.Close(), trail.takeBack())
		served.Wait()
	}()
	trail.setWorker(w.side, func(why error) { w.why = why; _ = w.side.Close() })
	t.Cleanup(func() { _ = w.end() })
	return w
}

// end is the worker's end, if it has not ended.
func (w *writer) end() error {
	_ = w.side.Close()
	<-w.gone
	return w.back
}

// Ways to append.
func writes(ctx context.Context, w *writer, events []*audit.Event) error {
	return w.log.Append(ctx, events...)
}
func leavesOut(context.Context, *writer, []*audit.Event) error { return nil }

// written are the messages of a log's events. alerts is how many more say that it was altered.
func written(t *testing.T, dir string) (messages []string, alerts int) {
	t.Helper()
	for e, err := range auditlog.Undamaged(auditlog.Read(t.Context(), dir, auditlog.Query{})) {
		must.OK(t, err)
		switch {
		case e.Unmapped.Sallyport.State == "audit-altered":
			alerts++
		case e.Message != "" && e.Unmapped.Sallyport.State == "":
			messages = append(messages, e.Message)
		}
	}
	slices.Sort(messages)
	return messages, alerts
}

// see is what the sealer does.
func see(t *testing.T, trail *AuditLog, dir string) {
	t.Helper()
	for l, err := range auditlog.Undamaged(auditlog.Entries(t.Context(), dir, auditlog.Query{})) {
		must.OK(t, err)
		trail.Seen(l)
	}
}

func says(message string) *audit.Event {
	e := event()
	e.Message = message
	return e
}

// A worker that says that it has written events is ended if it has left them out, or has
// written others in their place. The daemon writes them then.
func TestOwed(t *testing.T) {
	for name, test := range map[string]struct {
		appends func(context.Context, *writer, []*audit.Event) error
		lies    bool
		unseen  bool // it does not say how far the log is durable
	}{
		"left out": {leavesOut, true, false},
		"altered": {func(ctx context.Context, w *writer, events []*audit.Event) error {
			events[0].Message = "nothing"
			return writes(ctx, w, events)
		}, true, false},
		"written":          {writes, false, false},
		"written, unseen":  {writes, false, true},
		"left out, unseen": {leavesOut, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			trail.opts.Cluster, trail.opts.Node = "prod", "worker-1" // which the log adds to each
			w := handTo(t, trail, dir, test.appends)
			e := says("an operator's")
			e.Detail = "a byte that is no text: \xff, and <a>&\u2028\U0001f600\x7f\x00"
			e.Actor = &audit.Actor{}
			e.Actor.User.Name = "anna\xc0"
			e.Unmapped.Sallyport.Tags = map[string]string{"\uffff": "", "\U0001f600": "\ud7ff", "a": "b"}
			e.Unmapped.Sallyport.QueryKeys, e.Unmapped.Sallyport.HeaderNames = []string{}, []string{""}
			e.HTTPRequest = &audit.HTTPRequest{Length: 1 << 60}
			e.Unmapped.Sallyport.Approval = &audit.Approval{ID: "x", Until: 1 << 50}
			must.OK(t, trail.Append(t.Context(), e))
			if !test.unseen {
				see(t, trail, dir)
			}
			trail.Settle() // it is early
			if w.why != nil {
				t.Errorf("it was ended at once: %v", w.why)
			}
			trail.settle(0)
			if ended := w.why != nil; ended != test.lies {
				t.Errorf("it was ended: %v, %v", ended, w.why)
			}
			must.OK(t, w.end())
			all, alerts := written(t, dir)
			if n := len(slices.DeleteFunc(all, func(m string) bool { return m != "an operator's" })); n != 1 {
				t.Errorf("it is there %d times", n)
			}
			if (alerts == 1) != test.lies {
				t.Errorf("the log says %d times that it was altered", alerts)
			}
			if see(t, trail, dir); len(trail.owed.all) > 0 {
				t.Error("something is owed still")
			}
		})
	}
}

// A line that others than the log read as another event is not what is owed.
func TestOwedIsReadOtherwise(t *testing.T) {
	for name, line := range map[string]string{
		"a key in another case": `"message":"nothing","Message":"an operator's"`,
		"a key twice":           `"message":"nothing","message":"an operator's"`,
	} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			w := handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
				events[0].Message = strings.Repeat("_", len(line)-len(`"message":""`))
				if err := writes(ctx, w, events); err != nil {
					return err
				}
				files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
				must.OK(t, err)
				text, err := os.ReadFile(files[0])
				must.OK(t, err)
				at := strings.Index(string(text), `"message":"`+events[0].Message)
				f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
				must.OK(t, err)
				_, err = f.WriteAt([]byte(line), int64(at))
				return errors.Join(err, f.Close())
			})
			must.OK(t, trail.Append(t.Context(), says("an operator's")))
			if got, _ := written(t, dir); !slices.Equal(got, []string{"an operator's"}) {
				t.Fatalf("the log reads %q in it", got)
			}
			trail.settle(0) // looked up, then seen
			if w.why == nil {
				t.Error("it was not ended")
			}
			must.OK(t, w.end())
			see(t, trail, dir)
			if got, alerts := written(t, dir); len(got) != 2 || alerts != 1 {
				t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
			}
			if len(trail.owed.all) > 0 {
				t.Error("something is owed still")
			}
		})
	}
}

// An event that is seen in a line that others read as another one is owed still.
func TestOwedIsSeenOtherwise(t *testing.T) {
	trail, dir := newAuditLog(t)
	must.OK(t, trail.Append(t.Context(), says("one")))
	for l, err := range auditlog.Entries(t.Context(), dir, auditlog.Query{}) {
		must.OK(t, err)
		l.JSON = []byte(strings.Replace(string(l.JSON), `"message":"one"`, `"message":"nothing","Message":"one"`, 1))
		if trail.Seen(l); len(trail.owed.all) != 1 {
			t.Error("it is owed no more")
		}
	}
	if see(t, trail, dir); len(trail.owed.all) != 0 {
		t.Error("it is owed still")
	}
}

// An event that the daemon itself has written again is not written a third time, if it is not in the
// log as it is owed.
func TestOwedForever(t *testing.T) {
	trail, dir := newAuditLog(t)
	trail.opts.Cluster = "prod" // which the open log does not add
	must.OK(t, trail.Append(t.Context(), says("one")))
	for range 3 {
		trail.settle(0)
	}
	if got, alerts := written(t, dir); len(got) != 2 || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// An event that the daemon has written again is owed still if a worker that is being started
// takes it away at once.
func TestOwedWhileHandedOver(t *testing.T) {
	trail, dir := newAuditLog(t)
	e := says("one")
	must.OK(t, trail.Append(t.Context(), e))
	h, err := trail.handOver()
	must.OK(t, err)
	must.OK(t, h.File.Truncate(0))
	must.OK(t, trail.check(t.Context(), []*audit.Event{e}))
	must.OK(t, errors.Join(h.File.Close(), trail.takeBack()))
	if got, alerts := written(t, dir); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// owe notes events as written that are not.
func owe(t *testing.T, trail *AuditLog, events ...*audit.Event) {
	t.Helper()
	must.OK(t, trail.owed.ask(nil, events))
	trail.owed.told(events, true, 2)
}

// Debts are bounded in bytes. Those for queued events leave room for others.
func TestOwedIsBounded(t *testing.T) {
	var said strings.Builder
	trail, _ := newAuditLog(t)
	trail.log = slog.New(slog.NewTextHandler(&said, nil))
	for range 70 {
		queued := []*audit.Event{says(strings.Repeat("x", 1<<20-2000))}
		must.OK(t, trail.owed.ask(nil, queued))
		trail.told(queued, true, 1)
	}
	size := 0
	for _, d := range trail.owed.all {
		size += len(d.event)
	}
	if size > maxOwedSize || size < maxOwedSize-1<<20 {
		t.Errorf("%d bytes are owed", size)
	}
	if n := strings.Count(said.String(), "too many events are not sealed"); n != 1 {
		t.Errorf("it was said %d times: %s", n, said.String())
	}
	operators := says(strings.Repeat("x", 200_000))
	must.OK(t, trail.Append(t.Context(), operators))
	if _, ok := trail.owed.all[operators.ID()]; !ok {
		t.Error("what somebody waited for is not owed")
	}
	trail.owed.all = nil // nothing of it is to be written
}

// A queued event waits for room, and is owed then: so many others do not hide that a worker
// leaves it out.
func TestOwedInACrowd(t *testing.T) {
	trail, dir := newAuditLog(t)
	var crowd []*audit.Event
	for range 70 {
		crowd = append(crowd, says(strings.Repeat("x", 1<<20-2000)))
	}
	owe(t, trail, crowd...)
	w := handTo(t, trail, dir, leavesOut)
	must.OK(t, trail.Enqueue(says("one")))
	must.Soon(t, "a look for room", func() bool {
		trail.owed.mu.Lock()
		defer trail.owed.mu.Unlock()
		return !trail.owed.over.IsZero()
	})
	trail.owed.told(crowd, false, 1) // as if all were sealed
	trail.Flush()
	must.OK(t, w.end())
	if got, alerts := written(t, dir); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// That events are missing is said once, however often they cannot be written.
func TestOwedIsSaidOnce(t *testing.T) {
	trail, dir := newAuditLog(t)
	w := handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
		if events[0].Message == "one" {
			return errors.New("the disk is full")
		}
		return writes(ctx, w, events)
	})
	check := func(alerts int, want ...string) {
		t.Helper()
		if got, n := written(t, dir); !slices.Equal(got, want) || n != alerts {
			t.Errorf("the log has %q, and says %d times that it was altered, want %q, %d", got, n, want, alerts)
		}
	}
	owe(t, trail, says("one"))
	trail.settle(0)
	trail.settle(0)
	check(1)
	if w.why != nil {
		t.Errorf("a worker that refuses was ended as one that lies: %v", w.why)
	}
	must.OK(t, w.end())
	check(1, "one")
	owe(t, trail, says("two"))
	trail.settle(0)
	check(2, "one", "two")
}

// Events that a worker was told to write when it ends are in the log, whatever part of them
// the worker wrote, and whatever the next one does to them.
func TestOwedByOneThatEnds(t *testing.T) {
	for name, write := range map[string]func(context.Context, *writer, []*audit.Event) error{
		"nothing":   leavesOut,
		"the first": func(ctx context.Context, w *writer, events []*audit.Event) error { return writes(ctx, w, events[:1]) },
		"another under the first one's ID": func(ctx context.Context, w *writer, events []*audit.Event) error {
			events[0].Message = "nothing"
			return writes(ctx, w, events[:1])
		},
		"all": writes,
	} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			w := handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
				if err := write(ctx, w, events); err != nil {
					return err
				}
				return w.child.Close()
			})
			must.OK(t, trail.Append(t.Context(), says("one"), says("two")))
			must.OK(t, w.end())
			check := func(alerts int) {
				t.Helper()
				got, n := written(t, dir)
				got = slices.DeleteFunc(got, func(m string) bool { return m == "nothing" })
				if !slices.Equal(got, []string{"one", "two"}) || n != alerts {
					t.Errorf("the log has %q, and says %d times that it was altered, want %d", got, n, alerts)
				}
			}
			check(0)
			w = handTo(t, trail, dir, writes)
			files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			must.OK(t, err)
			must.OK(t, os.Truncate(files[0], 0))
			must.OK(t, w.end())
			check(1)
		})
	}
}

// An event that a worker leaves out just before it is stopped is written all the same.
func TestOwedAtTheEnd(t *testing.T) {
	trail, dir := newAuditLog(t)
	w := handTo(t, trail, dir, leavesOut)
	must.OK(t, trail.Append(t.Context(), says("one")))
	must.OK(t, errors.Join(w.end(), trail.Close()))
	if got, alerts := written(t, dir); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// An event that is missing when the log is closed is written then.
func TestOwedAtClose(t *testing.T) {
	trail, dir := newAuditLog(t)
	owe(t, trail, says("one"))
	must.OK(t, trail.Close())
	if got, alerts := written(t, dir); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// A worker is not ended for what the one before it has left out.
func TestOwedByOneBefore(t *testing.T) {
	trail, dir := newAuditLog(t)
	w := handTo(t, trail, dir, leavesOut)
	must.OK(t, trail.Append(t.Context(), says("one")))
	aside := dir + ".aside"
	must.OK(t, errors.Join(os.Rename(dir, aside), os.WriteFile(dir, nil, 0o600)))
	if err := w.end(); err == nil {
		t.Fatal("a file was opened as a log")
	}
	must.OK(t, errors.Join(os.Remove(dir), os.Rename(aside, dir)))
	w = handTo(t, trail, dir, writes)
	trail.settle(0)
	if w.why != nil {
		t.Errorf("it was ended: %v", w.why)
	}
	if got, alerts := written(t, dir); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
}

// A queued event that the log has is not appended again, if the worker says otherwise.
func TestOwedAgain(t *testing.T) {
	trail, dir := newAuditLog(t)
	handTo(t, trail, dir, func(ctx context.Context, w *writer, events []*audit.Event) error {
		return errors.Join(writes(ctx, w, events), errors.New("the disk is slow"))
	})
	must.OK(t, trail.Enqueue(says("one")))
	trail.Flush()
	if got, _ := written(t, dir); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the log has %q", got)
	}
}

// The event of the end of a process that left something out says why it was ended.
func TestOwedByAProcess(t *testing.T) {
	h := newHouse(t, policy.Document{}, "writes nothing", nil)
	must.OK(t, h.trail.Append(t.Context(), says("one")))
	h.trail.settle(0)
	must.Soon(t, "the next process", func() bool { return h.supervisor.Status().Restarts == 1 })
	if got, alerts := written(t, h.audit); !slices.Equal(got, []string{"one"}) || alerts != 1 {
		t.Errorf("the log has %q, and says %d times that it was altered", got, alerts)
	}
	var details []string
	for e, err := range auditlog.Read(t.Context(), h.audit, auditlog.Query{}) {
		must.OK(t, err)
		details = append(details, e.Detail)
	}
	if all := strings.Join(details, "\n"); !strings.Contains(all, "1 events that it says it has written are not in the audit log") {
		t.Errorf("the log says %s", all)
	}
}

// Bytes that a worker has been asked to write are owed from when it says that it has.
func TestOwedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o owed
		slow, failed := event(), event()
		must.OK(t, o.ask(nil, []*audit.Event{slow, failed}))
		time.Sleep(2 * owedFor)
		o.told([]*audit.Event{failed}, false, 1)
		if all := o.due(owedFor); len(all) > 0 {
			t.Errorf("%d events before it says so", len(all))
		}
		o.told([]*audit.Event{slow}, true, 1)
		if all := o.due(owedFor); len(all) > 0 {
			t.Errorf("%d events at once", len(all))
		}
		time.Sleep(owedFor)
		if all := o.due(owedFor); len(all) != 1 || all[0].ID() != slow.ID() {
			t.Errorf("%d events then", len(all))
		}
	})
}
