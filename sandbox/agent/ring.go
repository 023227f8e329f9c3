package agent

import "sync"

// ring keeps the end of a stream by absolute offsets.
type ring struct {
	limit int64 // bytes
	bell  *bell // rung on each change

	mu    sync.Mutex
	room  sync.Cond
	buf   []byte // of a power of two until limit; byte n is at n modulo its length
	start int64
	end   int64
	wait  bool  // writes wait for the reader
	taken int64 // what the reader has, for wait
}

const firstRing = 4 << 10

func newRing(limit int64, wait bool, b *bell) *ring {
	r := &ring{limit: limit, wait: wait, bell: b}
	r.room.L = &r.mu
	return r
}

// write adds bytes; it waits while a reader must take some first.
func (r *ring) write(p []byte) {
	for len(p) > 0 {
		r.mu.Lock()
		for r.wait && r.end-r.taken >= r.limit {
			r.room.Wait()
		}
		if over := int64(len(p)) - r.limit; over > 0 && !r.wait {
			r.end += over
			r.start, p = r.end, p[over:]
		}
		n := min(int64(len(p)), r.limit)
		if r.wait {
			n = min(n, r.limit-(r.end-r.taken))
		}
		r.grow(r.end - r.start + n)
		size := int64(len(r.buf))
		at := r.end % size
		m := copy(r.buf[at:], p[:n])
		copy(r.buf, p[m:n])
		r.end += n
		r.start = max(r.start, r.end-size)
		r.mu.Unlock()
		r.bell.ring()
		p = p[n:]
	}
}

// grow makes room for so many bytes, as far as the limit lets it.
func (r *ring) grow(need int64) {
	size := max(int64(len(r.buf)), min(firstRing, r.limit))
	for size < need && size < r.limit {
		size = min(2*size, r.limit)
	}
	if size == int64(len(r.buf)) {
		return
	}
	buf := make([]byte, size)
	for at := r.start; at < r.end; {
		from := r.buf[at%int64(len(r.buf)):]
		from = from[:min(int64(len(from)), r.end-at)]
		n := copy(buf[at%size:], from)
		at += int64(n)
	}
	r.buf = buf
}

// read copies bytes from an offset, or from the first after it that is still
// there, whose offset it returns.
func (r *ring) read(p []byte, from int64) (n int, at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = min(max(from, r.start), r.end)
	for n < len(p) && at+int64(n) < r.end {
		have := r.buf[(at+int64(n))%int64(len(r.buf)):]
		have = have[:min(int64(len(have)), r.end-at-int64(n))]
		n += copy(p[n:], have)
	}
	return n, at
}

// take says that the reader has all before an offset.
func (r *ring) take(offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = max(r.taken, min(offset, r.end))
	r.room.Broadcast()
}

// detach makes writes wait no more: the reader is gone.
func (r *ring) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wait = false
	r.room.Broadcast()
}

// bounds are the offsets of what is kept, and size what that takes.
func (r *ring) bounds() (start, end, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start, r.end, int64(len(r.buf))
}

// bell wakes all who wait. A waiting reader takes the channel first and looks then.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
