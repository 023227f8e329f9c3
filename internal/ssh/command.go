package ssh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// command runs a command of a use to its end. Its client's going away ends it.
func (d *Door) command(u *use, conn *net.UnixConn, c openCall) (sandbox.CommandEnd, error) {
	ctx, cancel := context.WithCancelCause(u.ctx)
	defer cancel(nil)
	stdin, feed := io.Pipe()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		feeding(conn, feed, &u.sum.in, cancel)
	}()
	out := wire.NewWriter(conn)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		cancel(asking(ctx, out))
	}()
	env := map[string]string{}
	for name, value := range c.Env {
		if variable(name, value) {
			env[name] = value
		}
	}
	end, err := d.o.Sandboxes.Attach(ctx, u.of.info.Name, sandbox.Command{
		Args: arguments(c), Env: env, TTY: c.TTY, Size: c.Size, Input: true, Stdin: stdin,
		Stdout: &counted{out.Stream(wire.Stdout), &u.sum.out, cancel}, Stderr: &counted{out.Stream(wire.Stderr), &u.sum.out, cancel},
		Sizes: u.sizes, Signals: u.signals,
	})
	_ = stdin.Close()
	say := ending{Code: end.Code, Signal: end.Signal}
	if err != nil {
		if why := context.Cause(ctx); why != nil {
			err = why
		}
		if errors.Is(err, errClosed) {
			err = errGone // the end of its connection may be told before the command's own
		}
		say.Code, say.Error = failedCode, err.Error()
	}
	if text, jerr := json.Marshal(say); jerr == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(answerWithin))
		_ = out.Write(wire.Exit, text) // who went away does not want it
	}
	cancel(nil)
	_ = conn.CloseWrite()
	_ = conn.CloseRead() // and so the reader ends
	<-fed
	<-asked
	return end, err
}

// failedCode is the status of what could not be run, as ssh itself has it.
const failedCode = 255

// feeding gives a command what its client sends, until that goes away, of which it tells
// gone before the command can see an end.
func feeding(from io.Reader, to *io.PipeWriter, sum *atomic.Int64, gone context.CancelCauseFunc) {
	r, buf := bufio.NewReaderSize(from, wire.MaxFrame), make([]byte, wire.MaxFrame)
	for {
		k, p, err := wire.Read(r, buf)
		switch {
		case err == nil && k == wire.Stdin && len(p) == 0:
			_ = to.Close() // the end of its input; the client stays
			continue
		case err == nil && k == wire.Stdin:
			sum.Add(int64(len(p)))
			_, _ = to.Write(p) // one that has closed its input does not want the rest
			continue
		}
		gone(errGone)
		_ = to.CloseWithError(errGone)
		return
	}
}

var errGone = errors.New("the client went away")

// asking writes until the client is gone or ctx is done: feeding does not read on
// while a command leaves its input alone.
func asking(ctx context.Context, out *wire.Writer) error {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := out.Write(wire.Alive, nil); err != nil {
				return errGone
			}
		}
	}
}

// counted counts what passes to a client, and tells gone where the client does not take it.
type counted struct {
	io.Writer
	sum  *atomic.Int64
	gone context.CancelCauseFunc
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.sum.Add(int64(n))
	if err != nil {
		c.gone(errGone)
	}
	return n, err
}
