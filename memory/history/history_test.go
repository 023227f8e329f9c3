package history_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sallyport/internal/seal"
	"sallyport/memory"
	"sallyport/memory/history"
)

// rig is a sandbox's folder with its memory and history.
type rig struct {
	*history.Store
	t       *testing.T
	sandbox string
	dir     string // the memory
	f       *memory.Folder
	key     history.Key
}

func (r *rig) file() string { return filepath.Join(r.sandbox, "history.db") }

func newRig(t *testing.T, o history.Options) *rig {
	t.Helper()
	sandbox := t.TempDir()
	dir, err := memory.Ensure(sandbox)
	if err != nil {
		t.Fatal(err)
	}
	f, err := memory.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, sandbox: sandbox, dir: dir, f: f, key: o.Key}
	r.open(o)
	t.Cleanup(func() { r.Close(); f.Close() })
	return r
}

func (r *rig) open(o history.Options) {
	r.t.Helper()
	s, err := history.Open(r.t.Context(), r.file(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Store = s
}

// Rollback is the Store's after a Record, as it needs it.
func (r *rig) Rollback(ctx context.Context, f *memory.Folder, t history.Target, c history.Cause) (*history.Commit, error) {
	if _, err := r.Record(ctx, f, history.Cause{Operation: memory.Found, Caller: c.Caller}); err != nil {
		return nil, err
	}
	return r.Store.Rollback(ctx, f, t, c)
}

// Release is the Store's after a Record, as it needs it.
func (r *rig) Release(ctx context.Context, f *memory.Folder, id uint64, c history.Cause) (*history.Commit, error) {
	if _, err := r.Record(ctx, f, history.Cause{Operation: memory.Found, Caller: c.Caller}); err != nil {
		return nil, err
	}
	return r.Store.Release(ctx, f, id, c)
}

func key(t *testing.T) *seal.Key {
	t.Helper()
	dir := t.TempDir()
	k, err := seal.Open(filepath.Join(dir, "key", "key"), filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	r.ok(os.MkdirAll(filepath.Dir(path), 0o755))
	r.ok(os.WriteFile(path, []byte(text), 0o644))
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// record commits what must have changed.
func (r *rig) record(contacted ...string) *history.Commit {
	r.t.Helper()
	c, err := r.Record(r.t.Context(), r.f, history.Cause{Operation: memory.ByCommand, Command: "sh", Contacted: contacted})
	r.ok(err)
	if c == nil {
		r.t.Fatal("no commit")
	}
	return c
}

// has fails unless the memory has these files: name to contents, "/" of a folder, "> " and
// where it points of a link.
func (r *rig) has(want map[string]string) {
	r.t.Helper()
	if got := tree(r.t, r.dir); !maps.Equal(got, want) {
		r.t.Errorf("the memory has %q, want %q", got, want)
	}
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil || name == ".":
			return err
		case e.IsDir():
			got[name] = "/"
		case e.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			got[name] = "> " + to
			return err
		case e.Type().IsRegular():
			if info, err := e.Info(); err != nil || info.Size() > 64<<20 {
				got[name] = "large"
				return err
			}
			text, err := os.ReadFile(path)
			got[name] = string(text)
			return err
		default:
			got[name] = e.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (r *rig) verify() {
	r.t.Helper()
	if err := r.Verify(r.t.Context()); err != nil {
		r.t.Error(err)
	}
}

func short(changes []history.Change) string {
	var list []string
	for _, c := range changes {
		s := fmt.Sprintf("%s %s %q", c.Op, c.Kind, c.Path)
		if c.Target != "" {
			s += " > " + c.Target
		}
		list = append(list, s)
	}
	return strings.Join(list, ", ")
}

func TestVersions(t *testing.T) {
	r := newRig(t, history.Options{})
	at := func(name string) string { return filepath.Join(r.dir, name) }
	steps := []struct {
		name string
		do   func() error
		want string
	}{
		{"the beginning", func() error { return nil }, `added file "memories.md"`},
		{"nothing", func() error { return nil }, ""},
		{"touched", func() error { return os.Chtimes(at("memories.md"), time.Time{}, time.Unix(1, 0)) }, ""},
		{"written again", func() error { return os.WriteFile(at("memories.md"), []byte("# Memories\n"), 0o666) }, ""},
		{"edited", func() error { return os.WriteFile(at("memories.md"), []byte("# Changed!\n"), 0o666) }, `changed file "memories.md"`},
		{"replaced", func() error {
			return errors.Join(os.WriteFile(at("x"), []byte("# Replace\n\n"), 0o666), os.Rename(at("x"), at("memories.md")))
		}, `changed file "memories.md"`},
		{"a folder with files", func() error {
			return errors.Join(os.Mkdir(at("notes"), 0o755), os.WriteFile(at("notes/a"), []byte("a"), 0o600), os.WriteFile(at("notes/b"), nil, 0o600))
		}, `added folder "notes", added file "notes/a", added file "notes/b"`},
		{"a rename", func() error { return os.Rename(at("notes/a"), at("notes/c")) }, `removed file "notes/a", added file "notes/c"`},
		{"a folder's rename", func() error { return os.Rename(at("notes"), at("old")) },
			`removed folder "notes", removed file "notes/b", removed file "notes/c", added folder "old", added file "old/b", added file "old/c"`},
		{"modes", func() error { return errors.Join(os.Chmod(at("old"), 0o700), os.Chmod(at("old/b"), 0o755)) }, `changed folder "old", changed file "old/b"`},
		{"a link", func() error { return os.Symlink("old/b", at("link")) }, `added link "link" > old/b`},
		{"another link", func() error { return errors.Join(os.Remove(at("link")), os.Symlink("/etc/passwd", at("link"))) }, `changed link "link" > /etc/passwd`},
		{"a link to a file", func() error { return errors.Join(os.Remove(at("link")), os.WriteFile(at("link"), []byte("x"), 0o600)) }, `changed file "link"`},
		{"a file to a folder", func() error { return errors.Join(os.Remove(at("link")), os.Mkdir(at("link"), 0o700)) }, `changed folder "link"`},
		{"a pipe", func() error { return unix.Mkfifo(at("pipe"), 0o600) }, `added other "pipe"`},
		{"odd names", func() error {
			return errors.Join(os.WriteFile(at("\xff\xfe\n"), []byte("1"), 0o600), os.WriteFile(at("\xff\xfd\n"), []byte("2"), 0o600), os.Symlink("\xff", at("%_'\"")))
		}, `added link "%_'\"" > ` + "\xff" + `, added file "\xff\xfd\n", added file "\xff\xfe\n"`},
		{"all removed", func() error {
			return errors.Join(os.RemoveAll(at("old")), os.Remove(at("link")), os.Remove(at("pipe")), os.Remove(at("\xff\xfe\n")), os.Remove(at("\xff\xfd\n")), os.Remove(at("%_'\"")), os.Remove(at("memories.md")))
		}, `removed link "%_'\"", removed folder "link", removed file "memories.md", removed folder "old", removed file "old/b", removed file "old/c", removed other "pipe", removed file "\xff\xfd\n", removed file "\xff\xfe\n"`},
	}
	trees := map[uint64]map[string]string{}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		c, err := r.Record(t.Context(), r.f, history.Cause{Operation: memory.ByCommand})
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if (c == nil) != (s.want == "") {
			t.Fatalf("%s: commit %+v", s.name, c)
		}
		if c == nil {
			continue
		}
		if got := short(c.Changes); got != s.want {
			t.Errorf("%s:\n%s, want\n%s", s.name, got, s.want)
		}
		stored, ok, err := r.Last(t.Context())
		if err != nil || !ok || !reflect.DeepEqual(stored, *c) {
			t.Errorf("%s: what is stored differs from what was returned: %s", s.name, cmp.Diff(*c, stored))
		}
		trees[c.Number] = tree(t, r.dir)
		r.verify()
	}
	// All of them can be looked at, and gone back to, in any order.
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(trees))) {
		then, err := r.At(t.Context(), n)
		r.ok(err)
		if len(then) != len(trees[n]) {
			t.Errorf("commit %d: %v, want %q", n, then, trees[n])
		}
		for path, v := range then {
			if v.Kind == memory.KindFile {
				if data, err := r.Content(t.Context(), v.Digest); err != nil || string(data) != trees[n][path] {
					t.Errorf("commit %d: %q has %q, %v", n, path, data, err)
				}
			}
		}
		_, err = r.Rollback(t.Context(), r.f, history.Target{To: n}, history.Cause{})
		r.ok(err)
		delete(trees[n], "pipe") // which is not made again
		r.has(trees[n])
		now, err := r.Store.At(t.Context(), lastNumber(r))
		r.ok(err)
		for path, v := range now {
			if then[path].Mode != v.Mode && v.Kind != memory.KindLink {
				t.Errorf("commit %d: %q has the mode %s, want %s", n, path, v.Mode, then[path].Mode)
			}
		}
	}
	r.verify()
}

func lastNumber(r *rig) uint64 {
	r.t.Helper()
	c, _, err := r.Last(r.t.Context())
	r.ok(err)
	return c.Number
}

// A commit's digest can be computed from its JSON, whatever the names in it are.
func TestDigest(t *testing.T) {
	r := newRig(t, history.Options{})
	r.write("a\xff<&\u2028", "1")
	r.write("a\xfe<&\u2028", "1")
	r.ok(os.Symlink("a\xff", filepath.Join(r.dir, "l\xff")))
	c, err := r.Record(t.Context(), r.f, history.Cause{Operation: memory.ByAPI, Caller: "a\xff", Contacted: []string{"b.example", "a.example", "b.example"}})
	r.ok(err)
	text, err := json.Marshal(c)
	r.ok(err)
	var back history.Commit
	r.ok(json.Unmarshal(text, &back))
	if !reflect.DeepEqual(back, *c) {
		t.Errorf("read back:\n%+v, want\n%+v", back, *c)
	}
	back.Digest = ""
	text, err = json.Marshal(back)
	r.ok(err)
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != c.Digest {
		t.Error("the digest is not of the JSON")
	}
	if !slices.Equal(c.Cause.Contacted, []string{"a.example", "b.example"}) {
		t.Errorf("contacted %v", c.Cause.Contacted)
	}
}

func TestCommits(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRig(t, history.Options{Now: func() time.Time { return now }})
	for i := range 10 {
		now = now.Add(time.Hour)
		r.write(fmt.Sprintf("d/%d", i%2), fmt.Sprint(i))
		r.record([]string{"even.example", "odd.example"}[i%2])
	}
	start := now.Add(-9 * time.Hour)
	for _, tt := range []struct {
		name   string
		filter history.Filter
		want   []uint64
	}{
		{"all", history.Filter{}, []uint64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}},
		{"some", history.Filter{Limit: 2}, []uint64{10, 9}},
		{"the next ones", history.Filter{Limit: 2, Before: 9}, []uint64{8, 7}},
		{"after", history.Filter{After: 8}, []uint64{10, 9}},
		{"a file", history.Filter{Path: "d/1"}, []uint64{10, 8, 6, 4, 2}},
		{"a folder", history.Filter{Path: "d/", Limit: 3}, []uint64{10, 9, 8}},
		{"the beginning of a name", history.Filter{Path: "mem"}, nil},
		{"a time", history.Filter{Since: start.Add(2 * time.Hour), Until: start.Add(3 * time.Hour)}, []uint64{4, 3}},
		{"a destination", history.Filter{Destination: "odd.example", After: 5}, []uint64{10, 8, 6}},
		{"another destination", history.Filter{Destination: "%.example"}, nil},
	} {
		list, err := r.Commits(t.Context(), tt.filter)
		r.ok(err)
		var got []uint64
		for _, c := range list {
			got = append(got, c.Number)
			if tt.filter.Path != "" && (len(c.Changes) == 0 || !strings.HasPrefix(c.Changes[0].Path, tt.filter.Path[:1])) {
				t.Errorf("%s: %s", tt.name, short(c.Changes))
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if n, err := r.NumberAt(t.Context(), start.Add(90*time.Minute)); n != 2 || err != nil {
		t.Errorf("NumberAt: %d, %v", n, err)
	}
	if _, err := r.NumberAt(t.Context(), start.Add(-time.Second)); !errors.Is(err, history.ErrNoCommit) {
		t.Errorf("before the beginning: %v", err)
	}
	if _, err := r.At(t.Context(), 11); !errors.Is(err, history.ErrNoCommit) {
		t.Errorf("At: %v", err)
	}
	// A clock that goes back changes no order.
	now = start
	r.write("d/0", "x")
	if c := r.record(); c.Time.Before(start.Add(9 * time.Hour)) {
		t.Errorf("time %v", c.Time)
	}
	if n, err := r.Since(t.Context(), "odd.example"); n != 2 || err != nil {
		t.Errorf("Since: %d, %v", n, err)
	}
	if _, err := r.Since(t.Context(), "x.example"); !errors.Is(err, history.ErrNoCommit) {
		t.Errorf("Since: %v", err)
	}
}

// Only files whose stamps have changed are read.
func TestUnchangedIsNotRead(t *testing.T) {
	var reads atomic.Int64
	r := newRig(t, history.Options{Inspect: func(context.Context, string, []byte) string { reads.Add(1); return "" }})
	const n = 1000
	for i := range n {
		r.write(fmt.Sprintf("d%d/%d", i%100, i), fmt.Sprint("number ", i))
	}
	r.record()
	if got := reads.Swap(0); got != n+1 {
		t.Errorf("%d reads at first", got)
	}
	time.Sleep(100 * time.Millisecond) // a change within the clock's tick of another one leaves the stamp as it is
	for range 3 {
		if c, err := r.Record(t.Context(), r.f, history.Cause{}); c != nil || err != nil {
			t.Fatal(c, err)
		}
	}
	reads.Store(0)
	if c, err := r.Record(t.Context(), r.f, history.Cause{}); c != nil || err != nil {
		t.Fatal(c, err)
	}
	if got := reads.Load(); got != 0 {
		t.Errorf("%d reads of what had not changed", got)
	}
	r.write("d7/7", "another")
	if c := r.record(); short(c.Changes) != `changed file "d7/7"` || reads.Load() != 1 {
		t.Errorf("%s with %d reads", short(c.Changes), reads.Load())
	}
	for range 2 {
		time.Sleep(100 * time.Millisecond)
		if c, err := r.Record(t.Context(), r.f, history.Cause{}); c != nil || err != nil {
			t.Fatal(c, err)
		}
	}
	r.ok(os.Remove(filepath.Join(r.dir, "d7/7")))
	if c := r.record(); short(c.Changes) != `removed file "d7/7"` {
		t.Errorf("%s", short(c.Changes))
	}
}

// No write is missed that leaves the size and, within a tick, the times as they are.
func TestQuickChanges(t *testing.T) {
	r := newRig(t, history.Options{})
	f, err := os.Create(filepath.Join(r.dir, "quick"))
	r.ok(err)
	defer f.Close()
	for i := range 50 {
		text := fmt.Appendf(nil, "%03d", i)
		_, err := f.WriteAt(text, 0)
		r.ok(err)
		c := r.record()
		if data, err := r.Content(t.Context(), c.Changes[len(c.Changes)-1].Digest); err != nil || !bytes.Equal(data, text) {
			t.Fatalf("%q, %v, want %s", data, err, text)
		}
	}
}

func TestDiff(t *testing.T) {
	r := newRig(t, history.Options{MaxFile: 100})
	r.write("a.md", "one\ntwo\nthree\n")
	r.write("b\nb", "x\n")
	r.write("bin", "\x00\x01")
	r.write("big", strings.Repeat("x", 200))
	r.record()
	r.write("a.md", "one\n2\nthree\n")
	r.write("bin", "\x00\x02")
	r.write("big", strings.Repeat("y", 200))
	r.ok(os.Remove(filepath.Join(r.dir, "b\nb")))
	r.ok(os.Symlink("a.md", filepath.Join(r.dir, "link")))
	r.record()
	list, err := r.Diff(t.Context(), 1, 2, "")
	r.ok(err)
	var got []string
	for _, d := range list {
		got = append(got, fmt.Sprintf("%s %q %q %q", d.Op, d.Path, d.Text, d.Note))
	}
	want := []string{
		`changed "a.md" "--- a.md\n+++ a.md\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" ""`,
		`removed "b\nb" "--- \"b\\nb\"\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n" ""`,
		`changed "big" "" "the contents are not kept"`,
		`changed "bin" "" "binary"`,
		`added "link" "" ""`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if list, err := r.Diff(t.Context(), 2, 1, "a.md"); err != nil || len(list) != 1 || !strings.Contains(list[0].Text, "+two") {
		t.Errorf("backwards: %+v, %v", list, err)
	}
	if list, err := r.Diff(t.Context(), 0, 2, ""); err != nil || len(list) != 5 {
		t.Errorf("from the beginning: %d, %v", len(list), err)
	}
	if _, err := r.Diff(t.Context(), 1, 3, ""); !errors.Is(err, history.ErrNoCommit) {
		t.Errorf("to no commit: %v", err)
	}
	if _, err := r.Diff(t.Context(), 1, 2, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{other, dir, filepath.Join(dir, "none", "x")} {
		if s, err := history.Open(t.Context(), path, history.Options{}); err == nil {
			s.Close()
			t.Errorf("%s was opened", path)
		}
	}
	r := newRig(t, history.Options{})
	if info, err := os.Stat(r.file()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
