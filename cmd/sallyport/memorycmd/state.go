package memorycmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/memory"
	memclient "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/memory/tool"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// newState returns the commands of the working state.
func newState(g *cli.Globals) []*cobra.Command {
	key := func(args []string) (keeper.StateRequest, error) { return keeper.StateRequest{Key: args[1]}, nil }
	get := &cobra.Command{Use: "get_state NAME KEY", Short: "Print the value of a key of the working state", Args: cli.Exactly("NAME", "KEY")}
	set := &cobra.Command{Use: "set_state NAME KEY JSON", Short: "Give a key of the working state a value, in JSON", Args: cli.Exactly("NAME", "KEY", "JSON"), Example: `  sallyport memory set_state demo step '{"n": 3}'`}
	var old string
	set.Flags().StringVar(&old, "digest", "", "only in place of the value with this digest, as -o json of get_state shows it, or of none")
	list := &cobra.Command{Use: "list_state NAME", Short: "List the keys of the working state", Args: cli.Exactly("NAME")}
	remove := &cobra.Command{Use: "remove_state NAME KEY", Short: "Remove a key of the working state", Args: cli.Exactly("NAME", "KEY")}
	return []*cobra.Command{
		cli.Shows(g, get, of(memclient.GetState, key), func(w io.Writer, s keeper.StateRequest) {
			printText(w, string(s.Value))
			marks(get.ErrOrStderr(), s.Marks)
		}),
		cli.Shows(g, set, of(memclient.SetState, func(args []string) (keeper.StateRequest, error) {
			if !json.Valid([]byte(args[2])) {
				return keeper.StateRequest{}, cli.Usagef("%q is not JSON: write a text in quotes, as '\"text\"'", args[2])
			}
			return keeper.StateRequest{Key: args[1], Value: json.RawMessage(args[2]), Digest: memory.Digest(old)}, nil
		}), silent[client.None]),
		cli.Shows(g, list, of(memclient.ListState, none), func(w io.Writer, k keeper.Keys) {
			for _, key := range k.Keys {
				fmt.Fprintln(w, terminal.Escape(key))
			}
		}),
		cli.Shows(g, remove, of(memclient.RemoveState, key), silent[client.None]),
	}
}

func silent[T any](io.Writer, T) {}

// newScript returns the commands of scripts.
func newScript(g *cli.Globals) []*cobra.Command {
	var q keeper.Question
	list := &cobra.Command{Use: "find_scripts NAME [WORD...]", Short: "List scripts, or those that do something", Args: cobra.MinimumNArgs(1)}
	var s layer.Script
	register := &cobra.Command{Use: "register_script NAME FILE", Short: "Write a script, and its place in the index of scripts", Args: cli.Exactly("NAME", "FILE")}
	register.Flags().StringVar(&s.Description, "description", "", "its task, in a sentence (needed)")
	register.Flags().StringVar(&s.Arguments, "arguments", "", "its arguments, in a line")
	register.Flags().StringVar((*string)(&s.Digest), "digest", "", "only in place of the script with this digest, as -o json of find_scripts shows it, or of none")
	var r keeper.Outcome
	outcome := &cobra.Command{Use: "record_outcome NAME SCRIPT", Short: "Note how a run of a script ended", Args: cli.Exactly("NAME", "SCRIPT")}
	outcome.Flags().BoolVar(&r.OK, "ok", false, "it did its task")
	outcome.Flags().StringVar(&r.Note, "note", "", "how it ended")
	run := &cobra.Command{
		Use: "run_script NAME SCRIPT [ARG...]", Short: "Run a script in the sandbox, and note how that ended", Args: cobra.MinimumNArgs(2),
		Long: `Run a registered script in the sandbox, and note in the index of scripts how that
ended. Its output comes here, its standard input is empty, and its exit status is this
command's. A script that differs from what was registered is not run.`,
		Example: "  sallyport memory run_script demo deploy.sh staging",
	}
	run.Flags().SetInterspersed(false)
	g.Asks(run, func(cmd *cobra.Command, d *client.Client, args []string) error {
		streams := sandbox.Streams{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()}
		status, err := memclient.RunScript(cmd.Context(), d, args[0], keeper.RunRequest{Name: args[1], Args: args[2:]}, func(m memory.Marks) {
			marks(cmd.ErrOrStderr(), m)
		}, streams)
		if err == nil && status != 0 {
			err = cli.ExitCode(status)
		}
		return err
	})
	return []*cobra.Command{run,
		cli.Shows(g, list, func(ctx context.Context, d *client.Client, args []string) ([]layer.Script, error) {
			if len(args) == 1 { // all, without the index
				return of(memclient.FindScripts, asked(&q))(ctx, d, args)
			}
			return ofIndex(g, list, memclient.FindScripts, &q)(ctx, d, args)
		}, printScripts),
		cli.Shows(g, register, of(memclient.RegisterScript, func(args []string) (layer.Script, error) {
			text, err := os.ReadFile(args[1])
			s.Name, s.Text = filepath.Base(args[1]), string(text)
			return s, err
		}), func(w io.Writer, s layer.Script) {
			written(w, layer.ScriptFile(s.Name), "is registered", s.Marks)
		}),
		cli.Shows(g, outcome, of(memclient.RecordOutcome, func(args []string) (keeper.Outcome, error) {
			r.Name = args[1]
			return r, nil
		}), silent[client.None]),
	}
}

