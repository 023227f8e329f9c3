package ca

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve shows a configuration on loopback until the test ends and answers each
// connection with one HTTP response.
func serve(t *testing.T, c *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", c)
	must.OK(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.SetDeadline(time.Now().Add(time.Minute))
			buf := make([]byte, 4096)
			if _, err := conn.Read(buf); err == nil {
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// exchange reports whether the handshake resumed a session.
func exchange(t *testing.T, addr string, c *tls.Config) (resumed bool) {
	t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", addr, c)
	must.OK(t, err)
	defer conn.Close()
	io.WriteString(conn, "x")
	if got, err := io.ReadAll(conn); err != nil || !bytes.HasSuffix(got, []byte("ok")) {
		t.Fatalf("got %q, %v", got, err)
	}
	return conn.ConnectionState().DidResume
}

func TestTicketsStayWithTheirSandboxAndName(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			a := open(t, t.TempDir(), newSealer(t))
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(root(t, a, "a"))
			if err := a.Adopt("b", "a"); err != nil { // same root: only the ticket differs
				t.Fatal(err)
			}
			// One listener for all sandboxes, which is where tickets could mix.
			var id, name atomic.Pointer[string]
			addr := serve(t, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return a.ServerConfig(*id.Load(), *name.Load())
			}})
			show := func(sandbox, host string) { id.Store(&sandbox); name.Store(&host) }
			client := &tls.Config{
				RootCAs: pool, ServerName: "api.example.test", MaxVersion: version,
				ClientSessionCache: &sticky{tls.NewLRUClientSessionCache(4)},
			}
			show("a", "api.example.test")
			if exchange(t, addr, client) {
				t.Fatal("the first session was resumed")
			}
			if !exchange(t, addr, client) {
				t.Fatal("the ticket was not taken by the one who gave it")
			}
			show("b", "api.example.test")
			if exchange(t, addr, client) {
				t.Error("another sandbox took the ticket")
			}
			show("a", "api.example.test")
			exchange(t, addr, client)
			show("a", "other.example.test")
			client.ServerName = "other.example.test"
			if exchange(t, addr, client) {
				t.Error("another name took the ticket")
			}
		})
	}
}

// sticky offers the last session it has seen, whatever name it was for.
type sticky struct{ tls.ClientSessionCache }

func (s *sticky) Get(string) (*tls.ClientSessionState, bool) { return s.ClientSessionCache.Get("x") }
func (s *sticky) Put(_ string, c *tls.ClientSessionState)    { s.ClientSessionCache.Put("x", c) }

func TestOldVersionsAreRefused(t *testing.T) {
	a := open(t, t.TempDir(), newSealer(t))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root(t, a, "a"))
	c, err := a.ServerConfig("a", "api.example.test")
	must.OK(t, err)
	_, err = tls.Dial("tcp", serve(t, c), &tls.Config{
		RootCAs: pool, ServerName: "api.example.test", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
	})
	if err == nil || !strings.Contains(err.Error(), "protocol version not supported") {
		t.Errorf("TLS 1.1: %v, want its alert", err)
	}
}

