package memorycmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/memory"
	memclient "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/sandbox/client"
)

func newList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls NAME", Short: "List the files that a sandbox remembers", Args: cli.Exactly("NAME")}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		list, err := cli.InMemory(cfg, args[0], (*memory.Folder).List)
		if err != nil {
			return err
		}
		return g.Print(cmd, list, func(w io.Writer) {
			cli.Table(w, "NAME\tBYTES\tCHANGED", cli.Rows(list, func(e memory.Entry) string {
				return fmt.Sprintf("%s\t%d\t%s", terminal.Escape(e.Path), e.Size, cli.Day(e.Modified, "-"))
			})...)
		})
	})
}

func newView(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "view NAME [FILE]", Short: "Show a file of a sandbox's memory, memories.md by default, and why it is not trusted", Args: cli.Exactly("NAME", "[FILE]")}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		name := append(args, memory.Index)[1]
		v := struct {
			Name string `json:"name"`
			Text string `json:"text"`
			memory.Marks
		}{Name: name, Marks: memory.Marks{Untrusted: "the daemon does not answer, so nothing is known of where it is from"}}
		// A secret that the daemon finds in the file leaves it before it is shown.
		of, err := memclient.History.Do(cmd.Context(), client.Unix(cfg.Socket()), keeper.HistoryRequest{Path: name, Limit: 1}, args[0])
		if err == nil {
			v.Marks = of.Marks
		}
		data, err := cli.InMemory(cfg, args[0], func(f *memory.Folder) ([]byte, error) { return f.Read(name) })
		if err != nil && v.Quarantined != "" {
			err = fmt.Errorf("%w: it is in quarantine: %s", err, v.Quarantined)
		}
		if err != nil {
			return err
		}
		v.Text = string(data)
		return g.Print(cmd, v, func(w io.Writer) {
			printText(w, v.Text)
			marks(cmd.ErrOrStderr(), v.Marks)
		})
	})
}
