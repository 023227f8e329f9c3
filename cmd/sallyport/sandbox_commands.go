package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

func newSandboxCommands(g *globals) *cobra.Command {
	return &cobra.Command{Use: "commands NAME", Short: "List the commands of a sandbox's session", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Commands(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, i := range list {
				rows = append(rows, commandRow(i))
			}
			table(w, "ID\tSTATE\tAGE\tSTDOUT\tSTDERR\tCOMMAND", rows...)
		})
	}}
}

// commandRow is a line of a listing. The sandbox says what is in it.
func commandRow(i sandbox.CommandInfo) string {
	state := i.State
	switch {
	case i.State != wire.Exited:
	case i.TimedOut:
		state = "timed out"
	case i.Signal != "":
		state = "ended by " + terminal.Word(i.Signal)
	default:
		state = fmt.Sprintf("exited with %d", i.Code)
	}
	words := make([]string, len(i.Args))
	for n, a := range i.Args {
		words[n] = terminal.Escape(a)
	}
	line := strings.Join(words, " ")
	if r := []rune(line); len(r) > 60 {
		line = string(r[:59]) + "…"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s", i.ID, state, time.Since(i.Started).Round(time.Second), i.Stdout.To, i.Stderr.To, line)
}

func newSandboxKill(g *globals) *cobra.Command {
	var signal string
	c := &cobra.Command{
		Use: "kill NAME ID", Short: "End a command and all that it started, or send it a signal",
		Args: exactly("NAME", "ID"),
	}
	c.Flags().StringVarP(&signal, "signal", "s", "", "send this to the command's process group, as in TERM, and nothing else")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		var i sandbox.CommandInfo
		if signal != "" {
			i, err = d.SignalCommand(cmd.Context(), args[0], args[1], signal)
		} else {
			i, err = d.KillCommand(cmd.Context(), args[0], args[1])
		}
		if err != nil {
			return err
		}
		return g.print(cmd, i, func(w io.Writer) { fmt.Fprintf(w, "%s is %s\n", i.ID, i.State) })
	}
	return c
}

func newSandboxOutput(g *globals) *cobra.Command {
	var o sandbox.OutputOptions
	c := &cobra.Command{
		Use:   "output NAME ID",
		Short: "Print what a command has written",
		Long: `Print what a command has written, its standard output to ours and its standard
error to ours. Of each stream the last bytes are kept (see --keep of sandbox
exec); what is lost before or between is said on standard error. With -o json
each part is a line: stream, offset of its first byte, lost bytes before it, and
the data in base64.`,
		Args: exactly("NAME", "ID"),
	}
	c.Flags().StringVar(&o.Stream, "stream", "", "stdout or stderr (default both)")
	c.Flags().Int64Var(&o.From, "from", 0, "offset in bytes from which to print each stream")
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "follow until the command has ended")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if o.From < 0 {
			return usageError{fmt.Errorf("--from %d: use an offset from the start", o.From)}
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		info, err := d.Command(cmd.Context(), args[0], args[1])
		if err != nil {
			return err
		}
		streams := []string{"stdout", "stderr"}
		switch {
		case o.Stream != "":
			streams = []string{o.Stream}
		case info.TTY:
			streams = streams[:1]
		}
		p := &printer{json: g.output == "json", out: cmd.OutOrStdout(), errout: cmd.ErrOrStderr()}
		all, ctx := errgroup.WithContext(cmd.Context())
		for _, stream := range streams {
			o := o
			o.Stream = stream
			all.Go(func() error { return p.follow(ctx, d, args[0], args[1], o) })
		}
		return all.Wait()
	}
	return c
}

// printer prints the parts of a command's streams.
type printer struct {
	json        bool
	mu          sync.Mutex
	out, errout io.Writer
}

// part of a stream as JSON.
type part struct {
	Stream string `json:"stream"`
	From   int64  `json:"from"`
	Lost   int64  `json:"lost,omitempty"` // bytes before it
	Data   []byte `json:"data"`
}

// follow prints a stream to its end, or as far as it goes now.
func (p *printer) follow(ctx context.Context, d *api.Client, name, id string, o sandbox.OutputOptions) error {
	buf := make([]byte, 32<<10)
	for {
		// What has ended before the stream is asked for has written all of it.
		info, err := d.Command(ctx, name, id)
		if err != nil {
			return err
		}
		from, out, err := d.Output(ctx, name, id, o)
		if err != nil {
			return err
		}
		lost := max(0, from-o.From)
		o.From = from
		for err == nil {
			var n int
			n, err = out.Read(buf)
			if n == 0 && lost == 0 {
				continue
			}
			if perr := p.print(part{o.Stream, o.From, lost, buf[:n]}); perr != nil {
				err = perr
			}
			o.From, lost = o.From+int64(n), 0
		}
		_ = out.Close()
		if err != io.EOF || !o.Follow || info.State == wire.Exited {
			if err == io.EOF {
				err = nil
			}
			return err
		}
	}
}

func (p *printer) print(x part) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		return json.NewEncoder(p.out).Encode(x)
	}
	if x.Lost > 0 {
		fmt.Fprintf(p.errout, "\nsallyport: %d bytes of %s are lost here, before offset %d\n", x.Lost, x.Stream, x.From)
	}
	to := p.out
	if x.Stream == "stderr" {
		to = p.errout
	}
	_, err := to.Write(x.Data)
	return err
}
