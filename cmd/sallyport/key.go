package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

func newKey(g *cli.Globals) *cobra.Command {
	return cli.Group("key", "Manage API keys: callers from elsewhere, and what each may do", newKeyCreate(g), newKeyList(g), newKeyRemove(g))
}

func newKeyCreate(g *cli.Globals) *cobra.Command {
	var want api.KeyRequest
	var expires time.Duration
	c := &cobra.Command{
		Use: "create NAME", Short: "Create an API key and show it once", Args: cli.Exactly("NAME"),
		Example: "  sallyport key create ci --scope run,read --tenant acme --expires 720h > ci.key",
	}
	c.Flags().StringSliceVar(&want.Scopes, "scope", nil, "what it may do: read, run, approve, policy, secrets, admin")
	c.Flags().StringVar(&want.Tenant, "tenant", "", "only for the sandboxes of this tenant (default all of the host)")
	c.Flags().DurationVar(&expires, "expires", 0, "how long it is valid, as 720h (default until it is removed)")
	c.PreRunE = func(*cobra.Command, []string) error {
		if len(want.Scopes) == 0 {
			return cli.Usagef("name what it may do, as --scope run,read")
		}
		if expires < 0 {
			return cli.Usagef("--expires %v: write a time from now on, as 720h", expires)
		}
		if expires > 0 {
			want.Expires = time.Now().Add(expires).UTC().Truncate(time.Second)
		}
		return nil
	}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (api.KeyText, error) {
		return api.CreateKey.Do(ctx, d, want, args[0])
	}, func(w io.Writer, made api.KeyText) {
		fmt.Fprintln(w, made.Text)
		fmt.Fprintf(c.ErrOrStderr(), "This key is not shown again; keep it in a file for nobody else to read. Its holder is \"key %s\" in the audit log.\n", made.Name)
	})
}

func newKeyList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the API keys", Args: cli.Exactly()}
	return cli.Lists(g, c, cli.All(api.ListKeys), "NAME\tSCOPES\tTENANT\tUSED\tEXPIRES\tMADE BY", func(k api.Key) string {
		scopes := cli.Rows(k.Scopes, func(s api.Scope) string { return string(s) })
		return strings.Join([]string{k.Name, strings.Join(scopes, ","), cli.OrDash(k.Tenant), cli.Day(k.Used, "never"), cli.Day(k.Expires, "never"), terminal.Word(k.By)}, "\t")
	})
}

func newKeyRemove(g *cli.Globals) *cobra.Command {
	return g.Removes(&cobra.Command{Use: "rm NAME", Short: "Remove an API key; it is void at once", Args: cli.Exactly("NAME")}, cli.Removing(api.RemoveKey))
}

func newClient(g *cli.Globals) *cobra.Command {
	return cli.Group("client", "Manage users of the explicit proxy: sandboxes that run elsewhere",
		newClientAdd(g), newClientList(g), newClientRemove(g))
}

func newClientAdd(g *cli.Globals) *cobra.Command {
	var tags []string
	c := &cobra.Command{Use: "add NAME", Short: "Add a user and show its token once", Args: cli.Exactly("NAME")}
	c.Flags().StringArrayVar(&tags, "tag", nil, "NAME=VALUE that policies can select by")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (added api.ClientToken, err error) {
		t, err := cli.Pairs(tags, "tag")
		if err != nil {
			return added, err
		}
		return api.AddClient.Do(ctx, d, api.ClientRequest{Tags: t}, args[0])
	}, func(w io.Writer, added api.ClientToken) {
		fmt.Fprintln(w, added.Token)
		fmt.Fprintf(c.ErrOrStderr(), "This token is not shown again. Its certificate authority: sallyport ca --client %s\n", added.Name)
	})
}

func newClientList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the users", Args: cli.Exactly()}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]api.ProxyClient, error) {
		g.Banner(c, d)
		return api.ListClients.Do(ctx, d)
	}, "NAME", func(c api.ProxyClient) string { return c.Name })
}

func newClientRemove(g *cli.Globals) *cobra.Command {
	return g.Removes(&cobra.Command{Use: "rm NAME", Short: "Remove a user; its token is void at once", Args: cli.Exactly("NAME")}, cli.Removing(api.RemoveClient))
}

func newCA(g *cli.Globals) *cobra.Command {
	var user bool
	c := &cobra.Command{Use: "ca NAME", Short: "Print the certificate that a sandbox trusts, as PEM", Args: cli.Exactly("NAME")}
	c.Flags().BoolVar(&user, "client", false, "NAME is a user of the explicit proxy")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) (err error) {
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
