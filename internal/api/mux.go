package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/sandbox"
	"sallyport/sandbox/manager"
)

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
			if ctx, name, err = manager.ByFullName(ctx, r.PathValue("name")); err != nil {
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
