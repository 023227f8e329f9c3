package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/internal/api"
)

func newClient(g *globals) *cobra.Command {
	return group("client", "Manage users of the explicit proxy: sandboxes that run elsewhere",
		newClientAdd(g), newClientList(g), newClientRemove(g))
}

func newClientAdd(g *globals) *cobra.Command {
	var tags []string
	c := &cobra.Command{Use: "add NAME", Short: "Add a user and show its token once", Args: exactly("NAME")}
	c.Flags().StringArrayVar(&tags, "tag", nil, "NAME=VALUE that policies can select by")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		t, err := pairs(tags, "tag")
		if err != nil {
			return err
		}
		added, err := d.AddClient(cmd.Context(), args[0], t)
		if err != nil {
			return err
		}
		return g.print(cmd, added, func(w io.Writer) {
			fmt.Fprintln(w, added.Token)
			fmt.Fprintf(cmd.ErrOrStderr(), "This token is not shown again. Its certificate authority: sallyport ca --client %s\n", added.Name)
		})
	}
	return c
}

func newClientList(g *globals) *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "List the users", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Clients(cmd.Context())
		if err != nil {
			return err
		}
		g.banner(cmd, d)
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, c := range list {
				rows = append(rows, c.Name)
			}
			table(w, "NAME", rows...)
		})
	}}
}

func newClientRemove(g *globals) *cobra.Command {
	return &cobra.Command{Use: "rm NAME", Short: "Remove a user; its token is void at once", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		if err := d.RemoveClient(cmd.Context(), args[0]); err != nil {
			return err
		}
		return g.print(cmd, map[string]string{"removed": args[0]}, func(w io.Writer) { fmt.Fprintln(w, args[0], "is removed") })
	}}
}

func newCA(g *globals) *cobra.Command {
	var client bool
	c := &cobra.Command{Use: "ca NAME", Short: "Print the certificate that a sandbox trusts, as PEM", Args: exactly("NAME")}
	c.Flags().BoolVar(&client, "client", false, "NAME is a user of the explicit proxy")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		root := (*api.Client).SandboxRoot
		if client {
			root = (*api.Client).ClientRoot
		}
		pem, err := root(d, cmd.Context(), args[0])
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(pem)
		return err
	}
	return c
}
