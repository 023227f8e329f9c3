package gateway_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// How much a soak does. SALLYPORT_SOAK sets another time, as 2m; SALLYPORT_SEED
// has the clients throw the dice of an earlier run.
const (
	soakFor     = 2 * time.Second
	soakClients = 8
	soakMost    = 300_000 // exchanges
)

// soaking tells whether loops run as often as they do in make soak.
func soaking() bool { return os.Getenv("SALLYPORT_SOAK") != "" }

// soak is a gateway with the real policy, audit log and way out, and with
// upstreams that work, fail and cannot be trusted.
type soak struct {
	*netEnv
	engine   *engine.Engine
	policies []*engine.Policy
	sources  map[string]credential.Source
	log      *auditlog.Log
	dir      string // of the log

	well, ill map[string]*origin // by version
	leaving   *origin            // of HTTP/2, ends connections as it pleases
	plain     *origin
	refused   []*origin // where TLS or TCP fails
	mutes     *origin
	raw       *origin // what is neither TLS nor HTTP
	clients   []agent
	left      atomic.Int64 // exchanges

	mu       sync.Mutex
	done     map[string]int // scenarios by name
	stale    int
	failures int
}

// agent is a client with what it speaks.
type agent struct {
	*http.Client
	version string
	dial    dialler
}

// Append and Enqueue are the log's.
func (s *soak) Append(ctx context.Context, events ...*audit.Event) error {
	return s.log.Append(ctx, events...)
}
func (s *soak) Enqueue(e *audit.Event) error { return s.log.Enqueue(e) }

// newSoak starts everything there is before the first connection.
func newSoak(t *testing.T, long time.Duration) *soak {
	t.Helper()
	s := &soak{dir: t.TempDir(), done: map[string]int{}, well: map[string]*origin{}, ill: map[string]*origin{}}
	s.left.Store(soakMost)
	var err error
	if s.log, err = auditlog.Open(s.dir, auditlog.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.log.Close() })
	if err := s.log.Append(t.Context(), audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)); err != nil { // accepts its file
		t.Fatal(err)
	}
	// Idle connections end soon, so that they end while others are taken up.
	pool := upstream.New(upstream.Options{Logger: slog.New(slog.DiscardHandler), IdleTimeout: 300 * time.Millisecond, HandshakeTimeout: 5 * time.Second})
	t.Cleanup(pool.Close)
	s.engine = engine.NewEngine(nil)
	s.netEnv = newNetEnv(t, func(o *gateway.Options) {
		o.Upstreams, o.Recorder, o.Decider = pool, s, s.engine
		o.FirstByteTimeout, o.HandshakeTimeout = 200*time.Millisecond, 15*time.Second
		o.Logger = slog.New(&alarm{Handler: slog.DiscardHandler, t: t})
	})
	s.quiet = true
	for _, version := range []string{"h1", "h2"} {
		s.well[version] = s.origin(version+".example.test", version, true)
		serveWell(s.well[version])
		s.ill[version] = s.origin("ill-"+version+".example.test", version, true)
		serveIll(s.ill[version])
	}
	s.leaving = s.origin("leaving.example.test", "h2", true)
	serveWell(s.leaving)
	s.plain = s.origin("plain.example.test", "h1", false)
	serveWell(s.plain)
	s.refused = []*origin{s.expired("expired.example.test"), s.misnamed("misnamed.example.test"), s.nobody("nobody.example.test")}
	s.mutes = s.mute("mute.example.test")
	s.raw = s.bytes("raw.example.test", "")
	for _, way := range []dialler{s.steer, s.connect} {
		for _, version := range []string{"h1", "h2"} {
			s.clients = append(s.clients, agent{s.agent(version, true, way, false), version, way})
		}
	}
	s.compile()
	return s
}

// alarm fails a test on what the gateway calls an error, panics for one.
type alarm struct {
	slog.Handler
	t *testing.T
}

func (a *alarm) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (a *alarm) WithAttrs([]slog.Attr) slog.Handler           { return a }
func (a *alarm) WithGroup(string) slog.Handler                { return a }
func (a *alarm) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(at slog.Attr) bool { text += " " + at.String(); return true })
	a.t.Errorf("the gateway says: %s", text)
	return nil
}

