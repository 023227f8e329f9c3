package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/textproto"
	"sync"

	"sallyport/gateway/http1"
)

// maxInformational bounds the 1xx responses before a response.
const maxInformational = 32

var (
	errInformational = errors.New("too many informational responses, or too large")
	errSwitch        = errors.New("HTTP/2 has no status 101")
)

// informationalKey is the type of InformationalKey.
type informationalKey struct{}

// Informational gets the 1xx responses that come before a response, except 100 and 101. It
// is the value of a request's context under InformationalKey, and is called before
// RoundTrip returns.
type Informational func(code int, h http.Header)

// InformationalKey is the key of an Informational.
var InformationalKey any = informationalKey{}

func informational(ctx context.Context) Informational {
	f, _ := ctx.Value(InformationalKey).(Informational)
	return f
}

// earlyHints passes the 1xx responses of one request on, in a goroutine of its own: the
// library reports them from the goroutine that reads for all requests of the connection,
// and their receiver may be slow.
type earlyHints struct {
	to     Informational
	count  int // of responses
	size   int // of their headers, in bytes
	fields int
	done   sync.WaitGroup

	mu      sync.Mutex
	queue   []informationalResponse
	running bool
}

type informationalResponse struct {
	code   int
	header http.Header
}

// receive is httptrace.ClientTrace.Got1xxResponse.
func (h *earlyHints) receive(code int, header textproto.MIMEHeader) error {
	switch code {
	case http.StatusContinue:
		return nil // the transport's own
	case http.StatusSwitchingProtocols:
		return errSwitch // RFC 9113, section 8.6
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fields, size := http1.Measure(http.Header(header))
	h.size += size
	h.fields += fields
	if h.count++; h.count > maxInformational || h.size > maxResponseHeader || h.fields > http1.MaxFields {
		return errInformational
	}
	h.queue = append(h.queue, informationalResponse{code, http.Header(header)})
	if !h.running {
		h.running = true
		h.done.Go(h.run)
	}
	return nil
}

func (h *earlyHints) run() {
	for {
		h.mu.Lock()
		if len(h.queue) == 0 {
			h.running = false
			h.mu.Unlock()
			return
		}
		next := h.queue[0]
		h.queue = h.queue[1:]
		h.mu.Unlock()
		h.to(next.code, next.header)
	}
}
