package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/policy"
	"sallyport/policy/approval"
	"sallyport/sandbox"
)

// route is one verb of the API. The table of them is all there is: the mux, who
// may call what, and the test that holds the OpenAPI document to the routes come
// from it. To add one: a line in [handler.routes], its entry in openapi.yaml, its
// row in the test's matrix of scopes, and a test that calls it.
type route struct {
	method, pattern string
	serve           http.HandlerFunc
	// scope is what a caller must have; empty is any.
	scope Scope
	// shared is for callers of a tenant too. What is done in the request's context
	// is confined to their sandboxes (sandbox.ForOwner); a handler that lists
	// filters. Any other route is for the host's own callers.
	shared bool
	// asks marks a POST that changes nothing, and so is open to callers in a
	// container as a GET is.
	asks bool
	// once lets an Idempotency-Key be sent.
	once bool
	// secret marks an answer that is shown once and never kept.
	secret bool
	// taken marks a route that takes the connection over.
	taken bool
	// most bounds the body in bytes; 0 is maxBody.
	most int64
}

func (r route) changes() bool {
	return r.method != http.MethodGet && r.method != http.MethodHead && !r.asks
}

func (h *handler) routes() []route {
	const get, put, post, del = http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete
	return append([]route{
		{method: get, pattern: "/v1/openapi.json", serve: h.openapiJSON, shared: true},
		{method: get, pattern: "/v1/openapi.yaml", serve: h.openapiYAML, shared: true},
		{method: get, pattern: "/v1/status", serve: h.status, scope: ScopeRead},
		{method: post, pattern: "/v1/reload", serve: h.reload, scope: ScopePolicy},
		{method: post, pattern: "/v1/shutdown", serve: h.shutdown, scope: ScopeAdmin},
		{method: get, pattern: "/v1/events", serve: h.events, scope: ScopeRead, shared: true},

		{method: post, pattern: "/v1/policy/explain", serve: h.explain, scope: ScopeRead, asks: true, most: maxBody + policy.MaxBody*4/3},
		{method: get, pattern: "/v1/policy/explain/{decision}", serve: h.explainDecision, scope: ScopeRead},
		{method: get, pattern: "/v1/limits", serve: h.limits, scope: ScopeRead},
		{method: post, pattern: "/v1/limits/{name}/reset", serve: h.resetLimit, scope: ScopePolicy},
		{method: get, pattern: "/v1/approvals", serve: h.listApprovals, scope: ScopeRead, shared: true},
		{method: post, pattern: "/v1/approvals/{id}", serve: h.answerApproval, scope: ScopeApprove, shared: true},

		{method: get, pattern: "/v1/secrets", serve: h.listSecrets, scope: ScopeSecrets},
		{method: put, pattern: "/v1/secrets/{name}", serve: h.setSecret, scope: ScopeSecrets},
		{method: del, pattern: "/v1/secrets/{name}", serve: h.deleteSecret, scope: ScopeSecrets},

		{method: get, pattern: "/v1/keys", serve: h.listKeys, scope: ScopeAdmin},
		{method: put, pattern: "/v1/keys/{name}", serve: h.createKey, scope: ScopeAdmin, once: true, secret: true},
		{method: del, pattern: "/v1/keys/{name}", serve: h.removeKey, scope: ScopeAdmin},

		{method: get, pattern: "/v1/clients", serve: h.listClients, scope: ScopeRead},
		{method: put, pattern: "/v1/clients/{name}", serve: h.addClient, scope: ScopeAdmin, once: true, secret: true},
		{method: del, pattern: "/v1/clients/{name}", serve: h.removeClient, scope: ScopeAdmin},
		{method: get, pattern: "/v1/clients/{name}/ca", serve: h.clientRoot, scope: ScopeRead},

		{method: get, pattern: "/v1/sandboxes", serve: h.list, scope: ScopeRead, shared: true},
		{method: put, pattern: "/v1/sandboxes/{name}", serve: h.create, scope: ScopeRun, shared: true, once: true},
		{method: get, pattern: "/v1/sandboxes/{name}", serve: h.get, scope: ScopeRead, shared: true},
		{method: http.MethodPatch, pattern: "/v1/sandboxes/{name}", serve: h.set, scope: ScopeRun, shared: true},
		{method: del, pattern: "/v1/sandboxes/{name}", serve: h.remove, scope: ScopeRun, shared: true},
		{method: post, pattern: "/v1/sandboxes/{name}/start", serve: h.change((*sandbox.Manager).Start), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/stop", serve: h.change((*sandbox.Manager).Stop), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/pause", serve: h.change((*sandbox.Manager).Pause), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/resume", serve: h.change((*sandbox.Manager).Resume), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/hibernate", serve: h.change((*sandbox.Manager).Hibernate), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/wake", serve: h.change((*sandbox.Manager).Wake), scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/recover", serve: h.change((*sandbox.Manager).Recover), scope: ScopeRun, shared: true, once: true},
		{method: get, pattern: "/v1/sandboxes/{name}/snapshots", serve: h.listSnapshots, scope: ScopeRead, shared: true},
		{method: post, pattern: "/v1/sandboxes/{name}/snapshots", serve: h.makeSnapshot, scope: ScopeRun, shared: true, once: true},
		{method: del, pattern: "/v1/sandboxes/{name}/snapshots/{snapshot}", serve: h.removeSnapshot, scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/restore", serve: h.restore, scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/fork", serve: h.fork, scope: ScopeRun, shared: true, once: true},
		{method: post, pattern: "/v1/sandboxes/{name}/exec", serve: h.exec, scope: ScopeRun, shared: true, taken: true},
		{method: get, pattern: "/v1/sandboxes/{name}/ca", serve: h.sandboxRoot, scope: ScopeRead, shared: true},
	}, slices.Concat(h.commands(), h.fileRoutes(), h.exposures(), h.images())...)
}

