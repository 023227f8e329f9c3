package api

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/policy/approval"
)

type peerKey struct{}

// peer is who is at the other end of a connection of the control socket.
type peer struct {
	uid       uint32
	operator  approval.Operator
	contained error // why it is no operator
	err       error // why it is not known at all
}

// PeerContext is an http.Server's ConnContext for a unix socket. The kernel says which
// process connected (SO_PEERCRED, unix(7)),
// never what a request says.
func PeerContext(ctx context.Context, c net.Conn) context.Context {
	if s, ok := c.(*socketConn); ok {
		c = s.UnixConn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return context.WithValue(ctx, peerKey{}, peer{err: fmt.Errorf("%w: this connection does not say who is there", errUnknown)})
	}
	cred, err := credentials(u)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, peer{err: fmt.Errorf("%w: %w", errUnknown, err)})
	}
	return context.WithValue(ctx, peerKey{}, peerBy(cred))
}

// credentials is who connected.
func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, cmp.Or(cerr, err)
}

func peerBy(cred *unix.Ucred) peer {
	id := strconv.FormatUint(uint64(cred.Uid), 10)
	p := peer{uid: cred.Uid, operator: approval.Operator{Name: named(id), UID: id}}
	if p.contained = outside(cred.Pid); p.contained != nil {
		return p
	}
	// A user who became root by sudo(8) or su(1) logged in as somebody
	// (/proc/PID/loginuid, which pam_loginuid(8) sets).
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", cred.Pid)); err == nil {
		if login := strings.TrimSpace(string(text)); login != unset && login != id {
			p.operator.Login = named(login)
		}
	}
	return p
}

// principal is who the peer is to the API: root, and whom the daemon runs as,
// may do everything, others what the configuration gives them.
func (p peer) principal(users map[uint32][]Scope) (Principal, error) {
	who := Principal{ID: "unix:" + p.operator.UID, Operator: p.operator, Scopes: users[p.uid], contained: p.contained}
	switch {
	case p.err != nil:
		return Principal{}, p.err
	case p.uid == 0 || int(p.uid) == os.Geteuid():
		who.Scopes = []Scope{ScopeAdmin}
	case p.contained != nil:
		// A number in a container is not the user of that number here.
		who.Scopes = nil
		return who, p.contained
	case len(who.Scopes) == 0:
		return who, fmt.Errorf("%w: api.users names no scope of %s", errOperator, who.Operator.Name)
	}
	return who, nil
}

// unset is the login user of what nobody has logged in for.
const unset = "4294967295"

// named is a user's name, or the number where there is none.
func named(id string) string {
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}

// outside refuses a process that is not of this one's own PID namespace, as one
// in a container is that was given the socket by mistake: root in there is no
// operator.
func outside(pid int32) error {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fmt.Errorf("%w: %w", errOperator, err)
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)) // 0 where it cannot be seen from here
	if err != nil || pid == 0 {
		return fmt.Errorf("%w: the caller's process cannot be seen from here, so that it may be in a container", errOperator)
	}
	if own != theirs {
		return fmt.Errorf("%w: the caller is in a container: call from the host that the daemon runs on", errOperator)
	}
	return nil
}
