package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// list returns the IDs of all sandboxes on the engine.
func (l *testEngine) list(ctx context.Context) ([]string, error) {
	res, err := l.engine.Client().ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelID),
	})
	var ids []string
	for _, c := range res.Items {
		ids = append(ids, c.Labels[labelID])
	}
	return ids, err
}

func TestLife(t *testing.T) {
	l := need(t)
	memory := t.TempDir()
	c := l.container(t, "")
	c.Env = []string{"COLOUR=blue", "SHAPE=square"}
	c.Mounts = []sandbox.Mount{{Source: memory, Target: "/memory"}}
	id := l.create(t, c)

	if s, err := l.runtime.Status(t.Context(), id); err != nil || s.Running || s.Link != 0 {
		t.Fatalf("before its start: got %+v, %v", s, err)
	}
	s, err := l.runtime.Start(t.Context(), id)
	if err != nil || !s.Running || s.PID == 0 {
		t.Fatalf("start: got %+v, %v", s, err)
	}
	link, err := netlink.LinkByIndex(s.Link)
	if err != nil || link.Type() != "veth" || link.Attrs().MasterIndex != l.bridge {
		t.Errorf("link %d: got %+v, %v, want a veth on the bridge", s.Link, link, err)
	}
	if again, err := l.runtime.Start(t.Context(), id); err != nil || again != s {
		t.Errorf("second start: got %+v, %v, want %+v", again, err, s)
	}

	for name, tt := range map[string]struct{ script, want string }{
		"gVisor":        {"dmesg | grep -ci gvisor", "1"},
		"PID 1":         {"tr '\\0' ' ' </proc/1/cmdline", agentPath},
		"environment":   {"echo $COLOUR $SHAPE", "blue square"},
		"resolver":      {"grep -v ^# /etc/resolv.conf", "nameserver 10.232.0.1\noptions timeout:1 attempts:5\noptions musl-timeout:5"},
		"address":       {"ip -4 -o addr show eth0 | grep -o 10.232.0.[0-9]*/24", c.Address.String()},
		"MAC":           {"ip -o link show eth0 | grep -o 02:42:[0-9a-f:]*", c.MAC},
		"default route": {"ip route | grep -o 'default via [0-9.]*'", "default via 10.232.0.1"},
		"hostname":      {"hostname", hostname(c.Name)},
		"no IPv6":       {"ip -6 -o addr show eth0 | wc -l", "0"},
		"root":          {"id -u", "0"},
		"no raw":        {"grep CapBnd /proc/self/status | cut -f2", "00000000a00404fb"},
		"agent fixed":   {"echo x 2>/dev/null >" + agentPath + " || echo refused", "refused"},
		"resolver fixed": {"echo x 2>/dev/null >/etc/resolv.conf || echo refused",
			"refused"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := l.sh(t, id, tt.script); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}

	l.sh(t, id, "echo kept >/root/file; echo remembered >/memory/memories.md")
	if got, _ := os.ReadFile(filepath.Join(memory, "memories.md")); string(got) != "remembered\n" {
		t.Errorf("/memory on the host: got %q", got)
	}
	must.OK(t, l.runtime.Stop(t.Context(), id, 5*time.Second))
	if s, err := l.runtime.Status(t.Context(), id); err != nil || s.Running {
		t.Errorf("after its stop: got %+v, %v", s, err)
	}
	if _, err := l.runtime.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := l.sh(t, id, "cat /root/file /memory/memories.md"); got != "kept\nremembered" {
		t.Errorf("after stop and start: got %q", got)
	}
	must.OK(t, l.runtime.Remove(t.Context(), id))
	if _, err := l.runtime.Status(t.Context(), id); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("after its removal: got %v, want ErrNotFound", err)
	}
}

