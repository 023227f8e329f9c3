package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"sallyport/audit"
	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/state"
)

// attachedKeep is what is kept of an attached command's output, which its
// client has, in bytes.
const attachedKeep = 256 << 10

// wireCommand is the command as the agent is told of it.
func wireCommand(c sandbox.CommandSpec, spec sandbox.Spec) wire.Command {
	w := wire.Command{
		ID: uuid.Must(uuid.NewV7()).String(), Args: c.Args, Env: c.Env, Workdir: c.Workdir, User: cmp.Or(c.User, spec.User),
		Timeout: c.TimeoutMs, Stdin: c.Input, Keep: c.Keep, Overflow: c.Overflow,
	}
	// The spec's environment comes with each command and is not the container's,
	// so that another session can have another one.
	if len(spec.Env) > 0 {
		w.Env = maps.Clone(spec.Env)
		maps.Copy(w.Env, c.Env)
	}
	w.Workdir = cmp.Or(w.Workdir, spec.Workdir)
	if c.TTY {
		size := c.Size
		if size == (sandbox.Size{}) {
			size = sandbox.Size{Rows: 24, Cols: 80}
		}
		w.TTY = &size
	}
	return w
}

// checkCommand refuses what is no command, or would carry a secret in.
func (m *Manager) checkCommand(ctx context.Context, name string, c sandbox.CommandSpec) error {
	if len(c.Args) == 0 {
		return fmt.Errorf("%w: no command: give one after --", sandbox.ErrBadSpec)
	}
	if c.TimeoutMs < 0 {
		return fmt.Errorf("%w: a timeout below zero", sandbox.ErrBadSpec)
	}
	for k, v := range c.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("%w: environment name %q: use none that is empty or has = in it, and no NUL byte", sandbox.ErrBadSpec, k)
		}
	}
	return m.refuseSecrets(ctx, name, c.Env)
}

// Exec runs a command to its end, starting the sandbox if need be, and returns
// the command's exit code. When ctx is done or its output cannot be written, the
// command's processes are killed and the reason is returned. A command that
// cannot be started ends as in a shell: with a word on its standard error and
// 126 or 127.
//
// A Stdin that blocks is read until its next return, beyond the command's end.
func (m *Manager) Exec(ctx context.Context, name string, c sandbox.CommandSpec, s sandbox.Streams) (int, error) {
	c.Input = s.Stdin != nil
	end, err := m.runAttached(ctx, name, c, s.Stderr, func(agent *channel.Channel, w wire.Command) (sandbox.CommandEnd, error) { return agent.Run(ctx, w, s) })
	return end.Code, err
}

// Attach is Exec for a client at the other end of a connection, which is spliced with the
// agent's: see [channel.Channel.Splice]. The error is ErrGone when the client went away.
// The caller sends the frame Exit.
func (m *Manager) Attach(ctx context.Context, name string, c sandbox.CommandSpec, client sandbox.CommandClient) (sandbox.CommandEnd, error) {
	return m.runAttached(ctx, name, c, client.To.Stream(wire.Stderr), func(agent *channel.Channel, w wire.Command) (sandbox.CommandEnd, error) {
		return agent.Splice(ctx, w, client)
	})
}

// runAttached calls run to run a command by the sandbox's agent.
func (m *Manager) runAttached(ctx context.Context, name string, c sandbox.CommandSpec, stderr io.Writer, run func(*channel.Channel, wire.Command) (sandbox.CommandEnd, error)) (sandbox.CommandEnd, error) {
	if err := m.checkCommand(ctx, name, c); err != nil {
		return sandbox.CommandEnd{}, err
	}
	agent, spec, err := m.startAgent(ctx, name)
	if err != nil {
		return sandbox.CommandEnd{}, err
	}
	if e := m.known(name); e != nil {
		defer e.use()()
	}
	w := wireCommand(c, spec)
	w.Keep, w.Overflow = attachedKeep, wire.Wait
	info, _ := m.Get(name) // it was there to be started
	began := now()
	end, err := run(agent, w)
	m.recordCommand(ctx, info, c, howEnded(end, err), err == nil && end.Code == 0, began)
	m.opt.Memories.Changed(ctx, MemoryOwner(info), memory.Cause{Operation: memory.ByCommand, Command: programOf(c)})
	if code, why, unable := unstarted(err); unable {
		if stderr != nil {
			if _, err := fmt.Fprintf(stderr, "sallyport: cannot run %q: %s\n", c.Args[0], why); err != nil {
				return sandbox.CommandEnd{}, err
			}
		}
		return sandbox.CommandEnd{Code: code}, nil
	}
	if err != nil {
		return sandbox.CommandEnd{}, fmt.Errorf("running %q in %s: %w", c.Args[0], name, mapAgent(err))
	}
	return end, nil
}