// compile makes the two policies that take turns: what is sometimes allowed is
// in one of them.
func (s *soak) compile() {
	s.t.Helper()
	s.sources = map[string]credential.Source{"key": secret(token)}
	for turn := range 2 {
		d := policy.Document{Credentials: []policy.Credential{{Name: "key"}}}
		paths := []string{"/open/**"}
		if turn == 1 {
			paths = append(paths, "/sometimes")
		}
		keyed := []*origin{s.well["h1"], s.well["h2"], s.leaving, s.ill["h1"], s.ill["h2"]}
		for _, o := range keyed {
			d.EgressAuth = append(d.EgressAuth, policy.EgressAuthRule{
				Destination: o.name, Ports: []uint16{o.port}, Paths: paths, AuthRef: "key", Upstream: s.reach,
			})
		}
		for _, o := range append([]*origin{s.plain, s.mutes}, s.refused...) {
			d.Egress = append(d.Egress, policy.EgressRule{
				Destination: o.name, Ports: []uint16{o.port}, Paths: paths, Plain: o == s.plain, Upstream: s.reach,
			})
		}
		d.Egress = append(d.Egress, policy.EgressRule{
			Destination: s.raw.name, Ports: []uint16{s.raw.port}, Action: policy.Tunnel, Upstream: s.reach,
		})
		p, err := engine.Compile(s.t.Context(), d, engine.Options{Timeout: time.Minute})
		must.OK(s.t, err)
		s.policies = append(s.policies, p)
	}
	s.broker = credential.New(credential.Options{Sources: s.sources, Revision: s.policies[0].Revision(), Bound: s.engine.Bound})
	s.engine.Swap(s.policies[0])
}

// swap is what a reload does, again and again.
func (s *soak) swap(ctx context.Context) {
	for turn := 1; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(250 * time.Millisecond):
		}
		p := s.policies[turn%2]
		s.broker.Replace(s.sources, p.Revision())
		s.engine.Swap(p)
	}
}

// inboundConn is one client that throws dice.
type inboundConn struct {
	*soak
	*rand.Rand
	name string
}

// inboundRequest plays scenarios until the time is up.
func (v *inboundConn) visit(until time.Time) {
	for time.Now().Before(until) && v.left.Add(-1) > 0 {
		play := scenarios[v.IntN(len(scenarios))]
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := play.do(v, ctx)
		late := ctx.Err()
		cancel()
		v.mu.Lock()
		switch {
		case errors.Is(err, errStalePolicy):
			v.stale++
		case err != nil || late != nil:
			if v.failures++; v.failures <= 20 {
				v.t.Errorf("%s, client %s: %v %v", play.name, v.name, err, late)
			}
		default:
			v.done[play.name]++
		}
		v.mu.Unlock()
	}
}

// search looks for the secret in what a client got.
func (s *soak) search(b []byte, where string) {
	for _, spelling := range spellings {
		if bytes.Contains(b, spelling) {
			s.t.Errorf("%s gives the secret back: %.300q", where, b)
		}
	}
}

var spellings = [][]byte{[]byte(token), []byte(base64.StdEncoding.EncodeToString([]byte("Bearer " + token)))}

// kept is what a process has, which has to be as before when all is over.
type kept struct {
	goroutines int
	files      []string
}

func holding() (k kept) {
	// Pipes that the kernel copied through wait for the collector, twice.
	runtime.GC()
	runtime.GC()
	k.goroutines = runtime.NumGoroutine()
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil { // not what was read with
			k.files = append(k.files, to)
		}
	}
	return k
}

// returned waits until there is no more than before, and says what remains.
func returned(t *testing.T, before kept, also func() string) {
	t.Helper()
	var now kept
	var rest string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		now, rest = holding(), also()
		if now.goroutines <= before.goroutines && len(now.files) <= len(before.files) && rest == "" {
			return
		}
	}
	var stacks strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	t.Errorf("%+v after %+v, %s\n%.20000s", now, before, rest, stacks.String())
}

