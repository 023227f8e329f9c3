package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

func sh(script string) wire.Command {
	return wire.Command{ID: uuid.NewString(), Args: []string{"sh", "-c", script}}
}

// call is one call of the agent's that must succeed.
func call[T any](t *testing.T, c *channel.Channel, method, path string, in any) (out T) {
	t.Helper()
	if err := c.JSON(t.Context(), method, path, in, &out); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return out
}

// output reads what a command has written.
func output(t *testing.T, c *channel.Channel, id, query string) (from int64, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://agent/commands/"+id+"/output?"+query, nil)
	must.OK(t, err)
	resp, err := c.Do(req, true)
	must.OK(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must.OK(t, err)
	from, err = strconv.ParseInt(resp.Header.Get(wire.FromHeader), 10, 64)
	must.OK(t, err)
	return from, string(data)
}

func TestRun(t *testing.T) {
	_, _, c := serve(t)
	folder := t.TempDir()
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for name, tt := range map[string]struct {
		command     wire.Command
		stdin       *string
		out, errout string
		code        int
	}{
		"streams":          {command: sh("echo out; echo err >&2"), out: "out\n", errout: "err\n"},
		"exit code":        {command: sh("exit 42"), code: 42},
		"signal":           {command: sh("kill -9 $$"), code: 137},
		"no input":         {command: sh("cat")},
		"input":            {command: sh("cat"), stdin: new("in\n"), out: "in\n"},
		"a megabyte":       {command: sh("cat"), stdin: &big, out: big},
		"input unread":     {command: sh("exit 3"), stdin: &big, code: 3},
		"environment":      {command: wire.Command{Args: []string{"sh", "-c", "echo $A"}, Env: map[string]string{"A": "b=c d"}}, out: "b=c d\n"},
		"folder":           {command: wire.Command{Args: []string{"pwd"}, Workdir: folder}, out: folder + "\n"},
		"program in PATH":  {command: wire.Command{Args: []string{"tool"}, Env: map[string]string{"PATH": tool(t, "echo here")}}, out: "here\n"},
		"terminal":         {command: wire.Command{Args: []string{"sh", "-c", "stty size; test -t 2 && echo tty >&2"}, TTY: &wire.Size{Rows: 30, Cols: 100}}, out: "30 100\r\ntty\r\n"},
		"left behind":      {command: sh("sleep 1000 & echo done"), out: "done\n"},
		"out of time":      {command: wire.Command{Args: []string{"sh", "-c", "echo begun; sleep 1000"}, Timeout: 3000}, out: "begun\n", code: 124},
		"deaf and late":    {command: wire.Command{Args: []string{"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"}, Timeout: 100}, code: 124},
		"all that it said": {command: sh("i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done | tail -n 1"), out: "4999\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errout bytes.Buffer
			s := wire.Streams{Stdout: &out, Stderr: &errout}
			if tt.stdin != nil {
				s.Stdin = strings.NewReader(*tt.stdin)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tt.command.ID = uuid.NewString()
			end, err := c.Run(ctx, tt.command, s)
			must.OK(t, err)
			if end.Code != tt.code || out.String() != tt.out || errout.String() != tt.errout {
				t.Errorf("got %+v, %.80q, %.80q, want %d, %.80q, %.80q", end, out.String(), errout.String(), tt.code, tt.out, tt.errout)
			}
			_ = c.Kill(ctx, tt.command.ID) // what it left behind
		})
	}
}

// tool makes a program of a script and returns a PATH with it.
func tool(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return t.TempDir() + ":" + dir + ":/usr/bin:/bin"
}

func TestCannotStart(t *testing.T) {
	_, _, c := serve(t)
	plain := filepath.Join(t.TempDir(), "plain")
	must.OK(t, os.WriteFile(plain, []byte("text"), 0o644))
	for name, tt := range map[string]struct {
		command wire.Command
		code    int
		status  int
	}{
		"no such program": {wire.Command{Args: []string{"/no/such"}}, 127, 422},
		"none on PATH":    {wire.Command{Args: []string{"no-such-program"}}, 127, 422},
		"empty name":      {wire.Command{Args: []string{""}}, 127, 422},
		"not executable":  {wire.Command{Args: []string{plain}}, 126, 422},
		"a folder":        {wire.Command{Args: []string{"/"}}, 126, 422},
		"no such folder":  {wire.Command{Args: []string{"true"}, Workdir: "/no/such"}, 126, 422},
		"no such user":    {wire.Command{Args: []string{"true"}, User: "nobody-here"}, 126, 422},
		"no such group":   {wire.Command{Args: []string{"true"}, User: "root:nobody-here"}, 126, 422},
		"user of no file": {wire.Command{Args: []string{"true"}, User: "4294967295"}, 126, 422},
		"nothing":         {wire.Command{}, 0, 400},
		"too much kept":   {wire.Command{Args: []string{"true"}, Keep: 1 << 40}, 0, 400},
		"less than none":  {wire.Command{Args: []string{"true"}, Keep: -1}, 0, 400},
	} {
		t.Run(name, func(t *testing.T) {
			for _, start := range []func(wire.Command) error{
				func(w wire.Command) error { _, err := c.Run(t.Context(), w, wire.Streams{}); return err },
				func(w wire.Command) error { return c.JSON(t.Context(), "POST", "/commands", w, nil) },
			} {
				tt.command.ID = uuid.NewString()
				var said *channel.Error
				if err := start(tt.command); !errors.As(err, &said) || said.Code != tt.code || said.Status != tt.status {
					t.Errorf("got %#v (%v), want %d and status %d", said, err, tt.code, tt.status)
				}
			}
		})
	}
}

// A cancelled command ends with all that it started, whatever that did to get away.
func TestCancelled(t *testing.T) {
	_, _, c := serve(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, wire.Command{ID: uuid.NewString(), Workdir: dir, Args: []string{"sh", "-c", `
			note() { echo "$1" >> pids; }
			note $$
			setsid sh -c 'echo $$ >> pids; exec sleep 1000' &
			env -i /bin/sh -c 'echo $$ >> pids; exec /bin/sleep 1000' &
			sh -c 'env -i /bin/sh -c "echo \$\$ >> pids; exec /bin/sleep 1000" & echo $! >/dev/null'
			sleep 1000`}}, wire.Streams{})
		ended <- err
	}()
	var pids []string
	must.Soon(t, "four processes", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "pids"))
		pids = strings.Fields(string(data))
		return len(pids) == 4
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	for _, pid := range pids {
		must.Soon(t, "the end of process "+pid, func() bool {
			data, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || strings.Contains(string(data), ") Z ")
		})
	}
}

