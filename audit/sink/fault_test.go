package sink_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/sink"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

// poison is in a record that no receiver takes.
const poison = "poisoned"

// Faults of a network.
const (
	passes    = iota
	blackhole // what is sent is lost, and nothing comes
	resets
	deaf // what is sent arrives, and no answer does
	slow
)

// network is what a sink reaches its receiver through.
type network struct{ fault atomic.Int64 }

func (n *network) dial(ctx context.Context, _ sink.Config, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &faulty{TCPConn: conn.(*net.TCPConn), in: n, closed: make(chan struct{}), changed: make(chan struct{})}, nil
}

type faulty struct {
	*net.TCPConn
	in     *network
	once   sync.Once
	closed chan struct{}

	mu      sync.Mutex
	until   time.Time     // when a Read ends
	changed chan struct{} // closed when that changes
}

func (c *faulty) reset() error {
	_ = c.SetLinger(0)
	_ = c.Close()
	return &net.OpError{Op: "read", Err: syscall.ECONNRESET}
}

func (c *faulty) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.TCPConn.Close()
}

func (c *faulty) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *faulty) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	close(c.changed)
	c.changed = make(chan struct{})
	return c.TCPConn.SetReadDeadline(t)
}

// hang is a Read to which nothing comes.
func (c *faulty) hang() error {
	for {
		c.mu.Lock()
		until, changed := c.until, c.changed
		c.mu.Unlock()
		var late <-chan time.Time
		if !until.IsZero() {
			late = time.After(time.Until(until))
		}
		select {
		case <-late:
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		case <-changed:
		}
	}
}

func (c *faulty) Write(b []byte) (int, error) {
	switch c.in.fault.Load() {
	case blackhole:
		return len(b), nil
	case resets:
		_, _ = c.TCPConn.Write(b[:len(b)/2])
		return 0, c.reset()
	case slow:
		n := 0
		for part := range slices.Chunk(b, max(len(b)/3, 1)) {
			time.Sleep(time.Millisecond)
			m, err := c.TCPConn.Write(part)
			if n += m; err != nil {
				return n, err
			}
		}
		return n, nil
	}
	return c.TCPConn.Write(b)
}

func (c *faulty) CloseWrite() error {
	if c.in.fault.Load() == blackhole {
		return nil
	}
	return c.TCPConn.CloseWrite()
}

func (c *faulty) Read(b []byte) (int, error) {
	if c.in.fault.Load() == blackhole {
		return 0, c.hang()
	}
	n, err := c.TCPConn.Read(b)
	switch c.in.fault.Load() {
	case blackhole:
		return 0, c.hang()
	case resets, deaf:
		return 0, c.reset()
	}
	return n, err
}

// trail is a log and what sends it.
type trail struct {
	t        *testing.T
	dir      string // has the log, and the cursors in sinks
	log      *auditlog.Log
	net      network
	receiver *receiver
	set      *sink.Set
	held     atomic.Pointer[string]
	secret   atomic.Pointer[chan struct{}] // what a question for the secret waits for
	asked    atomic.Bool                   // one waits
}

func newTrail(t *testing.T, r *receiver) *trail {
	l := &trail{t: t, dir: t.TempDir(), receiver: r}
	log, err := auditlog.Open(l.dir, auditlog.Options{})
	must.OK(t, err)
	t.Cleanup(func() { _ = log.Close() })
	l.log = log
	t.Cleanup(func() {
		if t.Failed() && l.set != nil {
			t.Logf("%+v", l.set.Status())
		}
	})
	r.config.Name, r.config.Encoding = "one", "ocsf"
	if r.config.Batch.Events == 0 {
		r.config.Batch = sink.Batch{Events: 10, Bytes: 1 << 20, Wait: 2 * time.Millisecond}
	}
	if r.config.Bound == 0 {
		r.config.Bound = 1 << 30
	}
	return l
}

func (l *trail) append(n int, message string) {
	l.t.Helper()
	var events []*audit.Event
	for range n {
		e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
		e.Message = message
		events = append(events, e)
	}
	must.OK(l.t, l.log.Append(l.t.Context(), events...))
}

// lines are the records of the log by uid.
func (l *trail) lines() map[string]string {
	l.t.Helper()
	all := map[string]string{}
	for r, err := range l.read(l.t.Context(), 1, false) {
		must.OK(l.t, err)
		all[r.Event.ID()] = string(r.JSON)
	}
	return all
}

func (l *trail) read(ctx context.Context, from uint64, follow bool) iter.Seq2[auditlog.Entry, error] {
	return auditlog.Entries(ctx, l.dir, auditlog.Query{From: from, Follow: follow})
}

func (l *trail) options() sink.Options {
	o := sink.Options{
		Log: l.dir, Dir: filepath.Join(l.dir, "sinks"), Dead: filepath.Join(l.dir, "dead"),
		Durable: func() uint64 { return l.log.Begins() - 1 + l.log.Stats().Events },
		Record:  func(ctx context.Context, e *audit.Event) error { return l.log.Append(ctx, e) },
		Secret: func(context.Context, sink.Config) (map[string]string, error) {
			if c := l.secret.Load(); c != nil {
				l.asked.Store(true)
				<-*c
			}
			return l.receiver.secret, nil
		},
		Dial: l.net.dial, Hold: func(reason string) { l.held.Store(&reason) }, Logger: slog.New(slog.DiscardHandler),
	}
	o.Hurry(2*time.Millisecond, 400*time.Millisecond)
	return o
}