// gauge is the value of one of the gateway's metrics, over all labels.
func (l *env) gauge(name string) (total float64) {
	families, err := l.registry.Gather()
	must.OK(l.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			total += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return total
}

// open says what is still open on either side of the gateway.
func (s *soak) open() string {
	var list []string
	if n := s.gauge("sallyport_gateway_connections"); n != 0 {
		list = append(list, fmt.Sprintf("%v connections of sandboxes", n))
	}
	for _, o := range append([]*origin{s.well["h1"], s.well["h2"], s.leaving, s.ill["h1"], s.ill["h2"], s.plain, s.mutes}, s.refused...) {
		if n := o.open.Load(); n > 0 {
			list = append(list, fmt.Sprintf("%d connections to %s", n, o.name))
		}
	}
	return strings.Join(list, ", ")
}

// TestSoak is traffic of every kind at once, good and bad on both sides, over a policy that
// changes. Good traffic has to work, no secret comes back, and when it is over nothing is left
// of it but as many completions as decisions.
func TestSoak(t *testing.T) {
	long := soakFor
	if d, err := time.ParseDuration(os.Getenv("SALLYPORT_SOAK")); err == nil {
		long = d
	}
	seed, err := strconv.ParseUint(os.Getenv("SALLYPORT_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("SALLYPORT_SEED=%d", seed)
	s := newSoak(t, long)
	before := holding()

	until := time.Now().Add(long)
	ctx, cancel := context.WithCancel(t.Context())
	var changes, visits sync.WaitGroup
	changes.Go(func() { s.swap(ctx) })
	for i := range soakClients {
		visits.Go(func() { (&inboundConn{s, rand.New(rand.NewPCG(seed, uint64(i))), fmt.Sprint(i)}).visit(until) })
	}
	visits.Wait()
	cancel()
	changes.Wait()
	returned(t, before, func() string {
		for _, c := range s.clients {
			c.CloseIdleConnections() // each time: one that a stream has just left is not idle yet
		}
		return s.open()
	})

	for _, play := range scenarios {
		if s.done[play.name] == 0 && long >= time.Minute { // the dice may leave one out before
			t.Errorf("%s has not been played once", play.name)
		}
	}
	decided, completed := s.counts(t)
	for _, name := range slices.Sorted(maps.Keys(s.done)) {
		t.Logf("%6d %s", s.done[name], name)
	}
	t.Logf("%d decisions to allow, %d completions, %d requests came between two policies, %d failures", decided, completed, s.stale, s.failures)
}

// counts reads the log as an auditor would: every decision that allowed has one
// completion, and every completion a decision.
func (s *soak) counts(t *testing.T) (decided, completed int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_ = s.gateway.Shutdown(ctx) // which writes what waits
	must.OK(t, s.log.Close())
	open, told := map[string]*audit.Event{}, map[string]int{}
	var early []*audit.Event
	for e, err := range auditlog.Read(t.Context(), s.dir, auditlog.Query{}) {
		must.OK(t, err)
		id := e.Metadata.CorrelationUID
		switch {
		case e.Unmapped.Sallyport.Kind == audit.KindCompletion:
			completed++
			if told[id]++; told[id] > 1 {
				t.Errorf("completion %d of %s: %s", told[id], id, auditlog.Line(auditlog.Record{Decision: e}))
			}
			if open[id] == nil {
				early = append(early, e)
			}
			delete(open, id)
		case e.Unmapped.Sallyport.Kind == audit.KindDecision && e.Action == audit.ActionAllowed:
			decided++
			if told[e.ID()] == 0 {
				open[e.ID()] = e
			}
		}
	}
	for i, e := range early {
		if i < 5 {
			t.Errorf("a completion without a decision: %s %+v", auditlog.Line(auditlog.Record{Decision: e}), e.Detail)
		}
	}
	n := 0
	for _, e := range open {
		if n++; n <= 5 {
			t.Errorf("a decision without a completion: %s", auditlog.Line(auditlog.Record{Decision: e}))
		}
	}
	if decided != completed || decided == 0 {
		t.Errorf("%d decisions to allow, %d completions", decided, completed)
	}
	return decided, completed
}
