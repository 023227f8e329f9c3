package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"sallyport/internal/config"
)

// paths within the data directory.
func auditDir(c *config.Config) string     { return filepath.Join(c.DataDir, "audit") }
func caDir(c *config.Config) string        { return filepath.Join(c.DataDir, "ca") }
func indexDir(c *config.Config) string     { return filepath.Join(c.DataDir, "index") }
func sandboxesDir(c *config.Config) string { return filepath.Join(c.DataDir, "sandboxes") }

// findAgent returns the program that is PID 1 in every sandbox; it is
// installed beside this one.
func findAgent() string { return beside("sallyport-agent") }

// findRunsc returns gVisor's runsc as configured, beside this program, or on PATH.
func findRunsc(c *config.Config) string {
	if c.Engine.Runsc != "" {
		return c.Engine.Runsc
	}
	if p := beside("runsc"); p != "" {
		return p
	}
	p, err := exec.LookPath("runsc")
	if err != nil {
		return ""
	}
	return p
}

// findTarball returns the base image's root file system as configured, or
// beside this program.
func findTarball(c *config.Config) string {
	if c.Sandbox.Tarball != "" {
		return c.Sandbox.Tarball
	}
	return beside("base.tar")
}

func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return ""
	}
	p := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(p); err != nil {
		return ""
	}
	return p
}