// A command whose input breaks off is killed, and never sees an end of it: half of its
// input must not pass for all of it.
func TestInputBreaksOff(t *testing.T) {
	t.Run("one program", func(t *testing.T) { testInputBreaksOff(t, "cat >/dev/null; echo all >%s") })
	// Of several, none takes the end of another for the end of all.
	t.Run("a pipe", func(t *testing.T) {
		testInputBreaksOff(t, "cat | cat | cat | cat | cat | { cat >/dev/null; echo all >%s; }")
	})
}

func testInputBreaksOff(t *testing.T, command string) {
	_, _, c := serve(t)
	done := filepath.Join(t.TempDir(), "done")
	w := sh(fmt.Sprintf(command, done))
	// Not before the command is there: it would not be started.
	breaks := reader(func([]byte) (int, error) {
		for c.JSON(t.Context(), "GET", "/commands/"+w.ID, nil, new(wire.Status)) != nil && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return 0, io.ErrUnexpectedEOF
	})
	_, err := c.Run(t.Context(), w, wire.Streams{Stdin: io.MultiReader(strings.NewReader("half"), breaks)})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if s := call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil); s.State != wire.Exited || s.Signal != "KILL" {
		t.Errorf("got %+v, want it killed", s)
	}
	if _, err := os.Stat(done); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it took half of its input for all: %v", err)
	}
}

// A client that cannot take the output ends the command.
func TestOutputRefused(t *testing.T) {
	_, _, c := serve(t)
	full := errors.New("full")
	w := sh("while :; do echo more; done")
	_, err := c.Run(t.Context(), w, wire.Streams{Stdout: writer(func([]byte) (int, error) { return 0, full })})
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if s := call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil); s.State != wire.Exited || s.Signal != "KILL" {
		t.Errorf("got %+v, want it killed", s)
	}
}

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A command whose channel is closed, as before a sleep, goes on, also one that
// waits for somebody to take its output.
func TestOutlivesItsChannel(t *testing.T) {
	at, key, c := serve(t)
	w := sh("sleep 0.3; i=0; while [ $i -lt 100000 ]; do echo $i; i=$((i+1)); done")
	w.Overflow, w.Keep = wire.Wait, 1<<10
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), w, wire.Streams{})
		ended <- err
	}()
	other := channel.New(at.Addr(), channel.Options{Key: key, Dial: to(at)})
	defer other.Close()
	must.Soon(t, "the command", func() bool {
		return other.JSON(t.Context(), "GET", "/commands/"+w.ID, nil, nil) == nil
	})
	c.Close()
	if err := <-ended; !errors.Is(err, channel.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	must.Soon(t, "the command's end", func() bool {
		return call[wire.Status](t, other, "GET", "/commands/"+w.ID, nil).State == wire.Exited
	})
	if s := call[wire.Status](t, other, "GET", "/commands/"+w.ID, nil); s.Code != 0 || s.Stdout.To != 588890 {
		t.Errorf("got %+v, want all of its output written", s)
	}
	if err := c.JSON(t.Context(), "GET", "/activity", nil, nil); !errors.Is(err, channel.ErrClosed) {
		t.Errorf("a closed channel: got %v, want ErrClosed", err)
	}
}

