package search_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/sqlite"
	"sallyport/internal/test/corpus"
	"sallyport/internal/test/must"
	"sallyport/internal/test/ondisk"
	"sallyport/memory"
	"sallyport/memory/search"
	"sallyport/memory/secretscan"
)

func (b *box) plant(name, data string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o666); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) finds(text, path string) bool {
	b.t.Helper()
	for _, h := range b.search(search.Query{Text: text, Limit: 100}) {
		if len(h.Text) > 64<<10 {
			b.t.Errorf("%s: a hit of %d bytes", text, len(h.Text))
		}
		if h.Path == path {
			return true
		}
	}
	return false
}

func TestHostileContents(t *testing.T) {
	b := newBox(t, search.Options{})
	deep := strings.Repeat("d/", 60) + "deep.md"
	mib := 1 << 20
	for name, data := range map[string]string{
		"memories/binary.md":          "needle1 \x00",
		"memories/encoding.md":        "needle2 \xff",
		"memories/line.md":            "needle3 " + strings.Repeat("x", mib-100) + " needle4",
		"memories/many.md":            strings.Repeat("a\n\n", mib/3-10) + "needle5",
		"memories/items.md":           strings.Repeat("- a\n# b\n", mib/8-10) + "needle6",
		"memories/large.md":           "needle7" + strings.Repeat(" ", mib),
		"memories/open.md":            "---\nid: [\nneedle8",
		"memories/bomb.md":            "---\na: &a [x,x]\nb: &b [*a,*a]\nid: " + strings.Repeat("i", 5000) + "\ntime: -1\ntype: {}\n\xc2\xa0: x\n---\nneedle9",
		"memories/empty.md":           "",
		"memories/---.md":             "---\n---\nneedle10",
		"memories/fence.md":           "```\nneedle11\n\n# not a heading",
		"memories/crlf.md":            "---\r\ntype: preference\r\n---\r\nneedle12\r\n",
		"memories/n\nl\x1b[2J\xff.md": "needle13",
		"memories/kanji.md":           "明日は東京に行きます",
		deep:                          "needle14",
		"conversations.jsonl": "not JSON needle15\n[]\nnull\n5\n\n{\"content\":7}\n{\"session\":\"" + strings.Repeat("s", mib) + "\",\"role\":\"" + strings.Repeat("r", mib) +
			"\",\"time\":\"9999999\",\"content\":\"needle16\"}\n{\"content\":\"" + strings.Repeat("y", 3*mib) + " needle17\"}\n{\"time\":\"0000-01-01T00:00:00Z\",\"content\":\"needle18\"}",
	} {
		b.plant(name, data)
	}
	b.plant("memories/gigabyte.md", "")
	if err := os.Truncate(filepath.Join(b.dir, "memories/gigabyte.md"), 1<<30); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside.md")
	if err := os.WriteFile(outside, []byte("needle19"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(b.dir, "memories/link.md")), unix.Mkfifo(filepath.Join(b.dir, "memories/pipe.md"), 0o666)); err != nil {
		t.Fatal(err)
	}
	b.update()
	for text, path := range map[string]string{
		"needle3": "memories/line.md", "needle4": "memories/line.md", "needle5": "memories/many.md", "needle6": "memories/items.md",
		"needle8": "memories/open.md", "needle9": "memories/bomb.md", "needle10": "memories/---.md", "needle11": "memories/fence.md", "needle12": "memories/crlf.md",
		"needle13": "memories/n\nl\x1b[2J\xff.md", "東京": "memories/kanji.md", "needle14": deep, "needle15": "conversations.jsonl", "needle16": "conversations.jsonl",
		"needle17": "conversations.jsonl", "needle18": "conversations.jsonl",
		// by their names only
		"gigabyte": "memories/gigabyte.md", "binary": "memories/binary.md", "encoding": "memories/encoding.md", "large": "memories/large.md", "empty": "memories/empty.md",
	} {
		if !b.finds(text, path) {
			t.Errorf("%q is not found in %q", text, path)
		}
	}
	for _, text := range []string{"needle1", "needle2", "needle7", "needle19", "link", "pipe"} {
		if hits := b.search(search.Query{Text: text}); len(hits) > 0 {
			t.Errorf("%s: %+v", text, hits)
		}
	}
}

