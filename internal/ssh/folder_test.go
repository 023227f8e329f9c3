package ssh

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// links is a folder of links that lead far.
type links struct{ drawer }

func (links) Stat(context.Context, string, bool) (sandbox.File, error) {
	return sandbox.File{Name: "d", Type: wire.Folder}, nil
}

func (links) List(context.Context, string, string) (list []sandbox.File, more bool, err error) {
	for i := range wire.MaxPage {
		list = append(list, sandbox.File{Name: fmt.Sprintf("%04d", i), Type: wire.Link, Target: strings.Repeat("x", 3900)})
	}
	return list, true, nil
}

// asker speaks SFTP packet by packet.
func (p *porch) asker(c *ssh.Client) func(kind byte, of string) []byte {
	s := p.session(c)
	in, _ := s.StdinPipe()
	out, _ := s.StdoutPipe()
	if err := s.RequestSubsystem("sftp"); err != nil {
		p.t.Fatal(err)
	}
	ask := func(b []byte) []byte {
		p.t.Helper()
		if _, err := in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
			p.t.Fatal(err)
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(out, head); err != nil {
			p.t.Fatal(err)
		}
		a := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(out, a); err != nil {
			p.t.Fatal(err)
		}
		return a
	}
	ask([]byte{1, 0, 0, 0, 3})
	return func(kind byte, of string) []byte {
		return ask(append(binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0, 1}, uint32(len(of))), of...))
	}
}

const opendir, readdir, handle, names = 11, 12, 102, 104

// folderOf is the handle of a folder.
func folderOf(t *testing.T, ask func(byte, string) []byte, at string) string {
	t.Helper()
	a := ask(opendir, at)
	if a[0] != handle {
		t.Fatalf("opening: %q", a)
	}
	return string(a[9:])
}

// Folders that are open and have been read in part keep little.
func TestFoldersKept(t *testing.T) {
	p := newPorch(t, func(_ *server, o *Options) { o.Files = func(string) Files { return links{} } })
	ask := p.asker(p.in())
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range maxStreams {
		if a := ask(readdir, folderOf(t, ask, "/d")); a[0] != names {
			t.Fatalf("reading: %.80q", a)
		}
	}
	if got := heap() - before; got > 32<<20 {
		t.Errorf("%d folders keep %d MiB", maxStreams, got>>20)
	}
}

// Each name comes once, whichever folder was read in between.
func TestFoldersInterleaved(t *testing.T) {
	p := newPorch(t)
	var want []string
	for i := range 2500 {
		want = append(want, fmt.Sprintf("%04d", i))
	}
	for _, d := range []string{"a", "b"} {
		if err := os.Mkdir(p.files.at(d), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, n := range want {
			if err := os.WriteFile(filepath.Join(p.files.at(d), n), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask := p.asker(p.in())
	of := []string{folderOf(t, ask, "/a"), folderOf(t, ask, "/b"), folderOf(t, ask, "/a")}
	got := make([][]string, len(of))
	for open := len(of); open > 0; {
		open = 0
		for i, h := range of {
			a := ask(readdir, h)
			if a[0] != names {
				continue
			}
			open++
			n, b := binary.BigEndian.Uint32(a[5:]), a[9:]
			for range n {
				l := binary.BigEndian.Uint32(b)
				got[i], b = append(got[i], string(b[4:4+l])), b[4+l:]
				b = b[4+binary.BigEndian.Uint32(b):] // as ls has it
				flags := binary.BigEndian.Uint32(b)
				for b = b[4:]; flags != 0; flags &= flags - 1 {
					b = b[map[uint32]int{1: 8, 2: 8, 4: 4, 8: 8}[flags&-flags]:]
				}
			}
		}
	}
	for i := range got {
		if !slices.Equal(got[i], want) {
			t.Errorf("folder %d: %d names, want %d, each once", i, len(got[i]), len(want))
		}
	}
}
