package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/wire"
	"sallyport/policy"
)

const (
	// exitDenied is the exit status of what was not carried, as git's of a fatal error.
	exitDenied = 128
	// maxRequests bounds what a channel may be told before it begins: variables, a terminal.
	maxRequests = 64
	// pause is after how long without output the text that is searched ends: a prompt, or
	// the end of git's turn, has to reach the client.
	pause = 10 * time.Millisecond
	// farewell is how long a client has to take the last words.
	farewell = 2 * time.Second
)

// session is one session channel of a sandbox (RFC 4254, section 6).
type session struct {
	*server
	near     ssh.Channel
	requests <-chan *ssh.Request

	env      [][2]string
	terminal *terminal
	grant    wire.Grant
}

type terminal struct {
	Term                string
	Columns, Rows, W, H uint32
	Modes               string
}

// start is what a channel asks for.
type start struct {
	wire.Request
	kind    string // of the request to the server: exec, shell, subsystem
	command string
	reply   *ssh.Request
}

// run carries what a channel asks for. It leaves the channel open.
func (s *session) run(ctx context.Context) {
	begin, err := s.wait()
	if begin == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The client's messages must be read from now on: the connection waits for that, and the
	// client may leave.
	pending := s.attend(cancel)
	if err != nil {
		answer(begin.reply, true)
		s.say(s.conn.Refuse(begin.Request, "ssh-request", err.Error()))
		return
	}
	s.grant, err = s.conn.Ask(ctx, begin.Request)
	answer(begin.reply, true)
	if err != nil {
		s.say(err)
		return
	}
	err = s.carry(ctx, begin, pending)
	if told := s.grant.End(err); told != "" {
		s.say(fmt.Errorf("%s, decision %s", told, s.grant.ID()))
	}
}

// wait reads what comes before a channel begins. nil: nothing begins. The error refuses
// what is asked for.
func (s *session) wait() (*start, error) {
	late := time.AfterFunc(s.conn.HandshakeTimeout(), func() { _ = s.near.Close(); _ = s.server.server.Close() })
	defer late.Stop()
	n := 0
	for r := range s.requests {
		if n++; n > maxRequests {
			return nil, nil
		}
		var text struct{ Value string }
		switch r.Type {
		case "env":
			answer(r, s.variable(r.Payload))
		case "pty-req":
			t := new(terminal)
			ok := ssh.Unmarshal(r.Payload, t) == nil && plain.MatchString(t.Term) && len(t.Modes) <= 1<<10
			if ok {
				s.terminal = t
			}
			answer(r, ok)
		case "shell":
			return &start{wire.Request{Method: policy.SSHShell, Path: "/"}, r.Type, "", r}, nil
		case "exec":
			if ssh.Unmarshal(r.Payload, &text) != nil {
				answer(r, false)
				continue
			}
			asked, command, err := parse(text.Value)
			return &start{asked, r.Type, command, r}, err
		case "subsystem":
			if ssh.Unmarshal(r.Payload, &text) == nil && text.Value == policy.SSHSFTP {
				return &start{wire.Request{Method: policy.SSHSFTP, Path: "/"}, r.Type, text.Value, r}, nil
			}
			answer(r, false)
		case "x11-req", "auth-agent-req@openssh.com":
			s.conn.Refuse(wire.Request{Method: "forward", Path: "/"}, "ssh-forward", "neither agents nor X11 are forwarded over SSH")
			answer(r, false)
		default:
			answer(r, false)
		}
	}
	return nil, nil
}

