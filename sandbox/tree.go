package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"sallyport/internal/terminal"
)

// readTree is a folder that may change meanwhile, which it does not close before its
// own end, as a tar archive for package manifest. Its end says whether all was read.
func readTree(ctx context.Context, from *os.File) io.ReadCloser {
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		err := run(ctx, from, w, "tar", "--create", "--file=-", "--directory=/proc/self/fd/3", "--sort=name", "--format=posix",
			"--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f",
			"--numeric-owner", "--sparse-version=0.0", "--sparse", "--xattrs", "--xattrs-include=*", "--acls", "--one-file-system", ".")
		// tar(1): "Some files differ": some changed or went while they were read.
		if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 1 {
			err = nil
		}
		_ = w.CloseWithError(err)
		done <- err
	}()
	return &living{r, cancel, done}
}

type living struct {
	*io.PipeReader
	cancel func()
	done   <-chan error
}

// Close ends what is being read.
func (l *living) Close() error {
	l.cancel()
	_ = l.PipeReader.Close()
	<-l.done
	return nil
}

// emptyTree removes what is in a folder. os.RemoveAll has an open file for each
// level, which a sandbox can nest until this process has no more.
func emptyTree(ctx context.Context, dir string) error {
	return run(ctx, nil, nil, "find", dir, "-mindepth", "1", "-delete")
}

// removeTree removes a folder with what is in it, if it is there.
func removeTree(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(emptyTree(ctx, dir), os.RemoveAll(dir))
}

// most is the address space of a program that reads a sandbox's files, in KiB, as
// ulimit has it: they keep the names of whole folders, and a sandbox can make tens
// of millions. A million long ones take half of it.
const most = 1 << 20

// run runs a program of the host's on a sandbox's files, and gives the last of what
// it says as the error. Its descriptor 3 is dir, unless that is nil.
func run(ctx context.Context, dir *os.File, out io.Writer, name string, args ...string) error {
	var said tail
	words := append([]string{"-c", `ulimit -v "$1" && shift && exec "$@"`, "sh", strconv.Itoa(most), name}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", words...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = out, &said
	if dir != nil {
		cmd.ExtraFiles = []*os.File{dir}
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", name, context.Cause(ctx))
		}
		return fmt.Errorf("%s: %w: %s", name, err, said.line())
	}
	return nil
}

// tail keeps the last of what is written to it: a program can have something to say
// of each of a sandbox's files.
type tail struct{ text []byte }

const tailSize = 4 << 10 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-tailSize):]...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

// line is the end of the last one, which can be the path of a file nested deeply,
// fit for a terminal.
func (t *tail) line() string {
	const most = 300 // bytes
	text := strings.TrimSpace(string(t.text))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if over := len(text) - most; over > 0 {
		text = "…" + text[over:]
	}
	return terminal.Escape(text)
}
