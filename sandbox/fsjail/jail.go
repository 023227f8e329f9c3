// Package fsjail gives an operator the files of a sandbox that does not run, as its agent
// would, without starting anything that is inside.
//
// [Open] starts a process that serves them, for one connection. Before it looks at the
// first of them it holds:
//
//   - its root is the sandbox's files, as an overlay of what the sandbox has written over
//     its image, and nothing of the host's is below it, whatever a link says: the mounts
//     are its own and go with it;
//   - no device can be opened there, and nothing executed (nodev, nosuid, noexec);
//   - it is root among those files only: of all capabilities it has those that pass by the
//     modes and owners of files, and it cannot get others (no_new_privs);
//   - it sees no other process and no network, and has no descriptor of the daemon's but
//     its connection.
//
// The kernel reads the sandbox's file system as it does while the sandbox runs. Nobody
// else may use those files meanwhile.
package fsjail

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is the argument with which a program calls [Run].
const Command = "jail"

// Tree names the host's folders of a sandbox's files. Paths are absolute.
type Tree struct {
	Upper  string   // what it has written; the overlay's work folder is beside it
	Lower  []string // its image, the uppermost first
	Memory string   // what it has at /memory
}

// plan tells the process what to do, by its environment.
type plan struct {
	Tree
	Key ed25519.PublicKey // of whom it answers
}

const planVariable = "SALLYPORT_JAIL"

const (
	// startTime is how long the process may take until it serves.
	startTime = 20 * time.Second
	// endTime is how long it may run once its connection is closed.
	endTime = 5 * time.Second
)

// Open starts the process and returns the connection on which it serves the holder of the
// key. Closing the connection ends the process and returns when it has released the files.
func Open(t Tree, key ed25519.PublicKey) (net.Conn, error) {
	text, err := json.Marshal(plan{t, key})
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "jail")
	defer theirs.Close()
	ours, err := connection(os.NewFile(uintptr(fds[0]), "jail"))
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd := &exec.Cmd{
		// By /proc, so that it is the same program even after an upgrade in place.
		Path: "/proc/self/exe", Args: []string{"sallyport", Command}, Dir: "/",
		Env: []string{planVariable + "=" + string(text)}, ExtraFiles: []*os.File{theirs}, Stderr: &said,
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid:    true,
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a sandbox's files: %w", err), ours.Close())
	}
	c := &conn{addressed: addressed{ours}, ended: make(chan struct{}), kill: cmd.Process.Kill}
	go func() {
		_ = cmd.Wait() // what it has to say, it has said
		close(c.ended)
	}()
	_ = theirs.Close()
	if err := c.ready(); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("opening a sandbox's files: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return c, nil
}

// conn is the daemon's end.
type conn struct {
	addressed
	kill  func() error
	once  sync.Once
	ended chan struct{} // the process has
}

// ready waits until the process serves.
func (c *conn) ready() error {
	if err := c.SetDeadline(time.Now().Add(startTime)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

func (c *conn) Close() (err error) {
	c.once.Do(func() {
		err = c.addressed.Close()
		select {
		case <-c.ended:
		case <-time.After(endTime):
			_ = c.kill()
			<-c.ended
		}
	})
	return err
}

// addressed is a connection with the address that an agent signs. The ends of a socketpair
// have none.
type addressed struct{ net.Conn }

var here = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}

func (addressed) LocalAddr() net.Addr  { return here }
func (addressed) RemoteAddr() net.Addr { return here }

// connection makes a connection of a file, which it closes.
func connection(f *os.File) (net.Conn, error) {
	defer f.Close()
	return net.FileConn(f)
}
