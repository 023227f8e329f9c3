package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/periodic"
	"sallyport/sandbox"
)

const (
	every = time.Second
	late  = 2 * time.Second // between two looks: this process did not run
	slow  = time.Second     // of the disk, or the worker
)

// Flows are those of the datapath.
type Flows interface {
	Flows() ([]sandbox.Connection, error)
	ForgetFlows([]sandbox.Connection) error
}

// Options of New. All are needed.
type Options struct {
	Flows  Flows
	Dir    string                // of the audit log
	Subnet netip.Prefix          // of sandboxes
	Worker func() int            // process ID of the gateway's worker, 0 for none
	Stats  func() auditlog.Stats // of the log, as its writer says
	Record func(*audit.Event) error
	Logger *slog.Logger
}

// Reconciler compares flows with the audit log.
type Reconciler struct {
	o       Options
	book    *book
	teller  teller
	next    uint64 // number of the event to read next
	file    string // that has been read to its end, as it was written at written
	written time.Time
	last    time.Duration
	worker  int
	lost    uint64 // failures of the log, and events that it dropped
	asked   bool   // lost is of the look before
	failing bool

	open, skipped           atomic.Int64
	unrecorded, unaccounted atomic.Int64
}

// New returns a Reconciler that compares what begins from now on.
func New(o Options) *Reconciler {
	return &Reconciler{o: o, book: newBook(uptime()), teller: teller{}, worker: o.Worker()}
}

// Run compares each second until ctx is done. It returns nil: what fails is logged, and
// what it made uncertain is not compared.
func (r *Reconciler) Run(ctx context.Context) error {
	r.begin(ctx)
	return periodic.Run(ctx, every, func(time.Time) { r.look(ctx) })
}

// uptime is the clock of flows.
func uptime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // which every kernel has
	return time.Duration(now.Nano())
}

// begin finds the end of the log.
func (r *Reconciler) begin(ctx context.Context) {
	for e, err := range auditlog.Read(ctx, r.o.Dir, auditlog.Query{Last: 1}) {
		if err == nil {
			r.next = e.Metadata.Sequence + 1
		}
	}
}

// look compares once.
func (r *Reconciler) look(ctx context.Context) {
	now := uptime()
	if r.last != 0 && now-r.last > late {
		r.book.trouble(now)
	}
	r.last = now
	found, err := r.compare(ctx, now)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.book.trouble(uptime())
		r.book.skipped += len(found)
		found = nil
		if !r.failing {
			r.o.Logger.Warn("connections are not compared with the audit log", "error", err)
		}
	}
	r.failing = err != nil
	r.open.Store(int64(r.book.open))
	r.skipped.Store(int64(r.book.skipped))
	for _, f := range found {
		if f.What == audit.FindingUnrecorded {
			r.unrecorded.Add(1)
		} else {
			r.unaccounted.Add(1)
		}
	}
	for _, f := range r.teller.add(now, found) {
		// Not in the log alone, which is written by who may have something to hide.
		r.o.Logger.Error("the audit log does not account for a connection of a sandbox", "finding", f.What, "sandbox", f.Flow.Sandbox,
			"from", f.Flow.Source, "to", f.Flow.Destination, "sent", f.Flow.Sent, "got", f.Flow.Got, "count", f.Count)
		for _, e := range f.events() {
			if err := r.o.Record(e); err != nil {
				r.o.Logger.Error("an event was lost", "event", e.ID(), "error", err)
			}
		}
	}
}

// compare returns what is found. Findings with an error are none.
func (r *Reconciler) compare(ctx context.Context, now time.Duration) ([]Finding, error) {
	flows, err := r.o.Flows.Flows()
	if err != nil {
		return nil, err
	}
	r.book.see(now, flows)
	if err := r.read(ctx); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	if err := r.check(len(flows) > 0); err != nil {
		return nil, err
	}
	found, forget := r.book.judge(now)
	if err := r.o.Flows.ForgetFlows(forget); err != nil {
		return found, err
	}
	if len(found) > 0 {
		begun := time.Now()
		if err := auditlog.Settle(r.o.Dir); err != nil {
			return found, err
		}
		if took := time.Since(begun); took > slow {
			return found, fmt.Errorf("the audit log's disk took %v", took)
		}
	}
	return found, nil
}

// read reads the log from where it was left to its end, if something was written since.
func (r *Reconciler) read(ctx context.Context) error {
	begun := time.Now()
	file, written, err := auditlog.Written(r.o.Dir)
	if err != nil {
		return err
	}
	if file == r.file && written.Equal(r.written) {
		return nil
	}
	var damage *auditlog.DamageError // what else there is is read all the same
	for e, err := range auditlog.Read(ctx, r.o.Dir, auditlog.Query{From: r.next}) {
		if err != nil && !errors.As(err, &damage) {
			return err
		}
		if err != nil {
			continue
		}
		r.next = e.Metadata.Sequence + 1
		if from, ok := sourceOf(e); ok && r.o.Subnet.Contains(from.Addr()) {
			r.book.record(uptime(), from, e)
		}
	}
	if damage != nil {
		return damage
	}
	if begun.Sub(written) > every { // what is written later has another time
		r.file, r.written = file, written
	}
	return nil
}

// check is an error if connections may have no record for other reasons. While there are
// none, the worker is left alone.
func (r *Reconciler) check(ask bool) error {
	worker := r.o.Worker()
	before, asked := r.worker, r.asked
	r.worker, r.asked = worker, ask
	if worker != before || worker == 0 {
		return fmt.Errorf("the gateway's process was %d, and is %d", before, worker)
	}
	if !ask {
		return nil
	}
	begun := time.Now()
	now := r.o.Stats()
	lost, had := now.Failures+now.Dropped, r.lost
	r.lost = lost
	if took := time.Since(begun); took > slow {
		return fmt.Errorf("the gateway's process took %v to answer", took)
	}
	if asked && lost != had {
		return errLost
	}
	return nil
}

var errLost = errors.New("the audit log could not be written, or its queue was full")

// Collectors are the metrics.
func (r *Reconciler) Collectors() []prometheus.Collector {
	const prefix = "sallyport_flows_"
	counter := func(name, help string, n *atomic.Int64, labels prometheus.Labels) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: prefix + name, Help: help, ConstLabels: labels},
			func() float64 { return float64(n.Load()) })
	}
	const unmatched = "Connections of sandboxes that the audit log does not account for, by what is wrong."
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "open", Help: "Connections of sandboxes that are compared with the audit log."},
			func() float64 { return float64(r.open.Load()) }),
		counter("unmatched_total", unmatched, &r.unrecorded, prometheus.Labels{"finding": audit.FindingUnrecorded}),
		counter("unmatched_total", unmatched, &r.unaccounted, prometheus.Labels{"finding": audit.FindingUnaccounted}),
		counter("not_compared_total", "Connections that began when the log could not be compared, and have no record.", &r.skipped, nil),
	}
}