func TestUpdateFindsChanges(t *testing.T) {
	b := newBox(t, search.Options{})
	b.plant("memories/a.md", "the first apple")
	b.plant("memories/gone.md", "a banana")
	b.plant("conversations.jsonl", `{"session":"s","content":"a cherry"}`+"\n")
	b.update()
	// The same size and time of modification, at once.
	path := filepath.Join(b.dir, "memories/a.md")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		text := fmt.Sprintf("the fruit%c apple", 'a'+i)
		b.plant("memories/a.md", text)
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		b.update()
		if hits := b.search(search.Query{Text: strings.Fields(text)[1]}); len(hits) != 1 || hits[0].Text != text {
			t.Fatalf("%s: %+v", text, hits)
		}
	}
	if b.finds("first", "memories/a.md") {
		t.Error("what was replaced is found")
	}
	if err := errors.Join(os.Remove(filepath.Join(b.dir, "memories/gone.md")), os.Rename(path, filepath.Join(b.dir, "memories/b.md"))); err != nil {
		t.Fatal(err)
	}
	b.plant("conversations.jsonl", `{"session":"s","content":"a cherry"}`+"\n"+`{"session":"s","content":"a date"}`+"\n")
	b.update()
	if b.finds("banana", "memories/gone.md") || b.finds("apple", "memories/a.md") || !b.finds("apple", "memories/b.md") {
		t.Error("a file that was removed or renamed")
	}
	if !b.finds("cherry", "conversations.jsonl") || !b.finds("date", "conversations.jsonl") {
		t.Error("a turn that was appended")
	}
}

// Of 10,000 files, of which none was read that had not changed, the one that has is found
// by the next question.
func TestManyFilesAreNotStale(t *testing.T) {
	var read []string
	b := newBox(t, search.Options{Inspect: func(_ context.Context, path string, _ []byte) string {
		read = append(read, path)
		return ""
	}})
	for i := range 10_000 {
		b.plant(fmt.Sprintf("memories/%d.md", i), fmt.Sprint("text ", i))
	}
	time.Sleep(100 * time.Millisecond) // a file that has just changed is read again
	b.update()
	for i := range 5 {
		read = nil
		name := fmt.Sprintf("memories/%d.md", 2000*i)
		b.plant(name, fmt.Sprint("mangosteen", i))
		b.update()
		if len(read) == 0 || len(read) > i+1 || !b.finds(fmt.Sprint("mangosteen", i), name) {
			t.Errorf("read after the change of %s: %q", name, read)
		}
	}
	for range 2 {
		time.Sleep(100 * time.Millisecond)
		b.update()
	}
	must.OK(t, os.Remove(filepath.Join(b.dir, "memories/2000.md")))
	b.plant("memories/new.md", "papaya")
	b.update()
	if b.finds("mangosteen1", "memories/2000.md") || !b.finds("papaya", "memories/new.md") || !b.finds("mangosteen2", "memories/4000.md") {
		t.Error("what was removed is found, or what was written is not")
	}
}

