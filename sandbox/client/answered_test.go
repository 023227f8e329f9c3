package client

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// A daemon that refuses an upload and closes is heard, however much of the upload is
// still to be written.
func TestRefusedWhileWriting(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	must.OK(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
				_, _ = io.CopyN(io.Discard, r.Body, 1)
				_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"detail\":\"no!\"}")
			}
			c.Close()
		}
	}()
	c := Unix(socket)
	for i := range 30 {
		_, err := c.Files("box").Write(t.Context(), "/f", bytes.NewReader(make([]byte, 8<<20)), sandbox.WriteOptions{})
		if err == nil || err.Error() != "no!" {
			t.Fatalf("the upload %d: %v", i, err)
		}
	}
}
