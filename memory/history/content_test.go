package history_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/memory"
	"sallyport/memory/history"
)

// noise is so many bytes that no compression makes fewer.
func noise(seed, n int) string {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// turns appends turns of 1 KiB to the conversations, and returns what each version had.
func (r *rig) turns(n int) (versions []memory.Digest) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, "conversations.jsonl"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	r.ok(err)
	defer f.Close()
	for i := range n {
		_, err := fmt.Fprintf(f, "%q\n", noise(i, 400)) // which is about 1 KiB
		r.ok(err)
		c := r.record()
		versions = append(versions, c.Changes[0].Digest)
		if len(c.Dropped) > 0 {
			r.t.Fatalf("turn %d has %d contents dropped", i, len(c.Dropped))
		}
	}
	return versions
}

// A conversation has each of its versions, also when they are far more together than the
// history keeps. SALLYPORT_SOAK has it as many turns as there may be.
func TestConversation(t *testing.T) {
	n := 1100
	if os.Getenv("SALLYPORT_SOAK") != "" {
		n = 10_000
	}
	r := newRig(t, history.Options{Key: key(t)})
	r.write("original.md", "The first entry.")
	r.record()
	versions := r.turns(n)
	whole := []byte(tree(t, r.dir)["conversations.jsonl"])
	end := 0
	for i, d := range versions {
		end += bytes.IndexByte(whole[end:], '\n') + 1
		if i%(n/50) > 0 && i < n-1 {
			continue
		}
		if data, err := r.Content(t.Context(), d); err != nil || !bytes.Equal(data, whole[:end]) {
			t.Fatalf("version %d has %d bytes, %v, want %d", i, len(data), err, end)
		}
	}
	if data, err := r.Content(t.Context(), memory.DigestOf([]byte("The first entry."))); err != nil || string(data) != "The first entry." {
		t.Errorf("the original: %q, %v", data, err)
	}
	r.verify()
	diff, err := r.Diff(t.Context(), uint64(n), uint64(n+1), "")
	r.ok(err)
	if len(diff) != 1 || strings.Count(diff[0].Text, "\n+") != 2 { // the turn, and +++
		t.Errorf("%+v", diff)
	}
	_, err = r.Rollback(t.Context(), r.f, history.Target{To: uint64(n / 2), Paths: []string{"conversations.jsonl"}}, history.Cause{})
	r.ok(err)
	if got := tree(t, r.dir)["conversations.jsonl"]; memory.DigestOf([]byte(got)) != versions[n/2-2] {
		t.Errorf("it is rolled back to %d bytes", len(got))
	}
	info, err := os.Stat(r.file())
	r.ok(err)
	t.Logf("%d versions of %d KiB in all take %d KiB", n, len(whole)*n/2>>10, info.Size()>>10)
}

// The oldest contents that nothing kept begins with are dropped to make room.
func TestDropOfWhatGrows(t *testing.T) {
	r := newRig(t, history.Options{MaxBytes: 20_000})
	old := r.turnsOf("old.log", 5)
	r.ok(os.Remove(filepath.Join(r.dir, "old.log")))
	now := r.turnsOf("now.log", 5)
	for i := 0; ; i++ {
		r.write("other", noise(i, 1000))
		if c := r.record(); len(c.Dropped) > 0 {
			if c.Dropped[0] != old[4] || len(c.Dropped) > 2 {
				t.Errorf("dropped are %v, of %v", c.Dropped, old)
			}
			break
		}
	}
	r.verify()
	for i := range 30 {
		r.write("other", noise(1000+i, 1000))
		r.record()
		r.verify()
	}
	for _, d := range old {
		if _, err := r.Content(t.Context(), d); !errors.Is(err, history.ErrNotKept) {
			t.Errorf("of what is gone %.8s: %v", d, err)
		}
	}
	for _, d := range now {
		if _, err := r.Content(t.Context(), d); err != nil {
			t.Errorf("of what is there: %v", err)
		}
	}
}

