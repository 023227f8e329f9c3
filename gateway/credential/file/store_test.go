package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/file"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

const value = "sk-proj-0123456789abcdef"

type fields = map[string]credential.Secret

func token(v string) fields { return fields{"token": credential.NewSecret(v)} }

func open(t testing.TB, dir string) *file.Store {
	t.Helper()
	key, err := seal.Open(filepath.Join(dir, "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	s, err := file.New(filepath.Join(dir, "data"), key)
	must.OK(t, err)
	return s
}

func set(t testing.TB, s *file.Store, name, v string) uint64 {
	t.Helper()
	version, err := s.Set(name, token(v))
	must.OK(t, err)
	return version
}

func read(t testing.TB, src credential.Source) (string, string) {
	t.Helper()
	m, err := src.Read(t.Context())
	must.OK(t, err)
	return m.Fields["token"].Reveal(), m.Version
}

func TestVersions(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	src := s.Source("openai")
	if _, err := src.Read(t.Context()); !errors.Is(err, credential.ErrNoSecret) || !strings.Contains(err.Error(), "sallyport secret set openai") {
		t.Errorf("before the first Set: %v", err)
	}
	if err := s.Delete("openai"); !errors.Is(err, credential.ErrNoSecret) {
		t.Errorf("Delete of none: %v", err)
	}
	for i := range 3 {
		v := value + strconv.Itoa(i)
		if version := set(t, s, "openai", v); version != uint64(i+1) {
			t.Errorf("version %d, want %d", version, i+1)
		}
		if got, version := read(t, src); got != v || version != strconv.Itoa(i+1) {
			t.Errorf("Read = %q version %s after %d", got, version, i+1)
		}
	}
	must.OK(t, s.Delete("openai"))
	if _, err := src.Read(t.Context()); !errors.Is(err, credential.ErrNoSecret) {
		t.Errorf("after Delete: %v", err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("List = %v, %v", list, err)
	}
	// Another process goes on counting, and this one sees what it wrote.
	if version := set(t, open(t, dir), "openai", "new-value"); version != 5 {
		t.Errorf("version %d after a removal, want 5", version)
	}
	if got, version := read(t, src); got != "new-value" || version != "5" {
		t.Errorf("Read = %q version %s", got, version)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Name != "openai" || list[0].Version != 5 || list[0].Updated.IsZero() {
		t.Errorf("List = %+v, %v", list, err)
	}
}

// Replace is of the version that the caller has seen.
func TestReplace(t *testing.T) {
	s := open(t, t.TempDir())
	replace := func(after, v string, want bool) {
		t.Helper()
		if replaced, err := s.Replace("login", after, token(v)); err != nil || replaced != want {
			t.Errorf("Replace after %q: %t, %v", after, replaced, err)
		}
	}
	replace("1", "one", false)
	replace("", "one", true)
	replace("", "two", false)
	replace("1", "two", true)
	set(t, s, "login", "an operator's")
	replace("2", "three", false)
	if got, version := read(t, s.Source("login")); got != "an operator's" || version != "3" {
		t.Errorf("Read = %q version %s", got, version)
	}
	must.OK(t, s.Delete("login"))
	replace("3", "four", false)
	replace("4", "four", false)
	replace("", "four", true)
	if _, err := s.Replace("../x", "", token("v")); !errors.Is(err, file.ErrBadName) {
		t.Error(err)
	}
}

func TestBadInput(t *testing.T) {
	s := open(t, t.TempDir())
	many := fields{}
	for i := range 33 {
		many[fmt.Sprintf("f%d", i)] = credential.NewSecret("x")
	}
	tests := []struct {
		name   string
		secret string
		fields fields
		want   error
	}{
		{"no name", "", token(value), file.ErrBadName},
		{"a path", "../x", token(value), file.ErrBadName},
		{"a folder", "a/b", token(value), file.ErrBadName},
		{"hidden", ".lock", token(value), file.ErrBadName},
		{"NUL", "a\x00b", token(value), file.ErrBadName},
		{"newline", "a\n", token(value), file.ErrBadName},
		{"too long", strings.Repeat("a", 65), token(value), file.ErrBadName},
		{"no fields", "a", nil, file.ErrTooBig},
		{"too many fields", "a", many, file.ErrTooBig},
		{"empty value", "a", token(""), file.ErrTooBig},
		{"long value", "a", token(strings.Repeat("x", 64<<10+1)), file.ErrTooBig},
		{"bad field", "a", fields{"api-key": credential.NewSecret(value)}, file.ErrBadField},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := s.Set(tt.secret, tt.fields); !errors.Is(err, tt.want) || strings.Contains(err.Error(), value) {
				t.Errorf("Set: %v, want %v", err, tt.want)
			}
			if tt.want != file.ErrBadName {
				return
			}
			if err := s.Delete(tt.secret); !errors.Is(err, tt.want) {
				t.Errorf("Delete: %v, want %v", err, tt.want)
			}
			if _, err := s.Source(tt.secret).Read(t.Context()); !errors.Is(err, credential.ErrNoSecret) {
				t.Errorf("Read: %v", err)
			}
		})
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
	big := strings.Repeat("\x00\xff", 32<<10)
	set(t, s, "binary", big)
	if got, _ := read(t, s.Source("binary")); got != big {
		t.Error("bytes that are not text came back changed")
	}
}

// A copy of the data directory alone opens nothing and shows no value.
func TestCopiedDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	set(t, s, "openai", value)
	set(t, s, "openai", value+"-2")

	stolen := t.TempDir()
	must.OK(t, os.CopyFS(filepath.Join(stolen, "data"), os.DirFS(filepath.Join(dir, "data"))))
	if _, err := seal.Open(filepath.Join(stolen, "key"), filepath.Join(stolen, "data")); !errors.Is(err, seal.ErrKeyMissing) {
		t.Errorf("without the key: %v", err)
	}
	// With a key of the thief's, and the fingerprint out of the way.
	must.OK(t, os.Remove(filepath.Join(stolen, "data", "key.id")))
	thief := open(t, stolen)
	if _, err := thief.Source("openai").Read(t.Context()); !errors.Is(err, credential.ErrUnavailable) || !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("with another key: %v", err)
	}
	if list, err := thief.List(); len(list) != 0 || !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := thief.Set("openai", token("x")); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("Set over what cannot be read: %v", err)
	}

	files := 0
	err := filepath.WalkDir(filepath.Join(dir, "data"), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if e.IsDir() {
			if info.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return nil
		}
		files++
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(value[:12])) || bytes.Contains(data, []byte("AGE-SECRET-KEY")) {
			t.Errorf("%s holds a secret in clear", path)
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%d files looked at, %v", files, err)
	}
}

