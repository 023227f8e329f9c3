package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// copySize is of each copy's buffer, in bytes.
const copySize = 256 << 10

// registerFiles adds the routes of files.
func (h *handler) registerFiles(mux *http.ServeMux) {
	const files = "/v1/sandboxes/{name}/files"
	mux.HandleFunc("GET "+files, h.files(readFile))
	mux.HandleFunc("PUT "+files, h.files(writeFile))
	mux.HandleFunc("DELETE "+files, h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		reply(w, http.StatusOK, nil, f.Remove(r.Context(), path, r.URL.Query().Get("recursive") == "1"))
	}))
	mux.HandleFunc("GET "+files+"/stat", h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		i, err := f.Stat(r.Context(), path, r.URL.Query().Get("follow") == "1")
		reply(w, http.StatusOK, i, err)
	}))
	mux.HandleFunc("GET "+files+"/list", h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		list, more, err := f.List(r.Context(), path, r.URL.Query().Get("after"))
		reply(w, http.StatusOK, wire.Listing{Files: list, More: more}, err)
	}))
	mux.HandleFunc("POST "+files+"/mkdir", h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		var in wire.MakeFolder
		if err := decode(w, r, &in); err != nil {
			writeProblem(w, err)
			return
		}
		i, err := f.Mkdir(r.Context(), path, in.Mode, in.Parents)
		reply(w, http.StatusOK, i, err)
	}))
	mux.HandleFunc("POST "+files+"/move", h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		q := r.URL.Query()
		if q.Get("to") == "" {
			writeProblem(w, fmt.Errorf("%w: to: say where to move it", errBadRequest))
			return
		}
		i, err := f.Move(r.Context(), path, q.Get("to"), q.Get("replace") == "1")
		reply(w, http.StatusOK, i, err)
	}))
	mux.HandleFunc("GET "+files+"/tar", h.files(download))
	mux.HandleFunc("PUT "+files+"/tar", h.files(func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
		p, err := f.Upload(r.Context(), path, r.Body)
		reply(w, http.StatusOK, p, err)
	}))
	mux.HandleFunc("GET "+files+"/watch", h.files(watchFiles))
	mux.HandleFunc("GET /v1/sandboxes/{name}/changes", h.changes)
}

// files is a route of the files of one sandbox. The query names the path and
// maybe the user whose rights count.
func (h *handler) files(do func(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string)) http.HandlerFunc {
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

func readFile(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
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

func writeFile(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
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
func download(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
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
func watchFiles(w http.ResponseWriter, r *http.Request, f *sandbox.Files, path string) {
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

// continueTimeout is how long an upload waits for the word that its body is
// wanted: starting or waking a sandbox can be before it.
const continueTimeout = 2 * time.Minute

// Files are those of one sandbox: see [sandbox.Files].
type Files struct {
	c    *Client
	name string
	User string // whose rights count; default: the sandbox's
}

// Files returns the files of a sandbox.
func (c *Client) Files(name string) *Files { return &Files{c: c, name: name} }

func (f *Files) target(route, path string, more ...string) string {
	q := url.Values{"path": {path}}
	if f.User != "" {
		q.Set("user", f.User)
	}
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] != "" {
			q.Set(more[i], more[i+1])
		}
	}
	return sandboxPath(f.name, "files"+route) + "?" + q.Encode()
}

// yes is a query's value.
func yes(b bool) string {
	if b {
		return "1"
	}
	return ""
}

// Stat says what is known of a file.
func (f *Files) Stat(ctx context.Context, path string, follow bool) (i sandbox.File, err error) {
	return i, f.c.call(ctx, http.MethodGet, f.target("/stat", path, "follow", yes(follow)), nil, &i)
}

// List returns a page of a folder.
func (f *Files) List(ctx context.Context, path, after string) (list []sandbox.File, more bool, err error) {
	var p wire.Listing
	err = f.c.call(ctx, http.MethodGet, f.target("/list", path, "after", after), nil, &p)
	return p.Files, p.More, err
}

// Mkdir makes a folder.
func (f *Files) Mkdir(ctx context.Context, path string, mode wire.Mode, parents bool) (i sandbox.File, err error) {
	return i, f.c.call(ctx, http.MethodPost, f.target("/mkdir", path), wire.MakeFolder{Mode: mode, Parents: parents}, &i)
}

// Move renames a file or folder.
func (f *Files) Move(ctx context.Context, from, to string, replace bool) (i sandbox.File, err error) {
	return i, f.c.call(ctx, http.MethodPost, f.target("/move", from, "to", to, "replace", yes(replace)), nil, &i)
}

// Remove removes a file or a folder.
func (f *Files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.c.call(ctx, http.MethodDelete, f.target("", path, "recursive", yes(recursive)), nil, nil)
}

// Read returns a file's contents; the caller closes them.
func (f *Files) Read(ctx context.Context, path string) (i sandbox.File, contents io.ReadCloser, err error) {
	resp, err := f.c.send(ctx, http.MethodGet, f.target("", path), nil)
	if err != nil {
		return i, nil, err
	}
	head, err := strconv.Unquote(resp.Header.Get(wire.FileHeader))
	if err == nil {
		err = json.Unmarshal([]byte(head), &i)
	}
	if err != nil {
		_ = resp.Body.Close()
		return i, nil, fmt.Errorf("the daemon does not say what it sends: %w", err)
	}
	return i, resp.Body, nil
}

// Write puts a file in the place of what is there.
func (f *Files) Write(ctx context.Context, path string, contents io.Reader, o sandbox.WriteOptions) (i sandbox.File, err error) {
	mode := ""
	if o.Mode != 0 {
		text, _ := o.Mode.MarshalText()
		mode = string(text)
	}
	return i, f.put(ctx, f.target("", path, "mode", mode, "parents", yes(o.Parents)), contents, &i)
}

// Upload makes the files of a tar archive below a folder.
func (f *Files) Upload(ctx context.Context, path string, tar io.Reader) (p sandbox.Packed, err error) {
	return p, f.put(ctx, f.target("/tar", path), tar, &p)
}

func (f *Files) put(ctx context.Context, target string, body io.Reader, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://sallyport"+target, body)
	if err != nil {
		return err
	}
	req.Header.Set("Expect", "100-continue")
	resp, err := f.c.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

// Download returns a tar archive; the caller closes it. Its end is an error
// where it is not complete.
func (f *Files) Download(ctx context.Context, path, as string) (io.ReadCloser, error) {
	resp, err := f.c.send(ctx, http.MethodGet, f.target("/tar", path, "as", as), nil)
	if err != nil {
		return nil, err
	}
	return wire.Body(resp), nil
}

// Watch tells what happens to files until ctx is done or tell fails.
func (f *Files) Watch(ctx context.Context, path string, o sandbox.WatchOptions, tell func(sandbox.FileEvent) error) error {
	resp, err := f.c.send(ctx, http.MethodGet, f.target("/watch", path, "recursive", yes(o.Recursive)), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var e sandbox.FileEvent
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := tell(e); err != nil {
			return err
		}
	}
}