func TestBackground(t *testing.T) {
	_, _, c := serve(t)
	w := sh("echo first; echo wrong >&2; read line; echo $line; read line; echo $line; exit 5")
	w.Stdin = true
	s := call[wire.Status](t, c, "POST", "/commands", w)
	if again := call[wire.Status](t, c, "POST", "/commands", w); again.Pid != s.Pid {
		t.Errorf("the same identifier twice: processes %d and %d", s.Pid, again.Pid)
	}
	feed := func(text, query string) {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://agent/commands/"+w.ID+"/stdin?"+query, strings.NewReader(text))
		resp, err := c.Do(req, true)
		must.OK(t, err)
		resp.Body.Close()
	}
	must.Soon(t, "its first line", func() bool { _, out := output(t, c, w.ID, ""); return out == "first\n" })
	feed("second\n", "open=1")
	must.Soon(t, "its second line", func() bool { _, out := output(t, c, w.ID, "from=6"); return out == "second\n" })
	followed := make(chan string, 1)
	go func() { _, out := output(t, c, w.ID, "from=6&follow=1"); followed <- out }()
	feed("third\n", "")
	if got := <-followed; got != "second\nthird\n" {
		t.Errorf("followed: got %q", got)
	}
	if _, out := output(t, c, w.ID, "stream=stderr"); out != "wrong\n" {
		t.Errorf("standard error: got %q", out)
	}
	s = call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil)
	if s.State != wire.Exited || s.Code != 5 || s.Stdout != (wire.Range{To: 19}) || s.Ended.Before(s.Started) {
		t.Errorf("got %+v", s)
	}
	if list := call[[]wire.Status](t, c, "GET", "/commands", nil); len(list) != 1 || list[0].ID != w.ID {
		t.Errorf("listed: %+v", list)
	}
	if err := c.JSON(t.Context(), "GET", "/commands/none", nil, nil); err == nil {
		t.Error("a command that is not there is there")
	}
}

// Of more output than is kept the end is there, and where it begins is told.
func TestDropsTheOldest(t *testing.T) {
	_, _, c := serve(t)
	for _, keep := range []int64{1, 1000, 4096, 100_000} {
		w := sh("seq 100000 199999")
		w.Keep = keep
		call[wire.Status](t, c, "POST", "/commands", w)
		output(t, c, w.ID, "follow=1")
		must.Soon(t, "its end", func() bool {
			s := call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil)
			return s.State == wire.Exited && s.Stdout.To == 700_000
		})
		from, out := output(t, c, w.ID, "")
		s := call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil)
		if want := (wire.Range{From: 700_000 - keep, To: 700_000}); s.Stdout != want || from != want.From || int64(len(out)) != keep {
			t.Errorf("keeping %d: got %+v, %d bytes from %d, want %+v", keep, s.Stdout, len(out), from, want)
		}
		var all strings.Builder
		for i := 100_000; i < 200_000; i++ {
			fmt.Fprintln(&all, i)
		}
		if !strings.HasSuffix(all.String(), out) {
			t.Errorf("keeping %d: what is kept is not the end: %.40q", keep, out)
		}
	}
}

// Output that waits for its reader is complete however little is kept.
func TestWaitsForTheReader(t *testing.T) {
	_, _, c := serve(t)
	w := sh("seq 100000 199999")
	w.Keep, w.Overflow = 1000, wire.Wait
	call[wire.Status](t, c, "POST", "/commands", w)
	time.Sleep(200 * time.Millisecond)
	if s := call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil); s.Stdout.To > 1000 {
		t.Errorf("nobody reads, and it wrote %d bytes", s.Stdout.To)
	}
	from, out := output(t, c, w.ID, "follow=1")
	if from != 0 || len(out) != 700_000 {
		t.Errorf("got %d bytes from %d, want all", len(out), from)
	}
}