func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	set(t, s, "mine", value)
	set(t, s, "other", value+"-other")
	secrets := filepath.Join(dir, "data", "secrets")
	rename := func(from, to string) {
		data, err := os.ReadFile(filepath.Join(secrets, from))
		must.OK(t, err)
		must.OK(t, os.WriteFile(filepath.Join(secrets, to), data, 0o600))
	}
	src := s.Source("mine")
	read(t, src)
	rename("other.age", "mine.age")
	if _, err := src.Read(t.Context()); !errors.Is(err, credential.ErrUnavailable) || strings.Contains(err.Error(), value) {
		t.Errorf("another secret's file: %v", err)
	}
	must.OK(t, os.WriteFile(filepath.Join(secrets, "cut.age"), []byte("age-encryption.org/v1\n"), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(secrets, ".half.age.tmp-1"), []byte("left by a crash"), 0o600))
	if list, err := s.List(); len(list) != 1 || list[0].Name != "other" || !errors.Is(err, seal.ErrDamaged) {
		t.Errorf("List = %v, %v", list, err)
	}
}

func TestAtOnce(t *testing.T) {
	dir := t.TempDir()
	stores := []*file.Store{open(t, dir), open(t, dir)}
	const writes = 20
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			src := stores[(i+1)%2].Source("key")
			for range writes {
				version, err := stores[i%2].Set("key", token(value))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[version] {
					t.Errorf("version %d given twice", version)
				}
				seen[version] = true
				mu.Unlock()
				m, err := src.Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if got, _ := strconv.ParseUint(m.Version, 10, 64); got < version {
					t.Errorf("read version %d after %d was set", got, version)
				}
			}
		})
	}
	wg.Wait()
	if !seen[4*writes] {
		t.Errorf("the last version is not %d", 4*writes)
	}
}

