package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// newProxyRig is a rig of the explicit proxy alone, with a client.
func newProxyRig(t *testing.T) (*rig, *http.Client) {
	t.Helper()
	return newProxyRigOf(t, "", nil)
}

// newProxyRigOf has more keys in its configuration, and an upstream that answers
// otherwise where api is not nil.
func newProxyRigOf(t *testing.T, keys string, api http.Handler) (*rig, *http.Client) {
	t.Helper()
	r := newRig(t, "")
	r.api = api
	r.configure(strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: none} # not %[2]s", 1)+
		"proxy: {listen: \"127.0.0.1:3128\"}\naudit: {segmentSize: 1048576}\n"+keys, ruleConfig)
	r.serve()
	r.up()
	r.setKey()
	token := strings.TrimSpace(r.ok("client", "add", "platform"))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(r.ok("ca", "--client", "platform")))
	via := &url.URL{Scheme: "http", User: url.UserPassword("platform", token), Host: "127.0.0.1:3128"}
	return r, &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{RootCAs: pool}, MaxIdleConnsPerHost: 16,
	}}
}

func fetch(c *http.Client) error {
	resp, err := c.Get("https://api.example.test/v1")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(body), `"saw_key":true`) {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

// The kernel's account of the process that parses hostile bytes, and what there is for it to
// reach. The tests of internal/jail try what it cannot do.
func TestGatewayProcess(t *testing.T) {
	r, client := newProxyRig(t)
	must.OK(t, fetch(client))
	proc := fmt.Sprintf("/proc/%d/", r.gatewayPID())
	raw, err := os.ReadFile(proc + "status")
	must.OK(t, err)
	got := map[string]string{}
	for l := range strings.Lines(string(raw)) {
		k, v, _ := strings.Cut(l, ":")
		got[k] = strings.Join(strings.Fields(v), " ")
	}
	zero := "0000000000000000"
	for k, want := range map[string]string{
		"PPid": fmt.Sprint(r.daemon.PID()), "Groups": "", "NoNewPrivs": "1", "Seccomp": "2",
		"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero,
	} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
	}
	for _, k := range []string{"Uid", "Gid"} {
		for _, id := range strings.Fields(got[k]) {
			if id == "0" {
				t.Errorf("%s is %q", k, got[k])
			}
		}
	}
	// Its whole file system: no data directory, no sockets, no /proc.
	var files []string
	err = filepath.WalkDir(proc+"root/", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, proc+"root")
		switch {
		case d.IsDir():
		case !d.Type().IsRegular():
			t.Errorf("%s is %v", name, d.Type())
		case !strings.HasPrefix(name, "/etc/") && !strings.HasPrefix(name, "/policy/") && name != filepath.Join(r.dir, "ca.pem"):
			t.Errorf("it sees %s", name)
		default:
			files = append(files, name)
		}
		return nil
	})
	if err != nil || len(files) < 3 {
		t.Errorf("its files: %v, %v", files, err)
	}
	// Its descriptors: sockets, pipes, and of files the log alone, to be written.
	fds, err := os.ReadDir(proc + "fd")
	must.OK(t, err)
	logs := 0
	for _, fd := range fds {
		to, err := os.Readlink(proc + "fd/" + fd.Name())
		switch {
		case err != nil, to == "/dev/null", strings.HasPrefix(to, "socket:"), strings.HasPrefix(to, "pipe:"), to == "anon_inode:[eventpoll]", to == "anon_inode:[eventfd]":
		case strings.Contains(to, "/audit/") || strings.HasSuffix(to, ".jsonl"):
			logs++
		default:
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	if logs != 1 {
		t.Errorf("%d descriptors of the log", logs)
	}
	environ, err := os.ReadFile(proc + "environ")
	if err != nil || strings.Contains(string(environ), r.dir+"/data") || strings.Contains(string(environ), "PATH=") {
		t.Errorf("its environment: %q, %v", environ, err)
	}
	if metrics := scrape(t); !strings.Contains(metrics, "sallyport_gateway_process_up 1") || !strings.Contains(metrics, "sallyport_gateway_decisions_total") {
		t.Errorf("metrics: %s", metrics)
	}
}

func scrape(t *testing.T) string {
	t.Helper()
	resp, err := http.Get("http://127.0.0.1:9464/metrics")
	must.OK(t, err)
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// speaks says whether a frame begins or carries something: what the kernel
// sends to end the connections of a process that died is neither.
func speaks(f testnet.Frame) bool {
	const ethernet = 14
	if f.Protocol != syscall.IPPROTO_TCP || f.Type != 0x0800 {
		return f.Type == 0x0800
	}
	ip := f.Raw[ethernet:]
	header := int(ip[0]&0xf) * 4
	tcp := ip[header:]
	data := int(binary.BigEndian.Uint16(ip[2:])) - header - int(tcp[12]>>4)*4
	return data > 0 || begins(f)
}

// begins says whether a frame begins a connection of TCP.
func begins(f testnet.Frame) bool {
	const ethernet, syn = 14, 0x02
	if f.Protocol != syscall.IPPROTO_TCP || f.Type != 0x0800 {
		return false
	}
	return f.Raw[ethernet+int(f.Raw[ethernet]&0xf)*4+13]&syn != 0
}

// While the process is dead nothing leaves, whoever asks; when the next one is
// up everything goes on, and the log has a record of all of it and no gap. One
// that dies at once is waited for longer each time.
func TestGatewayDies(t *testing.T) {
	r, client := newProxyRig(t)
	must.OK(t, fetch(client))
	arrived, err := r.host.Capture(speaks)
	must.OK(t, err)
	var fine atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				if fetch(client) == nil {
					fine.Add(1)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	defer load.Wait()
	defer stop()

	const deaths, dying = 5, 100 * time.Millisecond
	type window struct {
		from, to time.Time
		seen     int // frames, when it was dead
	}
	var down []window
	want := time.Duration(0)
	for i := range deaths {
		is := r.gateway()
		was, up := is.PID, is.Since
		earlier := time.Now()
		must.OK(t, syscall.Kill(was, syscall.SIGKILL))
		killed := time.Now()
		r.await("its end", func() bool { is = r.gateway(); return is.PID != was })
		// Bytes that the kernel had to send when it was killed may arrive still.
		time.Sleep(dying)
		seen := len(arrived.Seen())
		if want *= 2; want == 0 || time.Since(up) >= time.Second { // it may not count as dead at once
			want = 100 * time.Millisecond
		}
		r.await("the next process", func() bool { is = r.gateway(); return is.PID != 0 })
		if is.Restarts != i+1 || !strings.Contains(is.Failure, "killed") {
			t.Errorf("the status says %+v after %d deaths", is, i+1)
		}
		down = append(down, window{killed, is.Since, seen})
		if waited := is.Since.Sub(earlier); waited < want {
			t.Errorf("it waits for %v after death %d, want %v at least", waited, i, want)
		}
		before := fine.Load()
		r.await("a request that succeeds", func() bool { return fine.Load() > before })
	}
	stop()
	load.Wait()
	for i, w := range down {
		// A frame's time is when the capture read it, which is not before it came.
		for _, f := range arrived.Seen()[w.seen:] {
			if f.Time.Before(w.to.Add(-5 * time.Millisecond)) {
				t.Errorf("death %d: %v after it: %s", i, f.Time.Sub(w.from), f)
			}
		}
		t.Logf("down for %v", w.to.Sub(w.from))
	}
	if n, err := arrived.Count(); n == 0 || err != nil {
		t.Errorf("%d frames arrived at all, %v", n, err)
	}

	ended, started, decisions, next := 0, 0, 0, uint64(1)
	for e, err := range auditlog.Read(t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{}) {
		must.OK(t, err)
		if e.Metadata.Sequence != next {
			t.Fatalf("event %d follows %d", e.Metadata.Sequence, next-1)
		}
		next++
		switch {
		case e.Message == "gateway ended":
			ended++
		case e.Message == "gateway started":
			started++
		case e.Unmapped.Sallyport.Kind == audit.KindDecision && e.Action == audit.ActionAllowed:
			decisions++
		}
	}
	if ended != deaths || started != deaths {
		t.Errorf("%d ends and %d starts are recorded, want %d of each", ended, started, deaths)
	}
	if int64(decisions) < fine.Load() {
		t.Errorf("%d decisions are recorded of %d requests that were answered", decisions, fine.Load())
	}
}
