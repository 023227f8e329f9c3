package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/internal/api"
	"sallyport/internal/terminal"
)

func newKey(g *globals) *cobra.Command {
	return group("key", "Manage API keys: callers from elsewhere, and what each may do", newKeyCreate(g), newKeyList(g), newKeyRemove(g))
}

func newKeyCreate(g *globals) *cobra.Command {
	var want api.KeyRequest
	var expires time.Duration
	c := &cobra.Command{
		Use: "create NAME", Short: "Create an API key and show it once", Args: exactly("NAME"),
		Example: "  sallyport key create ci --scope run,read --tenant acme --expires 720h > ci.key",
	}
	c.Flags().StringSliceVar(&want.Scopes, "scope", nil, "what it may do: read, run, approve, policy, secrets, admin")
	c.Flags().StringVar(&want.Tenant, "tenant", "", "only for the sandboxes of this tenant (default all of the host)")
	c.Flags().DurationVar(&expires, "expires", 0, "how long it is valid, as 720h (default until it is removed)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(want.Scopes) == 0 {
			return usageError{errors.New("name what it may do, as --scope run,read")}
		}
		if expires < 0 {
			return usageError{fmt.Errorf("--expires %v: write a time from now on, as 720h", expires)}
		}
		if expires > 0 {
			want.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		made, err := d.CreateKey(cmd.Context(), args[0], want)
		if err != nil {
			return err
		}
		return g.print(cmd, made, func(w io.Writer) {
			fmt.Fprintln(w, made.Text)
			fmt.Fprintf(cmd.ErrOrStderr(), "This key is not shown again; keep it in a file for nobody else to read. Its holder is \"key %s\" in the audit log.\n", made.Name)
		})
	}
	return c
}

func newKeyList(g *globals) *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "List the API keys", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Keys(cmd.Context())
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, k := range list {
				var scopes []string
				for _, s := range k.Scopes {
					scopes = append(scopes, string(s))
				}
				tenant := k.Tenant
				if tenant == "" {
					tenant = "-"
				}
				rows = append(rows, strings.Join([]string{k.Name, strings.Join(scopes, ","), tenant, day(k.Used, "never"), day(k.Expires, "never"), terminal.Word(k.By)}, "\t"))
			}
			table(w, "NAME\tSCOPES\tTENANT\tUSED\tEXPIRES\tMADE BY", rows...)
		})
	}}
}

func day(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return t.Local().Format("2006-01-02 15:04")
}

func newKeyRemove(g *globals) *cobra.Command {
	return &cobra.Command{Use: "rm NAME", Short: "Remove an API key; it is void at once", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		if err := d.RemoveKey(cmd.Context(), args[0]); err != nil {
			return err
		}
		return g.print(cmd, map[string]string{"removed": args[0]}, func(w io.Writer) { fmt.Fprintln(w, args[0], "is removed") })
	}}
}
