package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/internal/api"
	"sallyport/sandbox"
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

func newSandboxExec(g *globals) *cobra.Command {
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
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		if x.c.Env, err = pairs(env, "env"); err != nil {
			return err
		}
		return x.execute(g, cmd, d, args[0], args[1:])
	}
	return c
}

func newSandboxShell(g *globals) *cobra.Command {
	var user string
	c := &cobra.Command{Use: "shell NAME", Short: "Open a terminal in a sandbox", Args: exactly("NAME")}
	c.Flags().StringVarP(&user, "user", "u", "", "user, or user:group (default the sandbox's, else the image's)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return usageError{errors.New("standard input is no terminal: use `sallyport sandbox exec NAME -- COMMAND`")}
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		x := execFlags{c: sandbox.CommandSpec{User: user, TTY: true}, input: true}
		return x.execute(g, cmd, d, args[0], sandbox.LoginShell)
	}
	return c
}

// execute runs a command with this process's streams and passes its status on.
func (f *execFlags) execute(g *globals, cmd *cobra.Command, d *api.Client, name string, args []string) error {
	c := f.c
	c.Args, c.TimeoutMs = args, f.timeout.Milliseconds()
	if f.timeout < 0 || f.timeout > 0 && c.TimeoutMs == 0 {
		return usageError{fmt.Errorf("--timeout %v: use at least 1ms", f.timeout)}
	}
	if f.input && c.TTY && !term.IsTerminal(int(os.Stdin.Fd())) {
		return usageError{errors.New("standard input is no terminal, and its end would be none for the command: leave out -t")}
	}
	var s sandbox.Streams
	if f.input || piped(os.Stdin) {
		s.Stdin = os.Stdin
	}
	if f.background {
		return f.start(g, cmd, d, name, c)
	}
	if f.keep != 0 || f.wait {
		return usageError{errors.New("--keep and --wait go with --detach")}
	}
	if g.output == "json" {
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

// passOn makes a command's status this process's.
func passOn(code int, err error) error {
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// start runs a command in the background.
func (f *execFlags) start(g *globals, cmd *cobra.Command, d *api.Client, name string, c sandbox.CommandSpec) error {
	// Not what happens to be there: a pipe may never end.
	c.Input, c.Keep = f.input, f.keep
	if f.wait {
		c.Overflow = "wait"
	}
	info, err := d.StartCommand(cmd.Context(), name, c)
	if err != nil {
		return err
	}
	if err := g.print(cmd, info, func(w io.Writer) { fmt.Fprintln(w, info.ID) }); err != nil || !f.input {
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
func capture(g *globals, cmd *cobra.Command, d *api.Client, name string, c sandbox.CommandSpec, s sandbox.Streams) error {
	stdout, stderr := &head{}, &head{}
	s.Stdout, s.Stderr = stdout, stderr
	code, err := d.Exec(cmd.Context(), name, c, s)
	if err != nil {
		return err
	}
	out := captured{code, stdout.String(), stderr.String(), stdout.cut || stderr.cut}
	if err := g.print(cmd, out, nil); err != nil {
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
		for k, v := range c.Env {
			env[k] = v
		}
		c.Env = env
	}
	out, in := int(os.Stdout.Fd()), int(os.Stdin.Fd())
	size := func() (s sandbox.Size, ok bool) {
		cols, rows, err := term.GetSize(out)
		return sandbox.Size{Rows: uint16(rows), Cols: uint16(cols)}, err == nil
	}
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
		stop := func() { signal.Stop(changed); cancel() }
		return raw(in, streams.Stdin != nil, stop)
	}
	return raw(in, streams.Stdin != nil, func() {})
}

// raw hands our terminal's keys over as they are, if there is one.
func raw(fd int, wanted bool, stop func()) (func(), error) {
	if !wanted || !term.IsTerminal(fd) {
		return stop, nil
	}
	was, err := term.MakeRaw(fd)
	if err != nil {
		stop()
		return nil, err
	}
	return func() { stop(); _ = term.Restore(fd, was) }, nil
}