// turnsOf appends 1,000 bytes a time to a file.
func (r *rig) turnsOf(name string, n int) (versions []memory.Digest) {
	r.t.Helper()
	text := ""
	for i := range n {
		text += name + noise(i, 1000)
		r.write(name, text)
		versions = append(versions, memory.DigestOf([]byte(text)))
		r.record()
	}
	return versions
}

// A secret that is known later leaves a long conversation's versions, of which one is in
// quarantine for all, and those before it stay. Inspect is not asked about each.
func TestRecheckOfWhatGrows(t *testing.T) {
	known, asked := "", 0
	r := newRig(t, history.Options{Key: key(t), Inspect: func(_ context.Context, _ string, data []byte) string {
		asked++
		if known != "" && bytes.Contains(data, []byte(known)) {
			return "a secret"
		}
		return ""
	}})
	const n = 200
	var versions []memory.Digest
	text := ""
	for i := range n {
		text += fmt.Sprintf("turn %d: %q\n", i, noise(i, 400))
		if i == 120 {
			text += noise(i, 100) + "open sesame" + noise(-i, 100) + "\n"
		}
		r.write("conversations.jsonl", text)
		versions = append(versions, memory.DigestOf([]byte(text)))
		r.record()
	}
	r.write("conversations.jsonl", "anew\n")
	r.record()
	known, asked = "open sesame", 0
	c, err := r.Recheck(t.Context(), r.f, history.Cause{Operation: memory.Rechecked})
	r.ok(err)
	if len(c.Dropped) != n-120 || len(c.Changes) != 0 {
		t.Errorf("%d are dropped, want %d; %s", len(c.Dropped), n-120, short(c.Changes))
	}
	if asked > 50 {
		t.Errorf("Inspect was asked %d times", asked)
	}
	r.nowhere(known)
	r.verify()
	for i, d := range versions {
		if _, err := r.Content(t.Context(), d); (err == nil) != (i < 120) {
			t.Errorf("version %d: %v", i, err)
		}
	}
	list, err := r.Quarantined(t.Context())
	r.ok(err)
	if len(list) != 1 || list[0].Digest != versions[n-1] {
		t.Errorf("in quarantine: %+v", list)
	}
	r.ok(os.Remove(filepath.Join(r.dir, "conversations.jsonl")))
	if _, err := r.Release(t.Context(), r.f, list[0].ID, history.Cause{}); err != nil || tree(t, r.dir)["conversations.jsonl"] != text {
		t.Errorf("released: %v", err)
	}
	r.verify()
}

// Of what is appended to a long file only that is inspected, and a secret that begins in
// what was there before is found.
func TestInspectOfWhatGrows(t *testing.T) {
	seen := 0
	r := newRig(t, history.Options{Key: key(t), Inspect: func(_ context.Context, _ string, data []byte) string {
		if seen = len(data); bytes.Contains(data, []byte("open sesame")) {
			return "a secret"
		}
		return ""
	}})
	text := strings.Repeat("nothing to see in this line\n", 100_000) + "open "
	r.write("long.log", text)
	r.record()
	r.write("long.log", text+"window\n")
	r.record()
	if seen > len(text)/2 {
		t.Errorf("%d of %d bytes are inspected again", seen, len(text))
	}
	r.write("long.log", text)
	r.record()
	r.write("long.log", text+"sesame\n")
	if c := r.record(); short(c.Changes) != `quarantined file "long.log"` {
		t.Errorf("%s", short(c.Changes))
	}
	// A write in its middle is inspected too.
	r.write("long.log", text)
	r.record()
	r.write("long.log", "open sesame"+text)
	if c := r.record(); short(c.Changes) != `quarantined file "long.log"` {
		t.Errorf("%s", short(c.Changes))
	}
}

