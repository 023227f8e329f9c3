package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"sallyport/sandbox"
)

func newRun(g *globals) *cobra.Command {
	var f specFlags
	var x execFlags
	c := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARG ...]",
		Short: "Run a command in a sandbox, made the first time",
		Example: `  sallyport run demo -- python3 -c 'print("hello")'
  tar c src | sallyport run demo -- tar x -C /root`,
		Args: nameAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := g.daemon()
			if err != nil {
				return err
			}
			spec, err := f.read()
			if err != nil {
				return err
			}
			info, err := d.Create(cmd.Context(), args[0], spec)
			if err != nil {
				return err
			}
			if info.Spec.Runtime == sandbox.RunC {
				fmt.Fprintf(cmd.ErrOrStderr(), "sallyport: warning: %s runs on runc and shares the host's kernel; gVisor is the default for a reason\n", info.Name)
			}
			return x.execute(g, cmd, d, args[0], args[1:])
		},
	}
	f.register(c)
	x.register(c)
	return c
}

// nameAndCommand wants a sandbox's name, two dashes and a command.
func nameAndCommand(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return usageError{fmt.Errorf("write: %s NAME -- COMMAND [ARG ...]", cmd.CommandPath())}
	}
	return nil
}