// unstarted says whether an error is the agent's word that a command could not
// be started, and which code a shell would give.
func unstarted(err error) (code int, why string, unable bool) {
	var said *channel.Error
	if !errors.As(err, &said) || said.Status != http.StatusUnprocessableEntity {
		return 0, "", false
	}
	code = 126
	if said.Code == 127 {
		code = 127
	}
	return code, terminal.Escape(said.Failure.Error), true
}

// mapAgent gives an agent's errors this package's words. Their text is the
// sandbox's, so it is escaped.
func mapAgent(err error) error {
	var said *channel.Error
	if !errors.As(err, &said) {
		if errors.Is(err, channel.ErrSilent) {
			err = fmt.Errorf("%w: stop the sandbox and try again; one that an earlier version made, remove and make again", err)
		}
		return err
	}
	why := terminal.Escape(said.Failure.Error)
	switch said.Status {
	case http.StatusNotFound:
		return fmt.Errorf("%w in its session: `sallyport sandbox commands NAME` shows those there are", sandbox.ErrNoCommand)
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %s", sandbox.ErrBadSpec, why)
	case http.StatusConflict:
		return fmt.Errorf("%w: %s", sandbox.ErrCommandState, why)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", channel.ErrBusy, why)
	}
	return fmt.Errorf("%w: %s", channel.ErrSilent, why)
}

// StartCommand starts a command in the background, starting the sandbox if need
// be. It belongs to the session: it goes on when the daemon ends, and when the
// sandbox sleeps. The last bytes of its output are kept.
func (m *Manager) StartCommand(ctx context.Context, name string, c sandbox.CommandSpec) (sandbox.CommandInfo, error) {
	if err := m.checkCommand(ctx, name, c); err != nil {
		return sandbox.CommandInfo{}, err
	}
	agent, spec, err := m.startAgent(ctx, name)
	if err != nil {
		return sandbox.CommandInfo{}, err
	}
	var info sandbox.CommandInfo
	w := wireCommand(c, spec)
	if err := agent.JSON(ctx, http.MethodPost, "/commands", w, &info); err != nil {
		return sandbox.CommandInfo{}, fmt.Errorf("starting %q in %s: %w", c.Args[0], name, mapAgent(err))
	}
	of, _ := m.Get(name) // it was there to be started
	m.recordCommand(ctx, of, c, "goes on in the background", true, now())
	return info, plausible(&info, w.ID)
}

