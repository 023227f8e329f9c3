// Package api is the daemon's control interface: HTTP and JSON under /v1, on a unix
// socket and, where that is configured, over TLS. Errors are problem details (RFC 9457).
// The table in routes.go is the source of the routes and of the OpenAPI document that
// the daemon serves.
//
// A request is served only if its caller is known (by the kernel's word on the socket,
// [PeerContext]; by an API key elsewhere, [RemoteContext]) and has the scope that the
// route needs. A caller of a tenant sees and changes the sandboxes of that tenant only.
// A caller in a container changes nothing. The value of a secret goes in and never comes
// out. The package does not encrypt: the listener does.
package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/internal/api/idempotency"
	"sallyport/internal/quota"
	"sallyport/internal/ratelimit"
	"sallyport/internal/recorded"
	"sallyport/memory/keeper"
	"sallyport/policy"
	"sallyport/policy/approval"
	reqbody "sallyport/policy/body"
	"sallyport/sandbox"
	"sallyport/sandbox/manager"
)

// Sandboxes are those that a daemon vouches for.
type Sandboxes interface {
	List() []sandbox.Info // by name
	Get(name string) (sandbox.Info, error)
	// ListVisible and Visible are List and Get for a context's owner: see
	// [sandbox.ForOwner].
	ListVisible(context.Context) []sandbox.Info
	Visible(ctx context.Context, name string) (sandbox.Info, error)
}

// Options of NewHandler. Sandboxes is nil where the daemon has none, and Manager where
// something else makes them; all others are needed.
type Options struct {
	Sandboxes Sandboxes
	Manager   *manager.Manager
	Memory    *keeper.Keeper // of the sandboxes
	Secrets   Secrets
	Clients   Clients
	Root      func(sandboxID string) ([]byte, error) // PEM of a sandbox's root
	Forget    func(id string) error                  // what is kept under a sandbox's or a client's ID
	Explain   func(context.Context, policy.Input, *reqbody.Raw) policy.Explanation
	Recorded  func(ctx context.Context, decision string) (recorded.Explanation, error) // of a decision in the audit
	Named     func(sandbox string) bool                                                // whether a rule selects sandboxes by this name
	Reload    func(context.Context) error
	Shutdown  func(context.Context) // stops sandboxes, engine and daemon; returns at once
	Status    func() Status
	Approvals *approval.Store
	Limits    Limits
	Exposures Exposures
	Sinks     Sinks
	Retention Retention
	Logger    *slog.Logger
	Recorder  Recorder
	Keys      *Keys
	Users     map[uint32][]Scope // may use the unix socket besides root, by number
	Once      *idempotency.Store // keeps idempotency keys
	// Events yields the events of the audit log from a number on, of a lifecycle
	// only, and waits for more until ctx is done; 0 is from now on.
	Events func(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error]
	// Audit yields the events of the audit log that a query selects.
	Audit func(ctx context.Context, q index.Query) iter.Seq2[auditlog.Entry, error]
}

// NewHandler returns the routes.
func NewHandler(opt Options) http.Handler { return newHandler(opt).mux() }

func newHandler(opt Options) *handler {
	return &handler{opt: opt, failures: ratelimit.New(rate.Every(failureEvery), failureBurst, maxSources), refusals: ratelimit.ForAudit(), streams: quota.New(streamsAll, streamsEach)}
}

type handler struct {
	opt      Options
	failures *ratelimit.BySource // to show a key
	refusals *ratelimit.BySource
	streams  *quota.Places // of events, by caller and tenant
}

// maxJSON bounds a request's JSON, in bytes.
const maxJSON = 1 << 20

// decode reads a JSON body, which the route bounds; an unknown field is an error,
// and so is what comes after.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errBadRequest, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", errBadRequest)
	}
	return nil
}

// none is the JSON of a request or an answer without any.
type none struct{}

// call serves a route that decodes In, does one thing and answers with Out: with a
// status, or 204 if Out is none.
func call[In, Out any](h *handler, status int, do func(r *http.Request, in In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		var out Out
		var err error
		if _, empty := any(in).(none); !empty {
			err = decode(r, &in)
		}
		if err == nil {
			out, err = do(r, in)
		}
		h.answer(w, r, status, out, err)
	}
}

// answer writes the outcome of a request. It records the error of a caller that lacks a
// scope.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, status int, v any, err error) {
	_, empty := v.(none)
	switch {
	case errors.Is(err, errScope):
		h.refuse(w, r, PrincipalOf(r.Context()), err)
	case err != nil:
		h.writeProblem(w, r, err)
	case empty:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v) // the client is gone if this fails
	}
}

// Recorder is the audit log.
type Recorder interface {
	// Append returns when the events are durable.
	Append(context.Context, ...*audit.Event) error
	Enqueue(*audit.Event) error
}

// Bounds of a page of a list.
const (
	pageSize = 200  // without ?limit=
	maxPage  = 1000 // of ?limit=
)

