package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/agent/archive"
)

// shape is what a tree is, as text by name: type, mode, contents or target, and
// for a second name of a file the first.
func shape(t *testing.T, dir string) map[string]string {
	t.Helper()
	out, inodes := map[string]string{}, map[uint64]string{}
	must.OK(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must.OK(t, err)
		i, err := d.Info()
		must.OK(t, err)
		name, _ := filepath.Rel(dir, p)
		if name == "." {
			return nil
		}
		st := i.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%o", st.Mode)
		switch {
		case i.Mode().IsRegular() && inodes[st.Ino] != "":
			text += " as " + inodes[st.Ino]
		case i.Mode().IsRegular():
			inodes[st.Ino] = name
			b, err := os.ReadFile(p)
			must.OK(t, err)
			text += fmt.Sprintf(" %q %d", b, i.ModTime().Unix())
		case i.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			text += " -> " + to
		case i.IsDir():
			text += fmt.Sprintf(" %d", i.ModTime().Unix())
		}
		out[name] = text
		return nil
	}))
	return out
}

// tree makes files of many kinds.
func tree(t *testing.T, dir string) {
	t.Helper()
	long := strings.Repeat("n", 255)
	for _, d := range []string{"deep/" + long + "/" + long, "empty", "closed"} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for name, mode := range map[string]os.FileMode{
		"plain": 0o644, "script": 0o755, "closed/secret": 0o600, "nobody's": 0o000, "empty/.hidden": 0o640,
		"new\nline": 0o644, "esc\x1b[31m": 0o644, "not\xff\xfeutf8": 0o644, " space ": 0o644, "-rf": 0o644, "ünï": 0o644, `back\slash`: 0o644,
		"deep/" + long + "/" + long + "/" + long: 0o644,
	} {
		p := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(p, []byte("in "+name), 0o600))
		must.OK(t, os.Chmod(p, mode))
		must.OK(t, os.Chtimes(p, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	must.OK(t, os.Symlink("plain", filepath.Join(dir, "link")))
	must.OK(t, os.Symlink("../plain", filepath.Join(dir, "deep/up")))
	must.OK(t, os.Link(filepath.Join(dir, "plain"), filepath.Join(dir, "zweiter")))
	must.OK(t, os.Chtimes(filepath.Join(dir, "empty"), time.Unix(2e9, 0), time.Unix(2e9, 0)))
	must.OK(t, os.Chmod(filepath.Join(dir, "closed"), 0o500))
}

func TestRoundTrip(t *testing.T) {
	testnet.Privileged(t) // as the agent is: a file that is closed to everybody is read
	for _, foreign := range []bool{false, true} {
		from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
		must.OK(t, os.Mkdir(from, 0o755))
		tree(t, from)
		must.OK(t, os.Chmod(filepath.Join(from, "script"), 0o755|os.ModeSetuid))
		must.OK(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o644))
		var b bytes.Buffer
		packed, err := archive.Pack(t.Context(), &b, from, "to")
		must.OK(t, err)
		got, err := archive.Unpack(t.Context(), to, &b, archive.Options{Top: "to", Foreign: foreign})
		must.OK(t, err)
		if packed.Entries != got.Entries || packed.Bytes != got.Bytes || packed.Skipped != 1 || got.Skipped != 0 {
			t.Errorf("packed %+v, unpacked %+v", packed, got)
		}
		want := shape(t, from)
		delete(want, "pipe")
		if foreign {
			want["script"] = strings.Replace(want["script"], "104755", "100755", 1)
		}
		if diff := cmp.Diff(want, shape(t, filepath.Join(to, "to"))); diff != "" {
			t.Errorf("foreign %t: -want +got\n%s", foreign, diff)
		}
	}
}

// entry of a hostile archive.
type entry struct {
	name, link, body string
	kind             byte
	mode             int64
	size             int64 // where it is not the body's
}

func hostile(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.body)), Format: tar.FormatPAX}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		if e.kind == tar.TypeChar || e.kind == tar.TypeBlock {
			h.Devmajor, h.Devminor = 1, 3
		}
		must.OK(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.body)
		must.OK(t, err)
	}
	must.OK(t, w.Close())
	return &b
}

