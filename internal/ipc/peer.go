package ipc

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Peer is one end of a link. Make one with New; Serve runs it. It is safe for
// concurrent use.
type Peer struct {
	o    Options
	conn *net.UnixConn
	out  sender

	mu      sync.Mutex
	last    uint64 // id of the last call made
	waiting map[uint64]chan answer
	err     error // why the link ended; nil while it goes on
	done    chan struct{}
}

type answer struct {
	body []byte
	file *os.File
	err  error
}

// New returns an end of the link that conn is. Nothing happens before Serve.
func New(conn *net.UnixConn, o Options) *Peer {
	o.MaxFrame = cmp.Or(o.MaxFrame, 1<<20)
	o.MaxIn = cmp.Or(o.MaxIn, o.MaxFrame)
	o.MaxOut = cmp.Or(o.MaxOut, o.MaxFrame)
	o.MaxCalls = cmp.Or(o.MaxCalls, 256)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	p := &Peer{o: o, conn: conn, waiting: make(map[uint64]chan answer), done: make(chan struct{})}
	p.out = sender{conn: conn, patience: o.Patience, most: 8 * o.MaxFrame}
	return p
}

// Serve takes calls and answers until the other side closes, which is nil, or
// something else ends the link. It returns when no handler of this side's runs
// any more.
func (p *Peer) Serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	var handlers sync.WaitGroup
	err := p.read(ctx, &handlers)
	p.end(err)
	cancel()
	handlers.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.err, io.EOF) {
		return nil
	}
	return p.err
}

// Close ends the link.
func (p *Peer) Close() error {
	p.end(net.ErrClosed)
	return nil
}

// Done is closed when the link has ended.
func (p *Peer) Done() <-chan struct{} { return p.done }

// end makes err the reason, unless there is one.
func (p *Peer) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		if errors.Is(p.err, io.EOF) && errors.Is(err, ErrProtocol) {
			p.err = err // a handler has seen it only now
		}
		return
	}
	p.err = err
	close(p.done)
	_ = p.conn.Close()
	for id, c := range p.waiting {
		delete(p.waiting, id)
		c <- answer{err: p.closed()}
	}
}

// closed is the error of a call. p.mu is held.
func (p *Peer) closed() error { return fmt.Errorf("%w: %w", ErrClosed, p.err) }

// Call calls a method of the other side's and waits for its answer, which it
// decodes into out. in and out are pointers or values that JSON takes.
func (p *Peer) Call(ctx context.Context, m Method, in, out any) error {
	f, err := p.CallFile(ctx, m, in, out)
	if f != nil {
		_ = f.Close()
	}
	return err
}

// CallFile is Call for an answer that a file may come along with, which is the
// caller's then.
func (p *Peer) CallFile(ctx context.Context, m Method, in, out any) (*os.File, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	got := make(chan answer, 1)
	p.mu.Lock()
	if p.err != nil {
		defer p.mu.Unlock()
		return nil, p.closed()
	}
	p.last++
	id := p.last
	p.waiting[id] = got
	p.mu.Unlock()

	var a answer
	if err := p.send(header{kind: call, method: m, id: id}, body, nil); err != nil {
		p.forget(id)
		return nil, err
	}
	select {
	case a = <-got:
	case <-ctx.Done():
		if p.forget(id) {
			return nil, ctx.Err()
		}
		a = <-got // it came just now
	}
	if a.err == nil {
		if err := json.Unmarshal(a.body, out); err != nil {
			p.end(&protocolError{fmt.Sprintf("an answer's body: %v", err)})
			a.err = ErrProtocol
		}
	}
	if a.err != nil && a.file != nil {
		_ = a.file.Close()
		a.file = nil
	}
	return a.file, a.err
}

// forget stops waiting for an answer, or says that it is there.
func (p *Peer) forget(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.waiting[id]
	delete(p.waiting, id)
	return ok
}

func (p *Peer) send(h header, body []byte, f *os.File) error {
	most := p.o.MaxFrame
	if h.kind == call {
		most = p.o.MaxOut
	}
	if len(body) > most-headerSize {
		return fmt.Errorf("a message of %d bytes is %w", len(body), ErrTooLarge)
	}
	h.size, h.file = len(body), f != nil
	if err := p.out.send(h, body, f); err != nil {
		p.end(err)
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return nil
}

// read takes frames until the link ends.
func (p *Peer) read(ctx context.Context, handlers *sync.WaitGroup) error {
	in := receiver{conn: p.conn, take: p.o.Files}
	defer in.close()
	r := bufio.NewReaderSize(&in, 64<<10)
	places := make(chan struct{}, p.o.MaxCalls)
	for {
		h, err := readHeader(r, p.o.MaxFrame)
		if err != nil {
			return err
		}
		if h.kind == call && h.size > p.o.MaxIn-headerSize {
			return &protocolError{fmt.Sprintf("a call of %d bytes", h.size)}
		}
		if h.file && !p.o.Files {
			return &protocolError{"a file that nobody asked for"}
		}
		body := make([]byte, h.size)
		if _, err := io.ReadFull(r, body); err != nil {
			return noEOF(err)
		}
		var f *os.File
		if h.file {
			if f = in.file(); f == nil {
				return &protocolError{"a file is missing"}
			}
		}
		if h.kind != call {
			if err := p.answered(h, answer{body: body, file: f}); err != nil {
				return err
			}
			continue
		}
		handle, ok := p.o.Methods[h.method]
		if !ok || f != nil {
			if f != nil {
				_ = f.Close()
			}
			return &protocolError{fmt.Sprintf("a call of method %d", h.method)}
		}
		select {
		case places <- struct{}{}:
		case <-p.done:
			return net.ErrClosed
		}
		handlers.Go(func() {
			defer func() { <-places }()
			p.handle(ctx, handle, h, body)
		})
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// answered gives an answer to who waits for it. One that nobody waits for any
// more is dropped.
func (p *Peer) answered(h header, a answer) error {
	if h.kind == fail {
		a.err = p.remote(a.body)
		if errors.Is(a.err, ErrProtocol) {
			return a.err
		}
	}
	p.mu.Lock()
	got, ok := p.waiting[h.id]
	delete(p.waiting, h.id)
	never := h.id > p.last
	p.mu.Unlock()
	switch {
	case ok:
		got <- a
		return nil
	case a.file != nil:
		_ = a.file.Close()
	}
	if never {
		return &protocolError{"an answer to what was not asked"}
	}
	return nil
}

// handle answers one call.
func (p *Peer) handle(ctx context.Context, f Handler, h header, body []byte) {
	out, file, err := f(ctx, body)
	if file != nil {
		defer file.Close()
	}
	if errors.Is(err, ErrProtocol) {
		p.end(err)
		return
	}
	k := reply
	if err != nil {
		k, out, file = fail, p.failed(err), nil
	}
	body, err = json.Marshal(out)
	if err == nil {
		err = p.send(header{kind: k, id: h.id}, body, file)
	}
	if err != nil && !errors.Is(err, ErrClosed) {
		// Too large: the caller must not wait for ever.
		body, _ = json.Marshal(p.failed(err))
		_ = p.send(header{kind: fail, id: h.id}, body, nil)
	}
}
