package siem_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/sink"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// The real rsyslog, with the configuration beside this test, has each record byte for byte
// as it is in the log, also a long one, and a line for each denial.
func TestRsyslog(t *testing.T) {
	program := rsyslog(t)
	ca, err := testnet.NewCA()
	must.OK(t, err)
	dir := t.TempDir()
	port := startRsyslog(t, program, dir, ca)

	folder := filepath.Join(dir, "audit")
	log, err := auditlog.Open(folder, auditlog.Options{})
	must.OK(t, err)
	defer log.Close()
	events := request("demo", "api.github.com", "github-token", true, morning)
	events = append(events, request("demo", "evil.example.com", "", false, morning)...)
	events[0].HTTPRequest.URL.Path = "/" + strings.Repeat("ä\"\\ %", 20_000)
	events[2].Unmapped.Sallyport.Reason = "no rule allows it"
	must.OK(t, log.Append(t.Context(), events...))
	want := ""
	for entry, err := range auditlog.Entries(t.Context(), folder, auditlog.Query{}) {
		must.OK(t, err)
		want += string(entry.JSON) + "\n"
	}
	if len(want) < 100<<10 {
		t.Fatalf("no long record: %d bytes", len(want))
	}
	send(t, folder, dir, sink.Config{
		Name: "rsyslog", Type: sink.Syslog, Address: "127.0.0.1:" + port, TLS: sink.TLS{Roots: ca.PEM()},
		Batch: sink.Batch{Events: 100, Bytes: 1 << 20, Wait: time.Millisecond}, Bound: 1 << 30,
	})
	got := await(t, filepath.Join(dir, "audit.jsonl"), len(want))
	if got != want {
		t.Errorf("rsyslog has %d bytes %.300q…, want %d %.300q…", len(got), got, len(want), want)
	}
	const denial = "2026-11-20T08:00:00.000Z demo request evil.example.com no rule allows it\n"
	if got := await(t, filepath.Join(dir, "denied.log"), len(denial)); got != denial {
		t.Errorf("denials: %q", got)
	}
}

// rsyslog is the command of an rsyslog that is installed, or that setup.sh has unpacked.
func rsyslog(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	cache, _ := os.UserCacheDir()
	root := filepath.Join(cache, "sallyport", "syslog")
	if program := filepath.Join(root, "usr/sbin/rsyslogd"); exists(program) {
		modules, _ := filepath.Glob(root + "/usr/lib/*/rsyslog")
		return func(args ...string) *exec.Cmd {
			c := exec.Command(program, append(args, "-M", strings.Join(modules, ":"))...)
			c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(modules[0])+":"+strings.Replace(filepath.Dir(modules[0]), "/usr/lib/", "/lib/", 1))
			return c
		}
	}
	for _, program := range []string{"/usr/sbin/rsyslogd", "/sbin/rsyslogd"} {
		if exists(program) {
			return func(args ...string) *exec.Cmd { return exec.Command(program, args...) }
		}
	}
	must.Lack(t, "no rsyslogd: run internal/setup/setup.sh test")
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startRsyslog starts rsyslog with the configuration beside this test, which works in dir,
// and returns its port.
func startRsyslog(t *testing.T, program func(...string) *exec.Cmd, dir string, ca *testnet.CA) string {
	t.Helper()
	leaf, err := ca.Leaf("127.0.0.1")
	must.OK(t, err)
	var chain, key bytes.Buffer
	for _, c := range leaf.Certificate {
		_ = pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: c})
	}
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	must.OK(t, err)
	_ = pem.Encode(&key, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	conf, err := os.ReadFile("rsyslog/sallyport.conf")
	must.OK(t, err)
	text := string(conf)
	for from, to := range map[string]string{
		`"/etc/sallyport-siem/`:     `"` + dir + `/`,
		`"/var/log/sallyport-siem/`: `"` + dir + `/`,
		`port="6514"`:               `address="127.0.0.1" port="0" listenPortFileName="` + dir + `/port"`,
	} {
		if !strings.Contains(text, from) {
			t.Fatalf("the configuration has no %s", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	for name, content := range map[string]string{"ca.pem": string(ca.PEM()), "server.pem": chain.String(), "server.key": key.String(), "rsyslog.conf": text} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if out, err := program("-N1", "-f", dir+"/rsyslog.conf").CombinedOutput(); err != nil {
		t.Fatalf("the configuration: %v %s", err, out)
	}
	var said bytes.Buffer
	c := program("-n", "-f", dir+"/rsyslog.conf", "-i", dir+"/pid")
	c.Stdout, c.Stderr = &said, &said
	must.OK(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || t.Failed() {
			t.Logf("rsyslogd: %v %s", err, said.String())
		}
	})
	return strings.TrimSpace(await(t, dir+"/port", 1))
}

// await returns a file when it has so many bytes, or what it has after a time.
func await(t *testing.T, path string, size int) string {
	t.Helper()
	var b []byte
	for end := time.Now().Add(2 * time.Minute); len(b) < size && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		b, _ = os.ReadFile(path)
	}
	return string(b)
}

// send has a sink send a log, until its receiver has taken all of it.
func send(t *testing.T, log, dir string, c sink.Config) {
	t.Helper()
	last := uint64(0)
	for e, err := range auditlog.Entries(t.Context(), log, auditlog.Query{}) {
		must.OK(t, err)
		last = e.Number
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	set := sink.NewSet(sink.Options{
		Log: log, Dir: filepath.Join(dir, "sinks"), Dead: filepath.Join(dir, "dead"), Logger: slog.New(slog.DiscardHandler),
		Durable: func() uint64 { return last },
		Record:  func(context.Context, *audit.Event) error { return fmt.Errorf("a gap") }, Hold: func(string) {},
		Dial: func(ctx context.Context, _ sink.Config, network, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		},
	})
	plan, err := set.Prepare(t.Context(), []sink.Config{c})
	must.OK(t, err)
	set.Use(plan)
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	set.Drain(ctx, last)
	for set.Status()[0].Cursor < last && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if s := set.Status()[0]; s.Cursor < last {
		t.Errorf("the receiver has records up to %d of %d: %s", s.Cursor, last, s.Answer)
	}
	cancel()
	<-done
}
