package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/connlimit"
	"sallyport/policy/approval"
)

// Scope is one kind of thing that a caller may do. None includes another, but
// for Admin, which is all of them: whoever drives sandboxes cannot approve what
// they ask for, tag them, or change what their tags allow.
type Scope string

const (
	ScopeRead    Scope = "read"    // see what there is and what happens
	ScopeRun     Scope = "run"     // make, use, stop and remove sandboxes
	ScopeApprove Scope = "approve" // answer what waits for an operator
	ScopePolicy  Scope = "policy"  // reload policy, reset limits, tag sandboxes
	ScopeSecrets Scope = "secrets" // set and remove secrets, list their names
	ScopeAdmin   Scope = "admin"   // everything: keys, proxy users, runc, shutdown
)

// Scopes lists all there are.
var Scopes = []Scope{ScopeRead, ScopeRun, ScopeApprove, ScopePolicy, ScopeSecrets, ScopeAdmin}

// ParseScopes reads what a person wrote.
func ParseScopes(words []string) ([]Scope, error) {
	var scopes []Scope
	for _, w := range words {
		s := Scope(strings.TrimSpace(w))
		if !slices.Contains(Scopes, s) {
			return nil, fmt.Errorf("%w: scope %q: use read, run, approve, policy, secrets, admin", errBadRequest, w)
		}
		if !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	if len(scopes) == 0 {
		return nil, fmt.Errorf("%w: no scope: name some of read, run, approve, policy, secrets, admin", errBadRequest)
	}
	return scopes, nil
}

// Principal is who calls, and what they may do. The zero Principal may do
// nothing.
type Principal struct {
	// ID is stable and no other's: unix:UID or key:ID.
	ID string
	// Operator is how events name them.
	Operator approval.Operator
	Scopes   []Scope
	// Tenant confines to the sandboxes of one owner; empty does not.
	Tenant string
	// key is the ID of the API key that was shown; empty on the socket.
	key string
	// contained is why they may change nothing, whatever their scopes.
	contained error
}

// Owner is who shares places with others: a tenant with all of its keys, or a caller of
// the host's own.
func (p Principal) Owner() string {
	if p.Tenant != "" {
		return "tenant:" + p.Tenant
	}
	return p.ID
}

// May says whether the caller has a scope.
func (p Principal) May(s Scope) bool {
	return slices.Contains(p.Scopes, s) || slices.Contains(p.Scopes, ScopeAdmin)
}

type principalKey struct{}

// PrincipalOf is who sent a request; the zero Principal outside of one.
func PrincipalOf(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// admits says why a caller may not call a route.
func (r route) admits(who Principal, method string) error {
	changes := r.changes()
	if r.pattern == "" { // of a verb that there is not, or not yet
		changes = method != http.MethodGet && method != http.MethodHead
	}
	switch {
	case changes && who.contained != nil:
		return who.contained
	case r.scope != "" && !who.May(r.scope):
		return fmt.Errorf("%w %s, and %s has %s", errScope, r.scope, who.Operator.Name, join(who.Scopes))
	case !r.shared && who.Tenant != "":
		return fmt.Errorf("%w, and %s is of tenant %s", errTenant, who.Operator.Name, who.Tenant)
	}
	return nil
}

func join(scopes []Scope) string {
	if len(scopes) == 0 {
		return "none"
	}
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

// needs is admits for what depends on more than the route.
func needs(r *http.Request, s Scope, why string) error {
	if who := PrincipalOf(r.Context()); !who.May(s) {
		return fmt.Errorf("%w %s: %s", errScope, s, why)
	}
	return nil
}

// actor is the caller in an event.
func (p Principal) actor() *audit.Actor {
	a := new(audit.Actor)
	a.User.Name, a.User.UID = p.Operator.Name, p.Operator.UID
	return a
}

// from is where a call comes from in an event, nil for this host.
func from(r *http.Request) *audit.Endpoint {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil { // a socket's
		return nil
	}
	return &audit.Endpoint{IP: addr.Addr().Unmap().String(), Port: int(addr.Port())}
}

// Errors of who calls.
var (
	// errOperator refuses what only an operator may do.
	errOperator = errors.New("only an operator may do this")
	errUnknown  = errors.New("who calls is not known")
	errScope    = errors.New("this needs the scope")
	errTenant   = errors.New("not available to tenant keys")
	errNoRoute  = errors.New("there is no such route")
	errMethod   = errors.New("this route has no such method")
)

type (
	sourceKey      struct{}
	limitedConnKey struct{}
)

// RemoteContext is an http.Server's ConnContext for a listener that others reach
// too: who calls there shows an API key.
func RemoteContext(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(*tls.Conn); ok {
		if g, ok := over.NetConn().(*limitedConn); ok {
			ctx = context.WithValue(ctx, limitedConnKey{}, g)
		}
	}
	return context.WithValue(ctx, sourceKey{}, connlimit.Network(c.RemoteAddr()))
}

// authenticate says who calls. With an error the Principal may still say who that
// is.
func (h *handler) authenticate(r *http.Request) (Principal, error) {
	if p, ok := r.Context().Value(peerKey{}).(peer); ok {
		return p.principal(h.opt.Users)
	}
	from, ok := r.Context().Value(sourceKey{}).(netip.Prefix)
	if !ok || h.opt.Keys == nil {
		return Principal{}, fmt.Errorf("%w: nothing says who is there", errUnknown)
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		// One who has a key is let through whatever others at their address do: a
		// bound for all of them would be a way to lock them out, and keys that
		// cannot be guessed need none.
		if k, ok := h.opt.Keys.Verify(strings.TrimSpace(text)); ok {
			who := k.principal()
			if g, ok := r.Context().Value(limitedConnKey{}).(*limitedConn); ok {
				return who, g.admit(who)
			}
			return who, nil
		}
	}
	if !h.failures.Allow(from.String()) {
		return Principal{}, errTooMany
	}
	return Principal{}, fmt.Errorf("%w: send an API key that is valid as Authorization: Bearer KEY; `sallyport key create` on the host makes one", errUnknown)
}

// Bounds of what is refused.
const (
	failureEvery = 10 * time.Second // a source may fail to show a key once in that time,
	failureBurst = 10               // and so often at once
	maxSources   = 4096             // counted apart; those beyond are counted together

	refusedWithin = time.Second // for the rest of a call that is refused to arrive
)

// errTooMany refuses a source that has failed too often.
var errTooMany = errors.New("too many calls without a key that is known")

// refuse answers a call that is not let through, and records it.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, who Principal, err error) {
	source := who.ID // on the socket, and of a key that lacks a scope
	if from, ok := r.Context().Value(sourceKey{}).(netip.Prefix); ok && source == "" {
		source = from.String()
	}
	if n := h.refusals.Count(source); n > 0 {
		e := audit.Change("api", "refused")
		e.Message = "API call refused"
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityLow
		e.Detail = err.Error()
		if n > 1 {
			e.Count = n
		}
		e.HTTPRequest = &audit.HTTPRequest{URL: &audit.URL{Path: cmp.Or(clip(r.URL.Path, 256), "/")}}
		e.SetMethod(clip(r.Method, 16))
		if from, ok := r.Context().Value(sourceKey{}).(netip.Prefix); ok {
			e.Source = &audit.Endpoint{IP: from.Addr().String()}
		}
		if who.Operator.Name != "" {
			e.Actor = who.actor()
		}
		if lost := h.opt.Recorder.Enqueue(e); lost != nil {
			h.opt.Logger.Error("an event was lost", "message", e.Message, "error", lost)
		}
	}
	// The rest of such a caller's request is not waited for.
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedWithin))
	h.writeProblem(w, r, err)
}

func clip(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
