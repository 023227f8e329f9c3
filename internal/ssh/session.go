package ssh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/ipc"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// maxRequests bounds what a session is asked before it is one of something.
const maxRequests = 64

// session serves one channel of that type (RFC 4254, section 6).
func (g *sessionHost) session(offered ssh.NewChannel, t *consumer) {
	ch, requests, err := t.accept(offered)
	if err != nil {
		return
	}
	defer over(ch, requests)
	c := openCall{Use: policy.ProtocolShell, Env: map[string]string{}}
	asked := 0
	for r := range requests {
		if asked++; asked > maxRequests {
			return
		}
		ok := false
		switch r.Type {
		case "pty-req":
			ok = terminalOf(&c, r.Payload)
		case "env":
			var v struct{ Name, Value string }
			if ok = ssh.Unmarshal(r.Payload, &v) == nil && v.Name != "TERM" && variable(v.Name, v.Value) && len(c.Env) < maxEnv; ok {
				c.Env[v.Name] = v.Value
			}
		case "window-change":
			c.Size, ok = sizeOf(r.Payload)
		case "shell":
			c.Shell = true
			_ = r.Reply(true, nil)
			g.command(ch, requests, c)
			return
		case "exec":
			var v struct{ Command string }
			if ssh.Unmarshal(r.Payload, &v) == nil && len(v.Command) <= maxCommand {
				c.Command = v.Command
				_ = r.Reply(true, nil)
				g.command(ch, requests, c)
				return
			}
		case "subsystem":
			var v struct{ Name string }
			if ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "sftp" {
				_ = r.Reply(true, nil)
				g.sftp(ch, requests)
				return
			}
		}
		// Everything else, agents, displays and signals to nothing among it, is not
		// to be had.
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
}

// over closes a channel and takes what is asked by it still, until the client has closed
// it too: what nobody takes keeps all that comes by the connection from being read, its
// end among it. A client that does not close it has its place as long.
func over(ch ssh.Channel, requests asked) {
	_ = ch.Close()
	refuse(requests)
}

// terminalOf reads a request for a terminal. Its modes are left to the sandbox's.
func terminalOf(c *openCall, payload []byte) bool {
	var v struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &v) != nil || !variable("TERM", v.Term) {
		return false
	}
	c.TTY, c.Size = true, size(v.Rows, v.Cols)
	if v.Term != "" {
		c.Env["TERM"] = v.Term
	}
	return true
}

func sizeOf(payload []byte) (sandbox.Size, bool) {
	var v struct{ Cols, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &v) != nil {
		return sandbox.Size{}, false
	}
	return size(v.Rows, v.Cols), true
}

// size is a terminal's; one that is not said is left to the default.
func size(rows, cols uint32) sandbox.Size {
	if rows == 0 || cols == 0 {
		return sandbox.Size{}
	}
	return sandbox.Size{Rows: uint16(min(rows, 1<<16-1)), Cols: uint16(min(cols, 1<<16-1))}
}

// command carries a command's streams until it has ended.
func (g *sessionHost) command(ch ssh.Channel, requests asked, c openCall) {
	_, conn, err := g.begin(c)
	if err != nil {
		fail(ch, failure(err), failedCode)
		return
	}
	defer conn.Close()
	sizes, signals, over := make(chan sandbox.Size, 1), make(chan string, 4), make(chan struct{})
	defer close(over)
	s := wire.Streams{Stdin: &input{ch, g}, Stdout: &touching{ch, g}, Stderr: &touching{ch.Stderr(), g}, Sizes: sizes, Signals: signals}
	go s.Send(wire.NewWriter(conn), over, func(error) {})
	go func() {
		defer conn.Close() // the client has closed the channel, or is gone
		steer(requests, sizes, signals)
	}()
	var end ending
	last, err := wire.Frames(bufio.NewReaderSize(conn, wire.MaxFrame), s.Take)
	if err == nil {
		err = json.Unmarshal(last, &end)
	}
	if err != nil {
		end = ending{Code: failedCode, Error: "the connection to the sandbox has ended"}
	}
	if end.Error != "" {
		fail(ch, end.Error, end.Code)
		return
	}
	_ = ch.CloseWrite()
	if signalForm.MatchString(end.Signal) {
		_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal        string
			Core          bool
			Message, Lang string
		}{Signal: end.Signal}))
		return
	}
	exit(ch, end.Code)
}

// input is what a client sends to a command. Its end is an error where the client has not
// said it.
type input struct {
	ch ssh.Channel
	g  *sessionHost
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.ch.Read(p)
	if n > 0 {
		i.g.touch()
	}
	if errors.Is(err, io.EOF) && !stays(i.ch) {
		err = errBroken
	}
	return n, err
}

