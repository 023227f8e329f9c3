package sink_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit/sink"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// unpacked is where `make setup` has put rsyslog and syslog-ng.
func unpacked(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err == nil {
		dir = filepath.Join(dir, "sallyport", "syslog")
		_, err = os.Stat(dir)
	}
	if err != nil {
		must.Lack(t, "no syslog servers: make test unpacks them: %v", err)
	}
	return dir
}

// freePort is one that nobody listens on now.
func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// server is a process with a configuration in a folder.
type server struct {
	t               *testing.T
	root, dir, port string
	args            []string
	cmd             *exec.Cmd
}

// newServer writes certificates and a configuration, in which DIR, PORT and ROOT stand for
// what they are, and starts the server.
func newServer(t *testing.T, root, program, conf string, args ...string) (*server, sink.TLS) {
	t.Helper()
	s := &server{t: t, root: root, dir: t.TempDir(), port: freePort(t)}
	ca, err := testnet.NewCA()
	must.OK(t, err)
	known := sink.TLS{Roots: ca.PEM()}
	s.write("ca.pem", string(ca.PEM()))
	for _, name := range []string{"server", "client"} {
		pair, err := ca.Leaf("127.0.0.1")
		must.OK(t, err)
		var chain []byte
		for _, der := range pair.Certificate {
			chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
		der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		must.OK(t, err)
		key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		s.write(name+".pem", string(chain))
		s.write(name+".key", string(key))
		known.Certificate, known.Key = chain, key
	}
	fill := strings.NewReplacer("DIR", s.dir, "PORT", s.port, "ROOT", root)
	s.write("conf", fill.Replace(conf))
	s.args = []string{filepath.Join(root, program)}
	for _, a := range args {
		s.args = append(s.args, fill.Replace(a))
	}
	s.start()
	t.Cleanup(s.stop)
	return s, known
}

func (s *server) write(name, text string) {
	must.OK(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

func (s *server) start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must.OK(s.t, err)
	defer log.Close()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+s.root+"/usr/lib/x86_64-linux-gnu:"+s.root+"/lib/x86_64-linux-gnu:"+s.root+"/usr/lib/syslog-ng")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	must.OK(s.t, s.cmd.Start())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+s.port)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("%s does not listen: %s", s.args[0], text)
		}
	}
}