func TestCreateFails(t *testing.T) {
	l := need(t)
	taken := l.container(t, "")
	l.create(t, taken)
	for name, tt := range map[string]struct {
		change func(*sandbox.Container)
		want   error
	}{
		"unknown image":  {func(c *sandbox.Container) { c.Spec.Image = "example.test/nothing:here" }, sandbox.ErrNoImage},
		"not an image":   {func(c *sandbox.Container) { c.Spec.Image = "UPPER CASE" }, sandbox.ErrNoImage},
		"missing folder": {func(c *sandbox.Container) { c.Mounts = []sandbox.Mount{{Source: "/no/such", Target: "/memory"}} }, nil},
		"no runtime":     {func(c *sandbox.Container) { c.Spec.Runtime = "kata" }, nil},
		"foreign MAC":    {func(c *sandbox.Container) { c.MAC = "02:42:0a:e8:00:fe" }, sandbox.ErrBadSpec},
		"taken name":     {func(c *sandbox.Container) { c.ID = taken.ID }, nil},
		"trust, no PEM":  {func(c *sandbox.Container) { c.Trust = []byte("x") }, sandbox.ErrBadSpec},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := l.list(t.Context())
			must.OK(t, err)
			c := l.container(t, "")
			tt.change(&c)
			_, err = l.runtime.Create(t.Context(), c)
			if err == nil {
				t.Fatal("it was created")
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			after, err := l.list(t.Context())
			if err != nil || len(after) != len(before) {
				t.Errorf("left behind: %v of %v (%v)", after, before, err)
			}
		})
	}
}

func TestCreateCancelled(t *testing.T) {
	l := need(t)
	before, err := l.list(t.Context())
	must.OK(t, err)
	for _, after := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		c := l.container(t, "")
		if _, err := l.runtime.Create(ctx, c); err == nil {
			l.runtime.Remove(t.Context(), c.ID)
		}
		cancel()
	}
	// Long enough for an engine still at work on a request that was given up.
	time.Sleep(500 * time.Millisecond)
	eventually(t, patience, func() error {
		now, err := l.list(t.Context())
		if err == nil && len(now) != len(before) {
			err = fmt.Errorf("left behind: %v of %v", now, before)
		}
		return err
	})
}

func TestUnknownSandbox(t *testing.T) {
	l := need(t)
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"start":  func() error { _, err := l.runtime.Start(ctx, "none"); return err },
		"stop":   func() error { return l.runtime.Stop(ctx, "none", 0) },
		"remove": func() error { return l.runtime.Remove(ctx, "none") },
		"status": func() error { _, err := l.runtime.Status(ctx, "none"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			if err := do(); !errors.Is(err, sandbox.ErrNotFound) {
				t.Errorf("got %v, want ErrNotFound", err)
			}
		})
	}
}

func TestExec(t *testing.T) {
	l := need(t)
	id := l.start(t, l.container(t, ""))
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for name, tt := range map[string]struct {
		command     wire.Command
		stdin       string
		out, errout string
		code        int
	}{
		"streams":        {command: wire.Command{Args: []string{"sh", "-c", "echo out; echo err >&2"}}, out: "out\n", errout: "err\n"},
		"exit code":      {command: wire.Command{Args: []string{"sh", "-c", "exit 42"}}, code: 42},
		"signal":         {command: wire.Command{Args: []string{"sh", "-c", "kill -9 $$"}}, code: 137},
		"stdin":          {command: wire.Command{Args: []string{"cat"}}, stdin: "in\n", out: "in\n"},
		"a megabyte":     {command: wire.Command{Args: []string{"cat"}}, stdin: big, out: big},
		"environment":    {command: wire.Command{Args: []string{"sh", "-c", "echo $A"}, Env: map[string]string{"A": "b=c d"}}, out: "b=c d\n"},
		"folder":         {command: wire.Command{Args: []string{"pwd"}, Workdir: "/usr"}, out: "/usr\n"},
		"user":           {command: wire.Command{Args: []string{"id", "-un"}, User: "nobody"}, out: "nobody\n"},
		"user by number": {command: wire.Command{Args: []string{"sh", "-c", "id -u; id -g; id -G; echo $HOME"}, User: "1234"}, out: "1234\n0\n0\n/\n"},
		"group":          {command: wire.Command{Args: []string{"id"}, User: "daemon:mail"}, out: "uid=1(daemon) gid=8(mail) groups=8(mail)\n"},
		"privileges":     {command: wire.Command{Args: []string{"grep", "-h", "^CapEff\\|^NoNewPrivs", "/proc/self/status"}, User: "nobody"}, out: "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n"},
		"terminal":       {command: wire.Command{Args: []string{"sh", "-c", "test -t 1 && echo tty >&2"}, TTY: &wire.Size{Rows: 30, Cols: 100}}, out: "tty\r\n"},
		"background":     {command: wire.Command{Args: []string{"sh", "-c", "sleep 300 & echo done"}}, out: "done\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errout bytes.Buffer
			streams := wire.Streams{Stdout: &out, Stderr: &errout}
			if tt.stdin != "" {
				streams.Stdin = strings.NewReader(tt.stdin)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			code, err := l.exec(ctx, id, tt.command, streams)
			must.OK(t, err)
			if code != tt.code || out.String() != tt.out || errout.String() != tt.errout {
				t.Errorf("got %d, %.80q, %.80q, want %d, %.80q, %.80q", code, out.String(), errout.String(), tt.code, tt.out, tt.errout)
			}
		})
	}
	t.Run("no such program", func(t *testing.T) {
		_, err := l.exec(t.Context(), id, wire.Command{Args: []string{"/no/such"}}, wire.Streams{})
		if said := new(channel.Error); !errors.As(err, &said) || said.Code != 127 {
			t.Errorf("got %v, want a shell's code for it", err)
		}
	})
}

