package manager

import (
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent"
	"sallyport/sandbox/fsjail"
)

// unjailed serves the test's own files: a path is the host's.
func unjailed(_ fsjail.Tree, key ed25519.PublicKey) (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	go func() { _ = agent.NewFiles(key).Serve(l) }()
	return &served{c, l}, nil
}

type served struct {
	net.Conn
	by net.Listener
}

func (s *served) Close() error { return errors.Join(s.Conn.Close(), s.by.Close()) }

// The files of a sandbox that does not start are read and written as if it had, and it
// stays stopped.
func TestFilesOfWhatDoesNotStart(t *testing.T) {
	b := newBed(t)
	b.opt.Layers, b.opt.Jail = upper{b}, unjailed
	_, b.opt.Agent.Key, _ = ed25519.GenerateKey(nil)
	i := b.live(t, "a")
	b.put(t, i, "x")
	b.must(t)(b.Stop(t.Context(), "a"))
	b.h.fault = "start"
	file := filepath.Join(b.h.layers, i.ID, "file")
	want, err := os.ReadFile(file)
	must.OK(t, err)
	f := b.Files("a")
	for range 2 {
		_, from, err := f.Read(t.Context(), file)
		must.OK(t, err)
		if b.entries["a"].mu.TryLock() {
			t.Error("it can be started while its files are read")
		}
		got, err := io.ReadAll(from)
		if err := errors.Join(err, from.Close()); err != nil || string(got) != string(want) {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := f.Write(t.Context(), file, strings.NewReader("mended"), sandbox.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); string(got) != "mended" {
		t.Errorf("on its disk is %q, %v", got, err)
	}
	if is, err := f.Stat(t.Context(), file, false); err != nil || is.Size != int64(len("mended")) {
		t.Errorf("%+v, %v", is, err)
	}
	if _, err := f.Stat(t.Context(), file+"/none", false); err == nil {
		t.Error("there is none")
	}
	if err := f.Watch(t.Context(), file, sandbox.WatchOptions{}, nil); !errors.Is(err, errFault) {
		t.Errorf("watching: %v", err)
	}
	b.opt.Space, b.opt.Reserve = &space{free: 1}, 2
	if _, err := f.Write(t.Context(), file, strings.NewReader("more"), sandbox.WriteOptions{}); !errors.Is(err, sandbox.ErrDiskFull) {
		t.Errorf("writing to a full disk: %v", err)
	}
	b.opt.Space = nil
	if i, err := b.Get("a"); err != nil || i.State != sandbox.Stopped {
		t.Errorf("it is %s, %v", i.State, err)
	}
	b.h.fault = ""
	if _, err := b.Start(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// A reader of a sandbox's files, where that does not start, keeps nobody from stopping or
// removing it by going no further.
func TestFilesEndWithTheSandbox(t *testing.T) {
	b := newBed(t)
	b.opt.Layers, b.opt.Jail = upper{b}, unjailed
	_, b.opt.Agent.Key, _ = ed25519.GenerateKey(nil)
	i := b.live(t, "a")
	b.must(t)(b.Stop(t.Context(), "a"))
	b.h.fault = "start"
	file := filepath.Join(b.h.layers, i.ID, "file")
	must.OK(t, os.WriteFile(file, make([]byte, 16<<20), 0o600))
	read := func() io.ReadCloser {
		_, from, err := b.Files("a").Read(t.Context(), file)
		must.OK(t, err)
		return from
	}
	first := read()
	b.closeFiles(sandbox.ForOwner(t.Context(), "stranger"), "a")
	if n, err := io.CopyN(io.Discard, first, 1<<10); err != nil {
		t.Errorf("a stranger ends it after %d bytes: %v", n, err)
	}
	b.must(t)(b.Stop(t.Context(), "a"))
	second := read()
	if err := b.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	for _, from := range []io.ReadCloser{first, second} {
		if _, err := io.Copy(io.Discard, from); err == nil {
			t.Error("it is read to its end")
		}
		_ = from.Close()
	}
}
