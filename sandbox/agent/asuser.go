package agent

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asUser runs f with the rights to files that a user inside has, the agent's own
// for nobody named. f runs on a thread that is its alone: credentials are each
// thread's (credentials(7)), gVisor knows no setfsuid(2), and only the effective
// user changes, so that the user cannot signal or trace us meanwhile. Other
// goroutines, and what is opened before or after, keep ours.
func asUser(user string, f func() error) error {
	if user == "" {
		return f()
	}
	a, err := lookup(user)
	if err != nil {
		return &userError{err}
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := assume(a)
		if err == nil {
			err = f()
		}
		if back() {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

// userError: whom a request names cannot be had.
type userError struct{ error }

func (e *userError) Unwrap() error { return e.error }

// assume changes this thread's rights, and returns what gives it back its own.
func assume(a account) (back func() bool, err error) {
	uid, gid := unix.Geteuid(), unix.Getegid()
	groups, err := unix.Getgroups()
	if err != nil {
		return func() bool { return true }, err
	}
	own := make([]uint32, len(groups))
	for i, g := range groups {
		own[i] = uint32(g)
	}
	back = func() bool {
		return seteuid(uint32(uid)) == nil && setegid(uint32(gid)) == nil && setgroups(own) == nil
	}
	// Groups first: it needs the rights that setting the user gives up.
	if err = setgroups(a.groups); err == nil {
		if err = setegid(a.gid); err == nil {
			err = seteuid(a.uid)
		}
	}
	if err != nil {
		err = fmt.Errorf("taking the rights of user %d: %w", a.uid, err)
	}
	return back, err
}

// The package syscall would set them for all threads.

const same = ^uintptr(0) // -1: leave as it is

func seteuid(id uint32) error {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(id), same)
	return failed(e)
}

func setegid(id uint32) error {
	_, _, e := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(id), same)
	return failed(e)
}

func setgroups(ids []uint32) error {
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(ids)), uintptr(unsafe.Pointer(unsafe.SliceData(ids))), 0)
	return failed(e)
}

func failed(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
