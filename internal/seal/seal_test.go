package seal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

func dirs(t *testing.T) (keyFile, dataDir string) {
	t.Helper()
	dir := t.TempDir()
	return filepath.Join(dir, "etc", "sallyport", "key"), filepath.Join(dir, "data")
}

func open(t *testing.T, keyFile, dataDir string) *seal.Key {
	t.Helper()
	key, err := seal.Open(keyFile, dataDir)
	must.OK(t, err)
	return key
}

func TestRoundTripAcrossStarts(t *testing.T) {
	keyFile, dataDir := dirs(t)
	plain := []byte("correct horse battery staple")
	sealed, err := open(t, keyFile, dataDir).Seal(plain)
	must.OK(t, err)
	if bytes.Contains(sealed, plain[:7]) {
		t.Error("the sealed form holds the plain text")
	}
	got, err := open(t, keyFile, dataDir).Open(sealed)
	if err != nil || !bytes.Equal(got, plain) {
		t.Errorf("Open = %q, %v, want %q", got, err, plain)
	}
	for path, want := range map[string]os.FileMode{keyFile: 0o600, filepath.Dir(keyFile): 0o700, dataDir: 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info.Mode(), err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(keyFile), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	key := open(t, first(dirs(t)), t.TempDir())
	sealed, err := key.Seal([]byte("correct horse battery staple"))
	must.OK(t, err)
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := key.Open(bad); !errors.Is(err, seal.ErrDamaged) && !errors.Is(err, seal.ErrWrongKey) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	for n := range sealed {
		if _, err := key.Open(sealed[:n]); !errors.Is(err, seal.ErrDamaged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

func first(a, _ string) string { return a }

func TestRefusals(t *testing.T) {
	other := func(t *testing.T) []byte {
		keyFile, dataDir := dirs(t)
		open(t, keyFile, dataDir)
		text, err := os.ReadFile(keyFile)
		must.OK(t, err)
		return text
	}
	write := func(t *testing.T, path string, data []byte, perm os.FileMode) {
		t.Helper()
		os.Remove(path)
		must.OK(t, os.WriteFile(path, data, perm))
		must.OK(t, os.Chmod(path, perm))
	}
	tests := []struct {
		name string
		harm func(t *testing.T, keyFile, dataDir string)
		want error
		says string
	}{
		{"key lost", func(t *testing.T, k, _ string) { os.Remove(k) }, seal.ErrKeyMissing, "backup"},
		{"key exchanged", func(t *testing.T, k, _ string) { write(t, k, other(t), 0o600) }, seal.ErrWrongKey, "backup"},
		{"group can read", func(t *testing.T, k, _ string) { os.Chmod(k, 0o640) }, seal.ErrUnsafeKey, "chmod 600"},
		{"all can write", func(t *testing.T, k, _ string) { os.Chmod(k, 0o602) }, seal.ErrUnsafeKey, "chmod 600"},
		{"of another user", func(t *testing.T, k, _ string) {
			must.Root(t)
			os.Chown(k, 4242, 4242)
		}, seal.ErrUnsafeKey, "chown"},
		{"a pipe", func(t *testing.T, k, _ string) { os.Remove(k); syscall.Mkfifo(k, 0o600) }, seal.ErrUnsafeKey, "regular"},
		{"a directory", func(t *testing.T, k, _ string) { os.Remove(k); os.Mkdir(k, 0o700) }, seal.ErrUnsafeKey, "regular"},
		{"two keys", func(t *testing.T, k, _ string) {
			mine, _ := os.ReadFile(k)
			write(t, k, append(mine, other(t)...), 0o600)
		}, nil, "one age X25519"},
		{"empty", func(t *testing.T, k, _ string) { write(t, k, nil, 0o600) }, nil, "one age X25519"},
		{"a mistyped key", func(t *testing.T, k, _ string) { write(t, k, []byte("AGE-SECRET-KEY-1HUNTER2\n"), 0o600) }, nil, "one age X25519"},
		{"fingerprint changed", func(t *testing.T, _, d string) {
			write(t, filepath.Join(d, "key.id"), []byte("sha256:00\n"), 0o600)
		}, seal.ErrWrongKey, "backup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keyFile, dataDir := dirs(t)
			open(t, keyFile, dataDir)
			tt.harm(t, keyFile, dataDir)
			before, _ := os.Lstat(keyFile)
			_, err := seal.Open(keyFile, dataDir)
			if err == nil || (tt.want != nil && !errors.Is(err, tt.want)) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Open: %v, want %v that says %q", err, tt.want, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "HUNTER2") {
				t.Errorf("the error quotes the key: %v", err)
			}
			if after, err := os.Lstat(keyFile); before == nil != (err != nil) || before != nil && !os.SameFile(before, after) {
				t.Error("the key file was exchanged")
			}
		})
	}
}

func TestKeyInsideData(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	must.OK(t, os.Mkdir(data, 0o700))
	must.OK(t, os.Symlink(data, filepath.Join(dir, "link")))
	t.Chdir(dir)
	for name, tt := range map[string]struct {
		keyFile, dataDir string
		refused          bool
	}{
		"directly":          {data + "/key", data, true},
		"deeper":            {data + "/a/b/key", data, true},
		"through a link":    {dir + "/link/key", data, true},
		"data through link": {data + "/key", dir + "/link", true},
		"relative":          {"data/key", data, true},
		"with dots":         {dir + "/x/../data/key", data, true},
		"beside":            {dir + "/key", data, false},
		"a name's prefix":   {dir + "/data-key/key", data, false},
		"dots in the name":  {dir + "/..key", data, false},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(filepath.Join(data, "key.id"))
			_, err := seal.Open(tt.keyFile, tt.dataDir)
			if got := errors.Is(err, seal.ErrUnsafeKey); got != tt.refused {
				t.Errorf("Open: %v, want refused %v", err, tt.refused)
			}
			if _, err := os.Stat(filepath.Join(data, "key")); err == nil {
				t.Error("a key was made inside the data directory")
			}
		})
	}
}

// A copy of the data directory knows neither the key nor its recipient.
func TestDataDirHoldsNoKey(t *testing.T) {
	keyFile, dataDir := dirs(t)
	open(t, keyFile, dataDir)
	secret, err := os.ReadFile(keyFile)
	must.OK(t, err)
	lines := strings.Fields(string(secret))
	id, err := os.ReadFile(filepath.Join(dataDir, "key.id"))
	must.OK(t, err)
	if bytes.Contains(id, []byte(lines[len(lines)-1])) || bytes.Contains(id, []byte("age1")) {
		t.Errorf("key.id = %q", id)
	}
}

func TestStartsAtOnceAgree(t *testing.T) {
	keyFile, dataDir := dirs(t)
	keys := make([]*seal.Key, 16)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = seal.Open(keyFile, dataDir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	sealed, err := keys[0].Seal([]byte("x"))
	must.OK(t, err)
	for i, k := range keys {
		if _, err := k.Open(sealed); err != nil {
			t.Errorf("key %d: %v", i, err)
		}
	}
}
