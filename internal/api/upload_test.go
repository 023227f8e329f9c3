package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// answerWithin is far more than any answer here takes, and far less than a client
// waits for 100 Continue.
const answerWithin = 10 * time.Second

// callers are clients of one daemon, by the way that they come.
func callers(t *testing.T, c *client.Client, h *host) map[string]*client.Client {
	t.Helper()
	remote, _ := keyed(t, h, "uploads", "", string(api.ScopeAdmin))
	return map[string]*client.Client{"socket": c, "TLS": remote}
}

// on sends an upload, and says whether it went over a connection that was there.
func on(t *testing.T, do func(context.Context) error) (reused bool, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	err = do(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused },
	}))
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer in %v", answerWithin)
	}
	return reused, err
}

// opaque hides how long what it reads is.
type opaque struct{ io.Reader }

// A client that waits for 100 Continue before the body hears that there is no agent to take
// it: neither end waits for the other.
func TestUploadWithoutAgent(t *testing.T) {
	c, _, h := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{Image: "x"}))
	path := filepath.Join(t.TempDir(), "f")
	for way, c := range callers(t, c, h) {
		f := c.Files("demo")
		for what, wrong := range map[string]func(){
			"none to be reached": func() { h.line.end(true) },
			"gone while asked":   func() { h.line.breaks.Store(true) },
		} {
			for size, body := range map[string]func() io.Reader{
				"of a known length": func() io.Reader { return strings.NewReader("text") },
				"in chunks":         func() io.Reader { return opaque{strings.NewReader("text")} },
			} {
				t.Run(way+", "+what+", "+size, func(t *testing.T) {
					write := func(ctx context.Context) error {
						return first(f.Write(ctx, path, body(), sandbox.WriteOptions{}))
					}
					if _, err := on(t, write); err != nil {
						t.Fatal(err)
					}
					wrong()
					reused, err := on(t, write)
					if status(err) != 502 || !reused {
						t.Errorf("got %v, on a connection that was there: %v; want 502 and true", err, reused)
					}
					h.line.breaks.Store(false)
					h.line.end(false)
					if _, err := on(t, write); err != nil {
						t.Errorf("with an agent again: %v", err)
					}
				})
			}
		}
	}
}

// Uploads share connections with all else, whatever became of those before them.
func TestUploadsShareConnections(t *testing.T) {
	c, _, h := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{Image: "x"}))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	large := strings.Repeat("x", 1<<20)
	must.OK(t, os.WriteFile(at("tree"), []byte(large), 0o600))
	packed := need[[]byte](t)(io.ReadAll(archived(t, at("tree"))))
	small := packed[len(packed)-1024:] // nothing but an archive's end
	for way, c := range callers(t, c, h) {
		f := c.Files("demo")
		write := func(name, text string, known bool) func(context.Context) error {
			return func(ctx context.Context) error {
				var body io.Reader = strings.NewReader(text)
				if !known {
					body = opaque{body}
				}
				return first(f.Write(ctx, at(name), body, sandbox.WriteOptions{}))
			}
		}
		fill := func(name string, tar []byte, known bool) func(context.Context) error {
			return func(ctx context.Context) error {
				var body io.Reader = bytes.NewReader(tar)
				if !known {
					body = opaque{body}
				}
				return first(f.Upload(ctx, at(name), body))
			}
		}
		type upload struct {
			name string
			do   func(context.Context) error
			want int
		}
		var all []upload
		for size, text := range map[string]string{"nothing": "", "a byte": "x", "a page": large[:4096], "much": large} {
			for length, known := range map[string]bool{"": true, ", in chunks": false} {
				all = append(all,
					upload{size + length, write("f", text, known), 0},
					upload{size + length + ", to a folder", write("", text, known), 409},
					upload{size + length + ", below nothing", write("none/f", text, known), 404},
					upload{size + length + ", to no path", write(strings.Repeat("/x", 3000), text, known), 400})
			}
		}
		for length, known := range map[string]bool{"": true, ", in chunks": false} {
			all = append(all,
				upload{"a tree" + length, fill("", packed, known), 0},
				upload{"an empty tree" + length, fill("", small, known), 0},
				upload{"a tree and more" + length, fill("", append(small[:len(small):len(small)], large[:4096]...), known), 0},
				upload{"a tree for a file" + length, fill("tree", packed, known), 409},
				upload{"no archive" + length, fill("", []byte(large[:4096]), known), 400})
		}
		for round := range 3 {
			for _, u := range all {
				t.Run(way+", "+u.name, func(t *testing.T) {
					if _, err := on(t, u.do); status(err) != u.want {
						t.Errorf("got %v, want %d", err, u.want)
					}
				})
				switch round {
				case 1: // one that is given up while its body is on its way
					ctx, cancel := context.WithCancel(t.Context())
					r, w := io.Pipe()
					go func() {
						_, _ = w.Write([]byte("some"))
						cancel()
						_ = w.CloseWithError(context.Canceled)
					}()
					_ = first(f.Write(ctx, at("g"), r, sandbox.WriteOptions{}))
				case 2: // one that takes its connection over
					if code, err := c.Exec(t.Context(), "demo", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{}); code != 0 || err != nil {
						t.Error(code, err)
					}
				}
			}
			if _, err := on(t, write("f", "x", true)); err != nil {
				t.Error(err)
			}
			if reused, err := on(t, write("f", "x", true)); err != nil || !reused {
				t.Errorf("%s: after an upload: %v, on its connection: %v, want true", way, err, reused)
			}
		}
	}
}