// Commands lists the commands of the session, the oldest first. A sandbox that
// is stopped has none.
func (m *Manager) Commands(ctx context.Context, name string) ([]sandbox.CommandInfo, error) {
	info, err := m.Visible(ctx, name)
	if err != nil {
		return nil, err
	}
	list := wire.Statuses{}
	if info.State == sandbox.Stopped || info.State == sandbox.Failed {
		return list, nil
	}
	agent, _, err := m.startAgent(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := agent.JSON(ctx, http.MethodGet, "/commands", nil, &list); err != nil {
		return nil, fmt.Errorf("listing the commands of %s: %w", name, mapAgent(err))
	}
	for i := range list {
		if err := plausible(&list[i], list[i].ID); err != nil {
			return nil, err
		}
	}
	return list, nil
}

var commandForm = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// plausible refuses a status that no agent gives.
func plausible(s *sandbox.CommandInfo, id string) error {
	ok := s.ID == id && commandForm.MatchString(s.ID) &&
		(s.State == wire.Running || s.State == wire.Exited) &&
		s.Code >= 0 && s.Code <= 255 && len(s.Signal) <= 16 &&
		s.Stdout.From >= 0 && s.Stdout.From <= s.Stdout.To && s.Stderr.From >= 0 && s.Stderr.From <= s.Stderr.To
	if !ok {
		return fmt.Errorf("%w: what it says of a command is no status", channel.ErrSilent)
	}
	return nil
}

// callCommand is one call about one command.
func (m *Manager) callCommand(ctx context.Context, name, id, method, verb string, in any) (sandbox.CommandInfo, error) {
	agent, err := m.agentForCommand(ctx, name, id)
	if err != nil {
		return sandbox.CommandInfo{}, err
	}
	var info sandbox.CommandInfo
	if err := agent.JSON(ctx, method, "/commands/"+id+verb, in, &info); err != nil {
		return sandbox.CommandInfo{}, fmt.Errorf("command %s of %s: %w", id, name, mapAgent(err))
	}
	return info, plausible(&info, id)
}

// agentForCommand is startAgent for a command that is there: a sandbox that is stopped
// has none, and is not started to find that out.
func (m *Manager) agentForCommand(ctx context.Context, name, id string) (*channel.Channel, error) {
	info, err := m.Visible(ctx, name)
	if err != nil {
		return nil, err
	}
	if !commandForm.MatchString(id) || info.State == sandbox.Stopped || info.State == sandbox.Failed {
		return nil, fmt.Errorf("%w: %q of %s: `sallyport sandbox commands %s` shows those there are", sandbox.ErrNoCommand, id, name, name)
	}
	agent, _, err := m.startAgent(ctx, name)
	return agent, err
}

// Command says how one command is.
func (m *Manager) Command(ctx context.Context, name, id string) (sandbox.CommandInfo, error) {
	return m.callCommand(ctx, name, id, http.MethodGet, "", nil)
}

// Signal sends a signal, as in TERM, to the command's process group.
func (m *Manager) Signal(ctx context.Context, name, id, signal string) (sandbox.CommandInfo, error) {
	return m.callCommand(ctx, name, id, http.MethodPost, "/signal", wire.Name{Signal: signal})
}

// Resize changes the size of a command's terminal.
func (m *Manager) Resize(ctx context.Context, name, id string, s sandbox.Size) (sandbox.CommandInfo, error) {
	return m.callCommand(ctx, name, id, http.MethodPost, "/resize", s)
}

// Kill ends a command and all that it started.
func (m *Manager) Kill(ctx context.Context, name, id string) (sandbox.CommandInfo, error) {
	return m.callCommand(ctx, name, id, http.MethodDelete, "", nil)
}

// Input feeds a command that was started with Input, and then ends its input
// unless open.
func (m *Manager) Input(ctx context.Context, name, id string, from io.Reader, open bool) error {
	agent, err := m.agentForCommand(ctx, name, id)
	if err != nil {
		return err
	}
	path := "/commands/" + id + "/stdin"
	if open {
		path += "?open=1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, from)
	if err != nil {
		return err
	}
	resp, err := agent.Do(req, true)
	if err != nil {
		return fmt.Errorf("feeding command %s of %s: %w", id, name, mapAgent(err))
	}
	return resp.Body.Close()
}

// Output reads a stream of a command's. From says where what is read begins:
// later than asked for when what was before is lost. With Follow it can end
// before the command has, when the reader falls so far behind that something is
// lost: reading on from where it ended tells how much. The caller closes it.
func (m *Manager) Output(ctx context.Context, name, id string, o sandbox.OutputOptions) (from int64, out io.ReadCloser, err error) {
	agent, err := m.agentForCommand(ctx, name, id)
	if err != nil {
		return 0, nil, err
	}
	q := url.Values{"stream": {o.Stream}, "from": {strconv.FormatInt(o.From, 10)}}
	if o.Follow {
		q.Set("follow", "1")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/commands/"+id+"/output?"+q.Encode(), nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := agent.Do(req, true)
	if err != nil {
		return 0, nil, fmt.Errorf("output of command %s of %s: %w", id, name, mapAgent(err))
	}
	from, err = strconv.ParseInt(resp.Header.Get(wire.FromHeader), 10, 64)
	if err != nil || from < 0 {
		_ = resp.Body.Close()
		return 0, nil, fmt.Errorf("output of command %s of %s: %w: it does not say from where", id, name, channel.ErrSilent)
	}
	return from, resp.Body, nil
}

// recordCommand has the audit log say which program ran in a sandbox, and how that went.
// It says no argument and no environment, since they may hold secrets. Nobody waits for
// it: the command has run.
func (m *Manager) recordCommand(ctx context.Context, i sandbox.Info, c sandbox.CommandSpec, how string, ok bool, began time.Time) {
	program := programOf(c)
	ev := state.Lifecycle(recordOf(i), sandbox.CommandEvent, how)
	ev.Message = "command " + program + " in sandbox " + i.Name
	ev.StartTime, ev.Duration = began.UnixMilli(), now().Sub(began).Milliseconds()
	if !ok {
		ev.StatusID = audit.StatusFailure
	}
	audit.Attribute(ctx, ev)
	if err := m.opt.Recorder.Enqueue(ev); err != nil {
		m.opt.Logger.Error("an event was lost", "message", ev.Message, "error", err)
	}
}

// programOf is the name of the program that a command runs.
func programOf(c sandbox.CommandSpec) string {
	return clip(strings.ToValidUTF8(path.Base(c.Args[0]), "\uFFFD"))
}

// howEnded says how a command ended, in words of our own.
func howEnded(end sandbox.CommandEnd, err error) string {
	if _, _, unable := unstarted(err); unable {
		return "could not be started"
	}
	switch {
	case err != nil:
		return "was broken off"
	case end.TimedOut:
		return "ran out of time"
	case end.Signal != "":
		return fmt.Sprintf("exited with %d, by a signal", end.Code)
	}
	return fmt.Sprintf("exited with %d", end.Code)
}
