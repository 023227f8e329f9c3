package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/archive"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// files are those of a sandbox whose agent is the real one, as a process of
// ours: its paths are this host's.
func files(t *testing.T) (*client.Files, string) {
	t.Helper()
	c, _, _ := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{Image: "x"}))
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o755))
	return c.Files("demo"), dir
}

// status is that of a problem, 0 of none.
func status(err error) int {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Status
	}
	if err != nil {
		return -1
	}
	return 0
}

func read(t *testing.T, f *client.Files, path string) string {
	t.Helper()
	_, from, err := f.Read(t.Context(), path)
	must.OK(t, err)
	defer from.Close()
	return string(need[[]byte](t)(io.ReadAll(from)))
}

func TestFiles(t *testing.T) {
	f, dir := files(t)
	none, _, _ := serve(t, true)
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string, o sandbox.WriteOptions) (sandbox.File, error) {
		return f.Write(t.Context(), at(name), strings.NewReader(text), o)
	}

	i, err := write("a/b/new\nline", "hello", sandbox.WriteOptions{Parents: true, Mode: 0o640})
	if err != nil || i.Name != "new\nline" || i.Size != 5 || i.Mode != 0o640 || i.Type != wire.Regular {
		t.Fatalf("written: %+v, %v", i, err)
	}
	if got := read(t, f, at("a/b/new\nline")); got != "hello" {
		t.Errorf("read %q", got)
	}
	// A file that is there keeps its mode and, through a link, its place.
	os.Symlink("b/new\nline", at("a/link"))
	if i, err = write("a/link", "again", sandbox.WriteOptions{}); err != nil || i.Mode != 0o640 {
		t.Errorf("through a link: %+v, %v", i, err)
	}
	if to, err := os.Readlink(at("a/link")); err != nil || to != "b/new\nline" || read(t, f, at("a/b/new\nline")) != "again" {
		t.Errorf("the link is %q, %v", to, err)
	}
	i, err = f.Stat(t.Context(), at("a/link"), false)
	if err != nil || i.Type != wire.Link || i.Target != "b/new\nline" {
		t.Errorf("the link itself: %+v, %v", i, err)
	}
	if i, err = f.Stat(t.Context(), at("a/link"), true); err != nil || i.Type != wire.Regular {
		t.Errorf("followed: %+v, %v", i, err)
	}
	if i, err = f.Mkdir(t.Context(), at("c"), 0o701, false); err != nil || i.Mode != 0o701 || i.Type != wire.Folder {
		t.Errorf("a folder: %+v, %v", i, err)
	}
	if _, err = f.Mkdir(t.Context(), at("c/d/e"), 0, true); err != nil {
		t.Error(err)
	}
	if i, err = f.Move(t.Context(), at("a/link"), at("c/moved"), false); err != nil || i.Name != "moved" {
		t.Errorf("moved: %+v, %v", i, err)
	}
	write("one", "1", sandbox.WriteOptions{})
	write("two", "2", sandbox.WriteOptions{})
	must.OK(t, syscall.Mkfifo(at("pipe"), 0o666))
	for what, tt := range map[string]struct {
		err  error
		want int
	}{
		"of no sandbox":           {first(none.Files("none").Stat(t.Context(), "/", false)), 404},
		"read nothing":            {second(f.Read(t.Context(), at("none"))), 404},
		"read a folder":           {second(f.Read(t.Context(), dir)), 409},
		"read a pipe":             {second(f.Read(t.Context(), at("pipe"))), 409},
		"write to a folder":       {first(write("a", "", sandbox.WriteOptions{})), 409},
		"write to a pipe":         {first(write("pipe", "", sandbox.WriteOptions{})), 409},
		"write below a file":      {first(write("one/x", "", sandbox.WriteOptions{})), 409},
		"write below nothing":     {first(write("x/y/z", "", sandbox.WriteOptions{})), 404},
		"write, mode too large":   {first(write("m", "", sandbox.WriteOptions{Mode: 0o10000})), 400},
		"stat nothing":            {first(f.Stat(t.Context(), at("none"), false)), 404},
		"stat, NUL":               {first(f.Stat(t.Context(), at("a\x00b"), false)), 400},
		"stat, no path":           {first(f.Stat(t.Context(), "", false)), 400},
		"stat, too long":          {first(f.Stat(t.Context(), strings.Repeat("/x", 3000), false)), 400},
		"mkdir what is there":     {first(f.Mkdir(t.Context(), at("c"), 0, false)), 409},
		"move over what is":       {first(f.Move(t.Context(), at("one"), at("two"), false)), 409},
		"move nothing":            {first(f.Move(t.Context(), at("none"), at("x"), true)), 404},
		"remove a full folder":    {f.Remove(t.Context(), at("a"), false), 409},
		"remove nothing":          {f.Remove(t.Context(), at("none"), true), 404},
		"remove all":              {f.Remove(t.Context(), "/", true), 403},
		"remove all, in disguise": {f.Remove(t.Context(), "/..//.", true), 403},
		"list a file":             {third(f.List(t.Context(), at("one"), "")), 409},
		"fetch nothing":           {first(f.Download(t.Context(), at("none"), "")), 404},
		"fetch as something up":   {drained(f.Download(t.Context(), at("a"), "../x")), -1},
		"fill a file":             {first(f.Upload(t.Context(), at("one"), strings.NewReader(""))), 409},
		"fill with no archive":    {first(f.Upload(t.Context(), dir, strings.NewReader("no archive"))), 400},
		"watch nothing":           {f.Watch(t.Context(), at("none"), sandbox.WatchOptions{}, nil), 404},
	} {
		if got := status(tt.err); got != tt.want {
			t.Errorf("%s: got %d (%v), want %d", what, got, tt.err, tt.want)
		}
	}
	if _, err := f.Move(t.Context(), at("one"), at("two"), true); err != nil || read(t, f, at("two")) != "1" {
		t.Errorf("moved over what was: %v", err)
	}
	if err := f.Remove(t.Context(), at("a"), true); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(at("a")); !os.IsNotExist(err) {
		t.Errorf("removed: %v", err)
	}
}