// pages serves a list in pages, ordered by a key that no two entries share: up to ?limit=
// entries after ?cursor=. A page begins after the key that the cursor holds, so that
// entries that appear or disappear meanwhile neither repeat nor hide another. The Link
// header (RFC 8288) has the address of the next page, if there is one.
func pages[T any](h *handler, key func(T) string, all func(r *http.Request) ([]T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		list, err := all(r)
		if err == nil {
			list, err = page(w, r, list, key)
		}
		h.answer(w, r, http.StatusOK, list, err)
	}
}

func page[T any](w http.ResponseWriter, r *http.Request, list []T, key func(T) string) ([]T, error) {
	q := r.URL.Query()
	limit, err := limitOf(q)
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Get("cursor"))
	if err != nil {
		return nil, errCursor
	}
	rest := []T{}
	for _, v := range list {
		if q.Get("cursor") == "" || key(v) > string(after) {
			rest = append(rest, v)
		}
	}
	slices.SortFunc(rest, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if len(rest) > limit {
		rest = rest[:limit]
		linkNext(w, r, key(rest[limit-1]))
	}
	return rest, nil
}

var errCursor = fmt.Errorf("%w: the cursor is invalid: begin without one", errBadRequest)

// limitOf is how many entries a page has at most.
func limitOf(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return pageSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, fmt.Errorf("%w: limit %q: use 1 to %d", errBadRequest, clip(text, 16), maxPage)
	}
	return n, nil
}

// linkNext has an answer say where the next page is, which begins after a key.
func linkNext(w http.ResponseWriter, r *http.Request, key string) {
	q := r.URL.Query()
	q.Set("cursor", base64.RawURLEncoding.EncodeToString([]byte(key)))
	w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.EscapedPath(), q.Encode()))
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
			h.writeProblem(w, r, fmt.Errorf("%w: %s: a name has letters, digits and hyphens", sandbox.ErrBadName, r.URL.Path))
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
			h.writeProblem(w, r, fmt.Errorf("%w: %s: /v1/openapi.json lists what there is", errNoRoute, r.URL.Path))
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		h.writeProblem(w, r, fmt.Errorf("%w: %s", errMethod, r.Method))
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
	most := to.maxBody
	if most == 0 {
		most = maxJSON
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
			h.writeProblem(w, r, err)
			return
		}
		ctx := context.WithValue(r.Context(), principalKey{}, who)
		ctx = audit.By(ctx, who.actor(), from(r))
		if who.Tenant != "" {
			ctx = sandbox.ForOwner(ctx, who.Tenant)
		}
		if h.opt.Sandboxes == nil && (strings.HasPrefix(to.pattern, "/v1/sandboxes") || strings.HasPrefix(to.pattern, "/v1/images")) {
			h.writeProblem(w, r, fmt.Errorf("%w: this daemon runs no sandboxes (engine.kind is none)", errBadRequest))
			return
		}
		if h.opt.Manager == nil && to.makes() {
			h.writeProblem(w, r, errPods)
			return
		}
		if strings.HasPrefix(to.pattern, "/v1/sandboxes/{name}") && h.opt.Manager != nil {
			var name string
			if ctx, name, err = manager.ByFullName(ctx, r.PathValue("name")); err != nil {
				h.writeProblem(w, r, err)
				return
			}
			r.SetPathValue("name", name)
		}
		// The server has to find the body that it knows in the request that is its
		// own, or it waits for one that the client has not been asked for.
		r = r.WithContext(ctx)
		r.Body = content
		if key := r.Header.Values("Idempotency-Key"); to.once && len(key) > 0 {
			if err := h.onceOnly(w, r, to, who, key); err != nil {
				h.writeProblem(w, r, err)
			}
			return
		}
		if to.lasts() && who.key != "" {
			h.lasting(to, who, w, r)
			return
		}
		to.serve(w, r)
	})
}

// onceOnly serves a request with an idempotency key.
func (h *handler) onceOnly(w http.ResponseWriter, r *http.Request, to route, who Principal, keys []string) error {
	err := h.opt.Once.Serve(w, r, idempotency.Call{Caller: who.ID, Owner: who.Owner(), Keys: keys, Secret: to.secret}, to.serve)
	if errors.Is(err, idempotency.ErrBadKey) || errors.Is(err, idempotency.ErrBody) {
		err = fmt.Errorf("%w: %w", errBadRequest, err)
	}
	return err
}

// errPods: the sandboxes are pods.
var errPods = fmt.Errorf("%w: pods are made, started and ended by Kubernetes: use kubectl (exec, cp, delete, label), or agent-sandbox's Sandbox", errBadRequest)

// forPods are the routes below sandboxes that need no manager.
var forPods = []string{"listSandboxes", "getSandbox", "sandboxCertificate", "listExposures", "expose", "unexpose"}

// makes reports whether a route is about what only a manager of sandboxes has.
func (to route) makes() bool {
	return (strings.HasPrefix(to.pattern, "/v1/sandboxes") || strings.HasPrefix(to.pattern, "/v1/images")) && !slices.Contains(forPods, to.id)
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
