package api

import (
	"net/http"

	"sallyport/sandbox"
)

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
