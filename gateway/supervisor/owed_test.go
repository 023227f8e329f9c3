package supervisor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// A worker that says that it has written events is ended if it has left them out, or has
// written others in their place. The daemon writes them then.
func TestOwed(t *testing.T) {
	for name, test := range map[string]struct {
		write func(*audit.Event) *audit.Event
		lies  bool
	}{
		"left out": {func(*audit.Event) *audit.Event { return nil }, true},
		"altered":  {func(e *audit.Event) *audit.Event { e.Message = "nothing"; return e }, true},
		"written":  {func(e *audit.Event) *audit.Event { return e }, false},
	} {
		t.Run(name, func(t *testing.T) {
			trail, dir := newAuditLog(t)
			trail.opts.Cluster, trail.opts.Node = "prod", "worker-1" // which the log adds to each
			h, err := trail.handOver()
			if err != nil {
				t.Fatal(err)
			}
			log, err := auditlog.Continue(h, auditlog.Options{Cluster: "prod", Node: "worker-1", Segment: segmentsIn(dir)})
			if err != nil {
				t.Fatal(err)
			}
			here, there := pair(t)
			side := ipc.New(here, ipc.Options{})
			child := ipc.New(there, ipc.Options{Methods: map[ipc.Method]ipc.Handler{
				workerapi.MethodAppend: ipc.Handle(func(ctx context.Context, c workerapi.AppendRequest) (ipc.None, error) {
					for _, e := range c.Events {
						if e = test.write(e); e == nil {
							continue
						}
						if err := log.Append(ctx, e); err != nil {
							return ipc.None{}, err
						}
					}
					return ipc.None{}, nil
				}),
			}})
			var ends sync.WaitGroup
			ends.Go(func() { _ = child.Serve() })
			ends.Go(func() { // what the supervisor does
				_ = side.Serve()
				<-child.Done()
				if err := errors.Join(log.Close(), trail.takeBack()); err != nil {
					t.Error(err)
				}
			})
			trail.setWorker(side)
			e := event()
			e.Message, e.Detail = "an operator's", "a byte that is no text: \xff, and <a>&\u2028\U0001f600\x7f\x00"
			e.Actor = &audit.Actor{}
			e.Actor.User.Name = "anna\xc0"
			e.Unmapped.Sallyport.Tags = map[string]string{"\uffff": "", "\U0001f600": "\ud7ff", "a": "b"}
			e.Unmapped.Sallyport.QueryKeys, e.Unmapped.Sallyport.HeaderNames = []string{}, []string{""}
			e.Unmapped.Sallyport.Approval = &audit.Approval{ID: "x", Until: 1 << 50}
			if err := trail.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			for e := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
				trail.Seen(e)
			}
			trail.Settle() // it is early
			trail.settle(0)
			select {
			case <-side.Done():
				if !test.lies {
					t.Error("it was ended")
				}
			default:
				if test.lies {
					t.Error("it was not ended")
				}
			}
			if !test.lies {
				_ = side.Close()
			}
			ends.Wait()
			trail.owed.work.Wait()
			var all []string
			for e, err := range auditlog.Read(t.Context(), dir, auditlog.Query{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, e.Message)
			}
			if n := len(slices.DeleteFunc(all, func(m string) bool { return m != "an operator's" })); n != 1 {
				t.Errorf("it is there %d times", n)
			}
			if trail.settle(0); len(trail.owed.all) > 0 {
				t.Error("something is owed still")
			}
		})
	}
}

// Bytes that a worker has been asked to write are owed from when it says that it has.
func TestOwedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o owed
		slow, failed := event(), event()
		o.ask([]*audit.Event{slow, failed})
		time.Sleep(2 * owedFor)
		o.told([]*audit.Event{failed}, false)
		if all := o.overdue(owedFor); len(all) > 0 {
			t.Errorf("%d events before it says so", len(all))
		}
		o.told([]*audit.Event{slow}, true)
		if all := o.overdue(owedFor); len(all) > 0 {
			t.Errorf("%d events at once", len(all))
		}
		time.Sleep(owedFor)
		if all := o.overdue(owedFor); len(all) != 1 || all[0].ID() != slow.ID() {
			t.Errorf("%d events then", len(all))
		}
	})
}
