package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/wire"
)

// memory is what a session takes, in bytes.
const memory = 128 << 10

// Handler logs in for the clients of sandboxes. It implements wire.Handler.
type Handler struct{ log *slog.Logger }

// NewHandler returns a Handler. log gets what servers say to a login that they refuse.
func NewHandler(log *slog.Logger) *Handler { return &Handler{log} }

// Serve implements wire.Handler.
func (h *Handler) Serve(ctx context.Context, c wire.Conn) {
	client := net.Conn(c)
	if c.InTLS() {
		_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
		inside, err := c.Secure()
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Time{})
		client = inside
	}
	release, err := c.Reserve(memory)
	if err != nil {
		_ = Refuse(client, err.Error())
		return
	}
	defer release()
	grant, err := c.Ask(ctx, wire.Request{Method: "connect", Path: "/"})
	if err != nil {
		if denied := (*wire.Denied)(nil); errors.As(err, &denied) {
			_ = Refuse(client, fmt.Sprintf("%s (decision %s)", denied.Error(), denied.ID))
		}
		return
	}
	whole, sent, err := h.session(c, grant, client)
	said := grant.End(err)
	switch {
	case said != "":
		said = fmt.Sprintf("%s (decision %s)", said, grant.ID())
	case IsForm(sent):
		said = sent.Error()
	}
	if said != "" && whole {
		_ = client.SetWriteDeadline(time.Now().Add(c.HandshakeTimeout()))
		_ = Refuse(client, said)
	}
}

// Tell implements wire.Refuser.
func (h *Handler) Tell(c wire.Conn, reason string) {
	_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	_ = Refuse(c, reason)
}

// session carries one, and tells whether the client may still be told of its end. sent is
// the error of the client's commands.
func (h *Handler) session(c wire.Conn, g wire.Grant, client net.Conn) (whole bool, sent, err error) {
	fields, err := g.Lease(g.Context())
	if err != nil {
		return true, nil, err
	}
	far, err := g.DialTLS(g.Context(), netip.Addr{}, nil)
	if err != nil {
		return true, nil, err
	}
	s := &Session{Account: Account{Username: fields[credential.FieldUsername].Reveal(), Password: fields[credential.FieldPassword].Reveal()}}
	_ = far.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	err = Login(far, s.Account)
	if refused := (*LoginError)(nil); errors.As(err, &refused) {
		h.log.Error("a Redis server did not take the login", "credential", g.Injection().Credential, "host", c.Destination().Host,
			"decision", g.ID(), "error", wire.Without(refused.Error(), s.Account.Password))
		err = wire.ErrRefused
	}
	if err != nil {
		return true, nil, err
	}
	_ = far.SetDeadline(time.Time{})
	texts := g.Texts()
	return wire.Carry(c, g, client, far, s.Commands, func(client io.Writer, server io.Reader) (bool, error) {
		return s.Replies(client, server, texts)
	})
}