// Whatever an archive holds, nothing changes outside the folder that it goes to,
// nor through what was in it before.
func TestHostileArchive(t *testing.T) {
	const dir, sym, hard = tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	for name, tt := range map[string]struct {
		entries []entry
		refused bool
		skipped int64
		want    map[string]string // what is there besides what was, if it is not refused
	}{
		"up":                    {entries: []entry{{name: "../evil", body: "x"}}, refused: true},
		"up from below":         {entries: []entry{{name: "top/../../evil", body: "x"}}, refused: true},
		"up and back":           {entries: []entry{{name: "top/../top/evil", body: "x"}}, refused: true},
		"absolute":              {entries: []entry{{name: "/evil", body: "x"}}, refused: true},
		"empty name":            {entries: []entry{{name: "", body: "x"}}, refused: true},
		"another top":           {entries: []entry{{name: "other", body: "x"}}, refused: true},
		"top's name as a start": {entries: []entry{{name: "topping", body: "x"}}, refused: true},
		"name too long":         {entries: []entry{{name: "top/" + strings.Repeat("n", 256), body: "x"}}, refused: true},
		"path too long":         {entries: []entry{{name: "top/" + strings.Repeat("n/", 3000), kind: dir}}, refused: true},
		"path too deep":         {entries: []entry{{name: "top/" + strings.Repeat("n/", 300), kind: dir}}, refused: true},
		"through its link":      {entries: []entry{{name: "top/sub", kind: dir}, {name: "top/l", link: "sub", kind: sym}, {name: "top/l/evil", body: "x"}}, refused: true},
		"through its link out":  {entries: []entry{{name: "top/l", link: "../..", kind: sym}, {name: "top/l/evil", body: "x"}}, refused: false, skipped: 1, want: map[string]string{"top": "dir", "top/l": "dir", "top/l/evil": "x"}},
		"through a link before": {entries: []entry{{name: "top/before/evil", body: "x"}}, refused: true},
		"folder over a link":    {entries: []entry{{name: "top/before", kind: dir}}, refused: true},
		"file over a link":      {entries: []entry{{name: "top/before", body: "x"}}, want: map[string]string{"top": "dir", "top/before": "x"}},
		"file over a folder":    {entries: []entry{{name: "top/sub", kind: dir}, {name: "top/sub", body: "x"}}, refused: true},
		"folder over a file":    {entries: []entry{{name: "top/f", body: "x"}, {name: "top/f", kind: dir}}, refused: true},
		"below a file":          {entries: []entry{{name: "top/f", body: "x"}, {name: "top/f/g", body: "x"}}, refused: true},
		"hard link up":          {entries: []entry{{name: "top/h", link: "../secret", kind: hard}}, refused: true},
		"hard link absolute":    {entries: []entry{{name: "top/h", link: "/etc/passwd", kind: hard}}, refused: true},
		"hard link to before":   {entries: []entry{{name: "top/h", link: "top/mine", kind: hard}, {name: "top/h", body: "x"}}, refused: true},
		"hard link to a link":   {entries: []entry{{name: "top/l", link: "mine", kind: sym}, {name: "top/h", link: "top/l", kind: hard}}, refused: true},
		"hard link to itself":   {entries: []entry{{name: "top/f", body: "x"}, {name: "top/f", link: "top/f", kind: hard}}, refused: true},
		"hard link to nothing":  {entries: []entry{{name: "top/h", link: "top/none", kind: hard}}, refused: true},
		"hard link, then other": {entries: []entry{{name: "top/f", body: "x"}, {name: "top/h", link: "top/f", kind: hard}, {name: "top/h", body: "y"}}, want: map[string]string{"top": "dir", "top/f": "x", "top/h": "y"}},
		"absolute link":         {entries: []entry{{name: "top/l", link: "/etc/passwd", kind: sym}}, skipped: 1, want: map[string]string{"top": "dir"}},
		"link up":               {entries: []entry{{name: "top/l", link: "..", kind: sym}}, skipped: 1, want: map[string]string{"top": "dir"}},
		"link up in itself":     {entries: []entry{{name: "top/a/l", link: "../f", kind: sym}}, want: map[string]string{"top": "dir", "top/a": "dir", "top/a/l": "-> ../f"}},
		"link up by another":    {entries: []entry{{name: "top/a/b/c", link: "../..", kind: sym}, {name: "top/a/l", link: "b/c/..", kind: sym}}, skipped: 1, want: map[string]string{"top": "dir", "top/a": "dir", "top/a/b": "dir", "top/a/b/c": "-> ../.."}},
		"the top as a link":     {entries: []entry{{name: "top", link: "/etc", kind: sym}, {name: "top/evil", body: "x"}}, skipped: 1, want: map[string]string{"top": "dir", "top/evil": "x"}},
		"devices":               {entries: []entry{{name: "top/null", kind: tar.TypeChar}, {name: "top/sda", kind: tar.TypeBlock}, {name: "top/pipe", kind: tar.TypeFifo}, {name: "top/odd", kind: 'Z'}}, skipped: 4, want: map[string]string{"top": "dir"}},
		"closed folder and on":  {entries: []entry{{name: "top/sub/", kind: dir, mode: 0o1}, {name: "top/sub/f", body: "x"}}, want: map[string]string{"top": "dir", "top/sub": "dir", "top/sub/f": "x"}},
		"terminal escapes":      {entries: []entry{{name: "top/\x1b]0;owned\a", body: "x"}}, want: map[string]string{"top": "dir", "top/\x1b]0;owned\a": "x"}},
		"too many":              {entries: []entry{{name: "top/1"}, {name: "top/2"}, {name: "top/3"}, {name: "top/4"}, {name: "top/5"}, {name: "top/6"}}, refused: true},
		"too much":              {entries: []entry{{name: "top/1", body: strings.Repeat("x", 600)}, {name: "top/2", body: strings.Repeat("x", 600)}}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "closed") {
				testnet.Privileged(t)
			}
			outside := t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
			to := filepath.Join(outside, "to")
			must.OK(t, os.MkdirAll(filepath.Join(to, "top"), 0o755))
			must.OK(t, os.Symlink(outside, filepath.Join(to, "top/before")))
			must.OK(t, os.WriteFile(filepath.Join(to, "top/mine"), []byte("mine"), 0o600))
			got, err := archive.Unpack(t.Context(), to, hostile(t, tt.entries...), archive.Options{Top: "top", Foreign: true, MaxBytes: 1000, MaxEntries: 5})
			if (err != nil) != tt.refused {
				t.Errorf("got %v, want refused %t", err, tt.refused)
			}
			if got.Skipped != tt.skipped {
				t.Errorf("skipped %d, want %d: %q", got.Skipped, tt.skipped, got.Why)
			}
			after := map[string]string{}
			must.OK(t, filepath.WalkDir(outside, func(p string, d fs.DirEntry, err error) error {
				name, _ := filepath.Rel(outside, p)
				switch i, _ := os.Lstat(p); {
				case i.IsDir():
					after[name] = "dir"
				case i.Mode()&fs.ModeSymlink != 0:
					to, _ := os.Readlink(p)
					after[name] = "-> " + to
				default:
					b, err := os.ReadFile(p)
					must.OK(t, err)
					after[name] = string(b)
				}
				return nil
			}))
			for name, want := range map[string]string{"secret": "secret", "to/top/mine": "mine"} {
				if after[name] != want {
					t.Errorf("%s is %q", name, after[name])
				}
			}
			if i, err := os.Stat(filepath.Join(to, "top/mine")); err == nil && i.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Error("what was there has a second name")
			}
			for name := range after {
				if !strings.HasPrefix(name, "to") && name != "." && name != "secret" {
					t.Errorf("%q was made outside", name)
				}
			}
			if tt.refused {
				return
			}
			inside := map[string]string{}
			for name, text := range after {
				if n, ok := strings.CutPrefix(name, "to/"); ok && n != "top/mine" && (n != "top/before" || text != "-> "+outside) {
					inside[n] = text
				}
			}
			if diff := cmp.Diff(tt.want, inside); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// endless is an archive's head and then zeros without end.
type endless struct{ head io.Reader }

func (e endless) Read(p []byte) (int, error) {
	if n, err := e.head.Read(p); err == nil {
		return n, nil
	}
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Heads that promise much take little, and what has no end ends at a bound.
func TestHostileSizes(t *testing.T) {
	head := func(kind byte, size string) []byte {
		b := make([]byte, 512)
		copy(b, "top/f")
		copy(b[100:], "0000644\x00")
		copy(b[124:], size)
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		copy(b[148:], "        ")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
		return b
	}
	var heads bytes.Buffer
	for range 10_000 {
		heads.Write(head(tar.TypeReg, "00000000000\x00"))
	}
	var large bytes.Buffer
	w := tar.NewWriter(&large)
	for range 100 {
		must.OK(t, w.WriteHeader(&tar.Header{Name: "top/f", Typeflag: tar.TypeReg, Mode: 0o644, PAXRecords: map[string]string{"SALLYPORT.x": strings.Repeat("x", 500<<10)}}))
	}
	must.OK(t, w.Close())
	for name, in := range map[string]io.Reader{
		"a huge file":        endless{bytes.NewReader(head(tar.TypeReg, "77777777777\x00"))},
		"a huge pax head":    endless{bytes.NewReader(head(tar.TypeXHeader, "77777777777\x00"))},
		"a huge long name":   endless{bytes.NewReader(head(tar.TypeGNULongName, "77777777777\x00"))},
		"a negative size":    endless{bytes.NewReader(head(tar.TypeReg, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))},
		"heads without end":  &heads,
		"a sparse file":      hostileSparse(t, 1<<40),
		"a small sparse one": hostileSparse(t, 1000),
		"large heads":        &large,
		"no archive":         endless{strings.NewReader("SSH-2.0")},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			to := t.TempDir()
			_, err := archive.Unpack(t.Context(), to, in, archive.Options{Foreign: true, MaxBytes: 1 << 20, MaxEntries: 1000})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("not refused")
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("%d MiB allocated", n>>20)
			}
			for name, text := range shape(t, to) {
				if len(text) > 2<<20 {
					t.Errorf("%s has %d bytes", name, len(text))
				}
			}
		})
	}
}