func (s *server) stop() {
	if s.t.Failed() {
		text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		s.t.Logf("%s: %s", s.args[0], text)
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// received are the messages in the server's file, the fields of which it has parsed.
func (s *server) received(t *testing.T) (records []string) {
	text, err := os.ReadFile(filepath.Join(s.dir, "out"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 5)
		if len(f) != 5 || f[0] != "sallyport" || f[1] != "decision" || f[2] != "110" || !strings.Contains(f[3], "sequenceId") && !strings.Contains(f[3], "110") {
			t.Errorf("not as it was sent: %s", line)
			continue
		}
		records = append(records, f[4])
	}
	return records
}

const rsyslogConf = `
global(workDirectory="DIR" maxMessageSize="1m"
  defaultNetstreamDriverCAFile="DIR/ca.pem" defaultNetstreamDriverCertFile="DIR/server.pem" defaultNetstreamDriverKeyFile="DIR/server.key")
template(name="fields" type="string" string="%app-name%|%msgid%|%pri%|%structured-data%|%msg%\n")
MODULE
input(type="imtcp" port="PORT" address="127.0.0.1")
action(type="omfile" file="DIR/out" template="fields")
`

const syslogNGConf = `@version: 3.38
options { log-msg-size(1048576); stats-freq(0); };
source s { syslog(ip("127.0.0.1") port(PORT) transport("tls")
  tls(key-file("DIR/server.key") cert-file("DIR/server.pem") ca-file("DIR/ca.pem") peer-verify(required-untrusted))); };
destination d { file("DIR/out" template("$PROGRAM|$MSGID|$PRI|sequenceId ${.SDATA.meta.sequenceId}|$MSG\n")); };
log { source(s); destination(d); };
`

func rsyslog(t *testing.T, module string) (*server, sink.TLS) {
	return newServer(t, unpacked(t), "usr/sbin/rsyslogd", strings.Replace(rsyslogConf, "MODULE", module, 1),
		"-n", "-f", "DIR/conf", "-i", "DIR/pid", "-M", "ROOT/usr/lib/x86_64-linux-gnu/rsyslog")
}

// syslogServers are rsyslog and syslog-ng, as they are.
var syslogServers = map[string]func(*testing.T) (*server, sink.TLS){
	"rsyslog TLS": func(t *testing.T) (*server, sink.TLS) {
		return rsyslog(t, `module(load="imtcp" streamDriver.name="ossl" streamDriver.mode="1" streamDriver.authMode="x509/certvalid")`)
	},
	"rsyslog TCP": func(t *testing.T) (*server, sink.TLS) { return rsyslog(t, `module(load="imtcp")`) },
	"syslog-ng TLS": func(t *testing.T) (*server, sink.TLS) {
		return newServer(t, unpacked(t), "usr/sbin/syslog-ng", syslogNGConf,
			"-F", "-f", "DIR/conf", "--persist-file=DIR/persist", "--pidfile=DIR/pid", "--control=DIR/control", "--module-path=ROOT/usr/lib/syslog-ng/3.38")
	},
}

const collectorConf = `
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:PORT", tls: {cert_file: DIR/server.pem, key_file: DIR/server.key}}}}}
exporters: {debug: {verbosity: detailed, use_internal_logger: false}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {logs: {receivers: [otlp], exporters: [debug]}}
`

// The OpenTelemetry collector gets each record, over faults of the network and over its
// own restart.
func TestCollector(t *testing.T) {
	cmd := exec.Command("collector/build.sh")
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	must.OK(t, err)
	program := strings.TrimSpace(string(path))
	s, known := newServer(t, filepath.Dir(program), filepath.Base(program), collectorConf, "--config=DIR/conf")
	r := &receiver{config: sink.Config{Type: sink.OTLP, URL: "https://127.0.0.1:" + s.port + "/v1/logs", TLS: known}}
	r.read = func(t *testing.T) (records []string) {
		s.stop() // or not all is written
		text, err := os.ReadFile(filepath.Join(s.dir, "log"))
		must.OK(t, err)
		for line := range strings.Lines(string(text)) {
			if body, ok := strings.CutPrefix(strings.TrimSpace(line), "Body: Str("); ok {
				records = append(records, strings.TrimSuffix(body, ")"))
			}
		}
		return records
	}
	sendOverFaults(t, s, r)
}

// sendOverFaults sends to a server while the network fails, and while the server restarts.
func sendOverFaults(t *testing.T, s *server, r *receiver) {
	t.Helper()
	l := newTrail(t, r)
	l.append(30, "before")
	l.start()
	shipped := func() bool {
		return l.status().Cursor == l.log.Stats().Events && l.status().Away.IsZero()
	}
	for _, fault := range []int64{passes, resets, deaf, slow} {
		l.net.fault.Store(fault)
		l.append(30, "during")
		if fault == resets || fault == deaf {
			must.Soon(t, "the fault", func() bool { return !l.status().Away.IsZero() })
			l.net.fault.Store(passes)
		}
		must.Soon(t, "records", shipped)
	}
	s.stop()
	l.append(30, "while it is away")
	must.Soon(t, "its absence", func() bool { return !l.status().Away.IsZero() })
	s.start()
	l.append(30, strings.Repeat("long ", 4000))
	l.complete()
}

func serverReceiver(s *server, known sink.TLS, plain bool) *receiver {
	r := &receiver{config: sink.Config{Type: sink.Syslog, Address: "127.0.0.1:" + s.port, Plain: plain}}
	if !plain {
		r.config.TLS = known
	}
	r.read = s.received
	return r
}

// Syslog servers get each record, over faults of the network and over their own restart.
func TestSyslogServers(t *testing.T) {
	for name, begin := range syslogServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, known := begin(t)
			sendOverFaults(t, s, serverReceiver(s, known, strings.HasSuffix(name, "TCP")))
		})
	}
}

// No session of TLS is resumed: OpenSSL refuses that where it asks for client certificates,
// and rsyslog then loses what other connections have brought.
func TestSyslogResumesNoSession(t *testing.T) {
	ca, err := testnet.NewCA()
	must.OK(t, err)
	pair, err := ca.Leaf("127.0.0.1")
	must.OK(t, err)
	var resumed, made atomic.Int32
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, VerifyConnection: func(s tls.ConnectionState) error {
		made.Add(1)
		if s.DidResume {
			resumed.Add(1)
		}
		return nil
	}})
	must.OK(t, err)
	r := syslogReceiverAt(t, l)
	r.config.Plain, r.config.TLS = false, sink.TLS{Roots: ca.PEM()}
	trail := newTrail(t, r)
	trail.append(100, "in ten batches")
	trail.start()
	trail.complete()
	if made.Load() < 10 || resumed.Load() > 0 {
		t.Errorf("%d of %d connections resumed a session", resumed.Load(), made.Load())
	}
}

// The receiver that is written from Elasticsearch's documentation takes what rsyslog's
// module for Elasticsearch sends, so that it is not made for this package alone.
func TestBulkHandler(t *testing.T) {
	r := &receiver{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodPost { // whether it is there
			return
		}
		q.Header.Set("Authorization", "none")
		bulkHandler(r, "none").ServeHTTP(w, q)
	}))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	s, known := rsyslog(t, `module(load="imtcp") module(load="omelasticsearch")
template(name="doc" type="string" string="%msg%")
action(type="omelasticsearch" server="127.0.0.1" serverport="`+port+`" searchIndex="audit" searchType="" bulkmode="on" template="doc" action.resumeRetryCount="-1")`)
	l := newTrail(t, serverReceiver(s, known, true))
	l.append(20, "by way of rsyslog")
	l.start()
	l.complete()
	must.Soon(t, fmt.Sprint("20 documents in ", s.dir), func() bool { return len(r.taken(t)) >= 20 })
	want := l.lines()
	for _, doc := range r.taken(t) {
		if want[uidOf(doc)] != doc {
			t.Errorf("another document: %s", doc)
		}
	}
}
