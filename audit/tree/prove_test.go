package tree_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/tree"
	"sallyport/internal/test/doctest"
	"sallyport/internal/test/must"
)

// procedure is what the documentation shows, which has none of our code in it.
func procedure(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operate/audit-proof.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range doctest.Blocks(string(page)) {
		if b.File != "check_proof.py" {
			continue
		}
		if n := strings.Count(b.Text, "\n"); n > 30 {
			t.Errorf("the procedure has %d lines", n)
		}
		path := filepath.Join(t.TempDir(), b.File)
		if err := os.WriteFile(path, []byte(b.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Fatal("the page has no procedure")
	return ""
}

func TestProcedure(t *testing.T) {
	for _, program := range []string{"python3", "openssl"} {
		must.Program(t, program)
	}
	script := procedure(t)
	check := func(p tree.Proof) error {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "proof.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("python3", "-O", script, path, p.Key).CombinedOutput()
		if err != nil && !strings.HasPrefix(string(out), "the ") && !strings.Contains(string(out), "CalledProcessError") {
			t.Fatalf("%v: %s", err, out)
		}
		return err
	}
	s := open(t, tempDir(t))
	s.exchanges(t, 5) // 10 records: not a power of two
	s.end(t)
	other := closed(t, 1)
	for number := uint64(1); number <= 10; number++ {
		p, err := tree.Prove(t.Context(), s.dir, number)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(*p); err != nil {
			t.Errorf("record %d: %v", number, err)
		}
		if number != 6 {
			continue
		}
		for what, change := range map[string]func(p *tree.Proof){
			"record":    func(p *tree.Proof) { p.Record = strings.Replace(p.Record, `"time":1`, `"time":2`, 1) },
			"index":     func(p *tree.Proof) { p.Index++ },
			"hash":      func(p *tree.Proof) { p.Hashes = append([]tlog.Hash{{1}}, p.Hashes[1:]...) },
			"size":      func(p *tree.Proof) { p.Checkpoint = strings.Replace(p.Checkpoint, "\n10\n", "\n11\n", 1) },
			"time":      func(p *tree.Proof) { p.Checkpoint = strings.Replace(p.Checkpoint, "\ntime 1", "\ntime 2", 1) },
			"key":       func(p *tree.Proof) { p.Key = other.publicKey(t).String() },
			"a further": func(p *tree.Proof) { p.Hashes = append(p.Hashes[:len(p.Hashes):len(p.Hashes)], tlog.Hash{}) },
		} {
			wrong := *p
			if change(&wrong); check(wrong) == nil {
				t.Errorf("record %d: a changed %s passes", number, what)
			}
		}
	}
}

// Each record that a checkpoint covers can be proven, in a tree of any size, and one that
// is not covered cannot yet.
func TestProve(t *testing.T) {
	root := tempDir(t)
	for range 5 {
		s := open(t, root)
		s.exchanges(t, 3)
		s.end(t)
		records := uint64(len(s.records(t)))
		for number := uint64(1); number < records; number++ {
			p, err := tree.Prove(t.Context(), s.dir, number)
			if errors.Is(err, tree.ErrNotCovered) && number > records-3 {
				continue // a checkpoint's own
			}
			if err != nil {
				t.Fatal(number, err)
			}
			if p.Record != s.records(t)[number-1] || p.Index != number-1 {
				t.Errorf("record %d: %+v", number, p)
			}
		}
		if _, err := tree.Prove(t.Context(), s.dir, records+1); !errors.Is(err, tree.ErrNotCovered) {
			t.Errorf("a record that is not there: %v", err)
		}
	}
	s := open(t, tempDir(t))
	if _, err := tree.Prove(t.Context(), s.dir, 1); !errors.Is(err, tree.ErrNoKey) {
		t.Errorf("a log that was never sealed: %v", err)
	}
	s.end(t)
}
