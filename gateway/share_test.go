package gateway_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// door is an exposed port of one of many sandboxes.
type door struct {
	n           *published
	host, token string
}

// of exposes the port for a sandbox of an owner.
func (n *published) of(t *testing.T, id, owner string) door {
	t.Helper()
	e, token, err := n.store.Add(named(id), id, owner, n.port, time.Hour)
	must.OK(t, err)
	n.exposed.Replace(n.store.List())
	return door{n, fmt.Sprintf("%s:%d", e.Host(), portOf(n.ln.Addr()).Port()), token}
}

// knocker is a connection to the listener.
type knocker struct {
	net.Conn
	in *bufio.Reader
}

// knock connects, until the test ends.
func (n *published) knock(t *testing.T) *knocker {
	t.Helper()
	c, err := net.Dial("tcp", n.ln.Addr().String())
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &knocker{c, bufio.NewReader(c)}
}

// ask sends a request; its answer has been read when the channel has it. There is none
// when the connection ends.
func (d door) ask(c *knocker) <-chan *http.Response {
	got := make(chan *http.Response, 1)
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", d.host, d.token)
	go func() {
		r, err := http.ReadResponse(c.in, nil)
		if err == nil {
			_, err = c.in.Discard(int(r.ContentLength))
		}
		if err != nil {
			r = &http.Response{}
		}
		got <- r
	}()
	return got
}

// besiege asks often at once, and returns how many are waited for, and how many were
// refused, once those are so many.
func besiege(t *testing.T, n *published, doors []door, each, until int) (waiting, refused int) {
	t.Helper()
	all := make(chan *http.Response, each*len(doors))
	for _, d := range doors {
		for range each {
			got := d.ask(n.knock(t))
			go func() { all <- <-got }()
		}
	}
	for deadline := time.Now().Add(patience); ; {
		select {
		case r := <-all:
			refused++
			if r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" {
				t.Fatalf("refused with %d %v", r.StatusCode, r.Header)
			}
		case <-time.After(10 * time.Millisecond):
		}
		if waiting = int(n.waiting.Load()); waiting+refused == until || time.Now().After(deadline) {
			return waiting, refused
		}
	}
}

// Agents that do not answer hold up their own sandbox's visitors, and a part of their
// owner's, and nobody else's: whoever is beyond is refused at once, or waits for its owner's.
func TestInboundSilentAgents(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		silent, each int // sandboxes, and requests to each
		waits        int
		owner        string // of the one that answers
		asleep       bool   // they do not wake, rather than not connect
	}{
		"one, beside another of its owner's":            {silent: 1, each: 40, waits: 32, owner: "a"},
		"many, beside another owner's":                  {silent: 3, each: 40, waits: 64, owner: "b"},
		"one that does not wake, beside another":        {silent: 1, each: 1, waits: 1, owner: "a", asleep: true},
		"many that do not wake, beside another owner's": {silent: 24, each: 1, waits: 16, owner: "b", asleep: true},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newInbound(t)
			n.apart.Store(!tt.asleep)
			n.silent = map[string]bool{}
			var doors []door
			for i := range tt.silent {
				id := fmt.Sprint("sb-", 10+i)
				n.silent[id] = true
				doors = append(doors, n.of(t, id, "a"))
			}
			fine := n.of(t, "sb-2", tt.owner)
			want := tt.silent*tt.each - tt.waits
			if tt.asleep {
				want = 0 // they wait until others of their owner are awake
			}
			waiting, refused := besiege(t, n, doors, tt.each, tt.waits+want)
			if waiting != tt.waits || refused != want {
				t.Errorf("%d wait and %d were refused, want %d and %d", waiting, refused, tt.waits, want)
			}
			began := time.Now()
			if r := <-fine.ask(n.knock(t)); r.StatusCode != 200 || time.Since(began) > 3*time.Second {
				t.Errorf("the one that answers, after %v: %d", time.Since(began), r.StatusCode)
			}
		})
	}
}

// The visitors of one owner leave connections to those of others, and those of a
// sandbox to the owner's other ones.
func TestInboundVisitorsAreShared(t *testing.T) {
	t.Parallel()
	n, _ := newInbound(t)
	one, two, others := n.of(t, "sb-10", "a"), n.of(t, "sb-11", "a"), n.of(t, "sb-2", "b")
	fill := func(d door) (kept []*knocker) {
		for range 300 {
			c := n.knock(t)
			r := <-d.ask(c)
			if r.StatusCode != 200 {
				if r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" {
					t.Fatalf("refused with %d %v", r.StatusCode, r.Header)
				}
				break
			}
			kept = append(kept, c)
		}
		return kept
	}
	all := fill(one)
	if len(all) != 192 {
		t.Errorf("a sandbox has %d", len(all))
	}
	if more := fill(two); len(all)+len(more) != 256 {
		t.Errorf("its owner has %d", len(all)+len(more))
	}
	if r := <-others.ask(n.knock(t)); r.StatusCode != 200 {
		t.Errorf("another owner's visitor: %d", r.StatusCode)
	}
	// A connection counts where it went last, and nowhere once it has ended.
	for _, c := range all[:2] {
		if r := <-others.ask(c); r.StatusCode != 200 {
			t.Errorf("one that goes elsewhere: %d", r.StatusCode)
		}
	}
	if again := fill(one); len(again) != 1 { // 255 of 512, beside the 257 of both
		t.Errorf("%d in the place of those that went elsewhere", len(again))
	}
	for _, c := range all[2:12] {
		_ = c.Close()
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if len(fill(two)) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the places of those that ended are not given again")
		}
	}
}
