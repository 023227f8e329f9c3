package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/policy/approval"
)

// ErrOperator refuses what only an operator may do.
var ErrOperator = errors.New("only an operator may do this")

type peerKey struct{}

// caller is who is at the other end of a connection, or why that is not known.
type caller struct {
	operator approval.Operator
	err      error
}

// PeerContext is an http.Server's ConnContext for a unix socket. Who calls is
// what the kernel says of the process that connected (SO_PEERCRED, unix(7)),
// never what a request says. A listener of another kind needs another function
// that finds out who is there; without one nobody on it is an operator.
func PeerContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return context.WithValue(ctx, peerKey{}, caller{err: fmt.Errorf("%w: this connection does not say who is there", ErrOperator)})
	}
	cred, err := credentials(u)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, caller{err: fmt.Errorf("%w: %w", ErrOperator, err)})
	}
	var who caller
	who.operator, who.err = peer(cred)
	return context.WithValue(ctx, peerKey{}, who)
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

// operator is who sends a request.
func operator(r *http.Request) (approval.Operator, error) {
	who, ok := r.Context().Value(peerKey{}).(caller)
	if !ok {
		return approval.Operator{}, fmt.Errorf("%w: nobody is known to be there", ErrOperator)
	}
	return who.operator, who.err
}

// asking is the one route that changes nothing and is no GET: what it asks about
// needs a body.
const asking = "/v1/policy/explain"

// operators lets nobody but operators change anything, by whatever route there
// is or comes to be. Reading is for whoever can open the socket.
func operators(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead && r.URL.Path != asking {
			if _, err := operator(r); err != nil {
				writeProblem(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func peer(cred *unix.Ucred) (approval.Operator, error) {
	if err := outside(cred.Pid); err != nil {
		return approval.Operator{}, err
	}
	id := strconv.FormatUint(uint64(cred.Uid), 10)
	o := approval.Operator{Name: named(id), UID: id}
	// Who became root by sudo(8) or su(1) logged in as somebody
	// (/proc/PID/loginuid, which pam_loginuid(8) sets).
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", cred.Pid)); err == nil {
		if login := strings.TrimSpace(string(text)); login != unset && login != id {
			o.Login = named(login)
		}
	}
	return o, nil
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
		return fmt.Errorf("%w: %w", ErrOperator, err)
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)) // 0 where it cannot be seen from here
	if err != nil || pid == 0 {
		return fmt.Errorf("%w: the caller's process cannot be seen from here, so that it may be in a container", ErrOperator)
	}
	if own != theirs {
		return fmt.Errorf("%w: the caller is in a container: call from the host that the daemon runs on", ErrOperator)
	}
	return nil
}
