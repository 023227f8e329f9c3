package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/backup"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/durable"
	"sallyport/internal/seal"
	"sallyport/internal/size"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

func newBackup(g *cli.Globals) *cobra.Command {
	var stop, withKey bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "Write the data directory to one file", Args: cli.Exactly("FILE"),
		Long: "Put the data directory into one file: sandboxes with their disks, memory and images,\n" +
			"audit, sealed secrets. All of it is of one moment, so that nothing may run: with\n" +
			"--stop the sandboxes and the daemon are stopped first; start the daemon afterwards.",
		Example: "  sallyport backup --stop /mnt/backup/sallyport && sallyport up --detach",
	}
	c.Flags().BoolVar(&stop, "stop", false, "stop the sandboxes and the daemon first")
	c.Flags().BoolVar(&withKey, "with-key", false, "include the key that opens the secrets: the file alone then opens them")
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		if cfg.Engine.Kind == "existing" {
			fmt.Fprintf(cmd.ErrOrStderr(), "sallyport: warning: containers and images are in the engine at %s and not in the backup\n", cfg.Engine.Host)
		}
		release, err := quiet(cmd.Context(), cfg, stop)
		if err != nil {
			return err
		}
		err = writeBackup(cmd.Context(), cfg, args[0], withKey)
		if err = errors.Join(err, release()); err != nil {
			return err
		}
		i, err := os.Stat(args[0])
		if err != nil {
			return err
		}
		said := map[string]any{"file": args[0], "bytes": i.Size(), "key": withKey}
		return g.Print(cmd, said, func(w io.Writer) {
			fmt.Fprintf(w, "%s holds %s, %s\n", args[0], cfg.DataDir, size.About(i.Size()))
			if !withKey {
				fmt.Fprintf(w, "without the key, %s: keep a copy of it elsewhere, nothing of it opens without\n", cfg.KeyFile)
			}
		})
	})
}

// quiet takes the data directory once nothing uses it, if asked to by stopping
// what does.
func quiet(ctx context.Context, cfg *config.Config, stop bool) (release func() error, err error) {
	if _, err := os.Stat(cfg.DataDir); err != nil {
		return nil, err
	}
	release, err = daemon.Lock(cfg)
	if errors.Is(err, daemon.ErrInUse) {
		conn := client.Unix(cfg.Socket())
		if !stop {
			return nil, fmt.Errorf("a daemon runs, with %s: --stop stops it and them first", runningOf(ctx, conn))
		}
		if err := shutdownDaemon(ctx, conn); err != nil {
			return nil, err
		}
		release, err = daemon.Lock(cfg)
	}
	if err != nil {
		return nil, err
	}
	left, err := daemon.InUse(cfg)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("sandboxes or their engine go on without a daemon (%s): start it with `sallyport up --detach` and try again with --stop", strings.Join(left[:min(3, len(left))], ", "))
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// runningOf says which sandboxes run.
func runningOf(ctx context.Context, conn *client.Client) string {
	list, err := conn.Sandboxes(ctx)
	if err != nil {
		return "sandboxes that it does not tell: " + err.Error()
	}
	var names []string
	for _, i := range list {
		if i.State == sandbox.Running {
			names = append(names, i.FullName())
		}
	}
	if len(names) == 0 {
		return "no running sandbox"
	}
	return "running sandboxes: " + strings.Join(names, ", ")
}

func writeBackup(ctx context.Context, cfg *config.Config, path string, withKey bool) (err error) {
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if rel, err := filepath.Rel(cfg.DataDir, path); err == nil && !strings.HasPrefix(rel, "../") {
		return cli.Usagef("%s is in the data directory: write it elsewhere, best to another disk", path)
	}
	m := backup.Manifest{Version: version, DataDir: cfg.DataDir, Created: time.Now().UTC().Truncate(time.Second)}
	if withKey {
		if m.Key, err = os.ReadFile(cfg.KeyFile); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s is there already: choose another name", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*") // 0600
	if err != nil {
		return err
	}
	err = backup.Write(ctx, f, m)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return durable.SyncDir(filepath.Dir(path))
}

func newRestore(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use: "restore FILE", Short: "Fill an empty data directory from a backup", Args: cli.Exactly("FILE"),
		Long: "Fill an empty data directory from a backup. The file is read to its end first: one\n" +
			"that is damaged or cut off is refused before anything is written.",
	}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		a, err := backup.Open(args[0])
		if err != nil {
			return err
		}
		defer a.Close()
		if a.DataDir != cfg.DataDir {
			return fmt.Errorf("the backup is of %s, and containers know their files by that path: restore it there, with --data-dir or dataDir", a.DataDir)
		}
		if err := backup.Empty(cfg.DataDir); err != nil {
			return err
		}
		if err := restoreKey(cfg, a.Key); err != nil {
			return err
		}
		if err := a.Extract(cmd.Context(), cfg.DataDir); err != nil {
			return err
		}
		_, keyErr := seal.Open(cfg.KeyFile, cfg.DataDir)
		said := map[string]any{"dataDir": cfg.DataDir, "created": a.Created, "version": a.Version, "key": keyErr == nil}
		return g.Print(cmd, said, func(w io.Writer) {
			fmt.Fprintf(w, "%s is as of %s\n", cfg.DataDir, a.Created.Local().Format(time.DateTime))
			if keyErr != nil {
				fmt.Fprintf(w, "before the first start: %v\n", keyErr)
			}
		})
	})
}

// restoreKey puts the key back that came with the backup, and replaces none.
func restoreKey(cfg *config.Config, key []byte) error {
	if key == nil {
		return nil
	}
	have, err := os.ReadFile(cfg.KeyFile)
	switch {
	case err == nil && bytes.Equal(have, key):
		return nil
	case err == nil:
		return fmt.Errorf("%s is another key than the backup's: move it aside, it may be all that opens other data", cfg.KeyFile)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := durable.MkdirAll(filepath.Dir(cfg.KeyFile), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(cfg.KeyFile, key, 0o600)
}