// TestForeignClients has the certificates judged by the stacks that sandboxes use.
func TestForeignClients(t *testing.T) {
	const name = "api.example.test"
	a := open(t, t.TempDir(), newSealer(t))
	dir := t.TempDir()
	rootPEM := filepath.Join(dir, "root.pem")
	write(t, rootPEM, root(t, a, "a"))
	strangerPEM := filepath.Join(dir, "stranger.pem")
	write(t, strangerPEM, root(t, a, "b"))
	config, err := a.ServerConfig("a", name)
	must.OK(t, err)
	chain := config.Certificates[0].Certificate
	leafPEM, interPEM := filepath.Join(dir, "leaf.pem"), filepath.Join(dir, "inter.pem")
	write(t, leafPEM, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[0]}))
	write(t, interPEM, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[1]}))
	_, port, err := net.SplitHostPort(serve(t, config))
	must.OK(t, err)
	addressConfig, err := a.ServerConfig("a", "127.0.0.1")
	must.OK(t, err)
	_, addressPort, err := net.SplitHostPort(serve(t, addressConfig))
	must.OK(t, err)

	const python = `
import socket, ssl, sys
c = ssl.create_default_context(cafile=sys.argv[1])
c.verify_flags |= ssl.VERIFY_X509_STRICT
with socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5) as s, c.wrap_socket(s, server_hostname=sys.argv[3]) as t:
    t.sendall(b"x")
    assert t.recv(99).startswith(b"HTTP/1.1 200")
`
	const node = `
const [ca, port, host] = process.argv.slice(1), fs = require("fs"), tls = require("tls");
const s = tls.connect({host: "127.0.0.1", port, servername: host, ca: fs.readFileSync(ca)}, () => s.end("x"));
s.on("error", e => { console.error(e); process.exit(1) }); s.resume();
`
	const java = `
import java.io.FileInputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.*;

class Client {
	public static void main(String[] a) throws Exception {
		KeyStore trust = KeyStore.getInstance(KeyStore.getDefaultType());
		trust.load(null);
		trust.setCertificateEntry("root", CertificateFactory.getInstance("X.509").generateCertificate(new FileInputStream(a[0])));
		TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
		managers.init(trust);
		SSLContext context = SSLContext.getInstance("TLS");
		context.init(null, managers.getTrustManagers(), null);
		java.net.Socket tcp = new java.net.Socket("127.0.0.1", Integer.parseInt(a[1]));
		SSLSocket s = (SSLSocket) context.getSocketFactory().createSocket(tcp, a[2], Integer.parseInt(a[1]), true);
		SSLParameters p = s.getSSLParameters();
		p.setEndpointIdentificationAlgorithm("HTTPS");
		s.setSSLParameters(p);
		s.getOutputStream().write('x');
		if (s.getInputStream().read() != 'H') throw new Exception("no answer");
	}
}
`
	javaFile := filepath.Join(dir, "Client.java")
	write(t, javaFile, []byte(java))
	for _, tt := range []struct {
		name string
		args func(roots string) []string
	}{
		{"openssl strict", func(roots string) []string {
			return []string{"openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", name, "-CAfile", roots, "-untrusted", interPEM, leafPEM}
		}},
		{"python strict", func(roots string) []string { return []string{"python3", "-c", python, roots, port, name} }},
		{"curl", func(roots string) []string {
			return []string{"curl", "-sSf", "--http1.1", "--noproxy", "*", "--cacert", roots, "--resolve", name + ":" + port + ":127.0.0.1", "https://" + name + ":" + port + "/"}
		}},
		{"curl to an address", func(roots string) []string {
			return []string{"curl", "-sSf", "--http1.1", "--noproxy", "*", "--cacert", roots, "https://127.0.0.1:" + addressPort + "/"}
		}},
		{"java", func(roots string) []string { return []string{"java", javaFile, roots, port, name} }},
		{"node", func(roots string) []string { return []string{"node", "-e", node, roots, port, name} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tool := tt.args(rootPEM)[0]
			must.Program(t, tool)
			run := func(roots string) ([]byte, error) {
				args := tt.args(roots)
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
				return cmd.CombinedOutput()
			}
			if out, err := run(rootPEM); err != nil {
				t.Errorf("with the sandbox's root: %v\n%s", err, out)
			}
			if out, err := run(strangerPEM); err == nil {
				t.Errorf("accepted with another sandbox's root\n%s", out)
			}
		})
	}
}

func BenchmarkServerConfigCached(b *testing.B) {
	a := open(b, b.TempDir(), newSealer(b))
	root(b, a, "a")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.ServerConfig("a", "api.example.test"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	a := open(b, b.TempDir(), newSealer(b))
	root(b, a, "a")
	b.ReportAllocs()
	for b.Loop() {
		a.leaves.Forget("a")
		if _, err := a.ServerConfig("a", "api.example.test"); err != nil {
			b.Fatal(err)
		}
	}
}
