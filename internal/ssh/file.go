package ssh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"time"

	"sallyport/internal/ipc"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// filing is a use that is sftp, and the sandbox's files.
func (d *Door) filing(by *process, connection, id uint64) (*use, Files, error) {
	if _, err := d.find(by, connection); err != nil {
		return nil, nil, err
	}
	u := d.used(by, connection, id)
	if u == nil || u.what != policy.ProtocolSFTP || u.ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%w: it has ended", errDenied)
	}
	return u, d.o.Files(u.of.info.Name), nil
}

// file does one step with the files of a sandbox.
func (d *Door) file(ctx context.Context, by *process, c fileCall) (reply fileReply, err error) {
	u, files, err := d.filing(by, c.Connection, c.Use)
	if err != nil {
		return reply, err
	}
	done, err := d.wait(u.of)
	if err != nil {
		return reply, err
	}
	defer done()
	if len(c.Path) > wire.MaxPath || len(c.To) > wire.MaxPath || len(c.After) > wire.MaxPath {
		return reply, fmt.Errorf("%w: the path is too long", errExists)
	}
	ctx, cancel := joined(ctx, u.ctx)
	defer cancel()
	at := string(c.Path)
	one := func(i sandbox.File, err error) error {
		reply.Files = []sandbox.File{i}
		return err
	}
	switch c.Do {
	case "stat", "lstat":
		err = one(files.Stat(ctx, at, c.Do == "stat"))
	case "list":
		reply.Files, reply.More, err = files.List(ctx, at, string(c.After))
	case "mkdir":
		err = one(files.Mkdir(ctx, at, c.Mode, false))
	case "move", "replace":
		err = one(files.Move(ctx, at, string(c.To), c.Do == "replace"))
	case "remove", "rmdir":
		// A folder is not removed as a file is, nor a file as a folder.
		var i sandbox.File
		if i, err = files.Stat(ctx, at, false); err == nil && (i.Type == wire.Folder) != (c.Do == "rmdir") {
			err = errExists
		}
		if err == nil {
			err = files.Remove(ctx, at, false)
		}
	case "set":
		err = one(files.Set(ctx, at, c.Set))
	default:
		err = fmt.Errorf("%w: %.16q", errExists, c.Do)
	}
	return reply, mapped(err)
}

// joined is done when either is.
func joined(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(sandbox.ForOwner(a, sandbox.OwnerOf(b)))
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}

// mapped gives errors of files those of the link.
func mapped(err error) error {
	for from, to := range map[error]error{
		sandbox.ErrNoFile: errNoFile, sandbox.ErrFileState: errExists, sandbox.ErrNoSpace: errExists, sandbox.ErrFileDenied: errOwner,
		sandbox.ErrEarlier: errEarlier,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w (%w)", err, to)
		}
	}
	return err
}

// stream opens a file of a use. What it writes as a whole is there when its end has
// come, and not before.
func (d *Door) stream(ctx context.Context, by *process, c streamCall) (_ ipc.None, _ *os.File, err error) {
	u, files, err := d.filing(by, c.Connection, c.Use)
	if err != nil {
		return ipc.None{}, nil, err
	}
	done, err := d.wait(u.of)
	if err != nil {
		return ipc.None{}, nil, err
	}
	defer done()
	if len(c.Path) > wire.MaxPath {
		return ipc.None{}, nil, fmt.Errorf("%w: the path is too long", errExists)
	}
	select {
	case u.streams <- struct{}{}:
	default:
		return ipc.None{}, nil, fmt.Errorf("%w: %d files are open", errExists, maxStreams)
	}
	taken := true
	defer func() {
		if taken {
			<-u.streams
		}
	}()
	at := string(c.Path)
	var contents io.ReadCloser
	if c.Write {
		err = writable(ctx, u, files, at)
	} else {
		_, contents, err = files.Read(u.ctx, at)
	}
	if err != nil {
		return ipc.None{}, nil, mapped(err)
	}
	here, there, err := ipc.Pair()
	if err != nil {
		if contents != nil {
			_ = contents.Close()
		}
		return ipc.None{}, nil, err
	}
	carried := d.carry(u, func() error {
		defer func() { <-u.streams }()
		defer here.Close()
		defer context.AfterFunc(u.ctx, func() { _ = here.Close() })()
		if c.Write {
			return ended(here, u.write(here, func(from io.Reader) error {
				if c.End != nil {
					_, err := files.Append(u.ctx, at, from, sandbox.AppendOptions{Mode: c.Mode, At: c.End})
					return err
				}
				_, err := files.Write(u.ctx, at, from, sandbox.WriteOptions{Mode: c.Mode})
				return err
			}))
		}
		defer contents.Close()
		n, err := io.Copy(wire.NewWriter(here).Stream(wire.Stdout), contents)
		u.sum.out.Add(n)
		return ended(here, err)
	})
	if !carried {
		_, _ = here.Close(), there.Close()
		if contents != nil {
			_ = contents.Close()
		}
		return ipc.None{}, nil, fmt.Errorf("%w: the connection has ended", errDenied)
	}
	taken = false
	return ipc.None{}, there, nil
}

// carry begins to carry a file, unless the use has ended: whoever waits for all of them
// waits for this one too.
func (d *Door) carry(u *use, f func() error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u.closed {
		return false
	}
	u.files.Go(f)
	return true
}

// writable says early why a file could not be written.
func writable(ctx context.Context, u *use, files Files, at string) error {
	ctx, cancel := joined(ctx, u.ctx)
	defer cancel()
	i, err := files.Stat(ctx, at, true)
	switch {
	case err == nil && i.Type != wire.Regular:
		return fmt.Errorf("%w: it is no regular file", errExists)
	case errors.Is(err, sandbox.ErrNoFile):
		i, err = files.Stat(ctx, path.Dir(at), true)
		if err == nil && i.Type != wire.Folder {
			err = errNoFile
		}
	}
	return err
}

// write puts what comes into a file. One that is written as a whole has not changed
// unless its end comes.
func (u *use) write(from io.Reader, to func(io.Reader) error) error {
	contents, feed := io.Pipe()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		r, buf := bufio.NewReaderSize(from, wire.MaxFrame), make([]byte, wire.MaxFrame)
		for {
			k, p, err := wire.Read(r, buf)
			if err != nil || k != wire.Stdin {
				_ = feed.CloseWithError(errGone)
				return
			}
			if len(p) == 0 {
				_ = feed.Close()
				return
			}
			u.sum.in.Add(int64(len(p)))
			if _, err := feed.Write(p); err != nil {
				return // it has failed
			}
		}
	}()
	err := to(contents)
	_ = contents.CloseWithError(errGone)
	if c, ok := from.(*net.UnixConn); ok && err != nil {
		_ = c.CloseRead()
	}
	<-fed
	return err
}

// ended says how the carrying of a file went.
func ended(to *net.UnixConn, err error) error {
	var e ending
	if err = mapped(err); err != nil {
		e.Error = err.Error()
		for code, is := range known {
			if errors.Is(err, is) {
				e.Known = code
			}
		}
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_ = to.SetWriteDeadline(time.Now().Add(answerWithin))
	_ = wire.NewWriter(to).Write(wire.Exit, text) // who went away does not want it
	return nil
}