// stays tells whether the client keeps a channel open whose input has ended, as it says
// by an answer to anything. To x/crypto/ssh the end of the channel, or of the
// connection, is the end of the input too, and a client that has gone has not ended it.
func stays(ch ssh.Channel) bool {
	_, err := ch.SendRequest("keepalive@openssh.com", true, nil)
	return err == nil
}

func exit(ch ssh.Channel, code int) {
	_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

// fail says on standard error what could not be done, and ends the channel.
func fail(ch ssh.Channel, why string, code int) {
	_, _ = fmt.Fprintf(ch.Stderr(), "sallyport: %s\r\n", terminal.Escape(why))
	_ = ch.CloseWrite()
	exit(ch, code)
}

// failure is the text of an error that the Server gave.
func failure(err error) string {
	if errors.Is(err, errDenied) {
		return strings.TrimPrefix(err.Error(), errDenied.Error()+": ")
	}
	if errors.Is(err, ipc.ErrClosed) {
		return "the server is being started again"
	}
	return err.Error()
}

// steer passes on what the client asks of a command, until the channel is closed. Of
// sizes the last one counts; signals beyond what a command can have taken in are dropped.
func steer(requests asked, sizes chan sandbox.Size, signals chan<- string) {
	for r := range requests {
		ok := false
		switch r.Type {
		case "window-change":
			var size sandbox.Size
			if size, ok = sizeOf(r.Payload); !ok || size == (sandbox.Size{}) {
				ok = false
				break
			}
			select {
			case <-sizes:
			default:
			}
			sizes <- size
		case "signal":
			var v struct{ Name string }
			if ok = ssh.Unmarshal(r.Payload, &v) == nil && signalForm.MatchString(v.Name); ok {
				select {
				case signals <- v.Name:
				default:
				}
			}
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
}

// touching notes what passes.
type touching struct {
	io.Writer
	g *sessionHost
}

func (t *touching) Write(p []byte) (int, error) {
	t.g.touch()
	return t.Writer.Write(p)
}

// sftp carries SFTP between a client and the sandbox's agent, which serves it, but for
// names that no folder has.
func (g *sessionHost) sftp(ch ssh.Channel, requests asked) {
	use, conn, err := g.begin(openCall{Use: policy.ProtocolSFTP})
	if err != nil {
		fail(ch, failure(err), 1)
		return
	}
	defer conn.Close()
	if g.carry(ch, requests, use, conn, &sftpFilter{}) {
		exit(ch, 0)
	}
}

// forward serves a connection to a port of the sandbox (RFC 4254, section 7.2).
func (g *sessionHost) forward(offered ssh.NewChannel, t *consumer) {
	var v struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if ssh.Unmarshal(offered.ExtraData(), &v) != nil || v.Port == 0 || v.Port >= 1<<16 {
		_ = offered.Reject(ssh.ConnectionFailed, "that is no port")
		return
	}
	use, conn, err := g.begin(openCall{Use: policy.ProtocolForward, Host: cut(v.Host), Port: uint16(v.Port)})
	if err != nil {
		why := ssh.ConnectionFailed
		if errors.Is(err, errDenied) {
			why = ssh.Prohibited
		}
		_ = offered.Reject(why, terminal.Escape(failure(err)))
		return
	}
	defer conn.Close()
	ch, requests, err := t.accept(offered)
	if err != nil {
		return
	}
	defer over(ch, requests)
	g.carry(ch, requests, use, conn, nil)
}

// carry carries bytes between a client's channel and a use, until both directions have
// ended; false: the sandbox's has broken off, and so has the channel. With a filter they
// are SFTP's.
func (g *sessionHost) carry(ch ssh.Channel, requests asked, use uint64, conn *net.UnixConn, f *sftpFilter) (whole bool) {
	left := func(refused bool) {
		c := leftUseCall{Connection: g.id, Use: use, Refused: refused}
		if g.s.peer.Call(context.Background(), callLeftUse, c, &ipc.None{}) != nil || refused {
			_ = conn.Close()
		}
	}
	go func() {
		refuse(requests) // until the client closes the channel, or has gone
		left(false)
	}()
	var in io.Writer = &touching{conn, g}
	answers := func(to io.Writer, from io.Reader) error { _, err := io.Copy(to, from); return err }
	if f != nil {
		in, answers = &sftpRequests{to: in, f: f}, f.answers
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := answers(&touching{ch, g}, ipc.NewPieces(conn)); err != nil {
			if errors.Is(err, errSFTP) {
				left(true)
			}
			_ = ch.Close() // with no end before: it broke off
			return
		}
		whole = true
		_ = ch.CloseWrite()
	}()
	_, err := io.Copy(in, ch)
	switch {
	case err == nil:
		_ = conn.CloseWrite()
	case errors.Is(err, errSFTP):
		left(true)
	}
	<-ended
	return whole
}