// plain is a terminal's name, and the value of a variable of the language.
var plain = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`)

// gitVersion is what GIT_PROTOCOL may say (gitprotocol-v2).
var gitVersion = regexp.MustCompile(`^version=[0-2]$`)

// variable takes a variable that may be passed on.
func (s *session) variable(payload []byte) bool {
	var v struct{ Name, Value string }
	if ssh.Unmarshal(payload, &v) != nil {
		return false
	}
	switch {
	case v.Name == "GIT_PROTOCOL" && gitVersion.MatchString(v.Value):
	case (v.Name == "LANG" || v.Name == "TERM" || strings.HasPrefix(v.Name, "LC_") && plain.MatchString(v.Name)) && plain.MatchString(v.Value):
	default:
		return false
	}
	s.env = append(s.env, [2]string{v.Name, v.Value})
	return true
}

func answer(r *ssh.Request, ok bool) {
	if r.WantReply {
		_ = r.Reply(ok, nil)
	}
}

// attend answers what the client says about a channel that has begun. The server's input
// comes from the channel that it returns, which is closed, after leave, when the
// client has closed its own.
func (s *session) attend(leave func()) <-chan *ssh.Request {
	pending := make(chan *ssh.Request, 8)
	s.conn.Go(s.work, func() {
		defer close(pending)
		defer leave()
		for r := range s.requests {
			pass := r.Type == "window-change" || r.Type == "signal" || r.Type == "break"
			answer(r, false)
			if !pass || len(r.Payload) > 256 {
				continue
			}
			select {
			case pending <- r:
			default: // a server that takes none
			}
		}
	})
	return pending
}

// carry logs in to the server and carries what was asked for, until it has ended.
func (s *session) carry(ctx context.Context, begin *start, pending <-chan *ssh.Request) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.grant.Context(), cancel)()
	fields, err := s.grant.Lease(ctx)
	if err != nil {
		return err
	}
	defer s.grant.Hold()()
	key, err := signer(fields)
	if err != nil {
		s.Logger.Warn("a credential cannot log in over SSH", "credential", s.grant.Injection().Credential, "decision", s.grant.ID(), "error", err)
		return err
	}
	conn, err := s.grant.Dial(ctx)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	upstream, err := logIn(conn, s.grant.Injection().Inject.SSH, key, s.conn.HandshakeTimeout())
	if err != nil {
		_ = conn.Close()
		s.Logger.Warn("the login to an SSH server failed", "host", s.conn.Destination().Host, "decision", s.grant.ID(), "error", err)
		return err
	}
	defer upstream.Close()
	far, said, err := upstream.OpenChannel("session", nil)
	if err != nil {
		return fmt.Errorf("%w: opening a session: %w", wire.ErrProtocol, err)
	}
	ending := s.hear(said)
	if err := s.begin(far, begin); err != nil {
		return err
	}
	return s.splice(ctx, cancel, far, ending, begin, pending)
}

// hear reads what the server says of its channel, from the first on: its connection waits for
// that. The channel that it returns has how it ended, and is closed when the server's is.
func (s *session) hear(said <-chan *ssh.Request) <-chan *ssh.Request {
	ending := make(chan *ssh.Request, 1)
	s.conn.Go(s.work, func() {
		defer close(ending)
		ended := false
		for r := range said {
			if (r.Type == "exit-status" || r.Type == "exit-signal") && !ended {
				ended = true
				ending <- r
			}
			answer(r, false)
		}
	})
	return ending
}

// begin asks the server for what was decided.
func (s *session) begin(far ssh.Channel, begin *start) error {
	for _, v := range s.env {
		if _, err := far.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{v[0], v[1]})); err != nil {
			return err
		}
	}
	if interactive(begin) && s.terminal != nil {
		if ok, err := far.SendRequest("pty-req", true, ssh.Marshal(s.terminal)); err != nil || !ok {
			return fmt.Errorf("%w: it gives no terminal", wire.ErrProtocol)
		}
	}
	var payload []byte
	if begin.kind != "shell" {
		payload = ssh.Marshal(struct{ Value string }{begin.command})
	}
	if ok, err := far.SendRequest(begin.kind, true, payload); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("%w: it refuses %s", wire.ErrProtocol, begin.Method)
	}
	return nil
}

// interactive tells whether what is asked for may have a terminal and signals.
func interactive(b *start) bool { return b.Method == policy.SSHShell || b.Method == policy.SSHExec }

// splice carries the bytes both ways until the server has closed its channel, then tells the
// client how it ended.
func (s *session) splice(ctx context.Context, leave func(), far ssh.Channel, ended <-chan *ssh.Request, begin *start, pending <-chan *ssh.Request) error {
	var mu sync.Mutex
	var failure error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && failure == nil {
			failure = err
			leave()
		}
	}
	s.conn.Go(s.work, func() {
		_, err := io.Copy(far, counted{s.near, s.grant.Sent})
		if err == nil {
			err = far.CloseWrite()
		}
		if errors.Is(err, io.EOF) {
			err = nil // the server reads no more
		}
		if over, ok := errors.AsType[*stopped](err); ok {
			fail(over.error)
		}
	})
	s.conn.Go(s.work, func() {
		for r := range pending {
			if interactive(begin) {
				_, _ = far.SendRequest(r.Type, false, r.Payload)
			}
		}
	})
	var output sync.WaitGroup
	s.conn.Go(&output, func() { fail(s.show(s.near, far)) })
	s.conn.Go(&output, func() { fail(s.show(s.near.Stderr(), far.Stderr())) })
	shown := make(chan struct{})
	s.conn.Go(s.work, func() {
		defer close(shown)
		output.Wait()
		mu.Lock()
		broken := failure != nil
		mu.Unlock()
		if !broken && s.grant.Context().Err() == nil { // else the client is told why
			_ = s.near.CloseWrite()
		}
	})

	var ending *ssh.Request
	for r := range ended {
		ending = r
	}
	select {
	case <-shown:
	case <-ctx.Done():
		// A client that takes nothing keeps its copies waiting: they end with its connection.
		select {
		case <-shown:
		case <-time.After(farewell):
			_ = s.server.server.Close()
			<-shown
		}
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case failure != nil:
		return failure
	case ctx.Err() != nil && ending == nil:
		return ctx.Err()
	case ending == nil:
		return io.ErrUnexpectedEOF
	}
	s.exit(ending)
	return nil
}

// exit tells the client how it ended. Of a signal the name alone goes: the message beside it
// is any text.
func (s *session) exit(r *ssh.Request) {
	if r.Type == "exit-status" {
		var v struct{ Status uint32 }
		if ssh.Unmarshal(r.Payload, &v) == nil {
			_, _ = s.near.SendRequest(r.Type, false, ssh.Marshal(v))
		}
		return
	}
	var v struct {
		Signal   string
		Core     bool
		Message  string
		Language string
	}
	if ssh.Unmarshal(r.Payload, &v) == nil && signal.MatchString(v.Signal) {
		v.Message, v.Language = "", ""
		_, _ = s.near.SendRequest(r.Type, false, ssh.Marshal(v))
	}
}

var signal = regexp.MustCompile(`^[A-Z0-9]{1,8}$`)

// show passes what the server says on to the client, scrubbed.
func (s *session) show(near io.Writer, far io.Reader) error {
	w := s.grant.Scrub(near, pause)
	_, err := io.Copy(w, counted{far, s.grant.Received})
	if flushed := w.Flush(); err == nil {
		err = flushed
	}
	if over, ok := errors.AsType[*stopped](err); ok {
		return over.error
	}
	if errors.Is(err, io.EOF) {
		return nil // the client takes no more
	}
	return err
}

// stopped is an error of counting.
type stopped struct{ error }

// counted counts what is read through it.
type counted struct {
	io.Reader
	count func(int) error
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if over := c.count(n); over != nil {
		return 0, &stopped{over}
	}
	return n, err
}

// say tells the client why nothing, or nothing more, comes, and ends the channel.
func (s *session) say(why error) {
	text := why.Error()
	if denied, ok := errors.AsType[*wire.Denied](why); ok {
		text += ", decision " + denied.ID
	}
	done := make(chan struct{})
	late := time.AfterFunc(farewell, func() { _ = s.server.server.Close() }) // it takes nothing
	s.conn.Go(s.work, func() {
		defer close(done)
		_, _ = io.WriteString(s.near.Stderr(), "sallyport: "+text+"\r\n")
		_ = s.near.CloseWrite()
		_, _ = s.near.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{exitDenied}))
	})
	<-done
	late.Stop()
}
