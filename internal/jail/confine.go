package jail

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// State is a process's confinement beside the seccomp filter.
type State struct {
	UID  int
	Root bool // has a root of its own
	// Landlock is the version of the kernel's, 0 where it has none or has it
	// turned off: then own root and filter stand alone.
	Landlock int
}

// Confine closes the jail around the calling process, all of its threads, for good.
// Without a root directory of its own the process may read the paths and everything below
// them, and nothing else; with one, all of that.
//
// It fails in a process that [Enter] has not prepared.
func Confine(paths ...string) (State, error) {
	s, err := confine(paths)
	if err != nil {
		err = fmt.Errorf("confining: %w", err)
	}
	return s, err
}

func confine(paths []string) (State, error) {
	s := State{UID: os.Geteuid(), Root: owned.Load()}
	if s.Root {
		paths = []string{"/"}
	}
	if err := check(); err != nil {
		return s, err
	}
	// Package net finds out once what this host can, by binding sockets.
	if c, err := net.ListenPacket("udp", ":0"); err == nil {
		_ = c.Close()
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return s, fmt.Errorf("PR_SET_DUMPABLE: %w", err)
	}
	var err error
	if s.Landlock, err = restrict(paths); err != nil {
		return s, err
	}
	if !s.Root && s.Landlock == 0 {
		return s, errors.New("this kernel has no Landlock: a jail needs that, or root")
	}
	if err := installFilter(); err != nil {
		return s, err
	}
	return s, nil
}

// check fails where there is a privilege left.
func check() error {
	if err := onAllThreads(unix.SYS_GETPID); err != nil {
		return err
	}
	if os.Geteuid() == 0 || os.Getuid() == 0 {
		return errors.New("this process is root's: it is started by the daemon only")
	}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for _, c := range caps {
		if c.Effective|c.Permitted|c.Inheritable != 0 {
			return errors.New("this process has capabilities")
		}
	}
	on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || on != 1 {
		return fmt.Errorf("no_new_privs is not set: %w", err)
	}
	return nil
}

// Landlock is the kernel's version of Landlock; 0 if it is not built in or turned off.
func Landlock() int {
	version, err := llsys.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// restrict allows reading of the paths, and nothing else that Landlock of this
// kernel knows, but for connecting and sending: those are the process's work.
func restrict(paths []string) (version int, err error) {
	if version = Landlock(); version == 0 {
		return 0, nil
	}
	paths = slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		_, err := os.Stat(p)
		return err != nil
	})
	read := landlock.AccessFSSet(llsys.AccessFSReadFile | llsys.AccessFSReadDir)
	file := landlock.AccessFSSet(llsys.AccessFSReadFile)
	var rules []landlock.Rule
	for _, p := range paths {
		if i, err := os.Stat(p); err == nil && !i.IsDir() {
			rules = append(rules, landlock.PathAccess(file, p))
		} else {
			rules = append(rules, landlock.PathAccess(read, p))
		}
	}
	all := landlock.MustConfig(landlock.V7.HandledAccessFS, landlock.AccessNetSet(llsys.AccessNetBindTCP), landlock.V7.Scoped)
	if err := all.BestEffort().Restrict(rules...); err != nil {
		return version, fmt.Errorf("landlock: %w", err)
	}
	return version, nil
}