func TestExecCancelled(t *testing.T) {
	l := need(t)
	id := l.start(t, l.container(t, ""))
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	_, err := l.exec(ctx, id, wire.Command{
		// One child in a session of its own, so that no terminal or group reaches it.
		Args: []string{"sh", "-c", "setsid sleep 4321 & sleep 4321"},
	}, wire.Streams{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	eventually(t, patience, func() error {
		if got, _ := l.try(t, id, "pgrep -c -x sleep"); strings.TrimSpace(got) != "0" {
			return fmt.Errorf("%s processes live on", got)
		}
		return nil
	})
}

func TestStopGrace(t *testing.T) {
	l := need(t)
	for name, tt := range map[string]struct {
		script   string
		grace    time.Duration
		min, max time.Duration
		left     string
	}{
		"willing":  {"trap 'echo bye >/root/end; exit' TERM; touch /root/up; while :; do sleep 0.1; done", 2 * time.Minute, 0, time.Minute, "bye"},
		"stubborn": {"trap '' TERM; touch /root/up; while :; do sleep 0.1; done", time.Second, 800 * time.Millisecond, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := l.start(t, l.container(t, ""))
			go l.exec(t.Context(), id, wire.Command{Args: []string{"sh", "-c", tt.script}}, wire.Streams{})
			l.sh(t, id, "until test -e /root/up; do sleep 0.1; done")
			begin := time.Now()
			must.OK(t, l.runtime.Stop(t.Context(), id, tt.grace))
			if took := time.Since(begin); took < tt.min || took > tt.max {
				t.Errorf("took %v, want %v to %v", took, tt.min, tt.max)
			}
			if _, err := l.runtime.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if got := l.sh(t, id, "cat /root/end 2>/dev/null || true"); got != tt.left {
				t.Errorf("left %q, want %q", got, tt.left)
			}
		})
	}
}

func TestExits(t *testing.T) {
	l := need(t)
	ctx, cancel := context.WithCancel(t.Context())
	exits, err := l.runtime.Exits(ctx)
	must.OK(t, err)
	stopped, removed, died := l.start(t, l.container(t, "")), l.start(t, l.container(t, "")), l.start(t, l.container(t, ""))
	must.OK(t, l.runtime.Stop(ctx, stopped, time.Second))
	must.OK(t, l.runtime.Remove(ctx, removed))
	// Not through the Runtime: as if it ended by itself.
	if _, err := l.engine.Client().ContainerKill(ctx, containerName(died), client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-exits:
		if got != died {
			t.Errorf("got %s, want %s", got, died)
		}
	case <-time.After(patience):
		t.Error("no exit was reported")
	}
	select {
	case got := <-exits:
		t.Errorf("also got %s", got)
	case <-time.After(300 * time.Millisecond):
	}
	cancel()
	for range exits {
	}
}
