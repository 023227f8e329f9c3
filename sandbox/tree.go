package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// copyTree gives the empty folder to what is in from, which nobody changes
// meanwhile, with owners, modes, attributes, links and devices. It is cp's, which
// shares blocks where the file system can (ioctl_ficlonerange(2)).
func copyTree(ctx context.Context, from, to string) error {
	return run(ctx, nil, nil, "cp", "-a", "--reflink=auto", "--", from+"/.", to+"/.")
}

// packTree writes a folder as a tar archive, the same one each time.
func packTree(ctx context.Context, from string, w io.Writer) error {
	return run(ctx, nil, w, "tar", "--create", "--file=-", "--directory="+from, "--sort=name", "--format=posix",
		"--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f",
		"--numeric-owner", "--sparse-version=0.0", "--sparse", "--xattrs", "--xattrs-include=*", "--acls", "--one-file-system", ".")
}

// unpackTree is its inverse, into an empty folder. The archive is one of ours: what
// holds it is sealed.
func unpackTree(ctx context.Context, r io.Reader, to string) error {
	err := run(ctx, r, nil, "tar", "--extract", "--file=-", "--directory="+to,
		"--numeric-owner", "--same-owner", "--preserve-permissions", "--sparse", "--xattrs", "--xattrs-include=*", "--acls", "--delay-directory-restore")
	if err == nil {
		_, err = io.Copy(io.Discard, r) // to where the seal says that it is whole
	}
	return err
}

// emptyTree removes what is in a folder.
func emptyTree(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if rerr := os.RemoveAll(filepath.Join(dir, e.Name())); rerr != nil {
			return rerr
		}
	}
	return err
}

// run runs a program of the host's and gives the last of what it says as the error.
func run(ctx context.Context, in io.Reader, out io.Writer, name string, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", name, context.Cause(ctx))
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, lines[len(lines)-1])
	}
	return nil
}
