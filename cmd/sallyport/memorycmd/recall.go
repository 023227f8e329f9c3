package memorycmd

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/memory"
	memclient "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
	"sallyport/sandbox/client"
)

func newPrompt(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "prompt NAME", Short: "Print the core of the memory, and what to remember, for a system prompt", Args: cli.Exactly("NAME")}
	return cli.Shows(g, c, of(memclient.Prompt, none), printAnswer)
}

// question adds the flags that select entries.
func question(c *cobra.Command, q *keeper.Question) {
	c.Flags().StringVar(&q.Type, "type", "", "only of this type: "+strings.Join(layer.Types, ", ")+", or turn")
	c.Flags().BoolVar(&q.Trusted, "trusted", false, "only what the sandbox learned without contact to a destination that is not trusted")
}

func asked(q *keeper.Question) func(args []string) (keeper.Question, error) {
	return func(args []string) (keeper.Question, error) {
		q.Query = strings.Join(args[1:], " ")
		return *q, nil
	}
}

func newSearch(g *cli.Globals) *cobra.Command {
	var q keeper.Question
	c := &cobra.Command{
		Use: "search NAME WORD...", Short: "Find places in the files of a memory", Args: cobra.MinimumNArgs(2),
		Example: "  sallyport memory search demo which database does the user prefer",
	}
	question(c, &q)
	c.Flags().IntVarP(&q.Limit, "number", "n", 10, "how many")
	return cli.Shows(g, c, ofIndex(g, c, memclient.Search, &q), func(w io.Writer, list keeper.Results[keeper.Found]) {
		for _, f := range list.Found {
			fmt.Fprintf(w, "%s:%d  %.2f  %s\n", terminal.Escape(f.Path), f.Line, f.Score, oneLine(cmp.Or(f.Text, f.Note), 200))
			marks(w, f.Marks)
		}
		nothing(w, len(list.Found), "was found")
		incomplete(w, list.Incomplete)
	})
}

// nothing says that a list has nothing.
func nothing(w io.Writer, n int, was string) {
	if n == 0 {
		fmt.Fprintln(w, "nothing", was)
	}
}

// incomplete says which files were not searched.
func incomplete(w io.Writer, why string) {
	if why != "" {
		fmt.Fprintln(w, "not all files were searched:", terminal.Escape(why))
	}
}

// marks prints the marks of something where it is shown.
func marks(w io.Writer, m memory.Marks) {
	for _, line := range m.Lines() {
		fmt.Fprintln(w, "  "+terminal.Escape(line))
	}
}

// written says that something is written to a file, if it has stayed there.
func written(w io.Writer, path, is string, m memory.Marks) {
	if m.Quarantined == "" {
		fmt.Fprintln(w, terminal.Escape(path), is)
	} else {
		fmt.Fprintln(w, terminal.Escape(path), "is in quarantine")
	}
	marks(w, m)
}

func newStore(g *cli.Globals) *cobra.Command {
	var r keeper.StoreRequest
	var metadata []string
	c := &cobra.Command{
		Use: "store NAME TEXT", Short: "Remember an observation", Args: cli.Exactly("NAME", "TEXT"),
		Example: `  sallyport memory store demo "The user's name is Ada." --type preference`,
	}
	c.Flags().StringVar(&r.Type, "type", layer.Observation, strings.Join(layer.Types, ", "))
	c.Flags().StringArrayVar(&metadata, "metadata", nil, "KEY=VALUE")
	return cli.Shows(g, c, of(memclient.Store, func(args []string) (_ keeper.StoreRequest, err error) {
		r.Text = args[1]
		r.Metadata, err = cli.Pairs(metadata, "metadata")
		return r, err
	}), func(w io.Writer, e layer.Entry) { written(w, e.Path, "is remembered", e.Marks) })
}

func newRetrieve(g *cli.Globals) *cobra.Command {
	var q keeper.Question
	c := &cobra.Command{Use: "retrieve NAME WORD...", Short: "Find entries and turns, with a score of relevance", Args: cobra.MinimumNArgs(2)}
	question(c, &q)
	c.Flags().IntVarP(&q.Limit, "number", "n", 10, "how many")
	return cli.Shows(g, c, ofIndex(g, c, memclient.Retrieve, &q), func(w io.Writer, list keeper.Results[layer.Scored]) {
		for _, s := range list.Found {
			fmt.Fprintf(w, "%.2f  %s  %s  %s\n", s.Score, s.Time.Format(time.DateOnly), terminal.Escape(s.ID), oneLine(s.Text, 200))
			marks(w, s.Marks)
		}
		nothing(w, len(list.Found), "was found")
		incomplete(w, list.Incomplete)
	})
}

func newContext(g *cli.Globals) *cobra.Command {
	var q keeper.Question
	c := &cobra.Command{Use: "format_for_context NAME WORD...", Short: "Print what is remembered of something, as text for a model's context", Args: cobra.MinimumNArgs(2)}
	question(c, &q)
	c.Flags().IntVar(&q.Budget, "budget", 2000, "tokens at most")
	return cli.Shows(g, c, ofIndex(g, c, memclient.FormatForContext, &q), func(w io.Writer, t keeper.Text) {
		printAnswer(w, t)
		incomplete(c.ErrOrStderr(), t.Incomplete)
	})
}

func newTurn(g *cli.Globals) *cobra.Command {
	var r keeper.TurnRequest
	c := &cobra.Command{
		Use: "append_turn NAME ROLE TEXT", Short: "Add a turn to the conversations, of the role user, assistant or tool", Args: cli.Exactly("NAME", "ROLE", "TEXT"),
		Example: `  sallyport memory append_turn demo user "Good morning"`,
	}
	c.Flags().StringVar(&r.Session, "session", "", "of the agent")
	return cli.Shows(g, c, of(memclient.AppendTurn, func(args []string) (keeper.TurnRequest, error) {
		r.Role, r.Content = args[1], args[2]
		return r, nil
	}), silent[client.None])
}
