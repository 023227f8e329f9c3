package bypass

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// responses reads answers of HTTP/1.1: their statuses, and all of their text.
func responses(data []byte) (all []string, text string) {
	var b strings.Builder
	b.Write(data)
	for in := bufio.NewReader(bytes.NewReader(data)); ; {
		if _, err := in.Peek(1); err != nil {
			return all, b.String()
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return append(all, "junk"), b.String()
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			all = append(all, fmt.Sprint(resp.StatusCode))
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return all, b.String() // what follows is no HTTP
		}
		if _, err := io.Copy(&b, resp.Body); err != nil {
			return append(all, "cut"), b.String()
		}
	}
}

// field is one of a header, or a pseudo-header.
type field struct{ name, value string }

// client builds what a client of HTTP/2 sends.
type client struct {
	bytes.Buffer
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	next    uint32
}

func newClient() *client {
	c := &client{next: 1}
	c.WriteString(http2.ClientPreface)
	c.Framer = http2.NewFramer(&c.Buffer, nil)
	c.AllowIllegalWrites = true
	c.encoder = hpack.NewEncoder(&c.block)
	_ = c.WriteSettings() // a Buffer takes all
	return c
}

// headers encodes fields as they are.
func (c *client) headers(fields []field) []byte {
	c.block.Reset()
	for _, f := range fields {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: f.name, Value: f.value})
	}
	return bytes.Clone(c.block.Bytes())
}

// open begins a stream.
func (c *client) open(end bool, fields []field) (id uint32) {
	id = c.next
	c.next += 2
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers(fields), EndStream: end, EndHeaders: true})
	return id
}

func (c *client) visit() visit {
	return visit{speak: HTTP2, steps: []Step{{Send: [][]byte{slices.Clone(c.Bytes())}}}}
}

// stream is one request: fields replace those of a GET of /v1/x, or come after
// them; an empty value leaves a pseudo-header out.
func stream(fields ...field) visit { return streamWith("", fields...) }

func streamWith(body string, fields ...field) visit {
	c := newClient()
	id := c.open(body == "", fill(fields))
	if body != "" {
		_ = c.WriteData(id, true, []byte(body))
	}
	return c.visit()
}

func fill(fields []field) []field {
	all := []field{{":method", "GET"}, {":scheme", "https"}, {":path", "/v1/x"}, {":authority", api}}
	for _, f := range fields {
		i := slices.IndexFunc(all, func(g field) bool { return g.name == f.name && f.name[:1] == ":" })
		switch {
		case f.name == "" || i < 0:
			all = append(all, f)
		case f.value == "":
			all = slices.Delete(all, i, i+1)
		default:
			all[i] = f
		}
	}
	return all
}

// streams reads what a server of HTTP/2 sent: what became of each stream, in the
// order of their ends, and all text.
func streams(data []byte) (all []string, text string) {
	var b strings.Builder
	status, reset := map[uint32]string{}, map[uint32]bool{}
	f := http2.NewFramer(io.Discard, bytes.NewReader(data))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all, b.String()
		}
		if err != nil {
			return append(all, "junk"), b.String()
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range frame.Fields {
				fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
				if h.Name == ":status" {
					status[frame.StreamID] = h.Value
				}
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			b.Write(frame.Data())
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			// After an answer it says that no more of the request is wanted; of what
			// still comes for a stream that is reset, that it is.
			if frame.ErrCode != http2.ErrCodeNo && !reset[frame.StreamID] {
				reset[frame.StreamID] = true
				all = append(all, "reset")
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				all = append(all, "goaway")
			}
		}
		if ended {
			all = append(all, status[frame.Header().StreamID])
		}
	}
}
