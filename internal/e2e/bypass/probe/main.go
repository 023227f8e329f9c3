// Probe runs inside a sandbox and does there what the tests of the bypass suite
// say: connections, handshakes and bytes that no honest client would make. It
// reads jobs from standard input until its end, and knows nothing of what should
// come of them.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sallyport/internal/e2e/bypass"
)

const (
	defaultLimit = 20 * time.Second
	surplus      = 20 * time.Millisecond // for answers beyond those that were waited for
	maxData      = 1 << 20               // bytes of answers
)

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var writing sync.Mutex
	var work sync.WaitGroup
	defer work.Wait()
	for {
		var j bypass.Job
		if in.Decode(&j) != nil {
			return
		}
		work.Go(func() {
			r := run(j)
			r.ID = j.ID
			writing.Lock()
			defer writing.Unlock()
			_ = out.Encode(r) // whoever asked is gone, then
		})
	}
}

func run(j bypass.Job) (r bypass.Result) {
	limit := j.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	start := time.Now()
	defer func() { r.Took = time.Since(start) }()
	deadline := start.Add(limit)
	c, err := (&net.Dialer{Deadline: deadline}).Dial(j.Network, j.Address)
	if err != nil {
		r.Stage, r.Error = "dial", err.Error()
		return r
	}
	defer c.Close()
	r.Remote = c.RemoteAddr().String()
	_ = c.SetDeadline(deadline)
	if len(j.Before) > 0 {
		if r.Data = before(c, j.Before); !bytes.HasPrefix(r.Data, []byte("HTTP/1.1 200 ")) {
			r.Closed = true
			return r
		}
		r.Data = nil
	}
	if j.TLS != nil {
		if c, err = handshake(c, j.TLS, &r); err != nil {
			r.Stage, r.Error = "handshake", err.Error()
			return r
		}
	}
	talk(c, j, deadline, &r)
	return r
}

// before asks a proxy and reads its answer: a head alone when it says yes.
func before(c net.Conn, ask []byte) (said []byte) {
	if _, err := c.Write(ask); err != nil {
		return nil
	}
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return said
		}
		said = append(said, b[0])
		if bytes.HasPrefix(said, []byte("HTTP/1.1 200 ")) && bytes.HasSuffix(said, []byte("\r\n\r\n")) {
			return said
		}
	}
}

// talk does a job's steps and reads what comes back.
func talk(c net.Conn, j bypass.Job, deadline time.Time, r *bypass.Result) {
	more := make(chan []byte)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.Close()
	defer close(stop)
	reader.Go(func() {
		defer close(more)
		for {
			b := make([]byte, 16<<10)
			n, err := c.Read(b)
			if n > 0 {
				select {
				case more <- b[:n]:
				case <-stop:
					return
				}
			}
			if err != nil {
				select {
				case <-stop: // TLS says goodbye before it closes, and the other side may answer
				default:
					if !errors.Is(err, os.ErrDeadlineExceeded) {
						r.Error, r.Closed = err.Error(), true
					}
				}
				return
			}
		}
	})
	// read waits for bytes until at, and tells whether more can come.
	read := func(at time.Time) bool {
		select {
		case b, ok := <-more:
			if !ok {
				return false
			}
			r.Data = append(r.Data, b[:min(len(b), maxData-len(r.Data))]...)
			return true
		case <-time.After(time.Until(at)):
			return false
		}
	}
	ends := 0
	for _, s := range j.Steps {
		for _, b := range s.Send {
			if _, err := c.Write(b); err != nil {
				r.Stage = "write" // what was said before that is still read
				break
			}
			if s.Pause > 0 {
				time.Sleep(s.Pause)
			}
		}
		for ends += s.Ends; count(j.Speak, r.Data) < ends; {
			if !read(deadline) {
				return
			}
		}
	}
	at := deadline
	if !j.UntilClosed {
		at = time.Now().Add(surplus)
	}
	for read(at) {
	}
}

