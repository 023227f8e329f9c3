package ssh

import (
	"errors"
	"io"
	"iter"
	"net"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Bytes that a client has sent and no program has read stay in memory: up to a window of
// each channel (RFC 4254, section 5.2), which is 2 MiB in golang.org/x/crypto/ssh and
// cannot be set. A window counts payload. A packet of one byte takes 48 bytes in memory,
// so a client that sends only such packets could fill a hundred megabytes by each channel.
// Therefore bytes are counted as they are on the wire, where such a packet has at least 36
// bytes, until they are known to have been read, and a client with too large a backlog is
// cut off. A client that sends ordinary packets to as many programs as it may is never cut
// off, even if none of them reads.

const (
	window = 2 << 20
	// maxBacklog is 4/3 as much on the heap, and twice that before it is collected.
	maxBacklog = 288 << 20
)

var (
	// errBacklog ends a connection.
	errBacklog = errors.New("more has been sent than is kept until something takes it")
	// errBroken is of a channel whose connection has ended.
	errBroken = errors.New("the connection has ended")
)

// backlog counts what is kept of all clients, in bytes on the wire.
type backlog struct {
	most int64

	mu  sync.Mutex
	all int64
	of  map[string]int64 // by key
}

func newBacklog(most int64) *backlog { return &backlog{most: most, of: map[string]int64{}} }

// keep counts n more of a key, of which no more is kept than is left for all others.
func (u *backlog) keep(key string, n int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[key]+n > u.most-u.all-n {
		return false
	}
	u.all += n
	u.of[key] += n
	return true
}

func (u *backlog) give(key string, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all -= n
	if u.of[key] -= n; u.of[key] == 0 {
		delete(u.of, key)
	}
}

// meteredConn is a client's connection, which is read from by one goroutine. The consumers
// have all that came, but for a few packets, before that reads on.
type meteredConn struct {
	net.Conn
	kept *backlog

	mu        sync.Mutex // guards what follows
	key       string     // whose it is; nothing is counted before that is known
	consumers map[*consumer]bool
	held      int64 // bytes that are counted
	fresh     int64 // that have come since the last mark
	cut       bool  // too much was held
	broken    bool  // nothing more comes by it
}

// consumer is one of those that a client's bytes are for: a channel, who takes what is asked
// by it or by the connection, or who takes new channels. x/crypto/ssh keeps 16 of what is
// asked by each, of 256 KiB.
type consumer struct {
	f    *meteredConn
	asks *consumer // by a channel
	// meteredConn.mu guards the fields below.
	waits bool  // for more: it has taken all that came
	taken int64 // since the last mark
	ends  int   // of the two streams of a channel, that have come
	// over is a channel of which both have: nothing more is to come.
	over ssh.Channel
}

// count begins to count for a key, and returns who takes new channels.
func (f *meteredConn) count(key string) *consumer {
	f.mu.Lock()
	f.key, f.consumers = key, map[*consumer]bool{}
	f.mu.Unlock()
	return f.enter()
}

// end forgets what is held, as the memory does.
func (f *meteredConn) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.less(f.held)
	f.consumers, f.key = nil, ""
}

// flooded tells whether the connection was cut off.
func (f *meteredConn) flooded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut
}

// enter adds a consumer, until leave.
func (f *meteredConn) enter() *consumer {
	t := &consumer{f: f}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.consumers != nil {
		f.consumers[t] = true
	}
	return t
}

// channel adds those of a channel.
func (f *meteredConn) channel() *consumer {
	t := f.enter()
	t.asks = f.enter()
	return t
}

func (t *consumer) leave() {
	if t.asks != nil {
		t.asks.leave()
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	delete(t.f.consumers, t)
}

// each is what comes by c, until that is closed.
func each[T any](t *consumer, c <-chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			t.waiting()
			v, more := <-c
			if !more {
				return
			}
			if t.took(0); !yield(v) {
				return
			}
		}
	}
}

// asked is what a client asks by a channel or a connection, until no more can be.
type asked = iter.Seq[*ssh.Request]

// refuse answers what is asked as nothing that there is.
func refuse(what asked) {
	for r := range what {
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

// less gives back up to n of what is held; f.mu is held.
func (f *meteredConn) less(n int64) {
	n = min(n, f.held)
	f.held -= n
	f.kept.give(f.key, n)
}

// Read reads for golang.org/x/crypto/ssh.
func (f *meteredConn) Read(p []byte) (int, error) {
	if f.look() {
		return 0, f.shut()
	}
	n, err := f.Conn.Read(p)
	f.mu.Lock()
	f.broken = f.broken || err != nil
	full := f.key != "" && !f.kept.keep(f.key, int64(n))
	if f.key != "" && !full {
		f.held += int64(n)
		f.fresh += int64(n)
	}
	f.mu.Unlock()
	if full {
		return 0, f.shut()
	}
	return n, err
}

func (f *meteredConn) shut() error {
	f.mu.Lock()
	f.cut, f.broken = true, true
	f.mu.Unlock()
	_ = f.Conn.Close()
	return errBacklog
}

// look finds what of that which is held has been taken. At a mark nobody can have more
// than a window waiting, so that whoever has taken as much since, or waits for more, has
// taken all that came before. It also tells whether something came where nothing was to
// come, which nobody will take.
func (f *meteredConn) look() (stray bool) {
	f.mu.Lock()
	marked := f.key != ""
	var over []ssh.Channel
	for t := range f.consumers {
		if t.over != nil {
			over = append(over, t.over)
			continue
		}
		marked = marked && (t.waits || t.taken >= window)
	}
	if marked {
		f.less(max(0, f.held-f.fresh))
		f.fresh = 0
		for t := range f.consumers {
			t.taken = 0
		}
	}
	f.mu.Unlock()
	// These do not wait: whoever is at the end has that, or what came after it.
	for _, ch := range over {
		var b [1]byte
		n, _ := ch.Read(b[:])
		m, _ := ch.Stderr().Read(b[:])
		stray = stray || n+m > 0
	}
	return stray
}

// waiting notes that a consumer has taken all that there is, and took what it got then; it
// tells whether the connection has ended.
func (t *consumer) waiting() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.waits = true
}

func (t *consumer) took(n int) (broken bool) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.waits = false
	t.taken += int64(n)
	t.f.less(int64(n))
	return t.f.broken
}

// ended notes the end of one of a channel's streams.
func (t *consumer) ended(ch ssh.Channel) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	if t.ends++; t.ends == 2 {
		t.over = ch
	}
}

// meteredChannel is a channel that notes what is taken of it, by one goroutine.
type meteredChannel struct {
	ssh.Channel
	t   *consumer
	end sync.Once
}

// accept is offered.Accept for a consumer. Nobody reads what a client sends as standard
// error.
func (t *consumer) accept(offered ssh.NewChannel) (ssh.Channel, asked, error) {
	ch, requests, err := offered.Accept()
	if err != nil {
		return nil, nil, err
	}
	go func() {
		_, _ = io.Copy(io.Discard, ch.Stderr())
		t.ended(ch)
	}()
	return &meteredChannel{Channel: ch, t: t}, each(t.asks, requests), nil
}

func (c *meteredChannel) Read(p []byte) (int, error) {
	c.t.waiting()
	n, err := c.Channel.Read(p)
	broken := c.t.took(n)
	if errors.Is(err, io.EOF) {
		c.end.Do(func() { c.t.ended(c.Channel) })
		if broken {
			err = errBroken // and so the channel, which x/crypto/ssh does not tell from its end
		}
	}
	return n, err
}
