package memorycmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/cmd/sallyport/cli"
	memclient "sallyport/memory/client"
	"sallyport/memory/keeper"
	"sallyport/sandbox/client"
)

// progress says on standard error how far a long work is: on a terminal in one line, which
// is removed at the end, and elsewhere in a line for each second that it takes.
type progress struct {
	out      io.Writer // nil: nothing is said
	terminal bool
	now      func() time.Time
	last     time.Time // when it began, or said something
	shown    bool
}

func newProgress(g *cli.Globals, c *cobra.Command) *progress {
	p := &progress{now: time.Now, last: time.Now()}
	if g.Output == "json" {
		return p
	}
	p.out = c.ErrOrStderr()
	if f, ok := p.out.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	return p
}

const (
	eachLine   = time.Second
	eachRedraw = 100 * time.Millisecond
)

// say says that so much is done. It is told of each step, and says some.
func (p *progress) say(format string, args ...any) {
	now := p.now()
	wait := eachLine
	if p.terminal {
		wait = eachRedraw
	}
	switch {
	case p.out == nil:
	case p.terminal && (!p.shown || now.Sub(p.last) >= wait):
		fmt.Fprintf(p.out, "\r"+format+"\x1b[K", args...)
		p.last, p.shown = now, true
	case !p.terminal && now.Sub(p.last) >= wait:
		fmt.Fprintf(p.out, format+"\n", args...)
		p.last = now
	}
}

func (p *progress) step(s keeper.Step) {
	if s.Total > 0 {
		p.say("%d of %d %s", s.Done, s.Total, s.What)
	}
}

// end removes the line from a terminal.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// ofIndex is of, for a question that the search index answers: what that lacks is indexed
// first, and the user told how far that is. Ctrl-C breaks it off. The answer is of what has
// been looked at then.
func ofIndex[Out any](g *cli.Globals, c *cobra.Command, a client.Call[keeper.Question, Out], q *keeper.Question) func(context.Context, *client.Client, []string) (Out, error) {
	return func(ctx context.Context, d *client.Client, args []string) (out Out, err error) {
		p := newProgress(g, c)
		done, err := memclient.Index(ctx, d, args[0], p.step)
		p.end()
		if err != nil {
			return out, err
		}
		q.Look = done.Look
		return of(a, asked(q))(ctx, d, args)
	}
}

func newIndex(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "index NAME", Short: "Bring the search index of a memory up to date, which the next search does otherwise", Args: cli.Exactly("NAME")}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		p := newProgress(g, cmd)
		done, err := memclient.Index(cmd.Context(), d, args[0], p.step)
		p.end()
		if err != nil {
			return err
		}
		return g.Print(cmd, done, func(w io.Writer) {
			fmt.Fprintln(w, "the index is up to date")
			incomplete(w, done.Incomplete)
		})
	})
}
