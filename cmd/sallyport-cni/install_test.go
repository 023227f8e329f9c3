package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// Nothing is installed on a node whose containerd would not use it.
func TestInstallChecksContainerd(t *testing.T) {
	dir := t.TempDir()
	bin, conf, config := filepath.Join(dir, "bin"), filepath.Join(dir, "conf"), filepath.Join(dir, "config.toml")
	must.OK(t, os.WriteFile(config, []byte("version = 3\n"), 0o644))
	args := []string{"-bin", bin, "-conf", conf, "-containerd", config}
	if err := install(args); err == nil || !strings.Contains(err.Error(), "no runtime sallyport") {
		t.Errorf("got %v, want an error that names the runtime", err)
	}
	for _, folder := range []string{bin, conf} {
		if _, err := os.Stat(folder); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", folder, err)
		}
	}
	must.OK(t, os.WriteFile(config, []byte("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sallyport]\nruntime_type = 'io.containerd.runsc.v1'\ncni_conf_dir = '"+conf+"'\n"), 0o644))
	must.OK(t, install(args))
	for _, file := range []string{filepath.Join(bin, program), filepath.Join(conf, conflist)} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}
