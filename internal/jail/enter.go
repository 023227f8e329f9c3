package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Enter gives the process its root directory and drops every privilege, on all of its
// threads. Call it first in a process that [Start] began, so that its memory holds nothing
// from a time with privileges; a process that gets an error must end. In any other process
// it does nothing.
func Enter() error {
	text, ok := os.LookupEnv(marker)
	if !ok {
		return nil
	}
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("entering the jail: %w", err)
	}
	if err := p.enter(); err != nil {
		return fmt.Errorf("entering the jail: %w", err)
	}
	return os.Unsetenv(marker)
}

// owned reports that this process has a root directory of its own.
var owned atomic.Bool

func (p *plan) enter() error {
	// Of no effect: it says whether the rest can be done.
	if err := onAllThreads(unix.SYS_GETPID); err != nil {
		return err
	}
	if err := CloseOthers(3 + p.Files); err != nil {
		return fmt.Errorf("closing what it was not given: %w", err)
	}
	if p.Spare {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
			return fmt.Errorf("being the first to go: %w", err)
		}
	}
	if p.Drop {
		if err := pivotRoot(p.Root); err != nil {
			return fmt.Errorf("taking %s for root: %w", p.Root, err)
		}
	}
	if err := p.limit(); err != nil {
		return err
	}
	if p.Drop {
		if err := p.drop(); err != nil {
			return err
		}
		owned.Store(true)
	}
	unix.Umask(0o077)
	// A change of user has cleared this.
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0); err != nil {
		return fmt.Errorf("PR_SET_PDEATHSIG: %w", err)
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	return nil
}

// errCgo says why a program cannot enter: only the Go runtime knows its threads,
// and with cgo there are others.
var errCgo = errors.New("this program was built with cgo: build it with CGO_ENABLED=0")

// onAllThreads makes a system call on every thread.
func onAllThreads(number uintptr, a ...uintptr) error {
	var args [6]uintptr
	copy(args[:], a)
	_, _, e := syscall.AllThreadsSyscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
	switch e {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return errCgo
	}
	return e
}

// CloseOthers closes the descriptors from first on that this process came with, and leaves
// those of Go's runtime. It is for a process that has just begun: all that Go opens
// closes by itself at execve(2), but not all that the one who starts jails was
// started with need do.
func CloseOthers(first int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < first {
			continue
		}
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // ReadDir's own is gone by now
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			return err
		}
		if poller[to] && flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

// poller is what the runtime has made for itself by now: its netpoller's two.
// They have FD_CLOEXEC, which nothing has that came through execve(2).
var poller = map[string]bool{"anon_inode:[eventpoll]": true, "anon_inode:[eventfd]": true}

// pivotRoot makes a folder, read-only, all that there is of file systems
// (pivot_root(2), with "." twice).
func pivotRoot(dir string) error {
	for _, step := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount(dir, dir, "", unix.MS_BIND, "") },
		func() error {
			return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		},
		func() error { return unix.Chdir(dir) },
		func() error { return unix.PivotRoot(".", ".") },
		func() error { return unix.Unmount(".", unix.MNT_DETACH) },
		func() error { return unix.Chdir("/") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// lowerLimit sets a limit where there is to be one, 0 being none.
func lowerLimit(name string, resource int, most uint64) error {
	if most == 0 {
		return nil
	}
	var have unix.Rlimit
	if err := unix.Getrlimit(resource, &have); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	most = min(most, have.Max)
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// limit sets the limits of resources while they may still be raised.
func (p *plan) limit() error {
	// A limit of 0 would not keep the memory from a program that takes cores, and one of 1
	// does (core(5)).
	if err := lowerLimit("RLIMIT_CORE", unix.RLIMIT_CORE, 1); err != nil {
		return err
	}
	if err := lowerLimit("RLIMIT_FSIZE", unix.RLIMIT_FSIZE, p.FileSize); err != nil {
		return err
	}
	if err := lowerLimit("RLIMIT_DATA", unix.RLIMIT_DATA, p.Memory); err != nil {
		return err
	}
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	if have.Max < p.OpenFiles {
		want := unix.Rlimit{Cur: p.OpenFiles, Max: p.OpenFiles}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &want) == nil {
			return nil
		} // fs.nr_open is less, or this is not root: it does with what there is
	}
	have.Cur = have.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	return nil
}

// Of linux/securebits.h, each with its lock in the bit above.
const (
	secNoRoot            = 1 << 0
	secNoSetuidFixup     = 1 << 2
	secKeepCapsLocked    = 1 << 5
	secNoCapAmbientRaise = 1 << 6
	secBits              = secNoRoot | secNoRoot<<1 | secNoSetuidFixup | secNoSetuidFixup<<1 | secKeepCapsLocked | secNoCapAmbientRaise | secNoCapAmbientRaise<<1
)

// drop gives up user, groups and capabilities.
func (p *plan) drop() error {
	if err := boundCapabilities(0); err != nil {
		return err
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return fmt.Errorf("clearing the ambient capabilities: %w", err)
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secBits); err != nil {
		return fmt.Errorf("PR_SET_SECUREBITS: %w", err)
	}
	gid, uid := uintptr(p.IDs.GID), uintptr(p.IDs.UID)
	if err := onAllThreads(unix.SYS_SETGROUPS, 0, 0); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := onAllThreads(unix.SYS_SETRESGID, gid, gid, gid); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := onAllThreads(unix.SYS_SETRESUID, uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	return setCapabilities(0)
}

// KeepCapabilities gives up all capabilities but those of a set of the first 32, a bit
// each, on all threads and for good: no program that is executed gets another
// (no_new_privs). It is for a process that stays root, of some files only.
func KeepCapabilities(kept uint32) error {
	if err := boundCapabilities(kept); err != nil {
		return err
	}
	if err := setCapabilities(kept); err != nil {
		return err
	}
	return onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
}

// boundCapabilities leaves no others in the bounding set.
func boundCapabilities(kept uint32) error {
	for c := uintptr(0); ; c++ {
		if c < 32 && kept&(1<<c) != 0 {
			continue
		}
		err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_SETPCAP {
			return nil // beyond the last that this kernel has
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", c, err)
		}
	}
}

// setCapabilities makes them the effective and permitted ones.
func setCapabilities(kept uint32) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: kept, Permitted: kept}}
	err := onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&caps[0])))
	runtime.KeepAlive(&head)
	runtime.KeepAlive(&caps)
	if err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
