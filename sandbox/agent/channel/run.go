package channel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"sallyport/sandbox/agent/wire"
)

// killTimeout bounds the wait for an agent that shall end a command.
var killTimeout = 10 * time.Second

// lastTimeout bounds the wait for the end of an answer whose contents are
// there, so that its connection can be used again.
const lastTimeout = time.Second

// Streams are those of an attached command. Stdin and Sizes may be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Sizes          <-chan wire.Size // that the terminal gets
	Signals        <-chan string    // to the process group, as in TERM; with Stdin or a terminal
}

// Run runs a command to its end. When ctx is done, or its output cannot be
// written, the command's processes are killed and the reason is returned. When
// the channel is closed they are not: what carries a sandbox to sleep does not
// end what runs in it. A command that could not be started is an *Error whose
// Code is the shell's.
//
// Only io.EOF from Stdin ends the command's input. After any other error its
// processes are killed with the input still open, and that error is returned: a
// command never takes part of its input for all of it.
//
// A Stdin that blocks is read until its next return, beyond the command's end.
func (c *Channel) Run(ctx context.Context, cmd wire.Command, s Streams) (wire.End, error) {
	cmd.Stdin = s.Stdin != nil
	head, err := opening(cmd)
	if err != nil {
		return wire.End{}, err
	}
	var input io.Reader = bytes.NewReader(head)
	if cmd.Stdin || cmd.TTY != nil {
		r, w := io.Pipe()
		defer r.Close()
		over := make(chan struct{})
		defer close(over)
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		go steer(w, head, s, over, cancel)
		// The transport waits for the body's end before it says that an agent is
		// gone which has not answered.
		defer context.AfterFunc(c.ctx, func() { _ = w.CloseWithError(ErrClosed) })()
		input = r
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/run", input)
	if err != nil {
		return wire.End{}, err
	}
	req.Header.Set("Idempotency-Key", cmd.ID) // see [http.Transport] on stale connections
	resp, err := c.Do(req, true)
	if refused := new(Error); errors.As(err, &refused) || errors.Is(err, ErrBusy) {
		return wire.End{}, err // nothing runs
	}
	var end wire.End
	if err == nil {
		r := bufio.NewReaderSize(resp.Body, wire.MaxFrame)
		if end, err = carry(r, s); err == nil {
			if b, ok := resp.Body.(*body); ok {
				b.leave() // who has the end may end its context, which would cost the connection
			}
			c.finish(resp.Body, r)
			return end, nil
		}
		_ = resp.Body.Close()
	}
	broken := new(inputError)
	switch cause := context.Cause(ctx); {
	case c.ctx.Err() != nil:
		return end, ErrClosed
	case errors.As(cause, &broken):
		err = broken
	case cause != nil:
		err = ctx.Err()
	}
	if killed := c.Kill(context.WithoutCancel(ctx), cmd.ID); killed != nil {
		err = fmt.Errorf("%w (and it may run on: %w)", err, killed)
	}
	return end, err
}

// Kill ends a command and all that it started. One that is not there has ended.
func (c *Channel) Kill(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	err := c.JSON(ctx, http.MethodDelete, "/commands/"+id, nil, nil)
	if gone := new(Error); errors.As(err, &gone) && gone.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// opening is how the request of an attached command starts.
func opening(cmd wire.Command) ([]byte, error) {
	data, err := json.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	if len(data) > wire.MaxCommand {
		return nil, fmt.Errorf("the command has %d bytes, more than %d", len(data), wire.MaxCommand)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...), nil
}

// inputError is a Stdin that failed before its end.
type inputError struct{ err error }

func (e *inputError) Error() string { return "reading the command's input: " + e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// steer sends what goes to the command until the command is over or there is
// nothing more to send. It calls broken if Stdin fails before its end.
func steer(w *io.PipeWriter, head []byte, s Streams, over <-chan struct{}, broken context.CancelCauseFunc) {
	if _, err := w.Write(head); err != nil {
		return
	}
	frames := wire.NewWriter(w)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if s.Stdin == nil {
			return
		}
		if err := frames.Input(s.Stdin); err != nil {
			broken(&inputError{err})
		}
	}()
	for sizes, signals := s.Sizes, s.Signals; sizes != nil || signals != nil; {
		select {
		case name, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			_ = frames.Write(wire.Signal, []byte(name))
		case size, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			if data, err := json.Marshal(size); err == nil {
				_ = frames.Write(wire.Resize, data)
			}
		case <-over:
			return
		}
	}
	select {
	case <-fed:
		_ = w.Close()
	case <-over:
	}
}

// errFrame: the other side does not speak as an agent does.
var errFrame = errors.New("a frame that no agent sends")

// carry moves a command's output until its end.
func carry(r io.Reader, s Streams) (end wire.End, err error) {
	buf := make([]byte, wire.MaxFrame)
	for {
		k, p, err := wire.Read(r, buf)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return end, fmt.Errorf("%w: %w", ErrSilent, err)
		}
		switch k {
		case wire.Stdout:
			err = write(s.Stdout, p)
		case wire.Stderr:
			err = write(s.Stderr, p)
		case wire.Alive:
		case wire.Exit:
			if json.Unmarshal(p, &end) != nil || end.Code < 0 || end.Code > 255 || len(end.Signal) > 16 {
				return wire.End{}, fmt.Errorf("%w: %w", ErrSilent, errFrame)
			}
			return end, nil
		default:
			err = fmt.Errorf("%w: %w", ErrSilent, errFrame)
		}
		if err != nil {
			return end, err
		}
	}
}

func write(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

// finish lets the connection of an answer be used again, if the answer ends as
// it should.
func (c *Channel) finish(body io.Closer, r io.Reader) {
	go func() {
		late := time.AfterFunc(lastTimeout, func() { _ = body.Close() })
		defer late.Stop()
		_, _ = r.Read(make([]byte, 1))
		_ = body.Close()
	}()
}
