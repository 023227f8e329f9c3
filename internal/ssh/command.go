package ssh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// command runs a command of a use to its end. Its client's going away ends it.
func (d *Server) command(u *use, conn *net.UnixConn, c openCall) (sandbox.CommandEnd, error) {
	env := map[string]string{}
	for name, value := range c.Env {
		if variable(name, value) {
			env[name] = value
		}
	}
	out := wire.NewWriter(conn)
	spec := sandbox.CommandSpec{Args: arguments(c), Env: env, TTY: c.TTY, Size: c.Size, Input: true}
	end, err := d.o.Sandboxes.Attach(u.ctx, u.of.info.Name, spec, sandbox.CommandClient{
		From: bufio.NewReaderSize(conn, wire.MaxFrame), To: out, Count: u.sum.frame,
	})
	say := ending{Code: end.Code, Signal: end.Signal}
	if err != nil {
		if why := context.Cause(u.ctx); why != nil && !errors.Is(err, errGone) {
			err = why
		}
		// The end of its connection, or of the process that speaks SSH, may be told before the
		// command's own.
		if errors.Is(err, errClosed) || errors.Is(err, context.Canceled) {
			err = errGone
		}
		say.Code, say.Error = failedCode, err.Error()
	}
	if text, jerr := json.Marshal(say); jerr == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(answerWithin))
		_ = out.Write(wire.Exit, text) // who went away does not want it
	}
	return end, err
}

// failedCode is the status of what could not be run, as ssh itself has it.
const failedCode = 255

// errGone ends a use whose client went away.
var errGone = sandbox.ErrGone

// frame counts what a frame carries.
func (t *traffic) frame(k wire.Kind, bytes int) {
	switch k {
	case wire.Stdin:
		t.in.Add(int64(bytes))
	case wire.Stdout, wire.Stderr:
		t.out.Add(int64(bytes))
	}
}
