package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

func alone(t *testing.T) (path string, cfg *config.Config) {
	t.Helper()
	path, cfg = sealed(t)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.OK(t, err)
	_, err = f.WriteString("engine: {kind: none}\n")
	if err = errors.Join(err, f.Close(), os.MkdirAll(filepath.Join(cfg.RunDir, "gateway"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return path, cfg
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Nothing is removed that was not asked for: without --yes nothing, with
// --keep-data neither data nor key, and never the configuration.
func TestUninstall(t *testing.T) {
	path, cfg := alone(t)
	for _, c := range []struct {
		args           []string
		run, data, key bool
	}{
		{nil, true, true, true},
		{[]string{"--yes", "--keep-data"}, false, true, true},
		{[]string{"--yes"}, false, false, false},
		{[]string{"--yes"}, false, false, false}, // again
	} {
		out, err := typed(t, path, append([]string{"uninstall"}, c.args...)...)
		must.OK(t, err)
		if r, d, k := there(cfg.RunDir), there(cfg.DataDir), there(cfg.KeyFile); r != c.run || d != c.data || k != c.key || !there(path) {
			t.Errorf("%q leaves run %v, data %v, key %v, configuration %v\n%s", c.args, r, d, k, there(path), out)
		}
	}
}

// A folder that may be somebody else's is left alone, and so is one in use.
func TestUninstallRefuses(t *testing.T) {
	for name, meddle := range map[string]func(t *testing.T, path string, cfg *config.Config) []string{
		"of something else": func(t *testing.T, _ string, cfg *config.Config) []string {
			must.OK(t, os.Remove(filepath.Join(cfg.DataDir, seal.Marker)))
			return nil
		},
		"around the configuration": func(_ *testing.T, path string, _ *config.Config) []string {
			return []string{"--data-dir", filepath.Dir(path)}
		},
		"of the host": func(*testing.T, string, *config.Config) []string { return []string{"--data-dir", "/usr"} },
		"in use": func(t *testing.T, _ string, cfg *config.Config) []string {
			release, err := daemon.Lock(cfg)
			must.OK(t, err)
			t.Cleanup(func() { _ = release() })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, cfg := alone(t)
			args := append([]string{"uninstall", "--yes"}, meddle(t, path, cfg)...)
			if out, err := typed(t, path, args...); err == nil {
				t.Errorf("it went on: %s", out)
			}
			if data, err := os.ReadFile(filepath.Join(cfg.DataDir, "secrets/a")); err != nil || !strings.Contains(string(data), "sealed") || !there(cfg.KeyFile) {
				t.Errorf("what was there is gone: %v", err)
			}
		})
	}
}