// hostileSparse promises that many bytes in a few (GNU tar's manual, "Storing
// Sparse Files", version 1.0).
func hostileSparse(t *testing.T, size int64) io.Reader {
	t.Helper()
	var b bytes.Buffer
	pax := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=top/f", fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		pax += fmt.Sprintf("%d %s\n", len(kv)+4, kv)
	}
	w := tar.NewWriter(&b)
	must.OK(t, w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: int64(len(pax)), Format: tar.FormatUSTAR, Mode: 0o644}))
	_, err := io.WriteString(w, pax)
	must.OK(t, err)
	must.OK(t, w.WriteHeader(&tar.Header{Name: "y", Typeflag: tar.TypeReg, Size: 512, Format: tar.FormatUSTAR, Mode: 0o644}))
	data := make([]byte, 512)
	copy(data, fmt.Sprintf("1\n%d\n0\n", size))
	_, err = w.Write(data)
	must.OK(t, err)
	must.OK(t, w.Close())
	raw := b.Bytes()
	raw[156] = tar.TypeXHeader
	copy(raw[148:], "        ")
	sum := 0
	for _, c := range raw[:512] {
		sum += int(c)
	}
	copy(raw[148:], fmt.Sprintf("%06o\x00 ", sum))
	return bytes.NewReader(raw)
}

