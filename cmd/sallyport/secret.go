package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/sandbox/client"
)

// maxSecret bounds what is read as a secret's value, in bytes.
const maxSecret = 64 << 10

func newSecret(g *cli.Globals) *cobra.Command {
	return cli.Group("secret", "Manage secrets in the embedded store", newSecretSet(g), newSecretList(g), newSecretHistory(g), newSecretRotateKey(g), newSecretRemove(g))
}

func newSecretSet(g *cli.Globals) *cobra.Command {
	var fields, files []string
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Set a secret from standard input or a prompt, never from an argument",
		Example: `  sallyport secret set openai-api-key           # asks
  sallyport secret set openai-api-key < key.txt
  sallyport secret set corporate-proxy --field username --field password   # a line for each
  sallyport secret set ledger-client --file certificate=client.pem --file key=client.key`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				// It is in the shell's history by now; say so.
				return cli.Usagef("a secret is never an argument, where every process can read it: give it on standard input, and change this one")
			}
			return cli.Exactly("NAME")(cmd, args)
		},
	}
	c.Flags().StringArrayVar(&fields, "field", []string{"token"}, "name of a field, for templates; once for each field of the secret")
	c.Flags().StringArrayVar(&files, "file", nil, "field=path: a field that is in a file, as PEM or JSON")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		values, err := readFiles(files)
		if err != nil {
			return err
		}
		if len(files) == 0 || cmd.Flags().Changed("field") {
			asked, err := readSecret(cmd, args[0], fields)
			if err != nil {
				return err
			}
			for field, value := range asked {
				if _, twice := values[field]; twice {
					return cli.Usagef("--field and --file both name %s", field)
				}
				values[field] = value
			}
		}
		if slices.Contains(slices.Collect(maps.Values(values)), "") {
			return errors.New("the secret is empty: type it at the prompt, or pipe it in")
		}
		err = api.SetSecret.Do(cmd.Context(), d, values, args[0])
		if errors.Is(err, client.ErrNoDaemon) {
			var cfg *config.Config
			if cfg, err = g.Config(); err == nil {
				err = daemon.SetSecret(cmd.Context(), cfg, version, args[0], values)
			}
		}
		if err != nil {
			return err
		}
		return g.Done(cmd, "set", args[0])
	})
}

// readFiles reads the fields that are in files, without the last line's end.
func readFiles(files []string) (map[string]string, error) {
	values := make(map[string]string, len(files))
	for _, f := range files {
		field, path, ok := strings.Cut(f, "=")
		if _, twice := values[field]; !ok || twice {
			return nil, cli.Usagef("--file %s: write each field once, as certificate=client.pem", f)
		}
		p, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the secret: %w", err)
		}
		if len(p) > maxSecret {
			return nil, fmt.Errorf("%s is longer than %d bytes", path, maxSecret)
		}
		values[field] = strings.TrimSuffix(string(p), "\n")
	}
	return values, nil
}

// readSecret reads the values of a secret's fields from prompts without echo, or
// from a pipe: the whole of it without the last line's end for one field, a
// line for each of several.
func readSecret(cmd *cobra.Command, name string, fields []string) (map[string]string, error) {
	values := make(map[string]string, len(fields))
	for _, f := range fields {
		if _, twice := values[f]; twice {
			return nil, cli.Usagef("--field %s is there twice", f)
		}
		values[f] = ""
	}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		for _, f := range fields {
			prompt := name
			if len(fields) > 1 {
				prompt += ", " + f
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Secret %s: ", prompt)
			p, err := term.ReadPassword(int(os.Stdin.Fd()))
			fmt.Fprintln(cmd.ErrOrStderr())
			if err != nil {
				return nil, fmt.Errorf("reading the secret: %w", err)
			}
			values[f] = string(p)
		}
		return values, nil
	}
	p, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxSecret+1))
	if err != nil {
		return nil, fmt.Errorf("reading the secret: %w", err)
	}
	if len(p) > maxSecret {
		return nil, fmt.Errorf("the secret is longer than %d bytes", maxSecret)
	}
	lines := []string{strings.TrimSuffix(string(p), "\n")}
	if len(fields) > 1 {
		lines = strings.Split(lines[0], "\n")
	}
	if len(lines) != len(fields) {
		return nil, fmt.Errorf("each field takes a line, in their order, but for %d fields there are %d lines", len(fields), len(lines))
	}
	for i, f := range fields {
		values[f] = strings.TrimSuffix(lines[i], "\r")
	}
	return values, nil
}

func newSecretList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List credentials and where their secrets live; never values", Args: cli.Exactly()}
	return cli.Lists(g, c, cli.All(api.ListSecrets), "NAME\tSOURCE\tVERSION\tUPDATED\tSTATE", func(s api.Secret) string {
		state := cmp.Or(s.Error, "ready")
		if s.Leases > 0 {
			state += ", " + cli.Many(s.Leases, "lease", "leases")
		}
		return strings.Join([]string{s.Name, s.Source, s.Version, cli.Day(s.Updated, "-"), state}, "\t")
	})
}

func newSecretRotateKey(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "rotate-key", Short: "Seal every secret of the embedded store with a new key, and forget the old one", Args: cli.Exactly()}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, _ []string) (api.Rotation, error) {
		return api.RotateKey.Do(ctx, d, client.None{})
	}, func(w io.Writer, r api.Rotation) {
		fmt.Fprintf(w, "%s sealed with a new key\n", cli.Many(r.Secrets, "secret is", "secrets are"))
	})
}

func newSecretHistory(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "history NAME", Short: "Show who set or removed a secret of the embedded store when; never values", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, args []string) ([]api.SecretChange, error) {
		return api.SecretHistory.Do(ctx, d, client.None{}, args[0])
	}, "VERSION\tTIME\tBY\tCHANGE", func(s api.SecretChange) string {
		did := "set"
		if s.Removed {
			did = "removed"
		}
		return strings.Join([]string{strconv.FormatUint(s.Version, 10), s.Time.Local().Format(time.DateTime), cmp.Or(s.By, "-"), did}, "\t")
	})
}

func newSecretRemove(g *cli.Globals) *cobra.Command {
	return g.Removes(&cobra.Command{Use: "rm NAME", Short: "Remove a secret from the embedded store", Args: cli.Exactly("NAME")}, cli.Removing(api.RemoveSecret))
}
