package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"sallyport/internal/terminal"
	"sallyport/sandbox/agent/channel"
)

// Errors of ports to branch on.
var (
	// ErrNoPort: nobody has taken the connection.
	ErrNoPort = errors.New("no connection")
	// ErrEarlier: the session was started by an earlier version, whose agent cannot
	// do what is asked for.
	ErrEarlier = channel.ErrEarlier
)

// Conn is a connection to a port of a sandbox's. What comes by it, the sandbox
// sends; no more of it is held than the kernel's buffers.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error // of the direction to the sandbox
}

// Connect connects to a TCP port of a sandbox, starting it if need be: host is
// localhost, 127.0.0.1 or ::1 as the sandbox has them, or empty for its own address.
// The sandbox's agent makes the connection, so that what listens for nobody but the
// sandbox is reached too. It ends when the sandbox stops or sleeps; what is carried
// counts as use of it.
func (m *Manager) Connect(ctx context.Context, name, host string, port uint16) (Conn, error) {
	agent, _, err := m.reach(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := agent.Connect(ctx, host, port)
	if said := new(channel.Error); errors.As(err, &said) && said.Status == http.StatusBadGateway {
		err = fmt.Errorf("%w: %s", ErrNoPort, terminal.Escape(said.Failure.Error))
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to port %d of %s: %w", port, name, mapAgent(err))
	}
	return &used{c, m.known(name), func() {}}, nil
}

// SFTP connects to the SFTP server of a sandbox's agent, starting the sandbox if need be:
// it speaks version 3 of the protocol with the rights of the sandbox's user, and begins in
// the folder that commands begin in. The sandbox is in use until the connection is closed,
// which ends when the sandbox stops or sleeps.
func (m *Manager) SFTP(ctx context.Context, name string) (Conn, error) {
	agent, spec, err := m.reach(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := agent.SFTP(ctx, spec.User, spec.Workdir)
	if err != nil {
		return nil, fmt.Errorf("files of %s: %w", name, mapAgent(err))
	}
	u := &used{c, m.known(name), func() {}}
	if u.e != nil {
		u.done = sync.OnceFunc(u.e.use())
	}
	return u, nil
}

// used is a connection whose traffic is use of the sandbox.
type used struct {
	*channel.Port
	e    *entry // nil of one that is gone
	done func()
}

func (u *used) Close() error {
	u.done()
	return u.Port.Close()
}

func (u *used) Read(b []byte) (int, error) {
	n, err := u.Port.Read(b)
	u.note(n)
	return n, err
}

func (u *used) Write(b []byte) (int, error) {
	u.note(len(b))
	return u.Port.Write(b)
}

func (u *used) note(n int) {
	if u.e != nil && n > 0 {
		u.e.use()()
	}
}
