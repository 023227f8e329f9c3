package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

func newMemory(g *globals) *cobra.Command {
	return group("memory", "Read the file-backed memory of a sandbox", newMemoryList(g), newMemoryView(g))
}

// memory runs f on the folder of a sandbox's memory, which is held in sight
// meanwhile: the disk of one that sleeps is not.
func (g *globals) memory(name string, f func(dir string) error) error {
	if err := sandbox.CheckName(name); err != nil {
		return err
	}
	cfg, err := g.config()
	if err != nil {
		return err
	}
	folder := filepath.Join(cfg.SandboxesDir(), name)
	release, err := disk.Hold(folder)
	if err != nil {
		return err
	}
	return errors.Join(f(memory.Dir(folder)), release())
}

func newMemoryList(g *globals) *cobra.Command {
	return &cobra.Command{Use: "ls NAME", Short: "List the files that a sandbox remembers", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		var list []memory.Entry
		if err := g.memory(args[0], func(dir string) (err error) {
			list, err = memory.List(dir)
			return err
		}); err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			table(w, "NAME\tBYTES\tCHANGED", rows(list, func(e memory.Entry) string {
				return fmt.Sprintf("%s\t%d\t%s", terminal.Escape(e.Path), e.Size, day(e.Modified, "-"))
			})...)
		})
	}}
}

func newMemoryView(g *globals) *cobra.Command {
	return &cobra.Command{Use: "view NAME [FILE]", Short: "Show a file of a sandbox's memory, memories.md by default", Args: exactly("NAME", "[FILE]"), RunE: func(cmd *cobra.Command, args []string) error {
		name := memory.Index
		if len(args) == 2 {
			name = args[1]
		}
		var data []byte
		if err := g.memory(args[0], func(dir string) (err error) {
			data, err = memory.Read(dir, name)
			return err
		}); err != nil {
			return err
		}
		return g.print(cmd, map[string]string{"name": name, "text": string(data)}, func(w io.Writer) {
			// The sandbox wrote it: a terminal must not obey it.
			for line := range strings.Lines(string(data)) {
				fmt.Fprintln(w, terminal.Escape(strings.TrimRight(line, "\r\n")))
			}
		})
	}}
}
