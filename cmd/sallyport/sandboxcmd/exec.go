package sandboxcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// execFlags are the flags that say how a command runs.
type execFlags struct {
	c          sandbox.CommandSpec
	timeout    time.Duration
	background bool
	input      bool
	keep       int64
	wait       bool
}

func (f *execFlags) register(c *cobra.Command) {
	c.Flags().StringVarP(&f.c.Workdir, "workdir", "w", "", "working directory (default the sandbox's)")
	c.Flags().StringVarP(&f.c.User, "user", "u", "", "user, or user:group (default the sandbox's, else the image's)")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "end the command after this long, as in 90s, with exit status 124 (default never)")
	c.Flags().BoolVarP(&f.background, "detach", "d", false, "run in the background and print the command's identifier")
	c.Flags().BoolVarP(&f.c.TTY, "tty", "t", false, "give the command a terminal")
	c.Flags().BoolVarP(&f.input, "interactive", "i", false, "pass standard input on, also a terminal's (a pipe or file always is)")
	c.Flags().Var(sizeFlag{&f.keep}, "keep", "with --detach: how much of each output stream to keep (default 1MiB, at most 64MiB)")
	c.Flags().BoolVar(&f.wait, "wait", false, "with --detach: when that is full, the command waits for a reader (default: the oldest output is dropped)")
}

func newExec(g *cli.Globals) *cobra.Command {
	var x execFlags
	var env []string
	c := &cobra.Command{
		Use:   "exec NAME [flags] -- COMMAND [ARG ...]",
		Short: "Run a command in a sandbox that exists",
		Example: `  sallyport sandbox exec demo -- make test
  sallyport sandbox exec demo -d -- ./server      # and sandbox commands, output, kill
  sallyport sandbox exec demo -it -- python3`,
		Args: nameAndCommand,
	}
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE for this command; never a secret")
	x.register(c)
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) (err error) {
		if x.c.Env, err = cli.Pairs(env, "env"); err != nil {
			return err
		}
		return x.execute(g, cmd, d, args[0], args[1:])
	})
}

// Run is `sallyport run`.
func Run(g *cli.Globals) *cobra.Command {
	var f specFlags
	var x execFlags
	c := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARG ...]",
		Short: "Run a command in a sandbox, made the first time",
		Example: `  sallyport run demo -- python3 -c 'print("hello")'
  tar c src | sallyport run demo -- tar x -C /root`,
		Args: nameAndCommand,
	}
	f.register(c)
	x.register(c)
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
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
	})
}

// nameAndCommand wants a sandbox's name, two dashes and a command.
func nameAndCommand(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return cli.Usagef("write: %s NAME -- COMMAND [ARG ...]", cmd.CommandPath())
	}
	return nil
}

func newShell(g *cli.Globals) *cobra.Command {
	var user string
	c := &cobra.Command{Use: "shell NAME", Short: "Open a terminal in a sandbox", Args: cli.Exactly("NAME")}
	c.Flags().StringVarP(&user, "user", "u", "", "user, or user:group (default the sandbox's, else the image's)")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return cli.Usagef("standard input is no terminal: use `sallyport sandbox exec NAME -- COMMAND`")
		}
		x := execFlags{c: sandbox.CommandSpec{User: user, TTY: true}, input: true}
		return x.execute(g, cmd, d, args[0], sandbox.LoginShell)
	})
}

// execute runs a command with this process's streams and passes its status on.
func (f *execFlags) execute(g *cli.Globals, cmd *cobra.Command, d *client.Client, name string, args []string) error {
	c := f.c
	c.Args, c.TimeoutMs = args, f.timeout.Milliseconds()
	if f.timeout < 0 || f.timeout > 0 && c.TimeoutMs == 0 {
		return cli.Usagef("--timeout %v: use at least 1ms", f.timeout)
	}
	if f.input && c.TTY && !term.IsTerminal(int(os.Stdin.Fd())) {
		return cli.Usagef("standard input is no terminal, and its end would be none for the command: leave out -t")
	}
	var s sandbox.Streams
	if f.input || piped(os.Stdin) {
		s.Stdin = os.Stdin
	}
	if f.background {
		return f.start(g, cmd, d, name, c)
	}
	if f.keep != 0 || f.wait {
		return cli.Usagef("--keep and --wait go with --detach")
	}
	if g.Output == "json" {
		return capture(g, cmd, d, name, c, s)
	}
	s.Stdout, s.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if c.TTY {
		restore, err := f.terminal(cmd.Context(), &c, &s)
		if err != nil {
			return err
		}
		defer restore()
	}
	return passOn(d.Exec(cmd.Context(), name, c, s))
}

// piped says whether something other than a terminal feeds a file.
func piped(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice == 0
}

// passOn makes a command's status this process's.
func passOn(code int, err error) error {
	if err != nil {
		return err
	}
	if code != 0 {
		return cli.ExitCode(code)
	}
	return nil
}

// start runs a command in the background.
func (f *execFlags) start(g *cli.Globals, cmd *cobra.Command, d *client.Client, name string, c sandbox.CommandSpec) error {
	// Not what happens to be there: a pipe may never end.
	c.Input, c.Keep = f.input, f.keep
	if f.wait {
		c.Overflow = "wait"
	}
	info, err := d.StartCommand(cmd.Context(), name, c)
	if err != nil {
		return err
	}
	if err := g.Print(cmd, info, func(w io.Writer) { fmt.Fprintln(w, info.ID) }); err != nil || !f.input {
		return err
	}
	return d.Feed(cmd.Context(), name, info.ID, os.Stdin, false)
}

