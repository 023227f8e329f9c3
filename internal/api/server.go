// Package api is the daemon's control interface: HTTP and JSON under /v1, made
// for a unix socket, and the client that the command line uses. Errors are
// problem details (RFC 9457).
//
// It guarantees that a secret's value goes in and never comes out, and that who
// approves a request is who the kernel says is calling ([PeerContext]). Else it
// does not ask who that is: whoever can open the socket may do everything, so
// that the daemon makes it for root alone, where no sandbox can reach it.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"sallyport/gateway"
	"sallyport/gateway/credential"
	"sallyport/gateway/gatehouse"
	"sallyport/internal/past"
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
	Add(name string, tags map[string]string) (c gateway.Client, token string, err error)
	Remove(name string) error
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
	Explain   func(context.Context, policy.Input) policy.Explanation
	Recorded  func(ctx context.Context, decision string) (past.Explanation, error) // of a decision in the audit
	Reload    func(context.Context) error
	Shutdown  func() // stops sandboxes, engine and daemon; returns at once
	Status    func() Status
	Approvals Approvals
	Limits    Limits
	Logger    *slog.Logger
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
	Gateway gatehouse.Status `json:"gateway"`
	// Observing lists what is in observe mode now.
	Observing []policy.Lifting `json:"observing,omitempty"`
}

// NewHandler returns the routes.
func NewHandler(opt Options) http.Handler {
	h := &handler{opt}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", h.status)
	mux.HandleFunc("POST /v1/reload", h.reload)
	mux.HandleFunc("POST /v1/shutdown", h.shutdown)
	mux.HandleFunc("POST /v1/policy/explain", h.explain)
	mux.HandleFunc("GET /v1/policy/explain/{decision}", h.explainDecision)
	mux.HandleFunc("GET /v1/secrets", h.listSecrets)
	mux.HandleFunc("PUT /v1/secrets/{name}", h.setSecret)
	mux.HandleFunc("DELETE /v1/secrets/{name}", h.deleteSecret)
	mux.HandleFunc("GET /v1/clients", h.listClients)
	mux.HandleFunc("PUT /v1/clients/{name}", h.addClient)
	mux.HandleFunc("DELETE /v1/clients/{name}", h.removeClient)
	mux.HandleFunc("GET /v1/clients/{name}/ca", h.clientRoot)
	mux.HandleFunc("GET /v1/sandboxes", h.list)
	mux.HandleFunc("PUT /v1/sandboxes/{name}", h.create)
	mux.HandleFunc("GET /v1/sandboxes/{name}", h.get)
	mux.HandleFunc("DELETE /v1/sandboxes/{name}", h.remove)
	mux.HandleFunc("POST /v1/sandboxes/{name}/start", h.start)
	mux.HandleFunc("POST /v1/sandboxes/{name}/stop", h.stop)
	mux.HandleFunc("POST /v1/sandboxes/{name}/exec", h.exec)
	mux.HandleFunc("GET /v1/sandboxes/{name}/ca", h.sandboxRoot)
	mux.HandleFunc("GET /v1/approvals", h.listApprovals)
	mux.HandleFunc("POST /v1/approvals/{id}", h.answerApproval)
	mux.HandleFunc("GET /v1/limits", h.limits)
	mux.HandleFunc("POST /v1/limits/{name}/reset", h.resetLimit)
	h.registerCommands(mux)
	h.registerFiles(mux)
	return mux
}

type handler struct{ opt Options }

// maxBody bounds a request's JSON, in bytes.
const maxBody = 1 << 20

// decode reads a JSON body; an unknown field is an error.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errBadRequest, err)
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
	h.opt.Shutdown()
	w.WriteHeader(http.StatusAccepted)
}

func (h *handler) explain(w http.ResponseWriter, r *http.Request) {
	var in policy.Input
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
	reply(w, http.StatusOK, h.opt.Explain(r.Context(), in), nil)
}

// explainDecision says what the policy makes of a recorded decision.
func (h *handler) explainDecision(w http.ResponseWriter, r *http.Request) {
	e, err := h.opt.Recorded(r.Context(), r.PathValue("decision"))
	reply(w, http.StatusOK, e, err)
}

// known is the sandbox, or else the user of the explicit proxy, of that name as
// policy sees it.
func (h *handler) known(name string) (policy.Sandbox, error) {
	err := fmt.Errorf("%w: %q: `sallyport client ls` shows the users of the proxy", sandbox.ErrNotFound, name)
	if h.opt.Sandboxes != nil {
		var i sandbox.Info
		if i, err = h.opt.Sandboxes.Get(name); err == nil {
			return policy.Sandbox{Name: i.Name, ID: i.ID, Session: i.Session, Tags: i.Spec.Tags}, nil
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
	reply(w, http.StatusOK, list, err)
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
	reply(w, http.StatusOK, list, nil)
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
	c, token, err := h.opt.Clients.Add(r.PathValue("name"), spec.Tags)
	if err != nil {
		writeProblem(w, err)
		return
	}
	// Its authority exists before its first connection.
	if _, err := h.opt.Root(c.ID); err != nil {
		// Nobody will ever have seen the token.
		writeProblem(w, errors.Join(err, h.opt.Clients.Remove(c.Name)))
		return
	}
	reply(w, http.StatusCreated, ClientToken{c.Name, token}, nil)
}

func (h *handler) removeClient(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	c, _ := h.client(name)
	err := h.opt.Clients.Remove(name)
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
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	i, err := m.Get(r.PathValue("name"))
	if err != nil {
		writeProblem(w, err)
		return
	}
	h.root(w, i.ID)
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

func (h *handler) list(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		list := m.List()
		if list == nil {
			list = []sandbox.Info{}
		}
		reply(w, http.StatusOK, list, nil)
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
	for _, c := range h.opt.Clients.List() {
		if c.Name == r.PathValue("name") {
			writeProblem(w, fmt.Errorf("%w: a proxy user is named %q: rules select by name, so choose another", errTaken, c.Name))
			return
		}
	}
	info, created, err := m.GetOrCreate(r.Context(), r.PathValue("name"), spec)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	reply(w, status, info, err)
}

func (h *handler) get(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		info, err := m.Get(r.PathValue("name"))
		reply(w, http.StatusOK, info, err)
	}
}

func (h *handler) remove(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		reply(w, http.StatusOK, nil, m.Remove(r.Context(), r.PathValue("name")))
	}
}

func (h *handler) start(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		info, err := m.Start(r.Context(), r.PathValue("name"))
		reply(w, http.StatusOK, info, err)
	}
}

func (h *handler) stop(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		info, err := m.Stop(r.Context(), r.PathValue("name"))
		reply(w, http.StatusOK, info, err)
	}
}
