package memorycmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/memory"
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
	c := &cobra.Command{Use: "view NAME [FILE]", Short: "Show a file of a sandbox's memory, memories.md by default", Args: cli.Exactly("NAME", "[FILE]")}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, args []string) error {
		name := append(args, memory.Index)[1]
		data, err := cli.InMemory(cfg, args[0], func(f *memory.Folder) ([]byte, error) { return f.Read(name) })
		if err != nil {
			return err
		}
		return g.Print(cmd, map[string]string{"name": name, "text": string(data)}, func(w io.Writer) {
			printText(w, string(data))
		})
	})
}
