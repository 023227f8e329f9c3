package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/backup"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

// typed runs the command line with a configuration.
func typed(t *testing.T, config string, args ...string) (string, error) {
	t.Helper()
	out, _, err := run(t, "", append([]string{"--config", config}, args...)...)
	return out, err
}

// sealed is a configuration with a data directory that has something in it.
func sealed(t *testing.T) (path string, cfg *config.Config) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "sallyport.yaml")
	must.OK(t, os.WriteFile(path, []byte("dataDir: data\nrunDir: run\nkeyFile: keys/key\n"), 0o600))
	cfg, err := config.Load(path)
	must.OK(t, err)
	if _, err := seal.Open(cfg.KeyFile, cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	must.OK(t, os.MkdirAll(filepath.Join(cfg.DataDir, "secrets"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(cfg.DataDir, "secrets/a"), []byte("sealed"), 0o600))
	return path, cfg
}

// A backup comes back where it was, with the key only if that was asked for, and
// nothing that is there is replaced.
func TestBackupAndRestore(t *testing.T) {
	for _, withKey := range []bool{false, true} {
		path, cfg := sealed(t)
		file := filepath.Join(t.TempDir(), "file")
		args := []string{"backup", file}
		if withKey {
			args = append(args, "--with-key")
		}
		if out, err := typed(t, path, args...); err != nil {
			t.Fatal(err, out)
		}
		if i, err := os.Stat(file); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", i.Mode(), err)
		}
		key, err := os.ReadFile(cfg.KeyFile)
		must.OK(t, err)
		whole, err := os.ReadFile(file)
		must.OK(t, err)
		if holds := bytes.Contains(whole, key[len(key)-20:]); holds {
			t.Error("the key is in it in the clear, not as the manifest's")
		}
		if _, err := typed(t, path, args...); err == nil {
			t.Error("a backup was replaced")
		}
		if _, err := typed(t, path, "restore", file); !errors.Is(err, backup.ErrNotEmpty) {
			t.Errorf("over what is there: %v", err)
		}
		must.OK(t, os.Rename(cfg.DataDir, cfg.DataDir+".lost"))
		if _, err := typed(t, path, "restore", file, "--data-dir", cfg.DataDir+".other"); err == nil || !strings.Contains(err.Error(), "is of "+cfg.DataDir) {
			t.Errorf("to another place: %v", err)
		}
		must.OK(t, os.WriteFile(cfg.KeyFile, []byte("another"), 0o600))
		if _, err := typed(t, path, "restore", file); withKey && (err == nil || !strings.Contains(err.Error(), "another key")) {
			t.Errorf("over another key: %v", err)
		}
		if have, _ := os.ReadFile(cfg.KeyFile); string(have) != "another" {
			t.Error("the key that was there is gone")
		}
		must.OK(t, errors.Join(os.Remove(cfg.KeyFile), os.RemoveAll(cfg.DataDir)))
		out, err := typed(t, path, "restore", file)
		must.OK(t, err)
		if data, err := os.ReadFile(filepath.Join(cfg.DataDir, "secrets/a")); err != nil || string(data) != "sealed" {
			t.Errorf("it came back as %q, %v", data, err)
		}
		if _, err := seal.Open(cfg.KeyFile, cfg.DataDir); withKey != (err == nil) {
			t.Errorf("with the key %v: %v", withKey, err)
		}
		if asks := strings.Contains(out, "before the first start"); asks == withKey {
			t.Errorf("with the key %v it says %q", withKey, out)
		}
	}
}

// A data directory in use is not copied.
func TestBackupOfWhatIsInUse(t *testing.T) {
	path, cfg := sealed(t)
	release, err := daemon.Lock(cfg)
	must.OK(t, err)
	defer release()
	file := filepath.Join(t.TempDir(), "file")
	if _, err := typed(t, path, "backup", file); err == nil || !strings.Contains(err.Error(), "--stop") {
		t.Errorf("got %v", err)
	}
	if _, err := typed(t, path, "backup", filepath.Join(cfg.DataDir, "file")); err == nil {
		t.Error("it was written into what it is of")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
