package ssh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"

	"sallyport/audit"
	"sallyport/internal/test/ocsf"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// block holds sandboxes that run nothing but a few commands.
type block struct {
	mu    sync.Mutex
	all   map[string]sandbox.Info
	ended map[string]error // how a command's context was, by the command
	env   map[string]string

	said    atomic.Int64 // what "yes" has written
	agent   string       // the address of what listens inside
	hosts   []string     // that Connect was asked for
	earlier bool
	dir     string
	stuck   chan struct{}
	mute    bool           // SFTP takes what comes and says nothing, beyond its end
	hostile func(net.Conn) // serves SFTP, if set
	serving sync.WaitGroup
	replace bool // by another sandbox of the same name, when it is connected to
}

func (b *block) Visible(ctx context.Context, name string) (sandbox.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, ok := b.all[name]
	if !ok || !i.Spec.Owned(sandbox.OwnerOf(ctx)) {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	return i, nil
}

func (b *block) Start(ctx context.Context, name string) (sandbox.Info, error) {
	return b.Visible(ctx, name)
}

// Attach runs a command as an agent would, which is asked by a client's frames.
func (b *block) Attach(ctx context.Context, name string, spec sandbox.CommandSpec, client sandbox.CommandClient) (end sandbox.CommandEnd, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdin, feed := io.Pipe()
	defer stdin.Close()
	sizes, signals := make(chan sandbox.Size, 8), make(chan string, 8)
	go func() {
		_, _ = wire.Frames(client.From, func(k wire.Kind, p []byte) error {
			client.Count(k, len(p))
			switch {
			case k == wire.Stdin && len(p) == 0:
				_ = feed.Close()
			case k == wire.Stdin:
				_, _ = feed.Write(p)
			case k == wire.Resize:
				var size sandbox.Size
				if err := json.Unmarshal(p, &size); err != nil {
					return err
				}
				select {
				case sizes <- size:
				default: // the command takes none
				}
			case k == wire.Signal:
				signals <- string(p)
			}
			return nil
		})
		cancel(sandbox.ErrGone)
		_ = feed.CloseWithError(sandbox.ErrGone)
	}()
	go func() {
		for client.To.Write(wire.Alive, nil) == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		cancel(sandbox.ErrGone)
	}()
	out := func(k wire.Kind) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			n, err := client.To.Stream(k).Write(p)
			client.Count(k, n)
			if err != nil {
				cancel(sandbox.ErrGone)
			}
			return n, err
		})
	}
	c := sandbox.Streams{Stdin: stdin, Stdout: out(wire.Stdout), Stderr: out(wire.Stderr), Sizes: sizes, Signals: signals}
	end, err = b.run(ctx, spec, c)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return end, err
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func (b *block) run(ctx context.Context, spec sandbox.CommandSpec, c sandbox.Streams) (end sandbox.CommandEnd, err error) {
	what := spec.Args[len(spec.Args)-1]
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended[what] = context.Cause(ctx)
		b.env = spec.Env
	}()
	switch {
	case what == "cat":
		_, err = io.Copy(c.Stdout, c.Stdin)
	case what == "yes":
		for err == nil && ctx.Err() == nil {
			_, err = c.Stdout.Write(make([]byte, 32<<10))
			b.said.Add(1)
		}
	case what == "wait":
		_, _ = io.WriteString(c.Stdout, "waiting\n")
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case s := <-c.Signals:
			end.Code, end.Signal = 143, s
		}
	case what == "size":
		s := <-c.Sizes
		_, err = fmt.Fprintf(c.Stdout, "%d %d", s.Rows, s.Cols)
	case what == "both":
		_, _ = io.WriteString(c.Stdout, "out")
		_, err = io.WriteString(c.Stderr, "err")
		end.Code = 7
	default:
		err = errors.New("no such\x1b[1m thing")
	}
	return end, err
}

// over tells whether a command has ended, and forgets that.
func (b *block) over(command string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.ended[command]
	delete(b.ended, command)
	return ok
}

// Connect is an agent's: localhost and an empty host are this one. An agent of an
// earlier version knows no ports.
func (b *block) Connect(ctx context.Context, name, host string, port uint16) (sandbox.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts = append(b.hosts, host)
	if i := b.all[name]; b.replace {
		i.ID = "id-another"
		b.all[name] = i
	}
	if b.earlier {
		return nil, fmt.Errorf("connecting: %w", sandbox.ErrEarlier)
	}
	if host == "" || host == "localhost" {
		host = b.agent
	}
	c, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("%w: \x1b[1m", sandbox.ErrNoPort)
	}
	return c.(*net.TCPConn), nil
}

// SFTP is an agent's, whose files are a folder of the host's. With stuck set it does not
// answer.
func (b *block) SFTP(ctx context.Context, name string) (sandbox.Conn, error) {
	b.mu.Lock()
	earlier, stuck, dir := b.earlier, b.stuck, b.dir
	b.mu.Unlock()
	if earlier {
		return nil, fmt.Errorf("files: %w", sandbox.ErrEarlier)
	}
	if stuck != nil {
		stuck <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	served, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if b.mute {
		b.serving.Go(func() {
			defer served.Close()
			_, _ = io.Copy(io.Discard, served)
			for ; err == nil; time.Sleep(10 * time.Millisecond) {
				_, err = served.Write([]byte{0})
			}
		})
		return c.(*net.TCPConn), nil
	}
	if b.hostile != nil {
		b.serving.Go(func() { defer served.Close(); b.hostile(served) })
		return c.(*net.TCPConn), nil
	}
	s, err := sftp.NewServer(served, sftp.WithServerWorkingDirectory(dir))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	b.serving.Go(func() { _ = s.Serve(); _ = served.Close() })
	return c.(*net.TCPConn), nil
}

// book is an audit trail in memory.
type book struct {
	mu     sync.Mutex
	events []*audit.Event
	full   bool
}

func (b *book) Append(_ context.Context, events ...*audit.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full {
		return errors.New("no space left on device")
	}
	ocsf.Must(events...)
	b.events = append(b.events, events...)
	return nil
}

func (b *book) Enqueue(e *audit.Event) error { return b.Append(context.Background(), e) }

// has tells whether something of that kind, use and reason or detail is on record.
func (b *book) has(kind audit.Kind, use, text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.events, func(e *audit.Event) bool {
		x := e.Unmapped.Sallyport
		return x.Kind == kind && x.Protocol == use && (strings.Contains(x.Reason, text) || text != "" && strings.Contains(e.Detail, text))
	})
}

// last is the detail of the last event of that kind and use.
func (b *book) last(kind audit.Kind, use string) (detail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if x := e.Unmapped.Sallyport; x.Kind == kind && x.Protocol == use {
			detail = e.Detail
		}
	}
	return detail
}

// rules allow what is listed.
type rules struct {
	mu   sync.Mutex
	uses []policy.Protocol
}

func (r *rules) allow(uses ...policy.Protocol) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses = uses
}

func (r *rules) Decide(_ context.Context, in policy.Input) policy.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.uses, in.Protocol) && in.Phase == policy.PhaseSSH {
		return policy.Decision{Action: policy.Allow, Rule: "test", Reason: "allowed by rule test"}
	}
	return policy.Decision{Action: policy.Deny, Reason: "no rule allows " + string(in.Protocol)}
}
