package history_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/test/corpus"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/secretscan"
)

func TestRollback(t *testing.T) {
	r := newRig(t, history.Options{MaxFile: 100})
	r.write("a/one", "1")
	r.write("a/two", "2")
	r.write("b", "b")
	r.ok(os.Symlink("b", filepath.Join(r.dir, "link")))
	first := r.record().Number
	before := tree(t, r.dir)
	r.write("a/one", "changed")
	r.write("c/new", "n")
	r.ok(os.Remove(filepath.Join(r.dir, "b")))
	r.ok(os.Remove(filepath.Join(r.dir, "link")))
	r.ok(os.Symlink("c", filepath.Join(r.dir, "link")))
	r.ok(os.RemoveAll(filepath.Join(r.dir, "a", "two")))
	r.ok(os.Mkdir(filepath.Join(r.dir, "a", "two"), 0o755))
	after := tree(t, r.dir) // which no one has recorded

	// One file.
	c, err := r.Rollback(t.Context(), r.f, history.Target{To: first, Paths: []string{"a/one"}}, history.Cause{Caller: "operator"})
	r.ok(err)
	if got := short(c.Changes); got != `changed file "a/one"` || c.Cause.Operation != memory.RolledBack || c.Cause.FromCommit != first || c.Cause.Caller != "operator" {
		t.Errorf("%s by %+v", got, c.Cause)
	}
	want := map[string]string{}
	for k, v := range after {
		want[k] = v
	}
	want["a/one"] = "1"
	r.has(want)
	unrecorded := c.Number - 1

	// All of it, and all of it back: nothing was lost.
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: first}, history.Cause{})
	r.ok(err)
	r.has(before)
	if c, err := r.Rollback(t.Context(), r.f, history.Target{To: first}, history.Cause{}); c != nil || err != nil {
		t.Errorf("once more: %+v, %v", c, err)
	}
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: unrecorded}, history.Cause{})
	r.ok(err)
	r.has(after)

	// A folder.
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: first, Paths: []string{"a"}}, history.Cause{})
	r.ok(err)
	want = map[string]string{}
	for k, v := range after {
		want[k] = v
	}
	want["a/one"], want["a/two"] = "1", "2"
	r.has(want)

	// Contents that are not kept.
	r.write("large", strings.Repeat("x", 200))
	large := r.record().Number
	r.write("large", "small")
	r.write("b", "more")
	now := tree(t, r.dir)
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: large}, history.Cause{})
	if !errors.Is(err, history.ErrNotKept) || !strings.Contains(err.Error(), `"large"`) {
		t.Errorf("err = %v", err)
	}
	r.has(now)
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: large, LeaveOut: true}, history.Cause{})
	r.ok(err)
	delete(now, "b")
	r.has(now)
	for _, bad := range []history.Target{{To: 1000}, {To: large, Paths: []string{"none"}}, {To: large, Paths: []string{"../x"}}} {
		if _, err := r.Rollback(t.Context(), r.f, bad, history.Cause{}); err == nil {
			t.Errorf("%+v succeeded", bad)
		}
	}
	_, err = r.Rollback(t.Context(), r.f, history.Target{}, history.Cause{})
	r.ok(err)
	r.has(map[string]string{})
	r.verify()
}