// count is how many answers have come whole.
func count(s bypass.Speech, data []byte) (n int) {
	switch s {
	case bypass.HTTP1:
		for in := bufio.NewReader(bytes.NewReader(data)); ; {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				return n
			}
			if resp.StatusCode == http.StatusSwitchingProtocols {
				return n + 1
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 {
				return n // or ended by the connection's end
			}
			if resp.StatusCode >= 200 {
				n++
			}
		}
	case bypass.HTTP2: // RFC 9113, section 4.1
		const headSize, data0, headers, reset, goAway, endStream = 9, 0, 1, 3, 7, 1
		for len(data) >= headSize {
			size := headSize + int(data[0])<<16 + int(binary.BigEndian.Uint16(data[1:]))
			if len(data) < size {
				break
			}
			switch kind := data[3]; {
			case kind == reset, (kind == data0 || kind == headers) && data[4]&endStream != 0:
				n++
			case kind == goAway && binary.BigEndian.Uint32(data[headSize+4:]) != 0:
				return 1 << 30 // no more will come
			}
			data = data[size:]
		}
		return n
	default:
		return min(len(data), 1)
	}
}

// handshake begins TLS as h says.
func handshake(c net.Conn, h *bypass.Handshake, r *bypass.Result) (net.Conn, error) {
	cut := &cutter{Conn: c, record: h.Record, segment: h.Segment}
	keep := &sessions{into: r}
	config := &tls.Config{
		InsecureSkipVerify: true, ServerName: h.Name, NextProtos: h.ALPN,
		MinVersion: h.Min, MaxVersion: h.Max, ClientSessionCache: keep,
		EncryptedClientHelloConfigList: h.ECH,
		EncryptedClientHelloRejectionVerify: func(s tls.ConnectionState) error {
			r.Names = names(s.PeerCertificates)
			return nil
		},
	}
	for _, c := range h.Curves {
		config.CurvePreferences = append(config.CurvePreferences, tls.CurveID(c))
	}
	if h.Session != nil {
		state, err := tls.ParseSessionState(h.Session.State)
		if err != nil {
			return nil, err
		}
		if keep.given, err = tls.NewResumptionState(h.Session.Ticket, state); err != nil {
			return nil, err
		}
	}
	conn := tls.Client(cut, config)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	r.ALPN, r.Resumed, r.Names = state.NegotiatedProtocol, state.DidResume, names(state.PeerCertificates)
	return conn, nil
}

func names(chain []*x509.Certificate) []string {
	if len(chain) == 0 {
		return nil
	}
	return chain[0].DNSNames
}

// sessions offers the given session to every server, whatever its name, and
// keeps what it is given.
type sessions struct {
	given *tls.ClientSessionState
	into  *bypass.Result
}

func (s *sessions) Get(string) (*tls.ClientSessionState, bool) { return s.given, s.given != nil }

func (s *sessions) Put(_ string, c *tls.ClientSessionState) {
	if c == nil {
		return
	}
	ticket, state, err := c.ResumptionState()
	if err != nil || state == nil {
		return
	}
	if b, err := state.Bytes(); err == nil {
		s.into.Session = &bypass.Session{Ticket: ticket, State: b}
	}
}

// cutter cuts the first write, which is the ClientHello.
type cutter struct {
	net.Conn
	record, segment int
	done            bool
}

func (c *cutter) Write(p []byte) (int, error) {
	if c.done || c.record == 0 && c.segment == 0 {
		return c.Conn.Write(p)
	}
	c.done = true
	out := p
	if c.record > 0 {
		out = records(p, c.record)
	}
	step := len(out)
	if c.segment > 0 {
		step = c.segment
	}
	for len(out) > 0 {
		n := min(step, len(out))
		if _, err := c.Conn.Write(out[:n]); err != nil {
			return 0, err
		}
		out = out[n:]
	}
	return len(p), nil
}

// records cuts handshake records (RFC 8446, section 5.1) into smaller ones.
func records(p []byte, size int) (out []byte) {
	const headSize = 5
	for len(p) >= headSize {
		head, body := p[:3], p[headSize:headSize+int(binary.BigEndian.Uint16(p[3:]))]
		p = p[headSize+len(body):]
		for len(body) > 0 {
			n := min(size, len(body))
			out = append(out, head...)
			out = binary.BigEndian.AppendUint16(out, uint16(n))
			out = append(out, body[:n]...)
			body = body[n:]
		}
	}
	return out
}