func TestUpdateReadsChangedFilesOnly(t *testing.T) {
	var read []string
	b := newBox(t, search.Options{Inspect: func(_ context.Context, path string, _ []byte) string {
		read = append(read, path)
		return ""
	}})
	for i := range 100 {
		b.plant(fmt.Sprintf("memories/%d.md", i), "text")
	}
	time.Sleep(100 * time.Millisecond) // a file that has just changed is read again
	b.update()
	read = nil
	b.update()
	if len(read) > 0 {
		t.Errorf("%d unchanged files were read", len(read))
	}
	// Another change within the same tick of the clock has the same stamp.
	for range 20 {
		began := time.Now()
		b.plant("memories/8.md", "another")
		b.update()
		if time.Since(began) > 30*time.Millisecond {
			continue // too long ago
		}
		read = nil
		b.update()
		if len(read) != 1 {
			t.Errorf("read %q after a change of memories/8.md an instant ago", read)
		}
		break
	}
	time.Sleep(100 * time.Millisecond)
	b.update()
	read = nil
	b.plant("memories/7.md", "another")
	b.update()
	if len(read) != 1 || read[0] != "memories/7.md" {
		t.Errorf("read %q after a change of memories/7.md", read)
	}
}

// No byte of what must not be indexed is in the index, nor was it before it was removed.
func TestInspect(t *testing.T) {
	secrets := corpus.Secrets()
	b := newBox(t, search.Options{Inspect: func(ctx context.Context, path string, data []byte) string {
		if f, found := secretscan.Find(ctx, path, data); found || bytes.Contains(data, []byte(secrets["known"])) {
			return "a secret: " + f.Rule
		}
		return ""
	}})
	for kind, text := range secrets {
		b.plant("memories/door-"+kind+".md", "the password is "+text)
	}
	b.update()
	for kind, text := range secrets {
		if name := "memories/door-" + kind + ".md"; !b.finds("door "+kind, name) || b.finds("password", name) {
			t.Errorf("%s, which must not be indexed, is found by its text, or not by its name", name)
		}
		if found := ondisk.Find(t, filepath.Dir(b.path), text); len(found) > 0 {
			t.Errorf("%s is in %q", kind, found)
		}
	}
}

// Conversations that are too large are found by their name alone, and each answer says so.
func TestLargeConversations(t *testing.T) {
	b := newBox(t, search.Options{})
	turn := `{"session":"s","content":"a cherry"}` + "\n"
	b.plant("memories/a.md", "apple")
	b.plant("conversations.jsonl", turn+strings.Repeat(" ", 16<<20))
	for range 2 {
		err := b.index.Update(t.Context(), b.f, nil)
		if !errors.Is(err, search.ErrFull) || !strings.Contains(err.Error(), "no turn of conversations.jsonl is found") {
			t.Errorf("err = %v", err)
		}
		if !b.finds("apple", "memories/a.md") || b.finds("cherry", "conversations.jsonl") {
			t.Error("the others are not found, or a turn is")
		}
	}
	b.plant("conversations.jsonl", turn)
	b.update()
	if !b.finds("cherry", "conversations.jsonl") {
		t.Error("what is small again is not found")
	}
}

func TestMaxText(t *testing.T) {
	b := newBox(t, search.Options{MaxText: 1000})
	b.plant("memories/a.md", "apple"+strings.Repeat(" ", 800))
	b.update()
	b.plant("memories/b.md", "banana"+strings.Repeat(" ", 800))
	for range 2 {
		err := b.index.Update(t.Context(), b.f, nil)
		if !errors.Is(err, search.ErrFull) || !strings.Contains(err.Error(), "1 files are found by their names alone") {
			t.Errorf("err = %v", err)
		}
		if !b.finds("apple", "memories/a.md") || b.finds("banana", "memories/b.md") {
			t.Error("more text than may be is indexed")
		}
		if hits := b.search(search.Query{Text: "b.md"}); len(hits) == 0 || !strings.Contains(hits[0].Note, "only its name is searched") {
			t.Errorf("found by its name: %+v", hits)
		}
	}
	if err := os.Remove(filepath.Join(b.dir, "memories/a.md")); err != nil {
		t.Fatal(err)
	}
	b.update()
	if !b.finds("banana", "memories/b.md") {
		t.Error("the room of a file that is gone is not used")
	}
	b.plant("memories/a.md", "apple"+strings.Repeat(" ", 800))
	_ = b.index.Update(t.Context(), b.f, nil) // which is full again
	if b.finds("apple", "memories/a.md") {
		t.Error("more text than may be is indexed")
	}
	b.plant("memories/a.md", "apple")
	b.plant("memories/b.md", "banana")
	b.update()
	if !b.finds("banana", "memories/b.md") {
		t.Error("room that was given back is not used")
	}
}

