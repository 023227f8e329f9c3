package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/inbound"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// story is what a pair of events says, whichever way the port was reached.
func story(events []*audit.Event) (list []string) {
	for _, e := range events {
		s := e.Unmapped.Sallyport
		code := 0
		if e.HTTPResponse != nil {
			code = e.HTTPResponse.Code
		}
		traffic := audit.Traffic{}
		if e.Traffic != nil {
			traffic = *e.Traffic
		}
		list = append(list, fmt.Sprint(s.Phase, e.ActivityID, e.Disposition, e.StatusID, s.SandboxID, e.Destination.Port, e.HTTPRequest.URL.Path, code, traffic, e.Detail))
	}
	return list
}

// A server on the loopback address alone is reached from inside, decided and recorded before,
// as one on the sandbox's own address is, and told alike.
func TestInboundInside(t *testing.T) {
	t.Parallel()
	var told [2][]string
	for i, apart := range []bool{false, true} {
		n, token := newInbound(t)
		n.apart.Store(apart)
		r, body := n.ask(t, "POST /a HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nCookie: sallyport-exposure="+token+"\r\nContent-Length: 2\r\n\r\nhi")
		if r.StatusCode != 200 || body != "POST /a hi" {
			t.Fatalf("from inside %v: %d %s", apart, r.StatusCode, body)
		}
		if got := fmt.Sprint(n.seen[0].Host, n.seen[0].Header["Cookie"]); got != n.host("demo")+"[]" {
			t.Errorf("the sandbox got %s", got)
		}
		if len(r.Header["Sallyport-Decision"]) > 0 || len(r.Header["Set-Cookie"]) != 2 {
			t.Errorf("the sandbox speaks in our name: %v", r.Header)
		}
		want := map[bool]string{false: "append wake inside", true: "append wake connect inside"}[apart]
		if got := strings.Join(dropped(n.steps()), " "); !strings.HasPrefix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		events := n.await(2)
		events[0].Destination.Port, events[1].Destination.Port = 0, 0 // the server's, which differ
		told[i] = story(events)

		s, status := n.socketTo(t, "Authorization: Bearer "+token+"\r\nOrigin: http://"+n.host("demo")+"\r\n")
		if status != 101 {
			t.Fatalf("a WebSocket: %d", status)
		}
		must.OK(t, s.send(wsText, []byte("hello")))
		if _, got, err := s.receive(); string(got) != "hello" || err != nil {
			t.Errorf("got %q %v", got, err)
		}
		_ = s.Close()
	}
	if diff := cmp.Diff(told[0], told[1]); diff != "" {
		t.Errorf("the records differ by the way there:\n%s", diff)
	}
}

// Nobody asks the agent for what is not allowed, not on record, or refused.
func TestInboundInsideIsDecidedBefore(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	n.apart.Store(true)
	request := "GET / HTTP/1.1\r\nHost: " + n.host("demo") + "\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	n.policy(func(policy.Input) policy.Decision { return policy.Decision{} })
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"what no rule allows": {request, 403},
		"without the token":   {strings.Replace(request, token, "nothing", 1), 401},
		"another host":        {strings.Replace(request, "Host: ", "Host: x", 1), 421},
	} {
		if r, body := n.ask(t, tt.request); r.StatusCode != tt.status {
			t.Errorf("%s: %d %s", name, r.StatusCode, body)
		}
	}
	n.policy(allow)
	n.env.mu.Lock()
	n.appendTo = auditlog.ErrUnwritable
	n.env.mu.Unlock()
	if r, _ := n.ask(t, request); r.StatusCode != 503 {
		t.Errorf("without a record: %d", r.StatusCode)
	}
	if got := strings.Join(n.steps(), " "); strings.Contains(got, "connect") {
		t.Errorf("it was connected to: %s", got)
	}
}

func TestInboundInsideFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		status int
		says   []string
	}{
		"nobody listens":       {fmt.Errorf("%w: evil words", inbound.ErrNoListener), 502, []string{"nothing listens on that port of the sandbox\n", "0.0.0.0, 127.0.0.1 or ::1"}},
		"too many":             {inbound.ErrLoopbackBusy, 503, []string{"too many connections at once", "listen on 0.0.0.0"}},
		"an earlier agent":     {inbound.ErrLoopbackEarlier, 502, []string{"earlier version", "listen on 0.0.0.0", "stop the sandbox"}},
		"one that is silent":   {errors.New("evil words"), 502, []string{"does not answer", "listen on 0.0.0.0"}},
		"no process to ask it": {net.ErrClosed, 502, []string{"does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, token := newInbound(t)
			n.apart.Store(true)
			n.within.Store(&tt.err)
			r, body := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\n\r\n")
			if r.StatusCode != tt.status || strings.Contains(body, "evil") {
				t.Errorf("got %d %s", r.StatusCode, body)
			}
			for _, want := range tt.says {
				if !strings.Contains(body, want) {
					t.Errorf("%q is not in %s", want, body)
				}
			}
			if c := n.await(2)[1]; c.HTTPResponse.Code != tt.status || !strings.Contains(body, c.Detail) || c.Detail == "" {
				t.Errorf("completed: %+v", c)
			}
		})
	}
}

// A program that takes nothing does not keep a visitor for longer than the bound.
func TestInboundInsideStalls(t *testing.T) {
	t.Parallel()
	n, _ := newInbound(t)
	n.apart.Store(true)
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer deaf.Close()
	taken := make(chan net.Conn, 1)
	go func() {
		if c, err := deaf.Accept(); err == nil {
			taken <- c
		}
	}()
	_, token, err := n.store.Add("demo", "sb-1", "", portOf(deaf.Addr()).Port(), time.Hour)
	must.OK(t, err)
	n.exposed.Replace(n.store.List())
	port := n.port
	n.port = portOf(deaf.Addr()).Port()
	host := n.host("demo")
	n.port = port
	c, err := net.Dial("tcp", n.ln.Addr().String())
	must.OK(t, err)
	defer c.Close()
	begin := time.Now()
	_ = c.SetDeadline(begin.Add(patience))
	go func() {
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000000\r\n\r\n", host, token)
		for _, err := c.Write(make([]byte, 64<<10)); err == nil; {
			_, err = c.Write(make([]byte, 64<<10))
		}
	}()
	_, _ = io.Copy(io.Discard, c)
	if took := time.Since(begin); took > soon {
		t.Errorf("it ended after %v", took)
	}
	select {
	case c := <-taken:
		_ = c.Close()
	default:
		t.Error("nobody came")
	}
}