// A file that the sandbox changes during a rollback stays as the sandbox left it, and is
// recorded, or the rollback's.
func TestRollbackMeanwhile(t *testing.T) {
	r := newRig(t, history.Options{})
	r.write("a", "old")
	first := r.record().Number
	stop, done := make(chan struct{}), make(chan map[string]bool)
	go func() {
		wrote := map[string]bool{}
		defer func() { done <- wrote }()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			text := fmt.Sprint("new ", i)
			if os.WriteFile(filepath.Join(r.dir, "x"), []byte(text), 0o600) == nil && os.Rename(filepath.Join(r.dir, "x"), filepath.Join(r.dir, "a")) == nil {
				wrote[text] = true
			}
		}
	}()
	for range 20 {
		_, err := r.Rollback(t.Context(), r.f, history.Target{To: first, Paths: []string{"a"}}, history.Cause{})
		if err != nil && !errors.Is(err, memory.ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	close(stop)
	wrote := <-done
	for path, text := range tree(t, r.dir) {
		if text != "old" && !wrote[text] && path != "memories.md" && path != "x" {
			t.Errorf("%s: %q", path, text)
		}
	}
	_, err := r.Record(t.Context(), r.f, history.Cause{})
	r.ok(err)
	r.verify()
}

// inspector finds secrets that are known, and what gitleaks' rules find.
func inspector(known ...string) func(context.Context, string, []byte) string {
	return func(ctx context.Context, path string, data []byte) string {
		if slices.ContainsFunc(known, func(k string) bool { return bytes.Contains(data, []byte(k)) }) {
			return "it holds a secret that is known"
		}
		f, _ := secretscan.Find(ctx, path, data)
		return f.Rule
	}
}

// No byte of a secret is on disk outside quarantine, where it is sealed.
func TestSecrets(t *testing.T) {
	k := key(t)
	r := newRig(t, history.Options{Key: k, Inspect: inspector("correct horse")})
	r.write("clean.md", "The user likes tea.")
	r.record()
	all := corpus.Secrets()
	paths := map[string]string{}
	for kind, secret := range all {
		name := "memories/" + strings.ReplaceAll(kind, " ", "-") + "\xff.md"
		paths[name] = kind
		r.write(name, "Remember this:\n\n"+secret+"\n\nand that.\n")
	}
	r.write("large.log", strings.Repeat("nothing\n", 200_000)+all["known"])
	paths["large.log"] = "known"
	c := r.record("a.example")
	left := 0
	for _, x := range c.Changes {
		if x.Op == history.Quarantined {
			left++
			if x.Reason == "" || x.Kept {
				t.Errorf("%+v", x)
			}
			for _, secret := range all {
				if strings.Contains(x.Reason, secret) {
					t.Errorf("the reason %q tells the secret", x.Reason)
				}
			}
		}
	}
	if left != len(paths) {
		t.Errorf("%d files of %d are in quarantine: %s", left, len(paths), short(c.Changes))
	}
	r.verify()
	r.has(map[string]string{"memories.md": "# Memories\n", "clean.md": "The user likes tea.", "memories": "/"})
	for kind, secret := range all {
		if found := r.where(secret); len(found) > 0 {
			t.Errorf("%s is in %q", kind, found)
		}
	}
	list, err := r.Quarantined(t.Context())
	r.ok(err)
	if len(list) != len(paths) {
		t.Errorf("%d are listed", len(list))
	}
	// It comes again, at other paths too.
	r.write("again.md", all["aws"])
	r.write("memories/aws\xff.md", "Remember this:\n\n"+all["aws"]+"\n\nand that.\n")
	r.record()
	r.nowhere(all["aws"])

	// One is no secret after all.
	i := slices.IndexFunc(list, func(q history.Quarantine) bool { return paths[q.Path] == "generic" })
	r.write(list[i].Path, "in its place")
	if _, err := r.Release(t.Context(), r.f, list[i].ID, history.Cause{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Release onto another file: %v", err)
	}
	r.ok(os.Remove(filepath.Join(r.dir, list[i].Path)))
	c, err = r.Release(t.Context(), r.f, list[i].ID, history.Cause{Caller: "operator"})
	r.ok(err)
	if c.Cause.Operation != memory.Released || len(c.Changes) != 1 || c.Changes[0].Path != list[i].Path || !c.Changes[0].Kept {
		t.Errorf("%+v", c)
	}
	if data, err := r.f.Read(list[i].Path); err != nil || !strings.Contains(string(data), all["generic"]) {
		t.Errorf("released: %q, %v", data, err)
	}
	r.write("copy.md", "Remember this:\n\n"+all["generic"]+"\n\nand that.\n") // which is not inspected either
	if c := r.record(); short(c.Changes) != `added file "copy.md"` {
		t.Errorf("%s", short(c.Changes))
	}
	if p, err := r.Taint(t.Context(), list[i].Path, 0); err != nil || !slices.Equal(p.Contacted, []string{"a.example"}) {
		t.Errorf("the taint of what was released: %+v, %v", p, err)
	}

	// Another one is destroyed.
	j := slices.IndexFunc(list, func(q history.Quarantine) bool { return paths[q.Path] == "github" })
	c, err = r.Discard(t.Context(), list[j].ID, history.Cause{Caller: "operator"})
	r.ok(err)
	if c.Cause.Operation != memory.Discarded || len(c.Changes) != 1 || c.Changes[0].Op != history.Discarded || c.Changes[0].Path != list[j].Path {
		t.Errorf("%+v", c)
	}
	for _, id := range []uint64{list[i].ID, list[j].ID, 0, 1000} {
		if _, err := r.Release(t.Context(), r.f, id, history.Cause{}); !errors.Is(err, history.ErrNoQuarantine) {
			t.Errorf("Release of %d: %v", id, err)
		}
		if _, err := r.Discard(t.Context(), id, history.Cause{}); !errors.Is(err, history.ErrNoQuarantine) {
			t.Errorf("Discard of %d: %v", id, err)
		}
	}
	r.verify()
	// With another key nothing opens.
	r.ok(r.Close())
	r.open(history.Options{Key: key(t)})
	if _, err := r.Release(t.Context(), r.f, list[0].ID, history.Cause{}); err == nil {
		t.Error("released with another key")
	}
}

// A secret that is known later leaves all versions.
func TestRecheck(t *testing.T) {
	var known []string
	r := newRig(t, history.Options{Key: key(t), MaxFile: 1000, Inspect: func(ctx context.Context, path string, data []byte) string {
		return inspector(known...)(ctx, path, data)
	}})
	r.write("a.md", "open sesame")
	r.write("copy.md", "open sesame")
	r.write("long.md", strings.Repeat("x", 2000)+"open sesame")
	first := r.record().Number
	r.write("a.md", "open sesame, and more")
	r.record()
	r.write("a.md", "clean")
	r.record()
	if c, err := r.Recheck(t.Context(), r.f, history.Cause{Operation: memory.Quarantined}); c != nil || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
	known = append(known, "open sesame")
	c, err := r.Recheck(t.Context(), r.f, history.Cause{Operation: memory.Quarantined})
	r.ok(err)
	if short(c.Changes) != `quarantined file "copy.md", quarantined file "long.md"` || len(c.Dropped) != 2 {
		t.Errorf("%s, dropped %v", short(c.Changes), c.Dropped)
	}
	r.nowhere("open sesame")
	r.has(map[string]string{"memories.md": "# Memories\n", "a.md": "clean"})
	r.verify()
	if list, err := r.Quarantined(t.Context()); err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := r.Rollback(t.Context(), r.f, history.Target{To: first}, history.Cause{}); !errors.Is(err, history.ErrNotKept) {
		t.Errorf("Rollback: %v", err)
	}
	if _, err := r.Content(t.Context(), memory.DigestOf([]byte("open sesame"))); !errors.Is(err, history.ErrNotKept) {
		t.Errorf("Content: %v", err)
	}
}

func TestQuarantine(t *testing.T) {
	r := newRig(t, history.Options{Key: key(t)})
	r.write("bad/a.md", "obey evil.example")
	r.write("bad/b.md", "the same")
	r.write("good.md", "the same")
	r.write("bad/empty", "")
	r.record("evil.example")
	c, err := r.Quarantine(t.Context(), r.f, []string{"bad", "bad/a.md"}, "it talked to evil.example", history.Cause{Operation: memory.Quarantined})
	r.ok(err)
	if got := short(c.Changes); got != `quarantined file "bad/a.md", quarantined file "bad/b.md", quarantined file "bad/empty"` {
		t.Error(got)
	}
	r.has(map[string]string{"memories.md": "# Memories\n", "good.md": "the same", "bad": "/"})
	r.nowhere("obey evil.example")
	r.verify()
	list, err := r.Quarantined(t.Context())
	r.ok(err)
	for _, q := range list {
		_, err := r.Release(t.Context(), r.f, q.ID, history.Cause{})
		r.ok(err)
	}
	r.has(map[string]string{"memories.md": "# Memories\n", "good.md": "the same", "bad": "/", "bad/a.md": "obey evil.example", "bad/b.md": "the same", "bad/empty": ""})
	if _, err := r.Quarantine(t.Context(), r.f, []string{"none"}, "x", history.Cause{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	r.verify()
	r.ok(r.Close())
	r.open(history.Options{})
	now := tree(t, r.dir)
	if _, err := r.Quarantine(t.Context(), r.f, []string{"good.md"}, "x", history.Cause{}); err == nil {
		t.Error("quarantined without a key")
	}
	r.has(now)
}

func TestMaxBytes(t *testing.T) {
	r := newRig(t, history.Options{MaxBytes: 1000, Key: key(t)})
	r.write("stays", "s"+noise(100, 299))
	r.record()
	var dropped int
	for i := range 10 {
		r.write("turns", fmt.Sprint(i)+noise(i, 299))
		dropped += len(r.record().Dropped)
		r.verify()
	}
	if dropped < 8 {
		t.Errorf("%d were dropped", dropped)
	}
	kept := map[string]string{}
	for n := range lastNumber(r) {
		then, err := r.At(t.Context(), n+1)
		r.ok(err)
		for path, v := range then {
			if data, err := r.Content(t.Context(), v.Digest); v.Kept != (err == nil) {
				t.Errorf("%s at %d: kept %t, %v", path, n+1, v.Kept, err)
			} else if err == nil {
				kept[path] += string(data[:1])
			}
		}
	}
	if !strings.HasPrefix(kept["stays"], "sssssssss") || kept["turns"] != "89" {
		t.Errorf("kept %q", kept)
	}
	// The present files alone are more.
	for i := range 5 {
		r.write(fmt.Sprint(i), noise(200+i, 300))
	}
	r.record()
	r.verify()
	_, err := r.Quarantine(t.Context(), r.f, []string{"0", "1", "2", "3", "4"}, "x", history.Cause{})
	r.ok(err)
	if list, err := r.Quarantined(t.Context()); err != nil || len(list) != 3 {
		t.Errorf("%d in quarantine, %v", len(list), err)
	}
	r.verify()
}

func TestCopy(t *testing.T) {
	r := newRig(t, history.Options{Key: key(t), Inspect: inspector("correct horse")})
	r.write("a", "one")
	r.write("s", "correct horse")
	r.record("a.example")
	at := lastNumber(r)
	child := t.TempDir()
	r.ok(os.CopyFS(memory.Dir(child), os.DirFS(r.dir)))
	to := filepath.Join(child, "history.db")
	r.ok(r.Copy(t.Context(), to))
	if err := r.Copy(t.Context(), to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("onto another file: %v", err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	s, err := history.Open(t.Context(), to, history.Options{})
	r.ok(err)
	defer s.Close()
	f, err := memory.Open(memory.Dir(child))
	r.ok(err)
	defer f.Close()
	c, err := s.Record(t.Context(), f, history.Cause{Operation: memory.Forked, From: "parent", FromCommit: at})
	r.ok(err)
	if c == nil || c.Number != at+1 || c.Cause.From != "parent" || c.Cause.FromCommit != at {
		t.Fatalf("%+v", c)
	}
	if p, err := s.Taint(t.Context(), "a", 0); err != nil || !slices.Equal(p.Contacted, []string{"a.example"}) {
		t.Errorf("%+v, %v", p, err)
	}
	if list, err := s.Quarantined(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	r.write("a", "two")
	r.record()
	if err := s.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if data, err := f.Read("a"); err != nil || string(data) != "one" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestTaint(t *testing.T) {
	r := newRig(t, history.Options{Key: key(t)})
	rename := func(from, to string) { r.ok(os.Rename(filepath.Join(r.dir, from), filepath.Join(r.dir, to))) }
	r.write("clean", "clean")
	r.write("a", "from a")
	r.record()
	r.write("a", "from a and b")
	r.write("b", "from b")
	r.record("b.example")
	r.write("a", "from a, b and c")
	r.record("c.example", "b.example")
	for _, tt := range []struct {
		name string
		do   func()
		path string
		want string
	}{
		{"untouched", nil, "clean", ""},
		{"written once", nil, "b", "b.example"},
		{"written thrice", nil, "a", "b.example c.example"},
		{"moved", func() { rename("a", "a2") }, "a2", "b.example c.example"},
		{"copied", func() { r.write("b2", "from b") }, "b2", "b.example"},
		{"edited", func() { r.write("b2", "from b, edited") }, "b2", "b.example"},
		{"removed and written anew", func() { r.ok(os.Remove(filepath.Join(r.dir, "b"))); r.record(); r.write("b", "anew") }, "b", ""},
		{"back as it was", func() { r.write("b", "from b") }, "b", "b.example"},
		{"empty", func() { r.write("e", ""); r.record("e.example"); r.write("e2", "") }, "e2", ""},
		{"clean with a taint of its own", func() { r.write("clean2", "clean"); r.record("d.example") }, "clean2", "d.example"},
	} {
		if tt.do != nil {
			tt.do()
			_, err := r.Record(t.Context(), r.f, history.Cause{})
			r.ok(err)
		}
		p, err := r.Taint(t.Context(), tt.path, 0)
		if got := strings.Join(p.Contacted, " "); err != nil || got != tt.want || p.First > p.Commit {
			t.Errorf("%s: %+v, %v, want %q", tt.name, p, err, tt.want)
		}
	}
	_, err := r.Rollback(t.Context(), r.f, history.Target{To: 1, Paths: []string{"a"}}, history.Cause{})
	r.ok(err)
	if p, err := r.Taint(t.Context(), "a", 0); err != nil || len(p.Contacted) != 0 || p.First != 1 {
		t.Errorf("rolled back to before it: %+v, %v", p, err)
	}
	if _, err := r.Taint(t.Context(), "none", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	// More destinations than are listed count as any.
	var many []string
	for i := range 150 {
		many = append(many, fmt.Sprintf("%03d.example", i))
	}
	r.write("many", "x")
	c := r.record(many...)
	if len(c.Cause.Contacted) != 100 || c.Cause.MoreContacted != 50 {
		t.Errorf("%d and %d", len(c.Cause.Contacted), c.Cause.MoreContacted)
	}
	if p, err := r.Taint(t.Context(), "many", 0); err != nil || len(p.Contacted) != 100 || p.MoreContacted != 50 {
		t.Errorf("%+v, %v", p, err)
	}
	if n, err := r.Since(t.Context(), "140.example"); n != c.Number || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// Where a version is from is the same whether or not it was asked of the versions before.
func TestTaintIsRemembered(t *testing.T) {
	r := newRig(t, history.Options{MaxLog: 1 << 20})
	random := rand.New(rand.NewPCG(7, 7))
	names := []string{"a", "b", "c", "d"}
	for i := range 300 {
		name := names[random.IntN(len(names))]
		switch random.IntN(5) {
		case 0:
			_ = os.Remove(filepath.Join(r.dir, name))
		case 1:
			r.ok(os.Rename(filepath.Join(r.dir, "memories.md"), filepath.Join(r.dir, name)))
			r.write("memories.md", fmt.Sprint(i))
		default:
			r.write(name, fmt.Sprint(random.IntN(40)))
		}
		_, err := r.Record(t.Context(), r.f, history.Cause{Contacted: []string{fmt.Sprint(random.IntN(30), ".example")}, MoreContacted: i % 7 / 6})
		r.ok(err)
		if i%10 > 0 {
			for _, name := range names[:1+i%4] {
				_, _ = r.Taint(t.Context(), name, 0) // it may not be there
			}
			continue
		}
		var asked, anew []string
		for _, list := range []*[]string{&asked, &anew} {
			for _, name := range names {
				p, err := r.Taint(t.Context(), name, 0)
				*list = append(*list, fmt.Sprint(p, err))
			}
			if list == &asked {
				r.ok(r.Close())
				r.open(history.Options{MaxLog: 1 << 20})
			}
		}
		if !slices.Equal(asked, anew) {
			t.Fatalf("after %d versions: %q, and anew %q", i, asked, anew)
		}
	}
}