func first[A any](_ A, err error) error          { return err }
func second[A, B any](_ A, _ B, err error) error { return err }
func third[A, B any](_ A, _ B, err error) error  { return err }

func drained(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// A write that does not come to its end changes nothing and leaves nothing.
func TestWriteIsOneStep(t *testing.T) {
	f, dir := files(t)
	path := filepath.Join(dir, "f")
	must.OK(t, os.WriteFile(path, []byte("before"), 0o600))
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- first(f.Write(t.Context(), path, r, sandbox.WriteOptions{})) }()
	w.Write(bytes.Repeat([]byte("x"), 1<<20))
	if got := read(t, f, path); got != "before" {
		t.Errorf("meanwhile: %.20q", got)
	}
	w.CloseWithError(errors.New("the source broke"))
	if err := <-done; err == nil {
		t.Error("no error")
	}
	must.Soon(t, "nothing to be left behind", func() bool {
		entries, _ := os.ReadDir(dir)
		return len(entries) == 1
	})
	if got := read(t, f, path); got != "before" {
		t.Errorf("after: %.20q", got)
	}
}

func TestListPages(t *testing.T) {
	f, dir := files(t)
	var want []string
	for i := range 2345 {
		name := fmt.Sprintf("%05d", i)
		if i == 7 {
			name = "00007\xff\x1b[31m"
		}
		want = append(want, name)
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	var got []string
	pages := 0
	for after, more := "", true; more; pages++ {
		list, m, err := f.List(t.Context(), dir, after)
		must.OK(t, err)
		for _, i := range list {
			got = append(got, wire.RawName(i.Name, i.Raw))
		}
		after, more = got[len(got)-1], m
	}
	if diff := cmp.Diff(want, got); diff != "" || pages != 3 {
		t.Errorf("%d pages, -want +got\n%s", pages, diff)
	}
}

// A user's rights are the user's, and the agent has its own again after it.
func TestFilesOfUser(t *testing.T) {
	testnet.Privileged(t)
	f, dir := files(t)
	must.OK(t, os.Chmod(filepath.Dir(dir), 0o755))
	secret, open := filepath.Join(dir, "secret"), filepath.Join(dir, "open")
	os.WriteFile(secret, []byte("x"), 0o600)
	os.Mkdir(open, 0o700)
	os.Chown(open, 65534, 65534)
	nobody := *f
	nobody.User = "65534:65534"
	for range 20 {
		for what, err := range map[string]error{
			"read":   second(nobody.Read(t.Context(), secret)),
			"write":  first(nobody.Write(t.Context(), filepath.Join(dir, "x"), strings.NewReader("x"), sandbox.WriteOptions{})),
			"mkdir":  first(nobody.Mkdir(t.Context(), filepath.Join(dir, "x"), 0, false)),
			"move":   first(nobody.Move(t.Context(), secret, filepath.Join(open, "x"), false)),
			"remove": nobody.Remove(t.Context(), secret, false),
			"fill":   first(nobody.Upload(t.Context(), dir, archived(t, secret))),
		} {
			if got := status(err); got != 403 {
				t.Errorf("%s: got %v, want a refusal", what, err)
			}
		}
		// A file that cannot be read on the way is told at the end.
		if err := drained(nobody.Download(t.Context(), dir, "")); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("fetching: %v", err)
		}
		if got := read(t, f, secret); got != "x" {
			t.Errorf("root reads %q", got)
		}
	}
	i, err := nobody.Write(t.Context(), filepath.Join(open, "mine"), strings.NewReader("x"), sandbox.WriteOptions{})
	if err != nil || i.UID != 65534 || i.GID != 65534 {
		t.Errorf("of its own: %+v, %v", i, err)
	}
	if _, err := nobody.Upload(t.Context(), open, archived(t, secret)); err != nil {
		t.Error(err)
	}
	if i, err := f.Stat(t.Context(), filepath.Join(open, "secret"), false); err != nil || i.UID != 65534 {
		t.Errorf("unpacked: %+v, %v", i, err)
	}
	nobody.User = "no-such-user"
	if err := first(nobody.Stat(t.Context(), dir, false)); status(err) != 400 {
		t.Errorf("of nobody known: %v", err)
	}
}

