package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/internal/test/must"
)

// frames is a client of HTTP/2 that sends what no honest one would.
type frames struct {
	net.Conn
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	next    uint32
	settled map[http2.SettingID]uint32 // what the server has said
	goodbye *http2.GoAwayFrame
}

// frames connects to an origin by name.
func (w *netEnv) frames(dial dialler, o *origin) *frames {
	w.t.Helper()
	c, err := w.framed(dial, o)
	must.OK(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *netEnv) framed(dial dialler, o *origin) (*frames, error) {
	raw, err := dial(context.Background(), "tcp", fmt.Sprintf("%s:%d", o.name, o.port))
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, &tls.Config{RootCAs: w.ca.pool, ServerName: o.name, NextProtos: []string{"h2"}})
	if err := c.Handshake(); err != nil {
		raw.Close()
		return nil, err
	}
	return newFrames(c)
}

func newFrames(c net.Conn) (*frames, error) {
	f := &frames{Conn: c, Framer: http2.NewFramer(c, c), next: 1, settled: map[http2.SettingID]uint32{}}
	f.AllowIllegalWrites, f.AllowIllegalReads = true, false
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.encoder = hpack.NewEncoder(&f.block)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, err
	}
	return f, f.WriteSettings()
}

type field struct{ name, value string }

// headers encodes fields as they are.
func (f *frames) headers(fields ...field) []byte {
	f.block.Reset()
	for _, h := range fields {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: h.name, Value: h.value})
	}
	return bytes.Clone(f.block.Bytes())
}

// open begins a stream.
func (f *frames) open(end bool, fields ...field) (id uint32, err error) {
	id = f.next
	f.next += 2
	return id, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.headers(fields...), EndStream: end, EndHeaders: true})
}

// answer is what became of a stream.
type answer struct {
	status  string // "" without a head
	header  map[string]string
	body    string
	trailer map[string]string
	reset   http2.ErrCode
	broken  bool // by RST_STREAM
	gone    bool // with the connection
}

// wait reads frames until a stream has ended.
func (f *frames) wait(id uint32) answer { return f.waitFor(id, patience) }

func (f *frames) waitFor(id uint32, limit time.Duration) (a answer) {
	_ = f.SetReadDeadline(time.Now().Add(limit))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			a.gone = true
			return a
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = frame.ForeachSetting(func(s http2.Setting) error { f.settled[s.ID] = s.Val; return nil })
				_ = f.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			f.goodbye = frame
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = f.WritePing(true, frame.Data)
			}
		case *http2.MetaHeadersFrame:
			if frame.StreamID != id {
				continue
			}
			values := map[string]string{}
			for _, h := range frame.Fields {
				values[h.Name] = h.Value
			}
			if a.header == nil || a.status < "200" {
				a.header, a.status = values, values[":status"]
			} else {
				a.trailer = values
			}
			if frame.StreamEnded() {
				return a
			}
		case *http2.DataFrame:
			if n := uint32(len(frame.Data())); n > 0 {
				_ = f.WriteWindowUpdate(0, n)
			}
			if frame.StreamID != id {
				continue
			}
			a.body += string(frame.Data())
			if frame.StreamEnded() {
				return a
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == id {
				a.reset, a.broken = frame.ErrCode, true
				return a
			}
		}
	}
}

// ask sends a request without a body and waits for its end.
func (f *frames) ask(t *testing.T, fields ...field) answer {
	t.Helper()
	id, err := f.open(true, fields...)
	must.OK(t, err)
	return f.wait(id)
}

// scripted starts an upstream of HTTP/2 that answers each request as a test
// says, frame by frame.
func (w *netEnv) scripted(name string, answer func(c *frames, stream uint32)) *origin {
	w.t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{w.public.leaf(name)}, NextProtos: []string{"h2"}})
	must.OK(w.t, err)
	o := &origin{name: name, port: addrPort(ln.Addr()).Port()}
	w.name(name)
	var work sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			o.conns.Add(1)
			mu.Lock()
			open[c] = true
			mu.Unlock()
			work.Go(func() {
				defer c.Close()
				if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				f := &frames{Conn: c, Framer: http2.NewFramer(c, c), settled: map[http2.SettingID]uint32{}}
				f.AllowIllegalWrites = true
				f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
				f.encoder = hpack.NewEncoder(&f.block)
				_ = f.WriteSettings()
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						return
					}
					switch frame := frame.(type) {
					case *http2.MetaHeadersFrame:
						answer(f, frame.StreamID)
					case *http2.SettingsFrame:
						if !frame.IsAck() {
							_ = f.WriteSettingsAck()
						}
					case *http2.PingFrame:
						if !frame.IsAck() {
							_ = f.WritePing(true, frame.Data)
						}
					}
				}
			})
		}
	})
	w.t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return o
}
