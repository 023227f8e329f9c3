// Package api is the daemon's control interface: HTTP and JSON under /v1, on a
// unix socket and, where that is configured, over TLS. What it serves is written
// down in openapi.yaml, which it serves too. Errors are problem details (RFC 9457).
//
// It guarantees that nothing is done for a caller who has not shown who they are
// (the kernel's word on the socket, [PeerContext]; an API key elsewhere,
// [RemoteContext]) and has not the scope that the route needs; that a caller of a
// tenant sees and changes that tenant's sandboxes only; that nothing is changed
// for a caller in a container; and that a secret's value goes in and never comes
// out. It does not encrypt: the listener does.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/internal/auditlimit"
	"sallyport/internal/quota"
	"sallyport/internal/recorded"
	"sallyport/internal/ssh"
	"sallyport/internal/supervise"
	"sallyport/policy"
	"sallyport/sandbox"
)

// Secrets is the embedded store as the API uses it. Values go in and never out.
type Secrets interface {
	Set(ctx context.Context, name string, fields map[string]credential.Secret) error
	Delete(ctx context.Context, name string) error
	List() ([]Secret, error)
}

// Secret is what a listing shows of one.
type Secret struct {
	Name    string    `json:"name"`
	Source  string    `json:"source"` // embedded, or vault and the path
	Version string    `json:"version,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
	Error   string    `json:"error,omitempty"` // why it cannot be read now
}

// Clients is the registry of explicit proxy users.
type Clients interface {
	Add(ctx context.Context, name string, tags map[string]string) (c gateway.Client, token string, err error)
	Remove(ctx context.Context, name string) error
	List() []gateway.Client
}

// Options of NewHandler. Sandboxes is nil where the daemon runs none; all
// others are needed.
type Options struct {
	Sandboxes *sandbox.Manager
	Secrets   Secrets
	Clients   Clients
	Root      func(sandboxID string) ([]byte, error) // PEM of a sandbox's root
	Forget    func(id string) error                  // what is kept under a sandbox's or a client's ID
	Explain   func(context.Context, policy.Input, *policy.Sent) policy.Explanation
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

// Status is what the daemon says of itself.
type Status struct {
	Version   string `json:"version"`
	PID       int    `json:"pid"`
	Revision  string `json:"policy_revision"`
	Rules     int    `json:"rules"`
	Sandboxes int    `json:"sandboxes"`
	Events    uint64 `json:"events"`
	Syncs     uint64 `json:"syncs"`
	Policy    Policy `json:"policy"`
	// Gateway is the process that carries what leaves.
	Gateway supervise.Status `json:"gateway"`
	// Observing lists what is in observe mode now.
	Observing []policy.Lifting `json:"observing,omitempty"`
	// SSH is the process that operators reach sandboxes through, nil without one.
	SSH *ssh.Status `json:"ssh,omitempty"`
	// Fingerprint is that of the certificate of the TLS listener, sha256:HEX.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// NewHandler returns the routes.
func NewHandler(opt Options) http.Handler { return newHandler(opt).mux() }

func newHandler(opt Options) *handler {
	return &handler{opt: opt, failures: newFailures(), refusals: auditlimit.New(), streams: quota.New(streamsAll, streamsEach)}
}

type handler struct {
	opt      Options
	failures *failures
	refusals *auditlimit.Limit
	streams  *quota.Places // of events, by caller and tenant
}

// maxBody bounds a request's JSON, in bytes.
const maxBody = 1 << 20

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

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, h.opt.Status(), nil)
}

func (h *handler) reload(w http.ResponseWriter, r *http.Request) {
	if err := h.opt.Reload(r.Context()); err != nil {
		writeProblem(w, fmt.Errorf("%w: the running policy stays: %w", errBadRequest, err))
		return
	}
	reply(w, http.StatusOK, h.opt.Status(), nil)
}

func (h *handler) shutdown(w http.ResponseWriter, r *http.Request) {
	h.opt.Shutdown(r.Context())
	w.WriteHeader(http.StatusAccepted)
}

// Question is what is explained: an input, and its request's body where that is
// known.
type Question struct {
	policy.Input
	Sent *policy.Sent `json:",omitempty"`
}

func (h *handler) explain(w http.ResponseWriter, r *http.Request) {
	var in Question
	// The text of a body is in Base64.
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	if name := in.Sandbox.Name; name != "" {
		known, err := h.known(name)
		if err != nil {
			writeProblem(w, err)
			return
		}
		in.Sandbox = known // with its own tags, whatever the caller says
	}
	reply(w, http.StatusOK, nameless(r, h.opt.Explain(r.Context(), in.Input, in.Sent)), nil)
}

// explainDecision says what the policy makes of a recorded decision.
func (h *handler) explainDecision(w http.ResponseWriter, r *http.Request) {
	e, err := h.opt.Recorded(r.Context(), r.PathValue("decision"))
	if e.Explanation = nameless(r, e.Explanation); !PrincipalOf(r.Context()).May(ScopeSecrets) {
		e.Recorded.Credentials = nil
	}
	reply(w, http.StatusOK, e, err)
}

// known is the sandbox, or else the user of the explicit proxy, of that name as
// policy sees it.
func (h *handler) known(name string) (policy.Sandbox, error) {
	err := fmt.Errorf("%w: %q: `sallyport client ls` shows the users of the proxy", sandbox.ErrNotFound, name)
	if h.opt.Sandboxes != nil {
		var i sandbox.Info
		if i, err = h.opt.Sandboxes.Get(name); err == nil {
			return policy.Sandbox{Name: i.Name, ID: i.ID, Session: i.Session, Tags: i.Tags()}, nil
		}
	}
	if c, ok := h.client(name); ok {
		return policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}, nil
	}
	return policy.Sandbox{}, err
}

func (h *handler) client(name string) (gateway.Client, bool) {
	for _, c := range h.opt.Clients.List() {
		if c.Name == name {
			return c, true
		}
	}
	return gateway.Client{}, false
}

func (h *handler) listSecrets(w http.ResponseWriter, r *http.Request) {
	list, err := h.opt.Secrets.List()
	if err != nil {
		writeProblem(w, err)
		return
	}
	replyPage(w, r, list, func(s Secret) string { return s.Name + "\x00" + s.Source })
}

func (h *handler) setSecret(w http.ResponseWriter, r *http.Request) {
	var plain map[string]string
	if err := decode(w, r, &plain); err != nil {
		writeProblem(w, err)
		return
	}
	fields := map[string]credential.Secret{}
	for k, v := range plain {
		fields[k] = credential.NewSecret(v)
	}
	reply(w, http.StatusOK, nil, h.opt.Secrets.Set(r.Context(), r.PathValue("name"), fields))
}

func (h *handler) deleteSecret(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, nil, h.opt.Secrets.Delete(r.Context(), r.PathValue("name")))
}

func (h *handler) listClients(w http.ResponseWriter, r *http.Request) {
	list := []ProxyClient{}
	for _, c := range h.opt.Clients.List() {
		list = append(list, ProxyClient{Name: c.Name, ID: c.ID, Tags: c.Tags, Created: c.Created})
	}
	replyPage(w, r, list, func(c ProxyClient) string { return c.Name })
}

// ProxyClient is what a listing shows of a user of the explicit proxy.
type ProxyClient struct {
	Name    string            `json:"name"`
	ID      string            `json:"id"`
	Tags    map[string]string `json:"tags,omitempty"`
	Created time.Time         `json:"created"`
}

// ClientToken is the only time that a client's token is shown.
type ClientToken struct {
	Name  string `json:"name"`
	Token string `json:"token"`
}

func (h *handler) addClient(w http.ResponseWriter, r *http.Request) {
	var spec struct {
		Tags map[string]string `json:"tags"`
	}
	if err := decode(w, r, &spec); err != nil {
		writeProblem(w, err)
		return
	}
	if h.opt.Sandboxes != nil {
		if _, err := h.opt.Sandboxes.Get(r.PathValue("name")); err == nil {
			writeProblem(w, fmt.Errorf("%w: a sandbox is named %q: rules select by name, so choose another", errTaken, r.PathValue("name")))
			return
		}
	}
	c, token, err := h.opt.Clients.Add(r.Context(), r.PathValue("name"), spec.Tags)
	if err != nil {
		writeProblem(w, err)
		return
	}
	// Its authority exists before its first connection.
	if _, err := h.opt.Root(c.ID); err != nil {
		// Nobody will ever have seen the token.
		writeProblem(w, errors.Join(err, h.opt.Clients.Remove(r.Context(), c.Name)))
		return
	}
	reply(w, http.StatusCreated, ClientToken{c.Name, token}, nil)
}

func (h *handler) removeClient(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	c, _ := h.client(name)
	err := h.opt.Clients.Remove(r.Context(), name)
	if err == nil {
		err = h.opt.Forget(c.ID)
	}
	reply(w, http.StatusOK, nil, err)
}

func (h *handler) clientRoot(w http.ResponseWriter, r *http.Request) {
	if c, ok := h.client(r.PathValue("name")); ok {
		h.root(w, c.ID)
		return
	}
	writeProblem(w, fmt.Errorf("%w: %q: `sallyport client ls` shows those there are", gateway.ErrClientUnknown, r.PathValue("name")))
}

func (h *handler) sandboxRoot(w http.ResponseWriter, r *http.Request) {
	if i, ok := h.sandbox(w, r); ok {
		h.root(w, i.ID)
	}
}

func (h *handler) root(w http.ResponseWriter, id string) {
	pem, err := h.opt.Root(id)
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(pem)
}

func (h *handler) sandboxes(w http.ResponseWriter) (*sandbox.Manager, bool) {
	if h.opt.Sandboxes == nil {
		writeProblem(w, fmt.Errorf("%w: this daemon runs no sandboxes (engine.kind is none)", errBadRequest))
		return nil, false
	}
	return h.opt.Sandboxes, true
}

// sandbox is the one that a request names, if it is there for its caller.
func (h *handler) sandbox(w http.ResponseWriter, r *http.Request) (sandbox.Info, bool) {
	m, ok := h.sandboxes(w)
	if !ok {
		return sandbox.Info{}, false
	}
	i, err := m.Visible(r.Context(), r.PathValue("name"))
	if err != nil {
		writeProblem(w, err)
		return sandbox.Info{}, false
	}
	return i, true
}

func (h *handler) list(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		list := m.ListVisible(r.Context())
		for i := range list {
			list[i] = infoFor(r, list[i])
		}
		replyPage(w, r, list, func(i sandbox.Info) string { return i.Name })
	}
}

func (h *handler) create(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var spec sandbox.Spec
	if err := decode(w, r, &spec); err != nil {
		writeProblem(w, err)
		return
	}
	if err := cmp.Or(privileged(r, spec), oversized(r, spec, m.Defaults())); err != nil {
		h.refuse(w, r, PrincipalOf(r.Context()), err)
		return
	}
	info, created, err := m.GetOrCreate(h.naming(r), r.PathValue("name"), spec)
	if err != nil {
		h.unmade(w, r, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	reply(w, status, infoFor(r, info), nil)
}

// privileged says what of a spec is not for everybody who may make sandboxes: tags
// are what rules select by, and runc is a weaker wall.
func privileged(r *http.Request, s sandbox.Spec) error {
	if s.Tags != nil {
		if err := needs(r, ScopePolicy, "tags are what policies select by"); err != nil {
			return err
		}
	}
	if s.Runtime == sandbox.RunC {
		return needs(r, ScopeAdmin, "a sandbox on runc shares the host's kernel")
	}
	return nil
}

// set changes a sandbox's spec. What widens what it may reach is for who decides
// that: its tags, and its way back to the network.
func (h *handler) set(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var c sandbox.SpecChange
	if err := decode(w, r, &c); err != nil {
		writeProblem(w, err)
		return
	}
	var err error
	if c.Tags != nil {
		err = needs(r, ScopePolicy, "tags are what policies select by")
	}
	if err == nil && c.Offline != nil && !*c.Offline {
		err = needs(r, ScopePolicy, "a sandbox that is offline reaches nothing")
	}
	if err == nil {
		err = oversized(r, sandbox.Spec{CPUs: size(c.CPUs), Memory: size(c.Memory), Pids: size(c.Pids), Disk: size(c.Disk)}, m.Defaults())
	}
	if err != nil {
		h.refuse(w, r, PrincipalOf(r.Context()), err)
		return
	}
	i, err := m.Set(r.Context(), r.PathValue("name"), c)
	reply(w, http.StatusOK, infoFor(r, i), err)
}

// size is what is set, where 0 is no bound at all.
func size[N int64 | float64](set *N) N {
	switch {
	case set == nil:
		return 0
	case *set == 0:
		return math.MaxInt64
	}
	return *set
}

// oversized keeps a tenant to what of the host the configuration gives each sandbox:
// its defaults, where they bound anything.
func oversized(r *http.Request, s, most sandbox.Spec) error {
	if PrincipalOf(r.Context()).Tenant == "" {
		return nil
	}
	over := func(asked, most float64) bool { return most > 0 && asked > most }
	for what, is := range map[string]bool{
		"cpus": over(s.CPUs, most.CPUs), "memory": over(float64(s.Memory), float64(most.Memory)),
		"pids": over(float64(s.Pids), float64(most.Pids)), "disk": over(float64(s.Disk), float64(most.Disk)),
	} {
		if is {
			return needs(r, ScopeAdmin, "a tenant's sandbox has at most the daemon's default of "+what)
		}
	}
	return nil
}

func (h *handler) get(w http.ResponseWriter, r *http.Request) {
	if i, ok := h.sandbox(w, r); ok {
		reply(w, http.StatusOK, infoFor(r, i), nil)
	}
}

func (h *handler) remove(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		reply(w, http.StatusNoContent, nil, m.Remove(r.Context(), r.PathValue("name")))
	}
}