func printScripts(w io.Writer, list []layer.Script) {
	cli.Table(w, "SCRIPT\tDESCRIPTION\tLAST SUCCESS\tMARKS", cli.Rows(list, func(s layer.Script) string {
		marks := s.Lines()
		if s.Changed {
			marks = append([]string{"changed: differs from what was registered"}, marks...)
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s", terminal.Escape(s.Name), oneLine(s.Description, 100), cli.Day(s.LastSuccess, "-"), cmp.Or(terminal.Escape(strings.Join(marks, "; ")), "-"))
	})...)
}

// newArtifact returns the commands of artifacts.
func newArtifact(g *cli.Globals) []*cobra.Command {
	put := &cobra.Command{
		Use: "put_artifact NAME FILE", Short: "Keep a file by its digest; - is standard input", Args: cli.Exactly("NAME", "FILE"),
		Example: "  sallyport memory put_artifact demo report.pdf",
	}
	get := &cobra.Command{
		Use: "get_artifact NAME DIGEST", Short: "Write what has a digest to standard output", Args: cli.Exactly("NAME", "DIGEST"),
		Long: `Write what has a digest to standard output, as it is; to a terminal with its control
characters escaped. Contents that differ from the digest are an error.`,
	}
	return []*cobra.Command{
		cli.Shows(g, put, of(memclient.PutArtifact, func(args []string) (r keeper.ArtifactRequest, err error) {
			if args[1] == "-" {
				r.Data, err = io.ReadAll(put.InOrStdin())
			} else {
				r.Data, err = os.ReadFile(args[1])
			}
			return r, err
		}), func(w io.Writer, a layer.Artifact) {
			fmt.Fprintln(w, a.Digest)
			marks(put.ErrOrStderr(), a.Marks)
		}),
		cli.Shows(g, get, of(memclient.GetArtifact, func(args []string) (keeper.ArtifactRequest, error) {
			return keeper.ArtifactRequest{Digest: memory.Digest(args[1])}, nil
		}), func(w io.Writer, a layer.Artifact) {
			if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				printText(w, string(a.Data))
			} else {
				_, _ = w.Write(a.Data)
			}
			marks(get.ErrOrStderr(), a.Marks)
		}),
	}
}

func newTool(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use: "tool NAME JSON", Short: "Carry out a command of a model's memory tool", Args: cli.Exactly("NAME", "JSON"),
		Example: `  sallyport memory tool demo '{"command": "view", "path": "/memories"}'`,
	}
	return cli.Shows(g, c, of(memclient.Tool, func(args []string) (json.RawMessage, error) {
		if !json.Valid([]byte(args[1])) {
			return nil, cli.Usagef("the input is not JSON")
		}
		return json.RawMessage(args[1]), nil
	}), func(w io.Writer, a tool.Answer) { printText(w, a.Content) })
}

// when is a time as people write it.
func when(t time.Time) string { return t.Local().Format(time.DateTime) }

func parseTime(text, flag string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err = time.ParseInLocation(layout, strings.TrimSpace(text), time.Local); err == nil {
			return t, nil
		}
	}
	return t, cli.Usagef("--%s %q: write a time as 2026-11-26, \"2026-11-26 18:00:00\" or 2026-11-26T18:00:00Z", flag, text)
}