// A folder that is swapped for a link while it is filled leads nowhere else.
func TestSwapped(t *testing.T) {
	outside := t.TempDir()
	to := filepath.Join(outside, "to")
	must.OK(t, os.Mkdir(to, 0o755))
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		for i := range 2000 {
			name := fmt.Sprintf("d/%d", i)
			if i%2 == 1 {
				name = fmt.Sprintf("e/%d", i) // so that d is entered anew
			}
			if tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}) != nil {
				return
			}
		}
		tw.Close()
		w.Close()
	}()
	ctx, cancel := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for ctx.Err() == nil {
			os.Rename(filepath.Join(to, "d"), filepath.Join(to, "old"))
			os.Symlink(outside, filepath.Join(to, "d"))
			os.Remove(filepath.Join(to, "d"))
			os.RemoveAll(filepath.Join(to, "old"))
		}
	}()
	_, _ = archive.Unpack(t.Context(), to, r, archive.Options{Foreign: true})
	r.Close()
	cancel()
	<-swapped
	entries, err := os.ReadDir(outside)
	must.OK(t, err)
	if len(entries) != 1 {
		t.Errorf("%d entries outside, want one", len(entries))
	}
}

func TestPackRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := archive.Pack(t.Context(), io.Discard, filepath.Join(dir, "none"), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	if _, err := archive.Pack(t.Context(), io.Discard, filepath.Join(dir, "f"), "."); err == nil {
		t.Error("a file without a name is packed")
	}
	for _, as := range []string{"", "..", "/x", "a/../b"} {
		if _, err := archive.Pack(t.Context(), io.Discard, dir, as); err == nil {
			t.Errorf("as %q is packed", as)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	outside := f.TempDir()
	to := filepath.Join(outside, "to")
	f.Fuzz(func(t *testing.T, data []byte) {
		must.OK(t, os.RemoveAll(to))
		must.OK(t, os.Mkdir(to, 0o755))
		p, _ := archive.Unpack(t.Context(), to, bytes.NewReader(data), archive.Options{Foreign: true, MaxBytes: 1 << 20, MaxEntries: 100})
		if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
			t.Fatalf("%d entries outside: %v", len(entries), err)
		}
		if p.Bytes > 1<<20 || p.Entries > 101 {
			t.Errorf("%+v", p)
		}
	})
}