// mux serves the routes, and problems for what is none.
func (h *handler) mux() http.Handler {
	mux := http.NewServeMux()
	routed := map[string]bool{} // methods
	for _, r := range h.routes() {
		mux.Handle(r.method+" "+r.pattern, h.guard(r))
		routed[r.method] = true
	}
	none := h.guard(route{serve: func(w http.ResponseWriter, r *http.Request) {
		if dotted(r.URL) {
			writeProblem(w, fmt.Errorf("%w: %s: a name has letters, digits and hyphens", sandbox.ErrBadName, r.URL.Path))
			return
		}
		var allowed []string
		for method := range routed {
			probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "/" && pattern != "" {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) == 0 {
			writeProblem(w, fmt.Errorf("%w: %s: /v1/openapi.json lists what there is", errNoRoute, r.URL.Path))
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		writeProblem(w, fmt.Errorf("%w: %s", errMethod, r.Method))
	}, shared: true})
	mux.Handle("/", none)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dotted(r.URL) {
			none.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// dotted says whether a path has an empty segment, or one of dots: the mux would
// lead to what such a path is in a tree of folders, which is another resource.
func dotted(u *url.URL) bool {
	p := u.EscapedPath()
	return len(p) > 1 && path.Clean(p) != strings.TrimSuffix(p, "/")
}

// guard lets nobody through to a route who may not call it.
func (h *handler) guard(to route) http.Handler {
	most := to.most
	if most == 0 {
		most = maxBody
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := h.authenticate(r)
		if err == nil {
			err = to.admits(who, r.Method)
		}
		if err != nil {
			h.refuse(w, r, who, err)
			return
		}
		content, err := body(w, r, most)
		if err != nil {
			writeProblem(w, err)
			return
		}
		ctx := context.WithValue(r.Context(), principalKey{}, who)
		ctx = audit.By(ctx, who.actor())
		if who.Tenant != "" {
			ctx = sandbox.ForOwner(ctx, who.Tenant)
			w = confined{w, h.opt.Logger}
		} else if who.May(ScopeSecrets) {
			w = informed{w}
		}
		if strings.HasPrefix(to.pattern, "/v1/sandboxes/{name}") {
			var name string
			if ctx, name, err = sandbox.ByFullName(ctx, r.PathValue("name")); err != nil {
				writeProblem(w, err)
				return
			}
			r.SetPathValue("name", name)
		}
		// The server has to find the body that it knows in the request that is its
		// own, or it waits for one that the client has not been asked for.
		r = r.WithContext(ctx)
		r.Body = content
		if key := r.Header.Values("Idempotency-Key"); to.once && len(key) > 0 {
			h.onceOnly(w, r, to, who, key)
			return
		}
		if to.lasts() && who.key != "" {
			h.lasting(to, who, w, r)
			return
		}
		to.serve(w, r)
	})
}

// body is a request's, of up to most bytes; what is no stream is read at once, so
// that nobody holds a handler up by sending it slowly.
//
// Nobody but the server closes a stream. To close the server's body is to read it
// on, without a word to a client that waits for 100 Continue (RFC 9110, section
// 10.1.1) before it sends any: each waits for the other then
// (https://go.dev/issue/63152). The way to an agent is an [http.Transport], which
// closes what it has not sent before it says why.
func body(w http.ResponseWriter, r *http.Request, most int64) (io.ReadCloser, error) {
	limited := http.MaxBytesReader(w, r.Body, most)
	if most > maxBuffered {
		return io.NopCloser(limited), nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWithin)) // a connection without one is a test's
	data, err := io.ReadAll(limited)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadRequest, err)
	}
	_ = control.SetReadDeadline(time.Time{})
	return io.NopCloser(bytes.NewReader(data)), nil
}

// maxBuffered is the bound of a body, in bytes, beyond which it is a stream.
const maxBuffered = 8 << 20

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

// operator is who sends a request, by name.
func operator(r *http.Request) (approval.Operator, error) {
	who := PrincipalOf(r.Context())
	if who.ID == "" {
		return approval.Operator{}, fmt.Errorf("%w: nobody is known to be there", errOperator)
	}
	return who.Operator, nil
}

// Errors of who calls.
var (
	// errOperator refuses what only an operator may do.
	errOperator = errors.New("only an operator may do this")
	errUnknown  = errors.New("who calls is not known")
	errScope    = errors.New("this needs the scope")
	errTenant   = errors.New("this is the host's own affair")
	errNoRoute  = errors.New("there is no such route")
	errMethod   = errors.New("this route has no such method")
)
