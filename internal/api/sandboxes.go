package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"sallyport/gateway/access"
	"sallyport/sandbox"
	"sallyport/sandbox/manager"
)

func (h *handler) sandboxes(w http.ResponseWriter) (*manager.Manager, bool) {
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

func (h *handler) sandboxRoot(w http.ResponseWriter, r *http.Request) {
	if i, ok := h.sandbox(w, r); ok {
		h.root(w, i.ID)
	}
}

// change is a route that does one thing to one sandbox and answers with what it is
// then.
func (h *handler) change(do func(*manager.Manager, context.Context, string) (sandbox.Info, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if m, ok := h.sandboxes(w); ok {
			info, err := do(m, r.Context(), r.PathValue("name"))
			reply(w, http.StatusOK, infoFor(r, info), err)
		}
	}
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
		case !who.May(ScopePolicy) && h.opt.Named != nil && h.opt.Named(name):
			return fmt.Errorf("%w %s: rules of the policy select sandboxes by the name %q: choose another", errScope, ScopePolicy, name)
		}
		return nil
	})
}

// unmade answers that a sandbox is not made: what lacks a scope is on record.
func (h *handler) unmade(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errScope) {
		h.refuse(w, r, PrincipalOf(r.Context()), err)
		return
	}
	writeProblem(w, err)
}

func (h *handler) listSnapshots(w http.ResponseWriter, r *http.Request) {
	if m, ok := h.sandboxes(w); ok {
		list, err := m.Snapshots(r.Context(), r.PathValue("name"))
		if err != nil {
			writeProblem(w, err)
			return
		}
		replyPage(w, r, list, func(s sandbox.Snapshot) string {
			return s.Created.UTC().Format("20060102150405.000 ") + s.Name
		})
	}
}

func (h *handler) makeSnapshot(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var spec sandbox.SnapshotSpec
	if err := decode(w, r, &spec); err != nil {
		writeProblem(w, err)
		return
	}
	s, err := m.Snapshot(r.Context(), r.PathValue("name"), spec)
	reply(w, http.StatusCreated, s, err)
}

func (h *handler) removeSnapshot(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	reply(w, http.StatusOK, nil, m.RemoveSnapshot(r.Context(), r.PathValue("name"), r.PathValue("snapshot")))
}

func (h *handler) restore(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	var spec sandbox.RestoreSpec
	if err := decode(w, r, &spec); err != nil {
		writeProblem(w, err)
		return
	}
	i, err := m.Restore(r.Context(), r.PathValue("name"), spec)
	reply(w, http.StatusOK, infoFor(r, i), err)
}

func (h *handler) fork(w http.ResponseWriter, r *http.Request) {
	parent, ok := h.sandbox(w, r)
	if !ok {
		return
	}
	var spec sandbox.ForkSpec
	if err := decode(w, r, &spec); err != nil {
		writeProblem(w, err)
		return
	}
	if err := privileged(r, sandbox.Spec{Runtime: parent.Spec.Runtime}); err != nil {
		h.unmade(w, r, err)
		return
	}
	list, err := h.opt.Sandboxes.Fork(h.naming(r), parent.Name, spec)
	if err != nil {
		h.unmade(w, r, err)
		return
	}
	for i := range list {
		list[i] = infoFor(r, list[i])
	}
	reply(w, http.StatusCreated, list, nil)
}