func TestDamagedIndex(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"empty":   func([]byte) []byte { return nil },
		"another": func(data []byte) []byte { copy(data[60:], "abcd"); return data }, // user_version
		"garbage": func(data []byte) []byte { return bytes.Repeat([]byte("garbage "), 1000) },
		"cut":     func(data []byte) []byte { return data[:len(data)/2] },
		"page 1":  func(data []byte) []byte { clear(data[100:4096]); return data },
		"pages": func(data []byte) []byte {
			for at := 4096; at+4096 <= len(data); at += 8192 {
				clear(data[at : at+4096])
			}
			return data
		},
		"bits": func(data []byte) []byte {
			r := rand.New(rand.NewPCG(1, 1))
			for range len(data) / 100 {
				data[4096+r.IntN(len(data)-4096)] ^= 1 << r.IntN(8)
			}
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, search.Options{})
			for i := range 200 {
				b.plant(fmt.Sprintf("memories/%d.md", i), fmt.Sprintf("apple number%d\n\nbanana", i))
			}
			b.update()
			if err := b.index.Close(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(b.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.path, damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			b.open(search.Options{})
			// Damage is known when it is read.
			for try := 0; ; try++ {
				b.update()
				hits, err := b.index.Search(t.Context(), search.Query{Text: "number150"})
				if err == nil && (name == "bits" || len(hits) > 0 && hits[0].Path == "memories/150.md" && hits[0].Line == 1) {
					break // which bits of a text are wrong cannot be told
				}
				if err == nil || try == 3 {
					t.Fatalf("try %d: %+v, %v", try, hits, err)
				}
			}
		})
	}
}

// An index that could not be made anew is at the next update.
func TestAnewAfterFailure(t *testing.T) {
	b := newBox(t, search.Options{})
	b.plant("memories/a.md", "apple")
	b.update()
	db, err := sqlite.Open(b.path, 1)
	must.OK(t, err)
	_, err = db.ExecContext(t.Context(), "DROP TABLE file")
	must.OK(t, errors.Join(err, db.Close()))
	if hits, err := b.index.Search(t.Context(), search.Query{Text: "apple"}); err == nil {
		t.Fatalf("a damaged index has %+v", hits)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.index.Update(ctx, b.f, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	b.update()
	if !b.finds("apple", "memories/a.md") {
		t.Error("it is not made anew")
	}
}

func TestUpdateBrokenOff(t *testing.T) {
	b := newBox(t, search.Options{})
	for i := range 300 {
		b.plant(fmt.Sprintf("memories/%03d.md", i), "apple")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := b.index.Update(ctx, b.f, func(done, total int) {
		if done > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	some := len(b.search(search.Query{Text: "apple", Limit: 1000}))
	if some == 0 || some == 300 {
		t.Errorf("%d files are found of an update that was broken off", some)
	}
	b.update()
	if all := len(b.search(search.Query{Text: "apple", Limit: 1000})); all != 300 {
		t.Errorf("%d files are found", all)
	}
}

func TestConcurrentUse(t *testing.T) {
	b := newBox(t, search.Options{})
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 20 {
				b.plant(fmt.Sprintf("memories/%d.md", n), fmt.Sprintf("apple%d-%d", n, i))
				if err := b.index.Update(t.Context(), b.f, nil); err != nil && !errors.Is(err, memory.ErrTruncated) {
					t.Error(err)
				}
				text := fmt.Sprintf("apple%d %d", n, i)
				hits, err := b.index.Search(t.Context(), search.Query{Text: text})
				if err != nil || len(hits) == 0 {
					t.Errorf("%s: %v, %v", text, hits, err)
				}
			}
		})
	}
	all.Wait()
}
