package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
	"sallyport/sandbox/manager"
)

// copySize is of each copy's buffer, in bytes.
const copySize = 256 << 10

func removeFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	reply(w, http.StatusOK, nil, f.Remove(r.Context(), path, r.URL.Query().Get("recursive") == "1"))
}

func statFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	i, err := f.Stat(r.Context(), path, r.URL.Query().Get("follow") == "1")
	reply(w, http.StatusOK, i, err)
}

func listFiles(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	list, more, err := f.List(r.Context(), path, r.URL.Query().Get("after"))
	reply(w, http.StatusOK, wire.Listing{Files: list, More: more}, err)
}

func makeFolder(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	var in wire.MakeFolder
	if err := decode(w, r, &in); err != nil {
		writeProblem(w, err)
		return
	}
	i, err := f.Mkdir(r.Context(), path, in.Mode, in.Parents)
	reply(w, http.StatusOK, i, err)
}

func moveFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	q := r.URL.Query()
	if q.Get("to") == "" {
		writeProblem(w, fmt.Errorf("%w: to: say where to move it", errBadRequest))
		return
	}
	i, err := f.Move(r.Context(), path, q.Get("to"), q.Get("replace") == "1")
	reply(w, http.StatusOK, i, err)
}

func upload(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	p, err := f.Upload(r.Context(), path, r.Body)
	reply(w, http.StatusOK, p, err)
}

// files is a route of the files of one sandbox. The query names the path and
// maybe the user whose rights count.
func (h *handler) files(do func(w http.ResponseWriter, r *http.Request, f *manager.Files, path string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m, ok := h.sandboxes(w)
		if !ok {
			return
		}
		path := r.URL.Query().Get("path")
		if path == "" || len(path) > wire.MaxPath {
			writeProblem(w, fmt.Errorf("%w: path: name a file of the sandbox", errBadRequest))
			return
		}
		f := m.Files(r.PathValue("name"))
		f.User = r.URL.Query().Get("user")
		do(w, r, f, path)
	}
}

// raw is the head of an answer whose body is the sandbox's: nothing to be shown.
func raw(w http.ResponseWriter, kind string) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", "attachment")
}

func readFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	info, contents, err := f.Read(r.Context(), path)
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer contents.Close()
	head, err := json.Marshal(info)
	if err != nil {
		writeProblem(w, err)
		return
	}
	raw(w, "application/octet-stream")
	w.Header().Set(wire.FileHeader, strconv.QuoteToASCII(string(head)))
	if _, err := io.CopyBuffer(writeOnly{w}, contents, make([]byte, copySize)); err != nil {
		panic(http.ErrAbortHandler) // so that the client does not take it for the end
	}
}

// writeOnly hides ReadFrom, which would make a buffer of its own.
type writeOnly struct{ io.Writer }

func writeFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	q := r.URL.Query()
	o := sandbox.WriteOptions{Parents: q.Get("parents") == "1"}
	if m := q.Get("mode"); m != "" {
		if err := o.Mode.UnmarshalText([]byte(m)); err != nil {
			writeProblem(w, fmt.Errorf("%w: mode: %w", errBadRequest, err))
			return
		}
	}
	i, err := f.Write(r.Context(), path, r.Body, o)
	reply(w, http.StatusOK, i, err)
}

// download streams an archive as the sandbox makes it; a trailer says why it is
// not complete.
func download(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	tar, err := f.Download(r.Context(), path, r.URL.Query().Get("as"))
	if err != nil {
		writeProblem(w, err)
		return
	}
	defer tar.Close()
	raw(w, "application/x-tar")
	w.Header().Set("Trailer", wire.ErrorTrailer)
	if _, err = io.CopyBuffer(writeOnly{w}, tar, make([]byte, copySize)); err != nil {
		w.Header().Set(wire.ErrorTrailer, strconv.QuoteToASCII(err.Error()))
	}
}

// watchFiles streams events as lines of JSON.
func watchFiles(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	lines, begun := json.NewEncoder(w), false
	flush := http.NewResponseController(w).Flush
	err := f.Watch(r.Context(), path, sandbox.WatchOptions{Recursive: r.URL.Query().Get("recursive") == "1"}, func(e sandbox.FileEvent) error {
		if !begun {
			begun = true
			raw(w, "application/x-ndjson")
		}
		return errors.Join(lines.Encode(e), flush())
	})
	switch {
	case err == nil:
	case !begun:
		writeProblem(w, err)
	default:
		panic(http.ErrAbortHandler)
	}
}

// changes streams what has changed of a sandbox's files.
func (h *handler) changes(w http.ResponseWriter, r *http.Request) {
	m, ok := h.sandboxes(w)
	if !ok {
		return
	}
	lines, begun := json.NewEncoder(w), false
	begin := func() {
		if !begun {
			begun = true
			raw(w, "application/x-ndjson")
		}
	}
	err := m.Changes(r.Context(), r.PathValue("name"), r.URL.Query().Get("since"), func(c sandbox.Change) error {
		begin()
		return lines.Encode(client.Change{Kind: c.Kind, Path: c.Path, Raw: wire.Raw(c.Path)})
	})
	switch {
	case err == nil:
		begin()
	case !begun:
		writeProblem(w, err)
	default:
		panic(http.ErrAbortHandler) // so that the client does not take it for the end
	}
}
