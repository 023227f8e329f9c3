package history_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/ondisk"
	"sallyport/memory"
	"sallyport/memory/history"
)

const writing = "SALLYPORT_TEST_HISTORY"

func TestMain(m *testing.M) {
	if sandbox := os.Getenv(writing); sandbox != "" {
		fmt.Println(writeOn(sandbox))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeOn changes and records a memory until the process is killed. It tells of each
// commit.
func writeOn(sandbox string) error {
	ctx := context.Background()
	f, err := memory.Open(memory.Dir(sandbox))
	if err != nil {
		return err
	}
	s, err := history.Open(ctx, filepath.Join(sandbox, "history.db"), history.Options{MaxBytes: 1 << 20})
	if err != nil {
		return err
	}
	for {
		for i := range 30 {
			name := filepath.Join(memory.Dir(sandbox), fmt.Sprint(i))
			if err := os.WriteFile(name, []byte(strings.Repeat(fmt.Sprint(rand.Int()), 500)), 0o600); err != nil {
				return err
			}
		}
		c, err := s.Record(ctx, f, history.Cause{Operation: memory.ByCommand})
		if err != nil {
			return err
		}
		fmt.Println(c.Number, c.Digest)
		if c.Number%5 == 0 {
			if c, err = s.Rollback(ctx, f, history.Target{To: c.Number - 1}, history.Cause{}); err != nil {
				return err
			}
			if c != nil {
				fmt.Println(c.Number, c.Digest)
			}
		}
	}
}

// A process that is killed leaves each commit whole or none of it, and those that it told
// of are there.
func TestKill(t *testing.T) {
	sandbox := t.TempDir()
	if _, err := memory.Ensure(sandbox); err != nil {
		t.Fatal(err)
	}
	digests := map[uint64]string{}
	for n := 0; n < 8 || len(digests) == 0; n++ { // longer each time, where none lives to commit anything
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), writing+"="+sandbox)
		var out bytes.Buffer
		c.Stdout = &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(100+37*n) * time.Millisecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		whole := out.String()
		whole = whole[:strings.LastIndex(whole, "\n")+1]
		for line := range strings.Lines(whole) {
			var number uint64
			var digest string
			if _, err := fmt.Sscan(line, &number, &digest); err != nil {
				t.Fatal(whole)
			}
			digests[number] = digest
		}
		s, err := history.Open(t.Context(), filepath.Join(sandbox, "history.db"), history.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		list, err := s.Commits(t.Context(), history.Filter{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) < len(digests) {
			t.Errorf("%d commits, told of %d", len(list), len(digests))
		}
		for _, c := range list {
			if d := digests[c.Number]; d != "" && d != c.Digest {
				t.Errorf("commit %d is another one", c.Number)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Verify finds every change to what is stored.
func TestVerifyFinds(t *testing.T) {
	r := newRig(t, history.Options{Key: key(t), MaxBytes: 4000})
	log := ""
	for i := range 6 {
		r.write("a.md", noise(i, 1000))
		log += fmt.Sprint("turn ", i, "\n")
		r.write("log", log)
		r.write(fmt.Sprint("b", i), fmt.Sprint(i))
		r.record("a.example")
	}
	r.ok(os.Symlink("a.md", filepath.Join(r.dir, "link")))
	r.record()
	_, err := r.Rollback(t.Context(), r.f, history.Target{To: 3, Paths: []string{"log"}}, history.Cause{})
	r.ok(err)
	// Later versions of the log begin with what leaves the store.
	_, err = r.Quarantine(t.Context(), r.f, []string{"b3", "log"}, "a test", history.Cause{})
	r.ok(err)
	r.verify()
	r.ok(r.Close())
	db, err := sql.Open("sqlite", r.file())
	r.ok(err)
	defer db.Close()
	tables := map[string][]string{
		"commits":    {"number", "at", "digest", "head"},
		"change":     {"path", "number", "op", "kind", "digest", "previous", "size", "mode", "target", "kept", "reason"},
		"content":    {"digest", "size", "stored", "base", "data"},
		"file":       {"path", "number", "kind", "digest", "size", "mode", "target"},
		"quarantine": {"digest", "sealed"},
	}
	broken := 0
	check := func(what string, statements ...string) {
		t.Helper()
		before, err := os.ReadFile(r.file())
		r.ok(err)
		changed := int64(0)
		for _, s := range statements {
			done, err := db.Exec(s)
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			n, _ := done.RowsAffected()
			changed += n
		}
		if changed == 0 {
			t.Fatalf("%s: nothing was changed", what)
		}
		r.open(history.Options{Key: r.key})
		if err := r.Verify(t.Context()); !errors.Is(err, history.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		r.ok(r.Close())
		r.ok(db.Close())
		r.ok(os.WriteFile(r.file(), before, 0o600))
		os.Remove(r.file() + "-wal")
		os.Remove(r.file() + "-shm")
		db, err = sql.Open("sqlite", r.file())
		r.ok(err)
		broken++
	}
	for table, columns := range tables {
		pick := "rowid IN (SELECT rowid FROM " + table + " ORDER BY random() LIMIT 1)"
		switch table {
		case "change":
			pick = "(path, number) IN (SELECT path, number FROM change WHERE op = 'added' ORDER BY random() LIMIT 1)"
		case "file":
			pick = "path IN (SELECT path FROM file WHERE kind = 'file' ORDER BY random() LIMIT 1)"
		}
		for _, column := range columns {
			set := fmt.Sprintf("%s || 'x'", column)
			switch column {
			case "number", "at", "size", "stored", "base":
				set = column + " + 100000"
			case "kept":
				set = "1 - kept"
			case "digest":
				set = "coalesce(digest, '') || 'x'" // contents that only others begin with have none
			case "path", "target", "data", "sealed":
				set = fmt.Sprintf("CAST(%s || 'x' AS BLOB)", column)
			case "head":
				set = "replace(head, 'operation', 'operatiom')"
			}
			check(table+"."+column, fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s", table, column, set, pick))
		}
		if table != "quarantine" {
			check("without a row of "+table, fmt.Sprintf("DELETE FROM %s WHERE %s", table, pick))
		}
	}
	check("a row more of change", "INSERT INTO change VALUES(CAST('x' AS BLOB), 3, 'added', 'file', '', '', 0, '', x'', 0, '')")
	check("a row more of no commit", "INSERT INTO change VALUES(CAST('x' AS BLOB), 300, 'added', 'file', '', '', 0, '', x'', 0, '')")
	check("a row more of file", "INSERT INTO file VALUES(CAST('x' AS BLOB), 3, 'file', '', 0, '', x'', 0, 0)")
	check("space in a commit", "UPDATE commits SET head = head || ' ' WHERE number = 2")
	check("two commits exchanged", "UPDATE commits SET number = 100 WHERE number = 2", "UPDATE commits SET number = 2 WHERE number = 3", "UPDATE commits SET number = 3 WHERE number = 100")
	check("without the first commit", "DELETE FROM commits WHERE number = 1")
	t.Log(broken, "ways to break it")
}

// Nothing that a hostile sandbox does meanwhile breaks a Record, and nothing from outside
// comes into the history.
func TestHostile(t *testing.T) {
	r := newRig(t, history.Options{})
	secret := filepath.Join(t.TempDir(), "secret")
	r.ok(os.WriteFile(secret, []byte("the host's own words"), 0o600))
	at := func(name string) string { return filepath.Join(r.dir, name) }
	r.ok(unix.Mkfifo(at("pipe"), 0o600))
	r.write("sparse", "")
	r.ok(os.Truncate(at("sparse"), 1<<30))
	r.write("large", "")
	r.ok(os.Truncate(at("large"), 16<<20))
	r.write(strings.Repeat("n", 255), "long name")
	r.ok(os.Symlink(filepath.Dir(secret), at("out")))
	c := r.record()
	for _, x := range c.Changes {
		if x.Path == "sparse" && (x.Digest != "" || x.Size != 1<<30) || x.Path == "large" && (x.Digest == "" || x.Kept) {
			t.Errorf("%+v", x)
		}
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	closed := os.FileMode(0) // to all but root, as which the daemon runs
	if os.Geteuid() != 0 {
		closed = 0o700
	}
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range []string{"swap", "d"} {
				os.RemoveAll(at(name))
			}
			switch i % 6 {
			case 0:
				os.WriteFile(at("swap"), []byte("fine"), 0o600)
				os.MkdirAll(at("d/e"), 0o700)
				os.WriteFile(at("d/secret"), []byte("fine"), 0o600)
			case 1:
				os.Symlink(secret, at("swap"))
				os.Symlink(filepath.Dir(secret), at("d"))
			case 2:
				unix.Mkfifo(at("swap"), 0o600)
			case 3:
				os.WriteFile(at("swap"), nil, 0o600)
				os.Truncate(at("swap"), 1<<30)
			case 4:
				os.Mkdir(at("swap"), closed)
			case 5:
				os.WriteFile(at("swap"), make([]byte, 1<<20), 0o600)
				os.Truncate(at("swap"), 5)
			}
		}
	})
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		if _, err := r.Record(t.Context(), r.f, history.Cause{}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	all.Wait()
	_, err := r.Record(t.Context(), r.f, history.Cause{})
	r.ok(err)
	r.verify()
	r.nowhere("the host's own words")
	// The files that are there in the end are recorded.
	now, err := r.At(t.Context(), lastNumber(r))
	r.ok(err)
	for path, text := range tree(t, r.dir) {
		if v := now[path]; v.Kind == memory.KindFile && v.Digest != "" && v.Digest != memory.DigestOf([]byte(text)) {
			t.Errorf("%q is recorded otherwise", path)
		}
	}
}

// nowhere fails if a text is in a file of the sandbox's folder.
func (r *rig) nowhere(text string) {
	r.t.Helper()
	if found := r.where(text); len(found) > 0 {
		r.t.Errorf("it is in %q", found)
	}
}

func (r *rig) where(text string) []string { return ondisk.Find(r.t, r.sandbox, text) }

// More entries than are recorded are said to be, and none that is there is said to be gone.
func TestManyEntries(t *testing.T) {
	most := 100_000
	if os.Getenv("SALLYPORT_SOAK") == "" {
		most = 2_000
		t.Cleanup(history.SetMaxEntries(most))
	}
	r := newRig(t, history.Options{})
	r.write("first", "1")
	r.record()
	for i := range 101 {
		dir := filepath.Join(r.dir, fmt.Sprint("d", i))
		r.ok(os.Mkdir(dir, 0o755))
		r.write(fmt.Sprintf("d%d/0", i), "")
		for j := range most / 100 {
			r.ok(os.Link(filepath.Join(dir, "0"), filepath.Join(dir, fmt.Sprint("l", j))))
		}
	}
	c := r.record()
	if !c.Incomplete || len(c.Changes) > most {
		t.Errorf("incomplete %t, %d changes", c.Incomplete, len(c.Changes))
	}
	for _, x := range c.Changes {
		if x.Op != history.Added {
			t.Fatalf("%+v", x)
		}
	}
	if now, err := r.At(t.Context(), c.Number); err != nil || now["first"].Commit != 1 {
		t.Errorf("%+v, %v", now["first"], err)
	}
	r.verify()
}

// A commit reads so much, whatever the files pretend to hold. Those that it does not read
// are versions without a digest until the next one does.
func TestManyLargeFiles(t *testing.T) {
	r := newRig(t, history.Options{})
	const files = 20
	for i := range files {
		r.write(fmt.Sprint("sparse", i), "")
		r.ok(os.Truncate(filepath.Join(r.dir, fmt.Sprint("sparse", i)), 16<<20))
	}
	time.Sleep(100 * time.Millisecond) // for the stamps
	unread := func() (n int) {
		c := r.record()
		now, err := r.At(t.Context(), c.Number)
		r.ok(err)
		for path, v := range now {
			if strings.HasPrefix(path, "sparse") && v.Digest == "" {
				n++
			}
		}
		return n
	}
	if n := unread(); n == 0 || n == files {
		t.Errorf("%d of %d files are not read", n, files)
	}
	if n := unread(); n != 0 {
		t.Errorf("%d files are not read at the second time", n)
	}
	if c, err := r.Record(t.Context(), r.f, history.Cause{}); c != nil || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
	r.verify()
}

// A sandbox that renames what it has, time and again, does not fill the host's disk.
func TestLogIsBounded(t *testing.T) {
	const most = 512 << 10
	r := newRig(t, history.Options{MaxLog: most})
	r.write("bad", "from evil.example")
	r.record("evil.example")
	for i := range 100 {
		r.write(fmt.Sprint("d0/", strings.Repeat("n", 200), i), "")
	}
	trimmed := 0
	for i := range 40 {
		if i > 0 {
			r.ok(os.Rename(filepath.Join(r.dir, fmt.Sprint("d", i-1)), filepath.Join(r.dir, fmt.Sprint("d", i))))
		}
		r.write("kept", fmt.Sprint(i))
		c := r.record()
		if c.Trimmed {
			trimmed++
		}
		r.verify()
		if data, err := r.Content(t.Context(), memory.DigestOf([]byte(fmt.Sprint(i)))); err != nil || string(data) != fmt.Sprint(i) {
			t.Fatalf("%q, %v", data, err)
		}
	}
	if trimmed == 0 {
		t.Error("it was never trimmed")
	}
	info, err := os.Stat(r.file())
	r.ok(err)
	if info.Size() > 3*most {
		t.Errorf("the history has %d bytes", info.Size())
	}
	if p, err := r.Taint(t.Context(), "bad", 0); err != nil || len(p.Contacted) != 1 || p.Contacted[0] != "evil.example" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := r.At(t.Context(), 1); !errors.Is(err, history.ErrNoCommit) {
		t.Errorf("commit 1: %v", err)
	}
	last, _, err := r.Last(t.Context())
	r.ok(err)
	if now, err := r.At(t.Context(), last.Number); err != nil || len(now) != 104 {
		t.Errorf("%d entries, %v", len(now), err)
	}
}

func TestConcurrent(t *testing.T) {
	r := newRig(t, history.Options{MaxBytes: 100_000, Key: key(t), Inspect: func(_ context.Context, _ string, data []byte) string {
		if bytes.Contains(data, []byte("secret")) {
			return "a secret"
		}
		return ""
	}})
	r.record()
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 25 {
				name := fmt.Sprint(n, "-", i%3)
				text := strings.Repeat(fmt.Sprint(n, " ", i, "\n"), 100)
				if i%7 == 0 {
					text = fmt.Sprint("secret ", n, i)
				}
				err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600)
				if err == nil {
					_, err = r.Record(t.Context(), r.f, history.Cause{Operation: memory.ByAPI})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for range 10 {
			if _, err := r.Rollback(t.Context(), r.f, history.Target{To: 1, LeaveOut: true}, history.Cause{}); err != nil && !errors.Is(err, memory.ErrChanged) {
				t.Error(err)
			}
		}
	})
	all.Go(func() {
		for range 25 {
			list, err := r.Commits(t.Context(), history.Filter{})
			if err != nil {
				t.Error(err)
			}
			if _, err := r.At(t.Context(), list[0].Number); err != nil {
				t.Error(err)
			}
			if err := r.Verify(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	_, err := r.Record(t.Context(), r.f, history.Cause{})
	r.ok(err)
	r.verify()
	r.nowhere("secret ")
}