// start sends with a new Set until stop, or the end of the test.
func (l *trail) start() (stop func()) {
	l.t.Helper()
	return l.startAfter(func() {})
}

// startAfter starts, and does something between reading the cursor and the first record.
func (l *trail) startAfter(between func()) (stop func()) {
	l.t.Helper()
	l.set = sink.NewSet(l.options())
	plan, err := l.set.Prepare(l.t.Context(), []sink.Config{l.receiver.config})
	must.OK(l.t, err)
	between()
	l.set.Use(plan)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.set.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	l.t.Cleanup(stop)
	return stop
}

func (l *trail) status() sink.Status { return l.set.Status()[0] }

// complete waits until the receiver has the log, and checks that each copy of a record is
// the record.
func (l *trail) complete() (copies int) {
	l.t.Helper()
	last := uint64(len(l.lines()))
	must.Soon(l.t, "the cursor", func() bool { return l.status().Cursor == last })
	want := l.lines()
	got := map[string]int{}
	lost := len(want)
	// A real server has received what it has not written yet.
	for deadline := time.Now().Add(2 * time.Minute); lost > 0 && time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		clear(got)
		copies = 0
		for _, line := range l.receiver.read(l.t) {
			uid := uidOf(line)
			if want[uid] != line {
				l.t.Fatalf("a record that is not in the log: %.300s", line)
			}
			if got[uid]++; got[uid] > 1 {
				copies++
			}
		}
		lost = len(want) - len(got)
	}
	for uid := range maps.Keys(want) {
		if got[uid] == 0 {
			l.t.Errorf("record %s of %d is lost", uid, len(want))
		}
	}
	return copies
}

func uidOf(line string) string {
	_, rest, _ := strings.Cut(line, `"uid":"`)
	uid, _, _ := strings.Cut(rest, `"`)
	return uid
}

var receivers = map[string]func(*testing.T) *receiver{
	"file": fileReceiver, "syslog": syslogReceiver, "splunk": splunkReceiver, "otlp": otlpReceiver,
	"elasticsearch": elasticsearchReceiver, "kafka": kafkaReceiver, "s3": s3Receiver, "https": httpsReceiver,
}

// No fault of a receiver, or of the way to it, loses a record, and each copy of a record
// is the same one.
func TestFaults(t *testing.T) {
	network := func(fault int64) func(*testing.T, *trail) {
		return func(t *testing.T, l *trail) {
			l.net.fault.Store(fault)
			l.append(30, "while there is a fault")
			switch fault {
			case slow:
				must.Soon(t, "records", func() bool { return l.status().Sent >= 50 })
			default:
				must.Soon(t, "failures", func() bool { return l.status().Retries >= 2 })
				if s := l.status(); s.Away.IsZero() || s.Answer == "" {
					t.Errorf("nothing tells of the fault: %+v", s)
				}
			}
			l.net.fault.Store(passes)
		}
	}
	refusal := func(status int) func(*testing.T, *trail) {
		return func(t *testing.T, l *trail) {
			l.receiver.refuse(status)
			l.append(30, "while they are refused")
			must.Soon(t, "failures", func() bool { return l.status().Retries >= 3 })
			l.receiver.refuse(0)
		}
	}
	faults := map[string]func(*testing.T, *trail){
		"none":        func(*testing.T, *trail) {},
		"blackholed":  network(blackhole),
		"reset":       network(resets),
		"slow":        network(slow),
		"answer lost": network(deaf),
		"429":         refusal(429),
		"500":         refusal(500),
	}
	for _, name := range slices.Sorted(maps.Keys(receivers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fault := range slices.Sorted(maps.Keys(faults)) {
				refusal := fault == "429" || fault == "500"
				if name == "file" && fault != "none" || name == "syslog" && refusal {
					continue // there is no network, or no answer
				}
				t.Run(fault, func(t *testing.T) {
					t.Parallel()
					l := newTrail(t, receivers[name](t))
					l.append(35, "before")
					l.start()
					must.Soon(t, "the first records", func() bool { return l.status().Sent >= 10 })
					faults[fault](t, l)
					l.append(15, "after")
					copies := l.complete()
					if s := l.status(); !s.Away.IsZero() || s.Refused+s.Lost > 0 {
						t.Errorf("status at the end: %+v", s)
					}
					if fault == "answer lost" && copies == 0 && name != "elasticsearch" && name != "s3" {
						t.Error("nothing was sent twice: was the answer lost?")
					}
				})
			}
		})
	}
}

// A sink that is ended anywhere goes on where it was.
func TestRestarts(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(receivers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTrail(t, receivers[name](t))
			for n := range 6 {
				l.append(25, fmt.Sprint("before restart ", n))
				stop := l.start()
				before := l.status().Cursor
				must.Soon(t, "some of them", func() bool { return l.status().Cursor > before })
				stop()
			}
			l.start()
			l.complete()
		})
	}
}
