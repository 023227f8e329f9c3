package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// continueTimeout is how long an upload waits for the word that its body is
// wanted: starting or waking a sandbox can be before it.
const continueTimeout = 2 * time.Minute

// Files are those of one sandbox: see [manager.Files].
type Files struct {
	c    *Client
	name string
	User string // whose rights count; default: the sandbox's
}

// Files returns the files of a sandbox.
func (c *Client) Files(name string) *Files { return &Files{c: c, name: name} }

func (f *Files) target(route, path string, more ...string) string {
	return sandboxPath(f.name, "files"+route) + wire.FileQuery(path, f.User, more...)
}

// Stat says what is known of a file.
func (f *Files) Stat(ctx context.Context, path string, follow bool) (i sandbox.File, err error) {
	return i, f.c.Call(ctx, http.MethodGet, f.target("/stat", path, "follow", wire.Flag(follow)), nil, &i)
}

// List returns a page of a folder.
func (f *Files) List(ctx context.Context, path, after string) (list []sandbox.File, more bool, err error) {
	var p wire.Listing
	err = f.c.Call(ctx, http.MethodGet, f.target("/list", path, "after", after), nil, &p)
	return p.Files, p.More, err
}

// Mkdir makes a folder.
func (f *Files) Mkdir(ctx context.Context, path string, mode wire.Mode, parents bool) (i sandbox.File, err error) {
	return i, f.c.Call(ctx, http.MethodPost, f.target("/mkdir", path), wire.MakeFolder{Mode: mode, Parents: parents}, &i)
}

// Move renames a file or folder.
func (f *Files) Move(ctx context.Context, from, to string, replace bool) (i sandbox.File, err error) {
	return i, f.c.Call(ctx, http.MethodPost, f.target("/move", from, "to", to, "replace", wire.Flag(replace)), nil, &i)
}

// Remove removes a file or a folder.
func (f *Files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.c.Call(ctx, http.MethodDelete, f.target("", path, "recursive", wire.Flag(recursive)), nil, nil)
}

// Read returns a file's contents; the caller closes them.
func (f *Files) Read(ctx context.Context, path string) (i sandbox.File, contents io.ReadCloser, err error) {
	resp, err := f.c.fetch(ctx, f.target("", path), nil)
	if err != nil {
		return i, nil, err
	}
	if i, err = wire.Head(resp); err != nil {
		_ = resp.Body.Close()
		return i, nil, fmt.Errorf("the daemon does not say what it sends: %w", err)
	}
	return i, resp.Body, nil
}

// Write puts a file in the place of what is there.
func (f *Files) Write(ctx context.Context, path string, contents io.Reader, o sandbox.WriteOptions) (i sandbox.File, err error) {
	return i, f.c.put(ctx, f.target("", path, "mode", o.Mode.Query(), "parents", wire.Flag(o.Parents)), contents, &i)
}

// Upload makes the files of a tar archive below a folder.
func (f *Files) Upload(ctx context.Context, path string, tar io.Reader) (p sandbox.Packed, err error) {
	return p, f.c.put(ctx, f.target("/tar", path), tar, &p)
}

func (c *Client) put(ctx context.Context, target string, body io.Reader, out any) error {
	req, err := c.request(ctx, http.MethodPut, target, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Expect", "100-continue")
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

// Download returns a tar archive; the caller closes it. Its end is an error
// where it is not complete.
func (f *Files) Download(ctx context.Context, path, as string) (io.ReadCloser, error) {
	resp, err := f.c.fetch(ctx, f.target("/tar", path, "as", as), nil)
	if err != nil {
		return nil, err
	}
	return wire.Body(resp), nil
}

// Watch tells what happens to files until ctx is done or tell fails.
func (f *Files) Watch(ctx context.Context, path string, o sandbox.WatchOptions, tell func(sandbox.FileEvent) error) error {
	return Lines(ctx, f.c, f.target("/watch", path, "recursive", wire.Flag(o.Recursive)), tell)
}
