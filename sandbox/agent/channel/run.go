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

	"sallyport/internal/periodic"
	"sallyport/sandbox/agent/wire"
)

// killTimeout bounds the wait for an agent that shall end a command.
var killTimeout = 10 * time.Second

// lastTimeout bounds the wait for the end of an answer whose contents are
// there, so that its connection can be used again.
const lastTimeout = time.Second

// aliveEvery is how often a client's connection is tried while its command runs. Reading
// alone does not tell that a client has gone: nothing is read on while a command leaves
// its input alone.
const aliveEvery = 2 * time.Second

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
func (c *Channel) Run(ctx context.Context, cmd wire.Command, s wire.Streams) (wire.End, error) {
	cmd.Stdin = s.Stdin != nil
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	over := make(chan struct{})
	defer close(over)
	if steered(cmd) {
		go func() {
			s.Send(wire.NewWriter(w), over, func(err error) { cancel(&inputError{err}) })
			_ = w.Close()
		}()
	}
	return c.attach(ctx, cmd, r, w, s.Take)
}

// inputError is a Stdin that failed before its end.
type inputError struct{ err error }

func (e *inputError) Error() string { return "reading the command's input: " + e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// ErrGone: the client of an attached command went away before the command's end.
var ErrGone = errors.New("the client went away")

// Client is the connection of a client that speaks frames, as the agent does.
type Client struct {
	From io.Reader
	To   *wire.Writer
	// Count is told of each frame that passes, with the bytes that it carries; may be nil.
	Count func(k wire.Kind, bytes int)
}

// Splice is Run for a client at the other end of a connection: frames pass as they are,
// but for Exit, which is the caller's to send. When the client goes away, or sends a frame
// that no client sends, the command's processes are killed, its input still open, and the
// error is ErrGone. Of a command without input the client's input is dropped.
//
// From is read until it ends, beyond the command's end: the caller closes it.
func (c *Channel) Splice(ctx context.Context, cmd wire.Command, client Client) (wire.End, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	if client.Count == nil {
		client.Count = func(wire.Kind, int) {}
	}
	r, w := io.Pipe()
	go func() {
		to := wire.NewWriter(w)
		if !steered(cmd) {
			to = wire.NewWriter(io.Discard)
		}
		_, _ = wire.Frames(client.From, func(k wire.Kind, p []byte) error {
			if k != wire.Stdin && k != wire.Resize && k != wire.Signal {
				return errFrame
			}
			client.Count(k, len(p))
			if k == wire.Stdin && !cmd.Stdin {
				return nil
			}
			_ = to.Write(k, p) // a command that has ended does not want the rest
			return nil
		})
		cancel(ErrGone) // before the agent can see an end
		_ = w.CloseWithError(ErrGone)
	}()
	go client.ask(ctx, cancel)
	defer cancel(nil)
	return c.attach(ctx, cmd, r, w, func(k wire.Kind, p []byte) error {
		client.Count(k, len(p))
		if client.To.Write(k, p) != nil {
			return ErrGone
		}
		return nil
	})
}

// ask finds out whether the client is still there, until ctx is done.
func (c Client) ask(ctx context.Context, gone context.CancelCauseFunc) {
	for periodic.Sleep(ctx, aliveEvery) {
		if c.To.Write(wire.Alive, nil) != nil {
			gone(ErrGone)
			return
		}
	}
}

// steered says whether frames go to a command.
func steered(cmd wire.Command) bool { return cmd.Stdin || cmd.TTY != nil }

// attach runs a command to its end: r has the frames that w is given for it, and take gets
// those of its output.
func (c *Channel) attach(ctx context.Context, cmd wire.Command, r *io.PipeReader, w *io.PipeWriter, take func(wire.Kind, []byte) error) (wire.End, error) {
	defer r.Close()
	head, err := opening(cmd)
	if err != nil {
		return wire.End{}, err
	}
	var input io.Reader = bytes.NewReader(head)
	if steered(cmd) {
		// The transport waits for the body's end before it says that an agent is
		// gone which has not answered.
		defer context.AfterFunc(c.ctx, func() { _ = w.CloseWithError(ErrClosed) })()
		input = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(input, r), r}
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
		out := bufio.NewReaderSize(resp.Body, wire.MaxFrame)
		if end, err = carry(out, take); err == nil {
			if b, ok := resp.Body.(*body); ok {
				b.leave() // who has the end may end its context, which would cost the connection
			}
			c.finish(resp.Body, out)
			return end, nil
		}
		_ = resp.Body.Close()
	}
	broken := new(inputError)
	switch cause := context.Cause(ctx); {
	case c.ctx.Err() != nil:
		return end, ErrClosed
	case errors.As(cause, &broken), errors.Is(cause, ErrGone):
		err = cause
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

// errFrame: the other side does not speak as an agent, or a client of one, does.
var errFrame = errors.New("a frame that no agent sends")

// carry moves a command's output until its end.
func carry(from io.Reader, take func(wire.Kind, []byte) error) (end wire.End, err error) {
	exit, err := wire.Frames(from, func(k wire.Kind, p []byte) error {
		switch k {
		case wire.Stdout, wire.Stderr:
			return take(k, p)
		case wire.Alive:
			return nil
		}
		return fmt.Errorf("%w: %w", ErrSilent, errFrame)
	})
	if broken := new(wire.ReadError); errors.As(err, &broken) {
		return end, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	if err != nil {
		return end, err
	}
	if json.Unmarshal(exit, &end) != nil || end.Code < 0 || end.Code > 255 || len(end.Signal) > 16 {
		return wire.End{}, fmt.Errorf("%w: %w", ErrSilent, errFrame)
	}
	return end, nil
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
