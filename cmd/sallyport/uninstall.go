package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/seal"
	"sallyport/sandbox/client"
	"sallyport/sandbox/docker"
)

// trace is something on this host that is there because of a daemon.
type trace struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Kept bool   `json:"kept"` // uninstall leaves it
}

func newUninstall(g *cli.Globals) *cobra.Command {
	var yes, keep bool
	c := &cobra.Command{
		Use: "uninstall", Short: "List everything that Sallyport put on this host, and with --yes remove it", Args: cli.Exactly(),
		Long: "List what this configuration's daemon has put on this host, and with --yes stop and\n" +
			"remove it: sandboxes, engine, network, programs in the kernel, data, audit and key.",
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it; without a backup it is gone")
	c.Flags().BoolVar(&keep, "keep-data", false, "leave the data directory and the key, from which `sallyport up` goes on")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error {
		if os.Geteuid() != 0 && cfg.Engine.Kind != "none" {
			return errors.New("sallyport uninstall needs root, as up does: run it with sudo")
		}
		if err := own(g.Location.Path(), cfg); err != nil {
			return err
		}
		u := uninstall{Globals: g, cmd: cmd, cfg: cfg, keep: keep, client: client.Unix(cfg.Socket())}
		all, err := u.traces(cmd.Context())
		if err == nil && yes {
			err = u.remove(cmd.Context())
		}
		if err != nil {
			return err
		}
		return g.Print(cmd, map[string]any{"removed": yes, "traces": all}, func(w io.Writer) {
			var rows []string
			for _, t := range all {
				what := map[bool]string{true: "stays", false: "goes"}[t.Kept]
				if yes && !t.Kept {
					what = "gone"
				}
				rows = append(rows, what+"\t"+t.Kind+"\t"+t.Name)
			}
			cli.Table(w, "WHAT\tKIND\tNAME", rows...)
			if !yes {
				fmt.Fprintln(w, "nothing is removed yet: --yes does it; `sallyport backup --stop FILE` keeps a copy")
			}
		})
	})
}

type uninstall struct {
	*cli.Globals
	cmd    *cobra.Command
	cfg    *config.Config
	keep   bool
	client *client.Client
}

// own refuses folders that are not the daemon's alone, before all that is in them
// is removed.
func own(path string, cfg *config.Config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, dir := range []string{cfg.DataDir, cfg.RunDir} {
		if strings.Count(filepath.Clean(dir), "/") < 2 {
			return fmt.Errorf("%s is not Sallyport's alone: remove by hand what is Sallyport's", dir)
		}
		for _, other := range []string{path, self, cfg.KeyFile} {
			if abs, err := filepath.Abs(other); other != "" && err == nil && strings.HasPrefix(abs, filepath.Clean(dir)+"/") {
				return fmt.Errorf("%s is not Sallyport's alone, %s is in it: remove by hand what is Sallyport's", dir, abs)
			}
		}
	}
	entries, err := os.ReadDir(cfg.DataDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	for _, mark := range []string{"lock", seal.Marker} {
		if _, err := os.Lstat(filepath.Join(cfg.DataDir, mark)); err == nil {
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("%s is no data directory of Sallyport's: it has no %s", cfg.DataDir, seal.Marker))
}

func (u *uninstall) traces(ctx context.Context) (all []trace, err error) {
	found := func(kind, name string, kept bool) { all = append(all, trace{kind, name, kept}) }
	if s, err := api.GetStatus.Do(ctx, u.client, client.None{}); err == nil {
		found("daemon", fmt.Sprintf("pid %d", s.PID), false)
		list, err := u.client.Sandboxes(ctx)
		if err != nil {
			return nil, err
		}
		for _, i := range list {
			found("sandbox", i.FullName()+", "+string(i.State), u.keep)
		}
	}
	used, err := daemon.InUse(u.cfg)
	if err != nil {
		return nil, err
	}
	for _, name := range used {
		kind := "process"
		if filepath.IsAbs(name) {
			kind = "mount"
		}
		found(kind, name, false)
	}
	if u.bridged() {
		found("bridge", u.cfg.Network.Bridge+", with its routes and nftables table", false)
	}
	for _, f := range []struct {
		kind, path string
		kept       bool
	}{
		{"kernel programs", daemon.PinDir(u.cfg), false},
		{"run directory", u.cfg.RunDir, false},
		{"data directory", u.cfg.DataDir, u.keep},
		{"key", u.cfg.KeyFile, u.keep},
		{"configuration", u.Location.Path(), true},
		{"systemd unit", "/etc/systemd/system/sallyport.service", true},
	} {
		if _, err := os.Lstat(f.path); err == nil {
			found(f.kind, f.path, f.kept)
		}
	}
	if u.cfg.Engine.Kind == "existing" {
		found("network and images", "in the engine at "+u.cfg.Engine.Host, true)
	}
	return all, nil
}

func (u *uninstall) bridged() bool {
	_, err := net.InterfaceByName(u.cfg.Network.Bridge)
	return u.cfg.Engine.Kind != "none" && err == nil
}

func (u *uninstall) remove(ctx context.Context) error {
	if _, err := api.GetStatus.Do(ctx, u.client, client.None{}); err != nil {
		used, err := daemon.InUse(u.cfg)
		if err != nil {
			return err
		}
		// Where memory is that sandboxes hibernate from.
		points, err := docker.MountedBelow(u.cfg.RunDir)
		if err != nil {
			return err
		}
		if len(used)+len(points) == 0 && !u.bridged() {
			return u.clear()
		}
		// The next daemon knows how to end what an earlier one has left running.
		if err := runBehind(u.Globals, u.cmd, u.cfg, false); err != nil {
			return fmt.Errorf("starting the daemon to stop what it has left: %w", err)
		}
	}
	if u.cfg.Engine.Kind == "existing" && !u.keep {
		list, err := u.client.Sandboxes(ctx)
		if err != nil {
			return err
		}
		for _, i := range list {
			if err := u.client.Remove(ctx, i.FullName()); err != nil {
				return err
			}
		}
	}
	if err := shutdownDaemon(ctx, u.client); err != nil {
		return err
	}
	return u.clear()
}

// clear removes what nothing uses any more.
func (u *uninstall) clear() error {
	if _, err := os.Stat(u.cfg.DataDir); err == nil {
		release, err := daemon.Lock(u.cfg)
		if err != nil {
			return err
		}
		defer release()
	}
	used, err := daemon.InUse(u.cfg)
	if err != nil {
		return err
	}
	for _, dir := range []string{u.cfg.DataDir, u.cfg.RunDir} {
		points, err := docker.MountedBelow(dir)
		if err != nil {
			return err
		}
		used = append(used, points...)
	}
	if len(used) > 0 {
		return fmt.Errorf("still in use: %s: end or unmount that, and try again; nothing is removed", strings.Join(used, ", "))
	}
	if u.cfg.Engine.Kind != "none" {
		if err := daemon.RemoveDatapath(u.cfg); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(daemon.PinDir(u.cfg))) // another daemon's may be there
	}
	errs := []error{removeTree(u.cfg.RunDir)}
	if !u.keep {
		errs = append(errs, removeTree(u.cfg.DataDir))
		// The key goes last: without the data it opens nothing.
		if err := os.Remove(u.cfg.KeyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		_ = os.Remove(filepath.Dir(u.cfg.KeyFile)) // unless others are in it
	}
	return errors.Join(errs...)
}

// removeTree removes a folder; where a disk is mounted at it, what is on that.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
