package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"sallyport/gateway/access"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
	"sallyport/sandbox/manager"
)

// sandbox returns the sandbox that a request names. The error is
// [sandbox.ErrNotFound] if its caller has no such sandbox.
func (h *handler) sandbox(r *http.Request) (sandbox.Info, error) {
	return h.opt.Sandboxes.Visible(r.Context(), r.PathValue("name"))
}

// infos is [infoFor] of a list.
func infos(r *http.Request, list []sandbox.Info, err error) ([]sandbox.Info, error) {
	for i := range list {
		list[i] = infoFor(r, list[i])
	}
	return list, err
}

func (h *handler) list(r *http.Request) ([]sandbox.Info, error) {
	return infos(r, h.opt.Sandboxes.ListVisible(r.Context()), nil)
}

func (h *handler) create(w http.ResponseWriter, r *http.Request) {
	var spec sandbox.Spec
	err := decode(r, &spec)
	if err == nil {
		err = cmp.Or(privileged(r, spec), oversized(r, spec, h.opt.Manager.Defaults()))
	}
	var info sandbox.Info
	created := false
	if err == nil {
		info, created, err = h.opt.Manager.GetOrCreate(h.naming(r), r.PathValue("name"), spec)
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	h.answer(w, r, status, infoFor(r, info), err)
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

// set changes a sandbox's spec. Those who decide what it may reach widen that: its tags,
// and its way back to the network.
func (h *handler) set(r *http.Request, c sandbox.SpecChange) (i sandbox.Info, err error) {
	if c.Tags != nil {
		err = needs(r, ScopePolicy, "tags are what policies select by")
	}
	if err == nil && c.Offline != nil && !*c.Offline {
		err = needs(r, ScopePolicy, "a sandbox that is offline reaches nothing")
	}
	if err == nil {
		spec := sandbox.Spec{CPUs: size(c.CPUs), Memory: size(c.Memory), Pids: size(c.Pids), Disk: size(c.Disk)}
		err = oversized(r, spec, h.opt.Manager.Defaults())
	}
	if err == nil {
		i, err = h.opt.Manager.Set(r.Context(), r.PathValue("name"), c)
	}
	return infoFor(r, i), err
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

func (h *handler) get(r *http.Request, _ none) (sandbox.Info, error) {
	i, err := h.sandbox(r)
	return infoFor(r, i), err
}

func (h *handler) remove(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Manager.Remove(r.Context(), r.PathValue("name"))
}

func (h *handler) sandboxRoot(w http.ResponseWriter, r *http.Request) {
	i, err := h.sandbox(r)
	h.root(w, r, i.ID, err)
}

// change is a route that does one thing to one sandbox and answers with what it is
// then.
func (h *handler) change(do func(*manager.Manager, context.Context, string) (sandbox.Info, error)) http.HandlerFunc {
	return call(h, http.StatusOK, func(r *http.Request, _ none) (sandbox.Info, error) {
		i, err := do(h.opt.Manager, r.Context(), r.PathValue("name"))
		return infoFor(r, i), err
	})
}

// naming has the manager ask whether a caller may make a sandbox of a name. Rules
// select by name as well as by tags, so that a name can be worth a credential: it is
// no user's of the explicit proxy, and who may not tag takes none that a rule is for.
func (h *handler) naming(r *http.Request) context.Context {
	who := PrincipalOf(r.Context())
	return manager.AllowNames(r.Context(), func(name string) error {
		used := slices.ContainsFunc(h.opt.Clients.List(), func(c access.Client) bool { return c.Name == name })
		switch {
		case used && who.Tenant != "":
			return fmt.Errorf("%w: %s: choose another", sandbox.ErrTaken, name)
		case used:
			return fmt.Errorf("%w: a proxy user is named %q: rules select by name, so choose another", errTaken, name)
		case !who.May(ScopePolicy) && h.opt.Named(name):
			return fmt.Errorf("%w %s: rules of the policy select sandboxes by the name %q: choose another", errScope, ScopePolicy, name)
		}
		return nil
	})
}

func (h *handler) snapshots(r *http.Request) ([]sandbox.Snapshot, error) {
	return h.opt.Manager.Snapshots(r.Context(), r.PathValue("name"))
}

func (h *handler) makeSnapshot(r *http.Request, spec sandbox.SnapshotSpec) (sandbox.Snapshot, error) {
	return h.opt.Manager.Snapshot(r.Context(), r.PathValue("name"), spec)
}

func (h *handler) removeSnapshot(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Manager.RemoveSnapshot(r.Context(), r.PathValue("name"), r.PathValue("snapshot"))
}

func (h *handler) restore(r *http.Request, spec sandbox.RestoreSpec) (sandbox.Info, error) {
	i, err := h.opt.Manager.Restore(r.Context(), r.PathValue("name"), spec)
	return infoFor(r, i), err
}

func (h *handler) fork(r *http.Request, spec sandbox.ForkSpec) ([]sandbox.Info, error) {
	parent, err := h.sandbox(r)
	if err == nil {
		err = privileged(r, sandbox.Spec{Runtime: parent.Spec.Runtime})
	}
	if err != nil {
		return nil, err
	}
	list, err := h.opt.Manager.Fork(h.naming(r), parent.Name, spec)
	return infos(r, list, err)
}

// Exposures keeps what is exposed of sandboxes.
type Exposures interface {
	Expose(ctx context.Context, i sandbox.Info, port uint16, lasts time.Duration) (client.Exposed, error)
	Unexpose(ctx context.Context, i sandbox.Info, port uint16) error
	List(i sandbox.Info) []client.Exposure // by port
}

// ErrNotExposable refuses to expose what the policy or the configuration does not
// let anybody reach.
var ErrNotExposable = errors.New("this port cannot be exposed")

// defaultExposure is how long a port is exposed where the caller does not say.
const defaultExposure = time.Hour

// exposed returns the sandbox and the port that a request names.
func (h *handler) exposed(r *http.Request) (i sandbox.Info, port uint16, err error) {
	n, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || n == 0 {
		return i, 0, fmt.Errorf("%w: %q is not a port", errBadRequest, r.PathValue("port"))
	}
	i, err = h.sandbox(r)
	return i, uint16(n), err
}

func (h *handler) exposures(r *http.Request) ([]client.Exposure, error) {
	i, err := h.sandbox(r)
	if err != nil {
		return nil, err
	}
	return h.opt.Exposures.List(i), nil
}

type exposeRequest struct {
	Seconds int64 `json:"seconds"`
}

func (h *handler) expose(r *http.Request, in exposeRequest) (client.Exposed, error) {
	i, port, err := h.exposed(r)
	if err != nil {
		return client.Exposed{}, err
	}
	lasts := defaultExposure
	if in.Seconds != 0 {
		lasts = time.Duration(min(max(in.Seconds, -1), 1<<30)) * time.Second
	}
	return h.opt.Exposures.Expose(r.Context(), i, port, lasts)
}

func (h *handler) unexpose(r *http.Request, _ none) (none, error) {
	i, port, err := h.exposed(r)
	if err == nil {
		err = h.opt.Exposures.Unexpose(r.Context(), i, port)
	}
	return none{}, err
}

func (h *handler) images(r *http.Request) ([]sandbox.Image, error) {
	return h.opt.Manager.Images(r.Context())
}

func (h *handler) removeImage(r *http.Request, _ none) (none, error) {
	return none{}, h.opt.Manager.RemoveImage(r.Context(), r.URL.Query().Get("name"))
}

func (h *handler) loadImages(r *http.Request, _ none) ([]sandbox.Image, error) {
	return h.opt.Manager.LoadImages(r.Context(), r.Body)
}

// pullImage streams lines of JSON: how it goes on, and at the end the image, or the
// problem that there was.
func (h *handler) pullImage(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(r, &in); err != nil {
		h.writeProblem(w, r, err)
		return
	}
	streamSteps(h, w, r, func(p *Problem) client.ImagePull { return client.ImagePull{Problem: p} }, func(say func(client.ImagePull) error) error {
		i, err := h.opt.Manager.PullImage(r.Context(), in.Name, func(s sandbox.ImageStep) error { return say(client.ImagePull{Step: &s}) })
		if err == nil {
			_ = say(client.ImagePull{Image: &i}) // the client is gone if this fails
		}
		return err
	})
}
