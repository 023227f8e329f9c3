package daemon

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/audit/encoding"
	"sallyport/audit/sink"
	"sallyport/gateway/credential"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy/finding"
)

// sinkDaemon is a daemon with an audit log, a store of secrets and sinks, and no more.
func sinkDaemon(t *testing.T, dir, text string) (*daemon, *config.Config) {
	t.Helper()
	cfg := parse(t, dir, text)
	d := &daemon{cfg: cfg, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	must.OK(t, d.openAuditLog(t.Context()))
	sources, end, err := d.sources(cfg)
	must.OK(t, err)
	d.onClose(func() error { end(); return nil })
	d.broker = credential.New(credential.Options{Sources: sources, Bound: func(string, string, uint16) bool { return true }})
	return d, cfg
}

func parse(t *testing.T, dir, text string) *config.Config {
	t.Helper()
	text = "dataDir: " + dir + "/data\nrunDir: " + dir + "/run\nkeyFile: " + dir + "/key\nengine: {kind: none}\n" + text
	cfg, err := config.Parse(filepath.Join(dir, "sallyport.yaml"), []byte(text))
	must.OK(t, err)
	return cfg
}

// A sink of the configuration sends its own credential, which is leased for nothing else,
// to the address that its URL names, and a test of it says what came back.
func TestSinkOfConfiguration(t *testing.T) {
	var mu sync.Mutex
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "ApiKey the-key-of-the-cluster" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		got = append(got, string(body))
		n := strings.Count(string(body), "\n") / 2
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": false, "items": make([]any, n)})
	}))
	defer srv.Close()
	d, _ := sinkDaemon(t, t.TempDir(), "credentials: [{name: cluster}]\naudit:\n  sinks:\n  - {name: siem, type: elasticsearch, url: '"+srv.URL+"', index: a, credential: cluster, addresses: [127.0.0.1/32], batch: {wait: 100ms}}\n")
	if _, err := d.store.Set("cluster", map[string]credential.Secret{"apiKey": credential.NewSecret("the-key-of-the-cluster")}); err != nil {
		t.Fatal(err)
	}
	must.OK(t, d.openSinks(t.Context()))
	d.sinks.origin.Store(&encoding.Origin{Log: "sallyport/test"})
	d.startSinks()
	test, err := d.TestSink(t.Context(), "siem")
	if err != nil || test.Error != "" || !strings.Contains(test.Answer, "200") || test.Sequence == 0 {
		t.Errorf("%+v, %v", test, err)
	}
	if _, err := d.TestSink(t.Context(), "other"); err == nil {
		t.Error("another sink is tested")
	}
	sent := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Count(strings.Join(got, ""), test.UID) >= 4 // _id and uid, by the test and by the sink
	}
	must.Soon(t, "the test's record as one of the log", sent)
	_, err = d.broker.Lease(t.Context(), "cluster", credential.Binding{Host: "api.example.com", Port: 443, Verified: true})
	if !errors.Is(err, credential.ErrNotBound) {
		t.Errorf("a request gets the sink's credential: %v", err)
	}
	if _, err := d.broker.SinkLogin(t.Context(), "cluster", "other"); !errors.Is(err, credential.ErrNotBound) {
		t.Errorf("another sink gets it: %v", err)
	}
	for _, s := range d.sinkStatus() {
		if strings.Contains(s.Answer, "the-key") {
			t.Errorf("the status has the secret: %+v", s)
		}
	}
}

// A cursor of another log is an error with the sink's line, and the sinks in force stay.
func TestSinkOfAnotherLog(t *testing.T) {
	dir := t.TempDir()
	d, cfg := sinkDaemon(t, dir, "audit:\n  sinks:\n  - {name: copy, type: file, path: copy}\n")
	cursor := filepath.Join(cfg.IndexDir(), "sinks", "copy.json")
	must.OK(t, os.MkdirAll(filepath.Dir(cursor), 0o700))
	must.OK(t, os.WriteFile(cursor, []byte(`{"sequence": 7, "uid": "x", "leaf": "`+strings.Repeat("A", 43)+`="}`), 0o600))
	err := d.openSinks(t.Context())
	var f finding.Finding
	if !errors.Is(err, sink.ErrOtherLog) && (!errors.As(err, &f) || !strings.Contains(f.Message, "another log")) {
		t.Fatalf("%v", err)
	}
	if !strings.HasPrefix(err.Error(), filepath.Join(dir, "sallyport.yaml")+":7:5: audit.sinks[0]") || !strings.Contains(err.Error(), cursor) || !strings.Contains(err.Error(), "remove that file") {
		t.Errorf("%v", err)
	}
}

// The daemon connects a sink to what its configuration names, and to public addresses by
// TLS.
func TestSinkAddresses(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	for _, tt := range []struct {
		name string
		text string
		want bool
	}{
		{"written in the URL", "type: https, url: 'https://127.0.0.1'", true},
		{"written as an address", "type: syslog, address: '127.0.0.1:6514'", true},
		{"written as a broker", "type: kafka, topic: a, brokers: ['127.0.0.1:9092']", true},
		{"a name that leads there", "type: https, url: 'https://siem.example.com'", false},
		{"named", "type: https, url: 'https://siem.example.com', addresses: [127.0.0.0/8]", true},
		{"another is named", "type: https, url: 'http://siem.example.com', addresses: [10.0.0.0/8]", false},
	} {
		cfg := parse(t, t.TempDir(), "audit: {sinks: [{name: a, "+tt.text+"}]}\n")
		c, err := sinkConfig(cfg.Audit.Sinks[0])
		must.OK(t, err)
		conn, err := new(daemon).dialSink(t.Context(), c, "tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
		}
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
