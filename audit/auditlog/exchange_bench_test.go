package auditlog_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/auditlog"
)

// BenchmarkExchange is the gateway under the load of make bench: some connections
// each have a request decided on and that made durable, carry it and write down
// what became of it, one after the other. It reports CPU time of the process
// without what carrying took, and beside it what is left of that when there is
// no log, to be subtracted.
func BenchmarkExchange(b *testing.B) {
	for _, carry := range []struct {
		name string
		do   func() (used time.Duration) // CPU time
	}{{"idle", idle}, {"busy", busy}} {
		b.Run(carry.name+"/none", func(b *testing.B) { benchExchange(b, carry.do, 16, nil) })
		for _, connections := range []int{1, 16, 64, 128} {
			b.Run(fmt.Sprintf("%s/log-%d", carry.name, connections), func(b *testing.B) {
				l, err := auditlog.Open(b.TempDir(), auditlog.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				benchExchange(b, carry.do, connections, l)
			})
		}
	}
}

func benchExchange(b *testing.B, carry func() time.Duration, connections int, l *auditlog.Log) {
	var before auditlog.Stats
	if l != nil {
		for range 100 { // past the size from which on there are zeros ahead
			if err := l.Append(b.Context(), decide(new(audit.Exchange))); err != nil {
				b.Fatal(err)
			}
		}
		before = l.Stats()
	}
	var left, carried atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, connections)
	for i := range took {
		took[i] = make([]time.Duration, 0, b.N/2+1000)
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	allocs, start := mem.Mallocs, time.Now()
	user, system, switches := usage()
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if l == nil {
					carried.Add(int64(carry()))
					continue
				}
				x := new(audit.Exchange)
				decision := decide(x)
				at := time.Now()
				if err := l.Append(b.Context(), decision); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(at))
				carried.Add(int64(carry()))
				if err := l.Enqueue(complete(x)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	userThen, systemThen, switchesThen := usage()
	user, system, switches = userThen-user, systemThen-system, switchesThen-switches
	used := user + system - time.Duration(carried.Load())
	runtime.ReadMemStats(&mem)
	n := float64(b.N)
	b.ReportMetric(float64(used.Nanoseconds())/1e3/n, "cpu-µs/req")
	b.ReportMetric(float64(system.Nanoseconds())/1e3/n, "sys-µs/req")
	b.ReportMetric(float64(switches)/n, "switches/req")
	b.ReportMetric(n/elapsed.Seconds(), "req/s")
	b.ReportMetric(0, "ns/op")
	if l == nil || b.Failed() {
		return
	}
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(float64(mem.Mallocs-allocs)/n, "allocs/req")
	b.ReportMetric(float64(l.Stats().Syncs-before.Syncs)/n, "syncs/req")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// idle waits 100 to 500 µs or as soon after as the runtime's timers manage: the
// processors have little to do.
func idle() time.Duration {
	time.Sleep(100*time.Microsecond + rand.N(400*time.Microsecond))
	return 0
}

// busy keeps all processors busy for the 200 µs of CPU time that a request
// takes under make bench of gateway, load and upstream together, and lets
// others have their turn as often as a gateway that reads and writes does.
func busy() (used time.Duration) {
	for range 4 {
		used += spin(50 * time.Microsecond)
		runtime.Gosched()
	}
	return used
}

// spin uses d of CPU time and returns how much it was.
func spin(d time.Duration) time.Duration {
	start := threadTime()
	for spun := 0; ; runtime.KeepAlive(spun) {
		for range 20_000 {
			spun++
		}
		// A goroutine that was moved to another thread has other times there.
		if used := threadTime() - start; used >= d || used < 0 {
			return min(max(used, 0), 2*d)
		}
	}
}

// usage is what the process used: CPU time in user and system mode, and how
// often one of its threads went to sleep.
func usage() (user, system time.Duration, switches int64) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano()), r.Nvcsw
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// The parts that the events of one connection share.
var (
	from        = &audit.Endpoint{IP: "10.231.0.7", Port: 40000}
	headerNames = []string{"Accept", "Content-Length", "Content-Type", "User-Agent"}
	decided     = []audit.CredentialUse{{Name: "example-key"}}
	used        = []audit.CredentialUse{{Name: "example-key", Version: "3"}}
)

// decide is the decision that the gateway writes for an allowed request.
func decide(x *audit.Exchange) *audit.Event {
	e := x.Decide(audit.ClassHTTP, audit.HTTPActivity("POST"))
	e.Action, e.Disposition = audit.ActionAllowed, audit.DispositionAllowed
	e.Source, e.Destination, e.HTTPRequest, e.TLS, e.Rule, e.Policy = from, &x.Destination, &x.Request, &x.TLS, &x.Rule, &x.Policy
	x.Destination = audit.Endpoint{Hostname: "api.example.test", Port: 443}
	x.Request = audit.HTTPRequest{Method: "POST", Version: "HTTP/1.1", Length: 1234, URL: &x.URL}
	x.URL = audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: "/v1/chat/completions"}
	x.TLS = audit.TLS{SNI: "api.example.test"}
	x.Rule = audit.Rule{Name: "example", Type: "egressAuth"}
	x.Policy = audit.Policy{Version: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.Phase, s.Decision = "demo", "request", "allow"
	s.SandboxID, s.Session = "0192f0c1-0000-7000-8000-000000000001", "0192f0c1-0000-7000-8000-000000000002"
	s.Credentials = decided
	s.Reason = "egressAuth rule example allows it"
	s.HeaderNames = headerNames
	return e
}

// complete is what the gateway writes when it is over.
func complete(x *audit.Exchange) *audit.Event {
	c := x.Complete(x.Decision.ActivityID)
	c.HTTPResponse, c.Traffic = &x.Response, &x.Traffic
	x.Response = audit.HTTPResponse{Code: 200, Length: 1024}
	x.Traffic = audit.Traffic{BytesIn: 1024, BytesOut: 1234}
	c.Unmapped.Sallyport.Credentials = used
	return c
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("POST"))
	}
}

// BenchmarkEvents makes a request's two events.
func BenchmarkEvents(b *testing.B) {
	b.ReportAllocs()
	x := new(audit.Exchange)
	for b.Loop() {
		decide(x)
		complete(x)
	}
}
