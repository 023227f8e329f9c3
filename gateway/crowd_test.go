package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// crowd is where connections of many sandboxes come from.
const (
	crowdSandboxes = 20
	crowdBatches   = 5 // of requests, one after the other
)

// crowdOf is how many connections there are, crowdTogether how many requests are under way
// at once, each with an upstream's connection to itself.
var crowdOf, crowdTogether = func() (int, int) {
	if soaking() {
		return 10_000, 10_000 / crowdBatches
	}
	return 2_000, 2_000 / crowdBatches
}()

// crowd knows a sandbox behind each address of 10.231.0.0/16: one for all of a
// third byte.
type crowd struct{ *env }

func (c *crowd) ByAddress(a netip.Addr) (gateway.Identity, bool) {
	id := fmt.Sprint("sb-", a.As4()[2])
	return gateway.Identity{Sandbox: policy.Sandbox{Name: id, ID: id}, Address: a}, true
}

func (c *crowd) Name(_ string, a netip.Addr) (string, bool) { return c.env.Name("sb-1", a) }

// TestCrowdOfConnections has thousands open at once, of twenty sandboxes, with a fifth as
// many requests under way at any time. All are answered; then half of
// the clients leave and half vanish, and nothing is left of them. The clients
// are a process of their own: both ends are more descriptors than many systems
// let one have.
func TestCrowdOfConnections(t *testing.T) {
	var limit syscall.Rlimit
	must.OK(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if need := uint64(crowdOf + 2*crowdTogether + 500); limit.Cur < need {
		must.Lack(t, "needs %d descriptors, may have %d", need, limit.Cur)
	}
	all := &crowd{}
	w := newNetEnv(t, brief(t), func(o *gateway.Options) {
		o.Identities, o.Names, o.Logger = all, all, slog.New(slog.DiscardHandler)
		o.HandshakeTimeout = time.Minute // all are open before the last one asks
	})
	all.env = w.env
	w.quiet = true
	o := w.origin("api.example.test", "h1", false)
	var arrived atomic.Int64
	gates := make([]chan struct{}, crowdBatches)
	for i := range gates {
		gates[i] = make(chan struct{})
	}
	o.handle("/", func(rw http.ResponseWriter, r *http.Request) {
		n := arrived.Add(1)
		gate := gates[(n-1)/int64(crowdTogether)]
		if n%int64(crowdTogether) == 0 {
			close(gate) // the last one lets all go
		}
		<-gate
		io.WriteString(rw, r.URL.Path)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	to := netip.AddrPortFrom(w.name(o.name), o.port)
	var work sync.WaitGroup
	work.Go(func() {
		for i := 0; ; i++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = w.listener.adopt(c, netip.AddrFrom4([4]byte{10, 231, byte(i % crowdSandboxes), 2}), to)
		}
	})
	defer work.Wait()
	defer ln.Close()
	before := holding()

	clients := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestClientsOfACrowd$", "-test.v")
	clients.Env = append(os.Environ(), "SALLYPORT_CROWD="+ln.Addr().String(), "SALLYPORT_CROWD_HOST="+o.address())
	clients.Stderr = os.Stderr
	leave, err := clients.StdinPipe()
	must.OK(t, err)
	said, err := clients.StdoutPipe()
	must.OK(t, err)
	start := time.Now()
	must.OK(t, clients.Start())
	in := bufio.NewScanner(said)
	for in.Scan() && in.Text() != "answered" {
		t.Log(in.Text())
	}
	if n := w.gauge("sallyport_gateway_connections"); n != float64(crowdOf) {
		t.Errorf("%v connections of sandboxes", n)
	}
	t.Logf("%d requests on as many connections in %v", crowdOf, time.Since(start))
	leave.Close()
	for in.Scan() {
		t.Log(in.Text())
	}
	if err := clients.Wait(); err != nil {
		t.Errorf("the clients: %v", err)
	}
	decisions, completions := w.settled(t)
	if len(decisions) != crowdOf || len(completions) != crowdOf {
		t.Errorf("%d decisions, %d completions", len(decisions), len(completions))
	}
	w.over(t, before, o)
}

// TestClientsOfACrowd is the other process of TestCrowdOfConnections.
func TestClientsOfACrowd(t *testing.T) {
	to := os.Getenv("SALLYPORT_CROWD")
	if to == "" {
		t.Skip("TestCrowdOfConnections runs it")
	}
	clients := make([]net.Conn, 0, crowdOf)
	for i := range crowdOf {
		c, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		clients = append(clients, c)
	}
	for from := 0; from < crowdOf; from += crowdTogether {
		for i := from; i < from+crowdTogether; i++ {
			if _, err := fmt.Fprintf(clients[i], "GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, os.Getenv("SALLYPORT_CROWD_HOST")); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		for i := from; i < from+crowdTogether; i++ {
			resp, err := http.ReadResponse(bufio.NewReaderSize(clients[i], 512), nil)
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			if body := text(t, resp); resp.StatusCode != 200 || body != fmt.Sprint("/", i) {
				t.Fatalf("connection %d: %d %s", i, resp.StatusCode, body)
			}
		}
	}
	fmt.Println("\nanswered")
	_, _ = io.Copy(io.Discard, os.Stdin) // until they may leave
	for i, c := range clients {
		if i%2 == 0 {
			reset(c)
		} else {
			c.Close()
		}
	}
}
