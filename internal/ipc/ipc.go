// Package ipc carries calls both ways between two processes over one unix
// stream socket, one of which does not trust the other.
//
// A frame is a header of 16 bytes and a body of JSON:
//
//	0  version, 1
//	1  kind: call, reply or failure
//	2  method of a call
//	3  1 when an open file comes along (SCM_RIGHTS, unix(7)), else 0
//	4  length of the body, 32 bits, big endian
//	8  id of the call, 64 bits, big endian; each side counts its own from 1
//
// Whatever a [Peer] gets is bounded: a frame's size, the calls of the other
// side that are under way at a time (further ones wait in the socket), what
// waits to be sent to a side that does not read, and for how long. A frame that
// is not as above, a method that is not in the table, a body that is not what
// the method takes, and an answer to what was never asked, end the link; so
// does one that is too large. Files that nobody asked for are closed by the
// kernel.
//
// Frames that are ready at the same time leave in one write: calls come in
// bursts where many connections wait for the same disk.
package ipc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Method is a call's name. Both sides give it the same meaning.
type Method uint8

// Handler answers one method. ctx is done when the link ends.
type Handler func(ctx context.Context, body []byte) (reply any, file *os.File, err error)

// Handle makes a Handler of a function with types.
func Handle[In, Out any](f func(context.Context, In) (Out, error)) Handler {
	return HandleFile(func(ctx context.Context, in In) (Out, *os.File, error) {
		out, err := f(ctx, in)
		return out, nil, err
	})
}

// HandleFile is Handle for an answer that an open file comes along with, which
// is closed here when it has been sent.
func HandleFile[In, Out any](f func(context.Context, In) (Out, *os.File, error)) Handler {
	return func(ctx context.Context, body []byte) (any, *os.File, error) {
		var in In
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, nil, &protocolError{fmt.Sprintf("a call's body: %v", err)}
		}
		return f(ctx, in)
	}
}

// None is an empty body.
type None struct{}

// Options of a Peer. The zero Options answers nothing.
type Options struct {
	// Methods are what the other side may call.
	Methods map[Method]Handler
	// Errors are those that keep their identity across the link, by a code that
	// both sides know.
	Errors map[string]error
	// MaxFrame bounds a frame in bytes, both ways. Default: 1 MiB.
	MaxFrame int
	// MaxIn bounds a call of the other side's, in bytes with its header: what it
	// may have this side hold is that, MaxCalls times. Default: MaxFrame.
	MaxIn int
	// MaxOut bounds this side's calls, as the other side's MaxIn does: a larger
	// one is its caller's error, not the link's. Default: MaxFrame.
	MaxOut int
	// MaxCalls bounds the other side's calls that are under way. Default: 256.
	MaxCalls int
	// Files permits the other side to send files. Default: it may not.
	Files bool
	// Patience is for how long the other side may not read. Default: 10 s.
	Patience time.Duration
}

// Errors to branch on.
var (
	// ErrClosed is wrapped by the error of a call that got no answer.
	ErrClosed = errors.New("the link has ended")
	// ErrTooLarge is wrapped by the error of a call that the link does not take. Nothing was
	// sent.
	ErrTooLarge = errors.New("too large for the link")
	// ErrProtocol is wrapped by Serve's error when the other side broke a rule.
	ErrProtocol = errors.New("the other side does not keep to the protocol")
)

// protocolError ends the link.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return ErrProtocol.Error() + ": " + e.what }
func (e *protocolError) Unwrap() error { return ErrProtocol }

// RemoteError is what the other side's handler returned.
type RemoteError struct {
	Message string
	known   error // one of Options.Errors, or nil
}

func (e *RemoteError) Error() string { return e.Message }
func (e *RemoteError) Unwrap() error { return e.known }

// failure is a RemoteError on its way.
type failure struct {
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

// maxMessage bounds an error's text, in bytes.
const maxMessage = 4 << 10

func (p *Peer) failed(err error) failure {
	f := failure{Message: err.Error()}
	f.Message = f.Message[:min(len(f.Message), maxMessage)]
	for code, known := range p.o.Errors {
		if errors.Is(err, known) {
			f.Code = code
		}
	}
	return f
}

func (p *Peer) remote(body []byte) error {
	var f failure
	if err := json.Unmarshal(body, &f); err != nil {
		return &protocolError{fmt.Sprintf("a failure's body: %v", err)}
	}
	return &RemoteError{f.Message[:min(len(f.Message), maxMessage)], p.o.Errors[f.Code]}
}
