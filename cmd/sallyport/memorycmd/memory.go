// Package memorycmd has the commands of `sallyport memory`: a sandbox's files in /memory,
// what an agent remembers in them, and their history.
//
//	read.go      ls, view: also without a daemon
//	recall.go    prompt, search, store, retrieve, format_for_context, append_turn: what is remembered
//	state.go     the state, scripts and artifacts, tool: what agents work with
//	history.go   history, diff, rollback, checkpoint_state, verify, compact
//	quarantine.go  quarantine, list_quarantine, release, discard
//	progress.go  index, and how far a long work is
//	bench.go     bench: how well search finds what is asked
package memorycmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/memory/keeper"
	"sallyport/sandbox/client"
)

// New returns `sallyport memory`. The fields that it prints have the names that they have
// in the API.
func New(g *cli.Globals) *cobra.Command {
	c := cli.Group("memory", "Read, search and roll back the file-backed memory of a sandbox",
		newList(g), newView(g), newPrompt(g), newIndex(g), newSearch(g), newStore(g), newRetrieve(g), newContext(g), newTurn(g), newTool(g),
		newHistory(g), newDiff(g), newRollback(g), newCheckpoint(g), newVerify(g), newCompact(g),
		newQuarantine(g), newQuarantined(g), newRelease(g), newDiscard(g), newBench(g))
	c.AddCommand(slices.Concat(newState(g), newScript(g), newArtifact(g))...)
	return c
}

// of calls an operation on the memory that the first argument names.
func of[In, Out any](a client.Call[In, Out], in func(args []string) (In, error)) func(context.Context, *client.Client, []string) (Out, error) {
	return func(ctx context.Context, d *client.Client, args []string) (out Out, err error) {
		request, err := in(args)
		if err != nil {
			return out, err
		}
		return a.Do(ctx, d, request, args[0])
	}
}

func none([]string) (client.None, error) { return client.None{}, nil }

// printText prints text that came from a sandbox: a terminal must not obey it.
func printText(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(w, terminal.Text(strings.TrimRight(line, "\r\n")))
	}
}

func printAnswer(w io.Writer, t keeper.Text) { printText(w, t.Text) }

// oneLine is the beginning of a text, for a table.
func oneLine(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > most {
		text = string(r[:most-1]) + "…"
	}
	return terminal.Escape(text)
}
