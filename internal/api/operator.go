package api

import (
	"cmp"
	"context"
	"net"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"sallyport/audit"
)

// Operator is who calls, as the kernel says of the other end of the socket
// (SO_PEERCRED, unix(7)): never what a request says of itself.
type Operator struct {
	UID   uint32
	Name  string // empty for a user without one
	Known bool   // false for a connection that is no unix socket's
}

type operatorKey struct{}

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

func operatorBy(cred *unix.Ucred) Operator {
	o := Operator{UID: cred.Uid, Known: true}
	if who, err := user.LookupId(strconv.FormatUint(uint64(cred.Uid), 10)); err == nil {
		o.Name = who.Username
	}
	return o
}

// OperatorOf is who sent a request.
func OperatorOf(ctx context.Context) Operator {
	o, _ := ctx.Value(operatorKey{}).(Operator)
	return o
}

// Actor is the operator in an event; nil for one who is not known.
func (o Operator) Actor() *audit.Actor {
	if !o.Known {
		return nil
	}
	a := new(audit.Actor)
	a.User.Name, a.User.UID = o.Name, strconv.FormatUint(uint64(o.UID), 10)
	return a
}
