package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
	"sallyport/sandbox/manager"
)

// copySize is of each copy's buffer, in bytes.
const copySize = 256 << 10

func removeFile(r *http.Request, f *manager.Files, path string, _ none) (none, error) {
	return none{}, f.Remove(r.Context(), path, r.URL.Query().Get("recursive") == "1")
}

func statFile(r *http.Request, f *manager.Files, path string, _ none) (sandbox.File, error) {
	return f.Stat(r.Context(), path, r.URL.Query().Get("follow") == "1")
}

func listFiles(r *http.Request, f *manager.Files, path string, _ none) (wire.Listing, error) {
	list, more, err := f.List(r.Context(), path, r.URL.Query().Get("after"))
	return wire.Listing{Files: list, More: more}, err
}

func makeFolder(r *http.Request, f *manager.Files, path string, in wire.MakeFolder) (sandbox.File, error) {
	return f.Mkdir(r.Context(), path, in.Mode, in.Parents)
}

func moveFile(r *http.Request, f *manager.Files, path string, _ none) (sandbox.File, error) {
	q := r.URL.Query()
	if q.Get("to") == "" {
		return sandbox.File{}, fmt.Errorf("%w: to: say where to move it", errBadRequest)
	}
	return f.Move(r.Context(), path, q.Get("to"), q.Get("replace") == "1")
}

func upload(r *http.Request, f *manager.Files, path string, _ none) (sandbox.Packed, error) {
	return f.Upload(r.Context(), path, r.Body)
}

func writeFile(r *http.Request, f *manager.Files, path string, _ none) (sandbox.File, error) {
	q := r.URL.Query()
	o := sandbox.WriteOptions{Parents: q.Get("parents") == "1"}
	if m := q.Get("mode"); m != "" {
		if err := o.Mode.UnmarshalText([]byte(m)); err != nil {
			return sandbox.File{}, fmt.Errorf("%w: mode: %w", errBadRequest, err)
		}
	}
	return f.Write(r.Context(), path, r.Body, o)
}

// filesOf returns the files of the sandbox that a request names, and the path in its
// query. The query may also name the user whose rights count.
func (h *handler) filesOf(r *http.Request) (f *manager.Files, path string, err error) {
	path = r.URL.Query().Get("path")
	if path == "" || len(path) > wire.MaxPath {
		return nil, "", fmt.Errorf("%w: path: name a file of the sandbox", errBadRequest)
	}
	f = h.opt.Manager.Files(r.PathValue("name"))
	f.User = r.URL.Query().Get("user")
	return f, path, nil
}

// ofFiles is [call] for a route of the files of one sandbox.
func ofFiles[In, Out any](h *handler, do func(r *http.Request, f *manager.Files, path string, in In) (Out, error)) http.HandlerFunc {
	return call(h, http.StatusOK, func(r *http.Request, in In) (out Out, err error) {
		f, path, err := h.filesOf(r)
		if err != nil {
			return out, err
		}
		return do(r, f, path, in)
	})
}

// files is a route that streams something of the files of one sandbox.
func (h *handler) files(do func(w http.ResponseWriter, r *http.Request, f *manager.Files, path string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, path, err := h.filesOf(r)
		if err != nil {
			h.writeProblem(w, r, err)
			return
		}
		do(w, r, f, path)
	}
}

// raw is the head of an answer whose body is the sandbox's: nothing to be shown.
func raw(w http.ResponseWriter, kind string) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", "attachment")
}

func (h *handler) readFile(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	info, contents, err := f.Read(r.Context(), path)
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	defer contents.Close()
	head, err := json.Marshal(info)
	if err != nil {
		h.writeProblem(w, r, err)
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

// download streams an archive as the sandbox makes it; a trailer says why it is
// not complete.
func (h *handler) download(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	tar, err := f.Download(r.Context(), path, r.URL.Query().Get("as"))
	if err != nil {
		h.writeProblem(w, r, err)
		return
	}
	defer tar.Close()
	raw(w, "application/x-tar")
	w.Header().Set("Trailer", wire.ErrorTrailer)
	if _, err = io.CopyBuffer(writeOnly{w}, tar, make([]byte, copySize)); err != nil {
		w.Header().Set(wire.ErrorTrailer, strconv.QuoteToASCII(err.Error()))
	}
}

// jsonLines streams what do hands over as lines of JSON. An error before the first line
// is a problem; a later one aborts the response, so that the client does not take it for
// complete. flush sends each line at once.
func jsonLines[T any](h *handler, w http.ResponseWriter, r *http.Request, flush bool, do func(line func(T) error) error) {
	lines, begun := json.NewEncoder(w), false
	begin := func() {
		if !begun {
			begun = true
			raw(w, "application/x-ndjson")
		}
	}
	err := do(func(v T) error {
		begin()
		err := lines.Encode(v)
		if flush {
			err = errors.Join(err, http.NewResponseController(w).Flush())
		}
		return err
	})
	switch {
	case err == nil:
		begin()
	case !begun:
		h.writeProblem(w, r, err)
	default:
		panic(http.ErrAbortHandler)
	}
}

// watchFiles streams events as lines of JSON.
func (h *handler) watchFiles(w http.ResponseWriter, r *http.Request, f *manager.Files, path string) {
	o := sandbox.WatchOptions{Recursive: r.URL.Query().Get("recursive") == "1"}
	jsonLines(h, w, r, true, func(line func(sandbox.FileEvent) error) error { return f.Watch(r.Context(), path, o, line) })
}

// changes streams what has changed of a sandbox's files.
func (h *handler) changes(w http.ResponseWriter, r *http.Request) {
	jsonLines(h, w, r, false, func(line func(client.Change) error) error {
		return h.opt.Manager.Changes(r.Context(), r.PathValue("name"), r.URL.Query().Get("since"), func(c sandbox.Change) error {
			return line(client.Change{Kind: c.Kind, Path: c.Path, Raw: wire.Raw(c.Path)})
		})
	})
}

// streamSteps streams the lines of JSON that do says, each at once. An error before the
// first line is a problem; a later one is the last line.
func streamSteps[T any](h *handler, w http.ResponseWriter, r *http.Request, failed func(*Problem) T, do func(say func(T) error) error) {
	lines, control, begun := json.NewEncoder(w), http.NewResponseController(w), false
	say := func(line T) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		_ = control.SetWriteDeadline(time.Now().Add(streamWithin)) // what has none is a test's
		return errors.Join(lines.Encode(line), control.Flush())
	}
	switch err := do(say); {
	case err != nil && !begun:
		h.writeProblem(w, r, err)
	case err != nil:
		_ = say(failed(h.problemFor(r, err)))
	}
}