// A file over 16 MiB is refused by quarantine with the reason.
func TestQuarantineOfALargeFile(t *testing.T) {
	r := newRig(t, history.Options{Key: key(t)})
	r.write("large", "")
	r.ok(os.Truncate(filepath.Join(r.dir, "large"), memory.MaxFile+1))
	r.record()
	_, err := r.Quarantine(t.Context(), r.f, []string{"large"}, "a test", history.Cause{})
	if !errors.Is(err, memory.ErrTooLarge) || errors.Is(err, memory.ErrChanged) || !strings.Contains(err.Error(), "remove it in the sandbox") {
		t.Errorf("err = %v", err)
	}
}

// A long file that a secret was written to is put back: as it was before, or the lines without
// the secret. It keeps its taint.
func TestPutBack(t *testing.T) {
	known := []string{"open sesame"}
	r := newRig(t, history.Options{Key: key(t), Inspect: func(ctx context.Context, path string, data []byte) string {
		return inspector(known...)(ctx, path, data)
	}})
	line := strings.Repeat("x", 99) + "\n"
	before := strings.Repeat(line, 5_000)
	r.write("log", before)
	r.record("evil.example")
	for range 10 {
		before += strings.Repeat(line, 1_000)
		r.write("log", before)
		r.record()
	}
	putBack := func(do func() *history.Commit) string {
		t.Helper()
		back, err := r.PutBack(t.Context(), r.f, do(), history.Cause{Caller: "operator"})
		r.ok(err)
		if back != nil && back.Cause.Operation != memory.RolledBack {
			t.Errorf("by %+v", back.Cause)
		}
		r.nowhere("open sesame")
		r.verify()
		return tree(t, r.dir)["log"]
	}
	write := func(text string) func() *history.Commit {
		return func() *history.Commit { r.write("log", text); return r.record() }
	}
	learn := func(secret string) func() *history.Commit {
		return func() *history.Commit {
			known = append(known, secret)
			c, err := r.Recheck(t.Context(), r.f, history.Cause{Operation: memory.Rechecked})
			r.ok(err)
			return c
		}
	}
	if got := putBack(write(before + "open sesame\n")); got != before {
		t.Errorf("after a write: %d bytes, want %d", len(got), len(before))
	}
	write(before + "marzipan\nthe end\n")()
	write(before + "marzipan\nthe end\nafter it\n")()
	if got, want := putBack(learn("marzipan")), before+"the end\nafter it\n"; got != want {
		t.Errorf("after a secret was learned: %d bytes, want %d", len(got), len(want))
	}
	if p, err := r.Taint(t.Context(), "log", 0); err != nil || !slices.Equal(p.Contacted, []string{"evil.example"}) {
		t.Errorf("its taint: %+v, %v", p, err)
	}
	large := strings.Repeat(noise(1, 600)+"\n", 4_000) // which is not kept
	large = strings.ToValidUTF8(strings.ReplaceAll(large, "\x00", ""), "?")
	write(large)()
	if got := putBack(write(large + "open sesame")); got != large {
		t.Errorf("of what is not kept: %d bytes, want %d", len(got), len(large))
	}
	write("one\ntwo\nthree\n")()
	if got := putBack(learn("two\nthree")); got != "" {
		t.Errorf("of a secret of two lines: %q", got)
	}
	for text, want := range map[string]string{"open sesame": "", "a\nopen sesame": "a\n", "open sesame\nb": "b", "aa\nopen sesame\nb\n\nopen sesame\n\n": "aa\nb\n\n\n", "\x00\nopen sesame\n": ""} {
		os.Remove(filepath.Join(r.dir, "log"))
		_, err := r.Record(t.Context(), r.f, history.Cause{})
		r.ok(err)
		known = known[:0]
		write(text)()
		if got := putBack(learn("open sesame")); got != want {
			t.Errorf("of %q is left %q, want %q", text, got, want)
		}
	}
}
