package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"sallyport/sandbox"
	"sallyport/sandbox/agent"
)

const killTimeout = 10 * time.Second

// Exec runs a command to its end and returns its exit code. When ctx is done
// or its output cannot be written, the command's processes are killed and the
// reason is returned. With a TTY all output is Stdout's.
//
// A Stdin that blocks is read until its next return, beyond the command's end.
func (r *Runtime) Exec(ctx context.Context, id string, c sandbox.Command) (int, error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return 0, err
	}
	if !info.State.Running {
		return 0, fmt.Errorf("sandbox %s is not running: start it first", id)
	}
	user := c.User
	if user == "" {
		user = info.Config.Labels[labelUser]
	}
	command := uuid.NewString()
	made, err := r.client.ExecCreate(ctx, info.ID, client.ExecCreateOptions{
		User:         user,
		TTY:          c.TTY,
		AttachStdin:  c.Stdin != nil,
		AttachStdout: true,
		AttachStderr: true,
		Env:          append(environment(c.Env, sandbox.Container{}), agent.CommandEnv+"="+command),
		WorkingDir:   c.Workdir,
		Cmd:          c.Args,
	})
	if err != nil {
		return 0, mapError(fmt.Errorf("running in sandbox %s: %w", id, err))
	}
	if err := r.carry(ctx, made.ID, c); err != nil {
		r.kill(ctx, info.ID, command)
		return 0, mapError(fmt.Errorf("running in sandbox %s: %w", id, err))
	}
	return r.exitCode(ctx, made.ID)
}

// carry starts the command and moves its streams until it has ended.
func (r *Runtime) carry(ctx context.Context, exec string, c sandbox.Command) error {
	conn, err := r.client.ExecAttach(ctx, exec, client.ExecAttachOptions{TTY: c.TTY})
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Conn.Close() })
	defer stop()
	if c.Stdin != nil {
		go func() {
			io.Copy(conn.Conn, c.Stdin) // an error here shows in the output's end
			conn.CloseWrite()
		}()
	}
	stdout, stderr := writer(c.Stdout), writer(c.Stderr)
	if c.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func writer(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// exitCode waits for the engine to notice the end of a command whose output has
// ended. Both come from the same event; the output may be seen first.
func (r *Runtime) exitCode(ctx context.Context, exec string) (int, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		res, err := r.client.ExecInspect(ctx, exec, client.ExecInspectOptions{})
		switch {
		case cerrdefs.IsNotFound(err):
			return 0, fmt.Errorf("%w: it restarted while the command ran, whose outcome is not known", sandbox.ErrEngine)
		case err != nil:
			return 0, mapError(fmt.Errorf("asking for the command's end: %w", err))
		case !res.Running:
			return res.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// kill ends a command's processes through the agent: the engine has no way to
// signal a command.
func (r *Runtime) kill(ctx context.Context, container, command string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	err := func() error {
		made, err := r.client.ExecCreate(ctx, container, client.ExecCreateOptions{
			User:         "0:0",
			AttachStdout: true,
			AttachStderr: true,
			Cmd:          []string{agentPath, "kill", command},
		})
		if err != nil {
			return err
		}
		return r.carry(ctx, made.ID, sandbox.Command{})
	}()
	if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) && !errors.Is(err, io.EOF) {
		r.cfg.Log.Warn("cannot end a cancelled command", "container", container, "error", err)
	}
}
