package fsjail

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sallyport/internal/jail"
	"sallyport/sandbox/agent"
)

// Run is the process that [Open] starts. It returns when its connection is closed.
func Run() error {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planVariable)), &p); err != nil {
		return fmt.Errorf("the daemon starts this by itself: %w", err)
	}
	os.Clearenv()
	if err := jail.CloseOthers(4); err != nil {
		return fmt.Errorf("closing what it was not given: %w", err)
	}
	c, err := connection(os.NewFile(3, "connection"))
	if err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	if err := jail.KeepCapabilities(kept); err != nil {
		return err
	}
	unix.Umask(0o022)
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	return agent.NewFiles(p.Key).Serve(listenOnce(c))
}

// enter makes the sandbox's files the only file system of the process.
func (p *plan) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	// An overlay's options fit on one page, and the host's paths are long: each folder
	// gets a short name in a file system of its own.
	own := filepath.Dir(p.Upper)
	folders := map[string]int{}
	var lower []string
	for i, dir := range append([]string{own, p.Memory}, p.Lower...) {
		fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return &os.PathError{Op: "open_tree", Path: dir, Err: err}
		}
		defer unix.Close(fd)
		name := strconv.Itoa(i)
		if folders[name] = fd; i > 1 {
			lower = append(lower, name)
		}
	}
	if err := unix.Mount("tmpfs", own, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=1m"); err != nil {
		return &os.PathError{Op: "mount", Path: own, Err: err}
	}
	if err := unix.Chdir(own); err != nil {
		return err
	}
	for name, fd := range folders {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		if name == "1" {
			continue // the memory
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return os.NewSyscallError("move_mount", err)
		}
	}
	const root = "root"
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	options := "index=off,lowerdir=" + strings.Join(lower, ":") + ",upperdir=0/" + filepath.Base(p.Upper) + ",workdir=0/work"
	if err := unix.Mount("overlay", root, "overlay", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return &os.PathError{Op: "mount", Path: "overlay", Err: err}
	}
	if err := showMemory(root, folders["1"]); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return unix.Chdir(root) },
		func() error { return unix.PivotRoot(".", ".") },
		func() error { return unix.Unmount(".", unix.MNT_DETACH) },
		func() error { return unix.Chdir("/") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("taking the sandbox's files for root: %w", err)
		}
	}
	return nil
}

// showMemory mounts the sandbox's memory at /memory, as when it runs, if there is a plain
// folder.
func showMemory(root string, memory int) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	at, err := unix.Openat(dir, "memory", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := unix.MountSetattr(memory, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	}); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	return os.NewSyscallError("move_mount", unix.MoveMount(memory, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// kept are the capabilities to pass by modes and owners of files, and to take on the
// rights of a user inside.
const kept = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// once is a listener with one connection. It ends with the connection.
type once struct {
	first chan net.Conn
	done  chan struct{}
	close func()
}

func listenOnce(c net.Conn) *once {
	l := &once{first: make(chan net.Conn, 1), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	l.first <- &last{addressed{c}, l}
	return l
}

// Accept returns the connection, then waits until it is closed.
func (l *once) Accept() (net.Conn, error) {
	select {
	case c := <-l.first:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *once) Close() error   { l.close(); return nil }
func (l *once) Addr() net.Addr { return here }

type last struct {
	addressed
	of *once
}

func (c *last) Close() error {
	defer c.of.close()
	return c.addressed.Close()
}
