package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sallyport/sandbox/client"

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
	c.PreRunE = func(*cobra.Command, []string) error {
		if len(want.Scopes) == 0 {
			return usageError{errors.New("name what it may do, as --scope run,read")}
		}
		if expires < 0 {
			return usageError{fmt.Errorf("--expires %v: write a time from now on, as 720h", expires)}
		}
		if expires > 0 {
			want.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
		}
		return nil
	}
	return shows(g, c, func(ctx context.Context, d *client.Client, args []string) (api.KeyText, error) {
		return api.CreateKey.Do(ctx, d, want, args[0])
	}, func(w io.Writer, made api.KeyText) {
		fmt.Fprintln(w, made.Text)
		fmt.Fprintf(c.ErrOrStderr(), "This key is not shown again; keep it in a file for nobody else to read. Its holder is \"key %s\" in the audit log.\n", made.Name)
	})
}

func newKeyList(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the API keys", Args: exactly()}
	return lists(g, c, all(api.ListKeys), "NAME\tSCOPES\tTENANT\tUSED\tEXPIRES\tMADE BY", func(k api.Key) string {
		scopes := rows(k.Scopes, func(s api.Scope) string { return string(s) })
		return strings.Join([]string{k.Name, strings.Join(scopes, ","), orDash(k.Tenant), day(k.Used, "never"), day(k.Expires, "never"), terminal.Word(k.By)}, "\t")
	})
}

func day(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return t.Local().Format("2006-01-02 15:04")
}

func newKeyRemove(g *globals) *cobra.Command {
	return g.removes(&cobra.Command{Use: "rm NAME", Short: "Remove an API key; it is void at once", Args: exactly("NAME")}, removing(api.RemoveKey))
}

func newClient(g *globals) *cobra.Command {
	return group("client", "Manage users of the explicit proxy: sandboxes that run elsewhere",
		newClientAdd(g), newClientList(g), newClientRemove(g))
}

func newClientAdd(g *globals) *cobra.Command {
	var tags []string
	c := &cobra.Command{Use: "add NAME", Short: "Add a user and show its token once", Args: exactly("NAME")}
	c.Flags().StringArrayVar(&tags, "tag", nil, "NAME=VALUE that policies can select by")
	return shows(g, c, func(ctx context.Context, d *client.Client, args []string) (added api.ClientToken, err error) {
		t, err := pairs(tags, "tag")
		if err != nil {
			return added, err
		}
		return api.AddClient.Do(ctx, d, api.ClientRequest{Tags: t}, args[0])
	}, func(w io.Writer, added api.ClientToken) {
		fmt.Fprintln(w, added.Token)
		fmt.Fprintf(c.ErrOrStderr(), "This token is not shown again. Its certificate authority: sallyport ca --client %s\n", added.Name)
	})
}

func newClientList(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the users", Args: exactly()}
	return lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]api.ProxyClient, error) {
		g.banner(c, d)
		return api.ListClients.Do(ctx, d)
	}, "NAME", func(c api.ProxyClient) string { return c.Name })
}

func newClientRemove(g *globals) *cobra.Command {
	return g.removes(&cobra.Command{Use: "rm NAME", Short: "Remove a user; its token is void at once", Args: exactly("NAME")}, removing(api.RemoveClient))
}

func newCA(g *globals) *cobra.Command {
	var user bool
	c := &cobra.Command{Use: "ca NAME", Short: "Print the certificate that a sandbox trusts, as PEM", Args: exactly("NAME")}
	c.Flags().BoolVar(&user, "client", false, "NAME is a user of the explicit proxy")
	return g.asks(c, func(cmd *cobra.Command, d *client.Client, args []string) (err error) {
		var pem []byte
		if user {
			pem, err = api.ClientRoot.Do(cmd.Context(), d, client.None{}, args[0])
		} else {
			pem, err = d.SandboxRoot(cmd.Context(), args[0])
		}
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(pem)
		return err
	})
}
