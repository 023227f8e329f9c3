package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"sallyport/gateway/credential/vault"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/doctor"
	"sallyport/sandbox/client"
)

// Examine finds out what this host lacks for a configuration.
func Examine(ctx context.Context, cfg *config.Config) []doctor.Finding {
	o := doctor.Options{Config: cfg, Runsc: findRunsc(cfg), Agent: findAgent(), Tarball: findTarball(cfg)}
	if cfg.Vault.Address != "" {
		o.Vault = vaultHealth(cfg)
	}
	if len(cfg.Audit.Sinks) > 0 {
		o.Sinks = func(ctx context.Context) ([]api.Sink, error) {
			s, err := api.GetStatus.Do(ctx, client.Unix(cfg.Socket()), client.None{})
			return s.Sinks, err
		}
	}
	return doctor.Examine(ctx, o)
}

// vaultHealth asks the configured Vault server how it is.
func vaultHealth(cfg *config.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := vault.New(cfg.Vault, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Health(ctx)
	}
}

// findAgent returns the program that is PID 1 in every sandbox; it is
// installed beside this one.
func findAgent() string { return beside("sallyport-agent") }

// findRunsc returns gVisor's runsc as configured, beside this program, or on PATH.
func findRunsc(c *config.Config) string {
	onPath, err := exec.LookPath("runsc")
	if err != nil {
		onPath = ""
	}
	return cmp.Or(c.Engine.Runsc, beside("runsc"), onPath)
}

// findTarball returns the base image's root file system as configured, or
// beside this program.
func findTarball(c *config.Config) string { return cmp.Or(c.Sandbox.Tarball, beside("base.tar")) }

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