// A writer that is killed leaves the version before or the one after.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("SALLYPORT_TEST_WRITER"); dir != "" {
		s := open(t, dir)
		for i := 0; ; i++ {
			set(t, s, "key", strings.Repeat(strconv.Itoa(i)+".", 5000))
		}
	}
	dir := t.TempDir()
	s := open(t, dir)
	set(t, s, "key", "first")
	var last uint64
	for range 10 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "SALLYPORT_TEST_WRITER="+dir)
		must.OK(t, cmd.Start())
		target := last + 5
		for last < target {
			_, version := read(t, s.Source("key"))
			last, _ = strconv.ParseUint(version, 10, 64)
		}
		must.OK(t, cmd.Process.Kill())
		_ = cmd.Wait()
		got, version := read(t, s.Source("key"))
		part, _, _ := strings.Cut(got, ".")
		if got != strings.Repeat(part+".", 5000) {
			t.Errorf("version %s is torn", version)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Errorf("List = %v, %v", list, err)
	}
}

func BenchmarkRead(b *testing.B) {
	s := open(b, b.TempDir())
	set(b, s, "key", value)
	src := s.Source("key")
	for b.Loop() {
		read(b, src)
	}
}

func TestHistory(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.History("key"); !errors.Is(err, credential.ErrNoSecret) {
		t.Errorf("of none: %v", err)
	}
	began := time.Now().Add(-time.Second)
	for _, by := range []string{"alice", "bob"} {
		_, err := s.SetBy(by, "key", token("a-secret-of-"+by))
		must.OK(t, err)
	}
	must.OK(t, s.DeleteBy("carol", "key"))
	past, err := s.History("key")
	must.OK(t, err)
	var got []string
	for _, c := range past {
		got = append(got, fmt.Sprint(c.Version, c.By, c.Removed))
		if c.Time.Before(began) {
			t.Errorf("version %d is of %v", c.Version, c.Time)
		}
	}
	if want := "1alicefalse 2bobfalse 3caroltrue"; strings.Join(got, " ") != want {
		t.Errorf("history %q, want %q", got, want)
	}
	for range 120 {
		_, err := s.SetBy("dave", "key", token("another-secret"))
		must.OK(t, err)
	}
	if past, err = s.History("key"); err != nil || len(past) != 100 || past[99].Version != 123 {
		t.Errorf("%d changes, %v", len(past), err)
	}
}

// A rotation that is broken off anywhere leaves every secret readable, and the next one
// does the rest.
func TestRotateKey(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	folder := filepath.Join(dir, "data", "secrets")
	names := []string{"a", "b", "c"}
	for _, name := range names {
		set(t, s, name, "secret-of-"+name)
	}
	sources := map[string]credential.Source{}
	for _, name := range names {
		sources[name] = s.Source(name)
	}
	readable := func() {
		t.Helper()
		for _, name := range names {
			for _, src := range []credential.Source{sources[name], open(t, dir).Source(name)} {
				if got, version := read(t, src); got != "secret-of-"+name || version != "1" {
					t.Errorf("%s: read version %s %q", name, version, got)
				}
			}
		}
	}
	sealed := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, name))
		must.OK(t, err)
		return string(text)
	}
	readable()
	before := sealed("a.age")
	for range 2 { // the second time from a key of the store's own
		old := map[string]string{}
		for _, name := range names {
			old[name+".age"] = sealed(name + ".age")
		}
		// In the way of b: a folder, until it is gone.
		must.OK(t, os.Rename(filepath.Join(folder, "b.age"), filepath.Join(folder, "kept")))
		must.OK(t, os.Mkdir(filepath.Join(folder, "b.age"), 0o700))
		if n, err := s.RotateKey(); err == nil || n != 1 || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("broken off: %d, %v", n, err)
		}
		must.OK(t, os.Remove(filepath.Join(folder, "b.age")))
		must.OK(t, os.Rename(filepath.Join(folder, "kept"), filepath.Join(folder, "b.age")))
		readable()
		if sealed("a.age") == old["a.age"] || sealed("b.age") != old["b.age"] {
			t.Error("not broken off where it should be")
		}
		if n, err := s.RotateKey(); err != nil || n != 3 {
			t.Errorf("rotated %d, %v", n, err)
		}
		readable()
		for name, text := range old {
			if sealed(name) == text {
				t.Errorf("%s is as it was", name)
			}
		}
	}
	// A file sealed with the old key opens no more.
	must.OK(t, os.WriteFile(filepath.Join(folder, "a.age"), []byte(before), 0o600))
	if _, err := open(t, dir).Source("a").Read(t.Context()); !errors.Is(err, credential.ErrUnavailable) {
		t.Errorf("a file of before the rotation: %v", err)
	}
}
