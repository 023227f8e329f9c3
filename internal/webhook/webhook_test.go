package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/webhook"
	"sallyport/internal/webhook/signature"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secret   = []byte("0123456789abcdef0123456789abcdef")
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
)

// server takes what it is told to.
type server struct {
	*httptest.Server
	reached atomic.Int32 // changes of connections: no handshake is needed to have been there

	mu     sync.Mutex
	status int
	calls  int
	got    []string // types that were taken, and IDs of calls that were not
	bad    []string
}

func newServer(t *testing.T) *server {
	s := &server{status: 200}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls++
		id, stamp := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
		var m struct {
			Type string
			Data struct{ ID, Type string }
		}
		if err := json.Unmarshal(body, &m); err != nil || m.Data.ID != id || m.Type != m.Data.Type || r.Header.Get("webhook-signature") != signature.Sign(secret, id, stamp, body) {
			s.bad = append(s.bad, fmt.Sprintf("%s %v %s", r.Header, err, body))
		}
		if s.status == 200 {
			s.got = append(s.got, m.Type)
		} else {
			s.got = append(s.got, id)
		}
		if s.status == 302 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(s.status)
	}))
	s.Config.ConnState = func(net.Conn, http.ConnState) { s.reached.Add(1) }
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *server) answers(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *server) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// trail is a log in a folder.
type trail struct {
	t   *testing.T
	dir string
	log *auditlog.Log
}

func newTrail(t *testing.T) *trail {
	dir := t.TempDir()
	log, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(t, err)
	t.Cleanup(func() { log.Close() })
	return &trail{t, dir, log}
}

func (l *trail) append(app, state string) {
	l.t.Helper()
	e := audit.Change(app, state)
	must.OK(l.t, l.log.Append(l.t.Context(), e))
}

func (l *trail) events(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error] {
	return auditlog.Read(ctx, l.dir, auditlog.Query{From: from, Kind: audit.KindLifecycle, Follow: follow})
}

// run tells the server until the test ends, or stop is called.
func run(t *testing.T, l *trail, dir string, h webhook.Hook, giveUp time.Duration) (stop func()) {
	t.Helper()
	s, err := webhook.New(h, webhook.Options{Dir: dir, Events: l.events, Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, err)
	s.Hurry(20*time.Millisecond, giveUp)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Events that are wanted arrive signed and in order; what a server does not take
// is sent again with the same ID, also after a restart, and nothing is lost or
// sent again after it was taken.
func TestDelivery(t *testing.T) {
	l, srv, dir := newTrail(t), newServer(t), t.TempDir()
	h := webhook.Hook{URL: srv.URL, Events: []string{"sandbox.*", "key.created"}, Secret: secret, Addresses: loopback}
	stop := run(t, l, dir, h, time.Hour)
	l.append("sandbox/a", "created")
	l.append("secret/b", "set")
	l.append("key/c", "created")
	l.append("key/c", "removed")
	must.Soon(t, "two events", func() bool { return len(srv.seen()) == 2 })
	srv.answers(500)
	l.append("sandbox/a", "started")
	l.append("sandbox/a", "stopped")
	must.Soon(t, "attempts", func() bool { return len(srv.seen()) >= 5 })
	stop()
	failed := srv.seen()[2:]
	if slices.ContainsFunc(failed, func(id string) bool { return id != failed[0] }) {
		t.Errorf("the attempts are of several events: %q", failed)
	}
	l.append("sandbox/a", "removed") // while nobody sends
	srv.answers(200)
	before := len(srv.seen())
	run(t, l, dir, h, time.Hour)
	must.Soon(t, "what waited", func() bool { return len(srv.seen()) == before+3 })
	time.Sleep(100 * time.Millisecond)
	got := append(srv.seen()[:2], srv.seen()[before:]...)
	if want := "sandbox.created key.created sandbox.started sandbox.stopped sandbox.removed"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
	if len(srv.bad) > 0 {
		t.Errorf("not as the standard says: %q", srv.bad)
	}
}

// An event that nobody takes is passed over in the end, and one that has gone is
// left alone; a redirect is no way to somewhere else.
func TestGivesUp(t *testing.T) {
	l, srv, dir := newTrail(t), newServer(t), t.TempDir()
	srv.answers(302)
	run(t, l, dir, webhook.Hook{URL: srv.URL, Secret: secret, Addresses: loopback}, 200*time.Millisecond)
	l.append("sandbox/a", "created")
	must.Soon(t, "attempts", func() bool { return len(srv.seen()) >= 2 })
	must.Soon(t, "it to be passed over", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		return slices.ContainsFunc(files, func(f string) bool {
			text, err := os.ReadFile(f)
			return err == nil && bytes.Contains(text, []byte(`"skipped":`))
		})
	})
	srv.answers(200)
	l.append("sandbox/a", "started")
	must.Soon(t, "the next", func() bool { return slices.Contains(srv.seen(), "sandbox.started") })
	if slices.Contains(srv.seen(), "sandbox.created") {
		t.Errorf("%q", srv.seen())
	}
	srv.answers(410)
	calls := len(srv.seen())
	l.append("sandbox/a", "stopped")
	must.Soon(t, "the last call", func() bool { return len(srv.seen()) == calls+1 })
	l.append("sandbox/a", "removed")
	time.Sleep(300 * time.Millisecond)
	if n := len(srv.seen()); n != calls+1 {
		t.Errorf("%d calls after it has gone", n-calls-1)
	}
}

// No name leads to an address of the host's own networks, unless that is named.
func TestPrivateAddresses(t *testing.T) {
	l, srv := newTrail(t), newServer(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	for _, h := range []webhook.Hook{
		{URL: srv.URL}, {URL: "http://localhost:" + port}, {URL: "https://127.0.0.1:" + port},
		{URL: srv.URL, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		{URL: "http://[::ffff:127.0.0.1]:" + port},
	} {
		h.Secret = secret
		run(t, l, t.TempDir(), h, time.Hour)
	}
	l.append("sandbox/a", "created")
	time.Sleep(300 * time.Millisecond)
	if n := srv.reached.Load(); n != 0 || len(srv.seen()) != 0 {
		t.Errorf("%d connections, %q", n, srv.seen())
	}
}
