package gateway_test

import (
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// connKey finds a request's connection in its context.
type connKey struct{}

// underneath is the TCP connection that a request came by.
func underneath(r *http.Request) *net.TCPConn {
	c := r.Context().Value(connKey{}).(net.Conn)
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}

// reset ends a connection with a TCP RST rather than a FIN: SO_LINGER of 0,
// socket(7).
func reset(c net.Conn) {
	switch over := c.(type) {
	case interface{ NetConn() net.Conn }:
		reset(over.NetConn())
		return
	case *net.TCPConn:
		_ = over.SetLinger(0)
	}
	_ = c.Close()
}

// resetting makes a request's connection end with a RST, whatever the version.
func resetting(r *http.Request) {
	reset(underneath(r))
	panic(http.ErrAbortHandler)
}

// pattern is what is downloaded.
var pattern = func() []byte {
	b := make([]byte, 256<<10)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}()

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:8])
}

// serveWell puts on an origin what works. Each answer has the credential in it,
// in a spelling or two, if one came.
func serveWell(o *origin) {
	echo := func(r *http.Request) string {
		auth := r.Header.Get("Authorization")
		return fmt.Sprintf("%s|%s", auth, base64.StdEncoding.EncodeToString([]byte(auth)))
	}
	o.handle("/open/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Saw", strconv.FormatBool(r.Header.Get("Authorization") == "Bearer "+token))
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "you sent %s.", echo(r))
	})
	o.handle("/open/none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	o.handle("/open/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: %d %s\n\n", i, echo(r))
			w.(http.Flusher).Flush()
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
	})
	o.handle("/open/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		w.Header().Set("X-Sum", sum(pattern[:n]))
		if n%2 == 0 {
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		_, _ = w.Write(pattern[:n])
	})
	o.handle("/open/gzip", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprintf(z, "you sent %s.", echo(r))
		_ = z.Close()
	})
	o.handle("/open/upload", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Echo")
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprint(w, n, " ", err)
		w.Header().Set("X-Sum", hex.EncodeToString(h.Sum(nil)[:8])+r.Trailer.Get("X-Check"))
		w.Header().Set("X-Echo", echo(r))
	})
	o.handle("/open/early", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	// Messages as gRPC frames them are sent back as they come, then the status.
	o.handle("/open/call", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.(http.Flusher).Flush()
		var head [5]byte
		for {
			if _, err := io.ReadFull(r.Body, head[:]); err != nil {
				break
			}
			message := make([]byte, head[4])
			if _, err := io.ReadFull(r.Body, message); err != nil {
				return
			}
			_, _ = w.Write(append(head[:], message...))
			w.(http.Flusher).Flush()
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", echo(r))
	})
	o.handle("/open/bye", func(w http.ResponseWriter, r *http.Request) { // GOAWAY by HTTP/2
		w.Header().Set("Connection", "close")
		io.WriteString(w, "bye")
	})
	o.mux.Handle("/open/ws", echoing)
}

// ills are what an upstream can do instead of answering. Nothing of it may look
// like a whole answer to the client, but for patience.
var ills = []string{"reset", "cut", "known", "half", "halfway", "junk", "eats", "abort", "hang", "stall"}

// serveIll puts them on an origin, below /open/.
func serveIll(o *origin) {
	begin := func(w http.ResponseWriter, length string) {
		if length != "" {
			w.Header().Set("Content-Length", length)
		}
		_, _ = w.Write(pattern[:1000])
		w.(http.Flusher).Flush()
	}
	// halve writes something that is no whole response and ends its own direction
	// of the connection only; by HTTP/2 it does so to TCP.
	halve := func(r *http.Request, w http.ResponseWriter, what string) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = underneath(r).CloseWrite()
			panic(http.ErrAbortHandler)
		}
		defer c.Close()
		_, _ = io.WriteString(c, what)
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.Copy(io.Discard, c) // until the gateway has had enough
	}
	o.handle("/open/reset", func(w http.ResponseWriter, r *http.Request) { resetting(r) })
	o.handle("/open/cut", func(w http.ResponseWriter, r *http.Request) { begin(w, ""); resetting(r) })
	o.handle("/open/known", func(w http.ResponseWriter, r *http.Request) { begin(w, "5000"); resetting(r) })
	o.handle("/open/half", func(w http.ResponseWriter, r *http.Request) { halve(r, w, "HTTP/1.1 200 O") })
	o.handle("/open/halfway", func(w http.ResponseWriter, r *http.Request) {
		halve(r, w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
	})
	o.handle("/open/junk", func(w http.ResponseWriter, r *http.Request) { halve(r, w, "\x00\x01 not HTTP\r\n\r\n") })
	o.handle("/open/eats", func(w http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 100))
		resetting(r)
	})
	o.handle("/open/abort", func(w http.ResponseWriter, r *http.Request) { begin(w, ""); panic(http.ErrAbortHandler) })
	o.handle("/open/hang", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	o.handle("/open/stall", func(w http.ResponseWriter, r *http.Request) { begin(w, ""); <-r.Context().Done() })
}

// mute starts an upstream that takes connections and never says a word.
func (w *netEnv) mute(name string) *origin {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(w.t, err)
	o := &origin{name: name, port: addrPort(ln.Addr()).Port()}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			o.conns.Add(1)
			o.open.Add(1)
			work.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
				o.open.Add(-1)
			})
		}
	})
	w.t.Cleanup(func() { ln.Close(); work.Wait() })
	w.name(name)
	return o
}

// expired starts an upstream whose certificate was good until a minute ago.
func (w *netEnv) expired(name string) *origin {
	w.t.Helper()
	leaf := w.public.sign(name, 1<<20, time.Now().Add(-time.Minute))
	return w.originOf(name, "h1", &leaf)
}

// misnamed starts an upstream with the certificate of another name.
func (w *netEnv) misnamed(name string) *origin {
	w.t.Helper()
	leaf := w.public.leaf("other.example.test")
	return w.originOf(name, "h1", &leaf)
}

// nobody is where nothing listens.
func (w *netEnv) nobody(name string) *origin {
	w.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // which keeps the port
	must.OK(w.t, err)
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	must.OK(w.t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	must.OK(w.t, err)
	w.name(name)
	return &origin{name: name, port: uint16(at.(*unix.SockaddrInet4).Port)}
}
