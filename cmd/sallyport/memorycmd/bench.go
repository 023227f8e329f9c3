package memorycmd

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/memory/search/bench"
)

func newBench(g *cli.Globals) *cobra.Command {
	var data string
	c := &cobra.Command{
		Use: "bench --data FILE", Short: "Score the search with a set of questions, in the format of LoCoMo or LongMemEval", Args: cli.Exactly(),
		Long: `Score the search with a set of questions about conversations, in LoCoMo's or
LongMemEval's own format: how often what answers a question is the first of what is
found, among the first 5 and among the first 10, and the mean reciprocal rank, beside
grep, the newest first, and a random order. No daemon is needed, and nothing is fetched. Ctrl-C breaks it off.`,
		Example: "  sallyport memory bench --data locomo10.json",
	}
	c.Flags().StringVar(&data, "data", "", "the file with the questions")
	_ = c.MarkFlagRequired("data")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := os.Open(data)
		if err != nil {
			return err
		}
		defer f.Close()
		p := newProgress(g, cmd)
		r, err := bench.Run(cmd.Context(), f, bench.Options{Progress: func(histories, questions int) {
			p.say("%d histories, %d questions", histories, questions)
		}})
		p.end()
		if err != nil {
			return fmt.Errorf("%s: %w", data, err)
		}
		return g.Print(cmd, r, func(w io.Writer) {
			fmt.Fprintf(w, "%s: %s in %s; a search takes %v\n", r.Format, cli.Many(r.Questions, "question", "questions"), cli.Many(r.Turns, "turn", "turns"), r.Median.Round(10*time.Microsecond))
			cli.Table(w, "FOUND\tBY\tHIT@1\tHIT@5\tHIT@10\tMRR", cli.Rows(r.Results, func(x bench.Result) string {
				return fmt.Sprintf("%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f", x.Level, x.Method, x.Hit1, x.Hit5, x.Hit10, x.MRR)
			})...)
		})
	}
	return c
}
