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
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/time/rate"

	"sallyport/audit"
	"sallyport/internal/quota"
	"sallyport/internal/ratelimit"
	"sallyport/internal/recorded"
	"sallyport/policy"
	reqbody "sallyport/policy/body"
	"sallyport/sandbox/manager"
)

// Options of NewHandler. Sandboxes is nil where the daemon runs none; all
// others are needed.
type Options struct {
	Sandboxes *manager.Manager
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
	Approvals Approvals
	Limits    Limits
	Exposures Exposures
	Logger    *slog.Logger

	// Recorder and Keys are needed where keys are made; Users are who may use the
	// unix socket besides root, by number.
	Recorder Recorder
	Keys     *Keys
	Users    map[uint32][]Scope
	// Once keeps idempotency keys; nil refuses them.
	Once *Once
	// Events yields the events of the audit log from a number on, of a lifecycle
	// only, and waits for more until ctx is done; 0 is from now on.
	Events func(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error]
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
func decode(w http.ResponseWriter, r *http.Request, v any) error {
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

func reply(w http.ResponseWriter, status int, v any, err error) {
	if err != nil {
		writeProblem(w, err)
		return
	}
	if v == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone if this fails
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

// replyPage answers with a part of a list by key: up to ?limit= entries after
// ?cursor=. Keys differ. A page begins after the key that the cursor holds, so that what comes and goes meanwhile neither repeats nor
// hides another entry. Where more follows, the Link header (RFC 8288) has the
// next page's address.
func replyPage[T any](w http.ResponseWriter, r *http.Request, list []T, key func(T) string) {
	q := r.URL.Query()
	limit := pageSize
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			writeProblem(w, fmt.Errorf("%w: limit %q: use 1 to %d", errBadRequest, clip(text, 16), maxPage))
			return
		}
		limit = n
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b T) int { return strings.Compare(key(a), key(b)) })
	from := 0
	if text := q.Get("cursor"); text != "" {
		after, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: this cursor is none of ours: begin without one", errBadRequest))
			return
		}
		for from < len(list) && key(list[from]) <= string(after) {
			from++
		}
	}
	page := list[from:]
	if len(page) > limit {
		page = page[:limit]
		q.Set("cursor", base64.RawURLEncoding.EncodeToString([]byte(key(page[limit-1]))))
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.EscapedPath(), q.Encode()))
	}
	if len(page) == 0 {
		page = []T{}
	}
	reply(w, http.StatusOK, page, nil)
}