func archived(t *testing.T, path string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if _, err := archive.Pack(t.Context(), &b, path, filepath.Base(path)); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestTrees(t *testing.T) {
	f, dir := files(t)
	from, to := filepath.Join(dir, "from"), t.TempDir()
	os.MkdirAll(filepath.Join(from, "a/b"), 0o755)
	os.WriteFile(filepath.Join(from, "a/b/c\xff"), []byte("text"), 0o741)
	os.Symlink("b/c\xff", filepath.Join(from, "a/l"))
	tar, err := f.Download(t.Context(), from, "to")
	must.OK(t, err)
	if _, err := archive.Unpack(t.Context(), to, tar, archive.Options{Top: "to", Foreign: true}); err != nil {
		t.Fatal(err)
	}
	tar.Close()
	if b, err := os.ReadFile(filepath.Join(to, "to/a/l")); err != nil || string(b) != "text" {
		t.Errorf("fetched %q, %v", b, err)
	}
	back := filepath.Join(dir, "back")
	os.Mkdir(back, 0o755)
	p, err := f.Upload(t.Context(), back, archived(t, filepath.Join(to, "to")))
	if err != nil || p.Entries != 5 || p.Bytes != 4 {
		t.Errorf("sent %+v, %v", p, err)
	}
	if i, err := os.Stat(filepath.Join(back, "to/a/b/c\xff")); err != nil || i.Mode().Perm() != 0o741 {
		t.Errorf("sent: %v, %v", i, err)
	}
	// A download that breaks off is no archive.
	os.WriteFile(filepath.Join(from, "large"), bytes.Repeat([]byte("x"), 32<<20), 0o600)
	tar, err = f.Download(t.Context(), from, "")
	must.OK(t, err)
	defer tar.Close()
	io.ReadFull(tar, make([]byte, 4096))
	os.Truncate(filepath.Join(from, "large"), 10)
	if _, err := io.Copy(io.Discard, tar); err == nil || !strings.Contains(err.Error(), "has shrunk") {
		t.Errorf("a file that shrinks: %v", err)
	}
}

func TestWatchFiles(t *testing.T) {
	f, dir := files(t)
	os.MkdirAll(filepath.Join(dir, "old/deep"), 0o755)
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan sandbox.FileEvent, 1000)
	done := make(chan error, 1)
	go func() {
		done <- f.Watch(ctx, dir, sandbox.WatchOptions{Recursive: true}, func(e sandbox.FileEvent) error { events <- e; return nil })
	}()
	expect := func(op, path string, folder bool) {
		t.Helper()
		want := sandbox.FileEvent{Op: op, Path: path, Raw: wire.Raw(path), Folder: folder}
		want.Path = strings.ToValidUTF8(path, "\ufffd")
		for {
			select {
			case got := <-events:
				if cmp.Equal(got, want) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no %s of %q", op, path)
			}
		}
	}
	expect(wire.Ready, "", false)
	at := func(name string) string { return filepath.Join(dir, name) }
	os.WriteFile(at("old/deep/f\xff"), []byte("x"), 0o600)
	expect(wire.Created, "old/deep/f\xff", false)
	expect(wire.Written, "old/deep/f\xff", false)
	os.Chmod(at("old/deep/f\xff"), 0o644)
	expect(wire.Changed, "old/deep/f\xff", false)
	os.MkdirAll(at("new/a/b/c"), 0o755)
	expect(wire.Created, "new", true)
	expect(wire.Created, "new/a/b/c", true)
	os.WriteFile(at("new/a/b/c/f"), nil, 0o600)
	expect(wire.Created, "new/a/b/c/f", false)
	os.Rename(at("new/a"), at("old/moved"))
	expect(wire.Removed, "new/a", true)
	expect(wire.Created, "old/moved", true)
	os.Remove(at("old/moved/b/c/f"))
	expect(wire.Removed, "old/moved/b/c/f", false)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// It ends with what is watched, and a slow reader is told that it lost some.
	os.Mkdir(at("busy"), 0o755)
	ready, written, lost := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		var once sync.Once
		done <- f.Watch(t.Context(), at("busy"), sandbox.WatchOptions{}, func(e sandbox.FileEvent) error {
			switch e.Op {
			case wire.Ready:
				close(ready)
				<-written
			case wire.Overflow:
				once.Do(func() { close(lost) })
			}
			return nil
		})
	}()
	<-ready
	long := strings.Repeat("n", 240)
	for i := range 40_000 {
		p := fmt.Sprintf("%s%d", at("busy/"+long), i%2)
		os.WriteFile(p, nil, 0o600)
		os.Remove(p)
	}
	close(written)
	select {
	case <-lost:
	case <-time.After(time.Minute):
		t.Error("nobody says that events are lost")
	}
	os.Remove(at("busy"))
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
}

func TestChanges(t *testing.T) {
	c, _, h := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{}))
	must.OK(t, os.WriteFile(filepath.Join(h.layer, "new"), nil, 0o600))
	var got []client.Change
	tell := func(x client.Change) error { got = append(got, x); return nil }
	if err := c.Changes(t.Context(), "demo", "", tell); err != nil || len(got) != 1 || got[0].Path != "/new" || got[0].Kind != "added" {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := c.Changes(t.Context(), "demo", "none", tell); status(err) != 404 {
		t.Errorf("since no snapshot: %v", err)
	}
}
