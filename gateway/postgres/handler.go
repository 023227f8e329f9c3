package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/upstream"
	"sallyport/gateway/wire"
	"sallyport/policy"
	"sallyport/policy/urlpath"
)

// Methods of requests. The path is the database's name after a slash, and a slash alone where
// the client names none.
const (
	methodConnect = "connect"
	methodCancel  = "cancel" // of a query of another session
)

// maxName is PostgreSQL's NAMEDATALEN less the zero byte.
const maxName = 63

// memory is what a session takes, in bytes.
const memory = 128 << 10

// Handler logs in for the clients of sandboxes. It implements wire.Handler.
type Handler struct {
	log *slog.Logger

	mu       sync.Mutex
	sessions map[holder]session // that go on
}

// holder is who may have a query of a session cancelled.
type holder struct {
	sandbox string // ID
	to      policy.Destination
	key     Key
}

type session struct {
	at   netip.Addr // of its server, zero where only a proxy knows that
	key  ServerKey
	path string
}

// NewHandler returns a Handler. log gets what servers say to a login that they refuse.
func NewHandler(log *slog.Logger) *Handler {
	return &Handler{log: log, sessions: make(map[holder]session)}
}

// Serve implements wire.Handler.
func (h *Handler) Serve(ctx context.Context, c wire.Conn) {
	_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	client, opening, err := accept(c)
	_ = c.SetDeadline(time.Time{})
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		c.Refuse(wire.Request{Method: methodConnect, Path: "/"}, "startup", strings.TrimPrefix(refusal.Reason, prefix))
		_ = Refuse(client, refusal)
	}
	if err != nil {
		return
	}
	if opening.Cancel != nil {
		h.cancel(ctx, c, opening)
		return
	}
	path := "/" + opening.Database
	// A server cuts a name that is too long, and opens the database of what is left.
	if len(opening.Database) > maxName || strings.Contains(opening.Database, "/") || urlpath.CheckNormalized(path) != nil {
		const reason = "no rule can be about a database with such a name"
		c.Refuse(wire.Request{Method: methodConnect, Path: "/"}, "database", reason)
		_ = Refuse(client, &Refusal{CodeDenied, prefix + reason})
		return
	}
	release, err := c.Reserve(memory)
	if err != nil {
		_ = Refuse(client, &Refusal{CodeUnreachable, prefix + err.Error()})
		return
	}
	defer release()
	grant, err := c.Ask(ctx, wire.Request{Method: methodConnect, Path: path})
	if err != nil {
		if denied := (*wire.Denied)(nil); errors.As(err, &denied) {
			_ = Refuse(client, &Refusal{CodeDenied, fmt.Sprintf("%s%s (decision %s)", prefix, denied.Error(), denied.ID)})
		}
		return
	}
	whole, err := h.session(c, grant, client, opening, path)
	code := CodeEnded
	switch {
	case errors.Is(err, wire.ErrRefused):
		code = CodeLogin
	case whole && err != nil && grant.Context().Err() == nil:
		code = CodeUnreachable
	}
	if said := grant.End(err); said != "" && whole {
		_ = client.SetWriteDeadline(time.Now().Add(c.HandshakeTimeout()))
		_ = Refuse(client, &Refusal{code, fmt.Sprintf("%s%s (decision %s)", prefix, said, grant.ID())})
	}
}

// Tell implements wire.Refuser.
func (h *Handler) Tell(c wire.Conn, reason string) {
	_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	if client, opening, err := accept(c); err == nil && opening.Cancel == nil {
		_ = Refuse(client, &Refusal{CodeDenied, prefix + reason})
	}
}

func accept(c wire.Conn) (net.Conn, *Opening, error) {
	secure := func(net.Conn) (net.Conn, error) { return c.Secure("postgresql") }
	if !c.InTLS() {
		return Accept(c, secure)
	}
	inside, err := secure(c)
	if err != nil {
		return c, nil, err
	}
	return Accept(inside, nil)
}

// session carries one, and tells whether the client may still be told of its end.
func (h *Handler) session(c wire.Conn, g wire.Grant, client net.Conn, o *Opening, path string) (whole bool, err error) {
	fields, err := g.Lease(g.Context())
	if err != nil {
		return true, err
	}
	far, err := g.DialTLS(g.Context(), netip.Addr{}, AskTLS)
	if err != nil {
		return true, plainly(err)
	}
	_ = far.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	password := fields[credential.FieldPassword].Reveal()
	s, err := Login(far, Account{User: fields[credential.FieldUsername].Reveal(), Password: password, Database: o.Database}, o)
	if refused := (*LoginError)(nil); errors.As(err, &refused) {
		h.log.Error("a database did not take the login", "credential", g.Injection().Credential, "host", c.Destination().Host,
			"database", o.Database, "decision", g.ID(), "error", wire.Without(refused.Error(), password))
		err = wire.ErrRefused
	}
	if err != nil {
		return true, err
	}
	_ = far.SetDeadline(time.Time{})
	key := s.NewKey()
	who := holder{c.Sandbox(), c.Destination(), key}
	h.mu.Lock()
	h.sessions[who] = session{upstream.RemoteOf(far), s.Key, path}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.sessions, who)
		h.mu.Unlock()
	}()
	begin, err := s.Begin(o, key)
	if err != nil {
		return true, err
	}
	texts := g.Texts()
	whole, _, err = wire.Carry(c, g, client, far, func(server io.Writer, client io.Reader) error {
		_, err := io.Copy(server, client)
		return err
	}, func(client io.Writer, server io.Reader) (bool, error) {
		return Answers(client, io.MultiReader(bytes.NewReader(begin), server), texts)
	})
	return whole, err
}

// plainly is an error of DialTLS, which says where a server has no TLS.
func plainly(err error) error {
	if errors.Is(err, wire.ErrNoTLS) {
		return wire.ErrNoTLS
	}
	return err
}

// cancel has a query cancelled of a session that the same sandbox has at the same destination.
// As servers do, it answers nothing.
func (h *Handler) cancel(ctx context.Context, c wire.Conn, o *Opening) {
	h.mu.Lock()
	s, ok := h.sessions[holder{c.Sandbox(), c.Destination(), *o.Cancel}]
	h.mu.Unlock()
	if !ok {
		return
	}
	g, err := c.Ask(ctx, wire.Request{Method: methodCancel, Path: s.path})
	if err != nil {
		return
	}
	far, err := g.DialTLS(g.Context(), s.at, AskTLS)
	if err == nil {
		_ = far.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
		err = Cancel(far, s.key)
	}
	g.End(plainly(err))
}