// captured is what a command did, as JSON.
type captured struct {
	Code      int    `json:"code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"` // more was written than is here
}

// maxCaptured bounds each stream, in bytes.
const maxCaptured = 4 << 20

// capture runs a command and prints all that it did.
func capture(g *cli.Globals, cmd *cobra.Command, d *client.Client, name string, c sandbox.CommandSpec, s sandbox.Streams) error {
	stdout, stderr := &head{}, &head{}
	s.Stdout, s.Stderr = stdout, stderr
	code, err := d.Exec(cmd.Context(), name, c, s)
	if err != nil {
		return err
	}
	out := captured{code, stdout.String(), stderr.String(), stdout.cut || stderr.cut}
	if err := g.Print(cmd, out, nil); err != nil {
		return err
	}
	return passOn(code, nil)
}

// head keeps the first maxCaptured bytes of what is written to it.
type head struct {
	bytes.Buffer
	cut bool
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), maxCaptured-h.Len())
	h.cut = h.cut || n < len(p)
	_, _ = h.Buffer.Write(p[:n])
	return len(p), nil
}

// terminal gives the command a terminal like ours: its keys go there unread, and
// it follows our window's size. The returned function gives ours back.
func (f *execFlags) terminal(ctx context.Context, c *sandbox.CommandSpec, streams *sandbox.Streams) (func(), error) {
	if name := os.Getenv("TERM"); name != "" && c.Env["TERM"] == "" {
		env := map[string]string{"TERM": name}
		maps.Copy(env, c.Env)
		c.Env = env
	}
	out, in := int(os.Stdout.Fd()), int(os.Stdin.Fd())
	size := func() (s sandbox.Size, ok bool) {
		cols, rows, err := term.GetSize(out)
		return sandbox.Size{Rows: uint16(rows), Cols: uint16(cols)}, err == nil
	}
	stop := func() {}
	if s, ok := size(); ok {
		c.Size = s
		ctx, cancel := context.WithCancel(ctx)
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, syscall.SIGWINCH)
		sizes := make(chan sandbox.Size)
		streams.Sizes = sizes
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
				if s, ok := size(); ok {
					select {
					case sizes <- s:
					case <-ctx.Done():
					}
				}
			}
		}()
		stop = func() { signal.Stop(changed); cancel() }
	}
	if streams.Stdin == nil || !term.IsTerminal(in) {
		return stop, nil
	}
	was, err := term.MakeRaw(in)
	if err != nil {
		stop()
		return nil, err
	}
	return func() { stop(); _ = term.Restore(in, was) }, nil
}

func newCommands(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "commands NAME", Short: "List the commands of a sandbox's session", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, named((*client.Client).Commands), "ID\tSTATE\tAGE\tSTDOUT\tSTDERR\tCOMMAND", commandRow)
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
	line := strings.Join(cli.Rows(i.Args, terminal.Escape), " ")
	if r := []rune(line); len(r) > 60 {
		line = string(r[:59]) + "…"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s", i.ID, state, time.Since(i.Started).Round(time.Second), i.Stdout.To, i.Stderr.To, line)
}

func newKill(g *cli.Globals) *cobra.Command {
	var signal string
	c := &cobra.Command{
		Use: "kill NAME ID", Short: "End a command and all that it started, or send it a signal",
		Args: cli.Exactly("NAME", "ID"),
	}
	c.Flags().StringVarP(&signal, "signal", "s", "", "send this to the command's process group, as in TERM, and nothing else")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (sandbox.CommandInfo, error) {
		if signal != "" {
			return d.SignalCommand(ctx, args[0], args[1], signal)
		}
		return d.KillCommand(ctx, args[0], args[1])
	}, func(w io.Writer, i sandbox.CommandInfo) { fmt.Fprintf(w, "%s is %s\n", i.ID, i.State) })
}

func newOutput(g *cli.Globals) *cobra.Command {
	var o sandbox.OutputOptions
	c := &cobra.Command{
		Use:   "output NAME ID",
		Short: "Print what a command has written",
		Long: `Print what a command has written, its standard output to ours and its standard
error to ours. Of each stream the last bytes are kept (see --keep of sandbox
exec); what is lost before or between is said on standard error. With -o json
each part is a line: stream, offset of its first byte, lost bytes before it, and
the data in base64.`,
		Args: cli.Exactly("NAME", "ID"),
	}
	c.Flags().StringVar(&o.Stream, "stream", "", "stdout or stderr (default both)")
	c.Flags().Int64Var(&o.From, "from", 0, "offset in bytes from which to print each stream")
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "follow until the command has ended")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		if o.From < 0 {
			return cli.Usagef("--from %d: use an offset from the start", o.From)
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
		p := &printer{json: g.Output == "json", out: cmd.OutOrStdout(), errout: cmd.ErrOrStderr()}
		all, ctx := errgroup.WithContext(cmd.Context())
		for _, stream := range streams {
			o := o
			o.Stream = stream
			all.Go(func() error { return p.follow(ctx, d, args[0], args[1], o) })
		}
		return all.Wait()
	})
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
func (p *printer) follow(ctx context.Context, d *client.Client, name, id string, o sandbox.OutputOptions) error {
	buf := make([]byte, 32<<10)
	for {
		// A command that has ended before the stream is asked for has written all of it.
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