func TestSignals(t *testing.T) {
	_, _, c := serve(t)
	w := sh("trap 'echo heard; exit 9' USR1; echo up; while :; do sleep 0.05; done")
	call[wire.Status](t, c, "POST", "/commands", w)
	must.Soon(t, "the trap", func() bool { _, out := output(t, c, w.ID, ""); return out == "up\n" })
	if err := c.JSON(t.Context(), "POST", "/commands/"+w.ID+"/signal", wire.Name{Signal: "NONE"}, nil); err == nil {
		t.Error("a signal that there is not was sent")
	}
	call[wire.Status](t, c, "POST", "/commands/"+w.ID+"/signal", wire.Name{Signal: "usr1"})
	must.Soon(t, "its end", func() bool { return call[wire.Status](t, c, "GET", "/commands/"+w.ID, nil).Code == 9 })
	if err := c.JSON(t.Context(), "POST", "/commands/"+w.ID+"/signal", wire.Name{Signal: "TERM"}, nil); err == nil {
		t.Error("a command that has ended was signalled")
	}
}

func TestTerminal(t *testing.T) {
	_, _, c := serve(t)
	sizes := make(chan wire.Size)
	in, feed := io.Pipe()
	lines := make(chan string, 100)
	ended := make(chan wire.End, 1)
	go func() {
		end, err := c.Run(t.Context(), wire.Command{ID: uuid.NewString(), TTY: &wire.Size{Rows: 24, Cols: 80}, Args: []string{"sh", "-c",
			`trap 'stty size' WINCH; trap 'echo interrupted; exit 4' INT; tty >/dev/null && echo ready; while :; do sleep 0.05; done`}},
			wire.Streams{Stdin: in, Sizes: sizes, Stdout: writer(func(p []byte) (int, error) {
				for l := range strings.Lines(string(p)) {
					lines <- strings.TrimSpace(l)
				}
				return len(p), nil
			})})
		if err != nil {
			t.Error(err)
		}
		ended <- end
	}()
	expect := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-lines:
				if strings.Contains(got, want) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no %q", want)
			}
		}
	}
	expect("ready")
	sizes <- wire.Size{Rows: 50, Cols: 132}
	expect("50 132")
	feed.Write([]byte{3}) // Ctrl-C
	expect("interrupted")
	if end := <-ended; end.Code != 4 {
		t.Errorf("got %+v, want 4", end)
	}
}

func TestActivity(t *testing.T) {
	_, _, c := serve(t)
	w := sh("sleep 1000")
	call[wire.Status](t, c, "POST", "/commands", w)
	if a := call[wire.Activity](t, c, "GET", "/activity", nil); a.Attached != 0 {
		t.Errorf("in the background: got %+v", a)
	}
	call[wire.Status](t, c, "DELETE", "/commands/"+w.ID, nil)
}

// A command that has ended is forgotten some time, one that runs is not.
func TestForgetsTheOldest(t *testing.T) {
	_, _, c := serve(t)
	running := sh("sleep 1000")
	call[wire.Status](t, c, "POST", "/commands", running)
	first := wire.Command{ID: uuid.NewString(), Args: []string{"true"}}
	for i := range 150 {
		w := first
		if i > 0 {
			w.ID = uuid.NewString()
		}
		if _, err := c.Run(t.Context(), w, wire.Streams{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.JSON(t.Context(), "GET", "/commands/"+first.ID, nil, nil); err == nil {
		t.Error("the first is still known")
	}
	if list := call[[]wire.Status](t, c, "GET", "/commands", nil); len(list) != 129 || list[0].ID != running.ID {
		t.Errorf("%d commands, want 128 that have ended and the one that runs", len(list))
	}
	call[wire.Status](t, c, "DELETE", "/commands/"+running.ID, nil)
}

// The agent of the product is small.
func TestSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "sallyport/cmd/sallyport-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the agent: %v: %s", err, out)
	}
	i, err := os.Stat(path)
	must.OK(t, err)
	if i.Size() > 10<<20 {
		t.Errorf("%d bytes, want at most 10 MiB", i.Size())
	}
}

// A client's bytes do not come to a command without input, with a terminal either.
func TestNoInput(t *testing.T) {
	_, _, c := serve(t)
	here, there := net.Pipe()
	defer here.Close()
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		cmd := sh("read -t 1 x; echo \"got $x.\"")
		cmd.Args[0], cmd.TTY = "bash", &wire.Size{Rows: 24, Cols: 80}
		_, err := c.Splice(t.Context(), cmd, channel.Client{From: there, To: wire.NewWriter(&out)})
		ended <- err
	}()
	to := wire.NewWriter(here)
	must.OK(t, errors.Join(to.Write(wire.Stdin, []byte("typed\n")), to.Write(wire.Resize, []byte(`{"rows":30,"cols":90}`))))
	if err := <-ended; err != nil || strings.Contains(out.String(), "typed") || !strings.Contains(out.String(), "got .") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
