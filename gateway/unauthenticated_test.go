package gateway_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
)

const strangersFromOne = 256 // address

// hush opens connections to the explicit proxy that say nothing. gone has the
// number of each that ends.
func (l *env) hush(n int, from string) (gone chan int) {
	l.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	gone = make(chan int, n)
	for i := range n {
		c, err := d.Dial("tcp", l.proxy.Addr().String())
		must.OK(l.t, err)
		l.t.Cleanup(func() { c.Close() })
		go func() {
			_, _ = c.Read(make([]byte, 1))
			gone <- i
		}()
	}
	return gone
}

// Connections that do not say who they are leave room for those that do, behind
// the same address too: the oldest silent one makes room.
func TestStrangersMakeRoom(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = 5 * time.Minute })
	l.policy(allow)
	_, token, err := l.clients.Add("ci", nil)
	must.OK(t, err)
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	gone := l.hush(strangersFromOne, "127.0.0.1")
	reach := func(who string) {
		t.Helper()
		for range 5 {
			client := l.elsewhere("ci", token)
			if resp, body := get(t, client, "https://api.example.test/"); resp.StatusCode != 200 {
				t.Fatalf("%s: %d %s", who, resp.StatusCode, body)
			}
			client.CloseIdleConnections()
		}
	}
	reach("a neighbour")
	first := -1
	for deadline := time.Now().Add(patience); first < 0 && time.Now().Before(deadline); {
		select {
		case first = <-gone:
		case <-time.After(50 * time.Millisecond):
			reach("a neighbour") // the last of them may not have been taken up before
		}
	}
	if first < 0 || first > 20 { // those that come at once are taken up in any order
		t.Errorf("number %d was closed first, want one of the oldest", first)
	}
	// An authenticated client has no place among them: the first one's was enough for five.
	time.Sleep(50 * time.Millisecond)
	if n := len(gone); n > 1 {
		t.Errorf("%d more were closed", n)
	}
	for e := range l.of("connections") {
		if e.Action != audit.ActionDenied || e.Source.IP != "127.0.0.1" || e.Source.Port == 0 {
			t.Errorf("%+v", e)
		}
		return
	}
	t.Error("no event tells of it")
}

// A flood from several addresses fills all places, and pays for those that come
// then: an address that has few keeps them.
func TestStrangersOfACrowdedAddressGoFirst(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.HandshakeTimeout = 5 * time.Minute })
	few := l.hush(1, "127.0.0.9") // the oldest of all
	var crowds []chan int
	for i := range 4 {
		crowds = append(crowds, l.hush(strangersFromOne, fmt.Sprintf("127.0.0.%d", 10+i)))
	}
	l.hush(20, "127.0.0.20")
	must.Soon(t, "21 closed connections", func() bool { // 1 + 4 × 256 + 20 − 1024
		closed := len(few)
		for _, crowd := range crowds {
			closed += len(crowd)
		}
		return closed >= 21
	})
	if len(few) > 0 {
		t.Error("the only one from its address was closed")
	}
	for i, crowd := range crowds {
		if n := len(crowd); n < 4 || n > 7 {
			t.Errorf("%d of crowd %d were closed", n, i)
		}
	}
}

// While a flood goes on, a client behind the same address is served each time.
func TestNeighbourInAFlood(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	_, token, err := l.clients.Add("ci", nil)
	must.OK(t, err)
	l.upstream("api.example.test", false, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	stop := make(chan struct{})
	var flood sync.WaitGroup
	defer flood.Wait()
	defer close(stop)
	for range 4 {
		flood.Go(func() {
			var open []net.Conn
			defer func() {
				for _, c := range open {
					c.Close()
				}
			}()
			for len(open) < 2000 {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				c, err := net.Dial("tcp", l.proxy.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				open = append(open, c)
			}
		})
	}
	time.Sleep(300 * time.Millisecond) // all places are taken by then
	for i := range 50 {
		c, err := net.Dial("tcp", l.proxy.Addr().String())
		must.OK(t, err)
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "GET http://api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\nProxy-Authorization: Basic "+
			base64.StdEncoding.EncodeToString([]byte("ci:"+token))+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("request %d: %v, %v", i, resp, err)
		}
		c.Close()
	}
}
