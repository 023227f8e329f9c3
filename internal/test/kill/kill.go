// Package kill ends a process at a system call, with SIGKILL.
package kill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// At runs a command, and kills it at the nth stop. There are two of them, the entry and
// the exit, for each system call by which a thread of the process changes or syncs dir or
// what is below it. A call that is killed at its entry is not made. At returns the name
// of the call; it is empty if the command ended by itself before.
func At(cmd *exec.Cmd, dir string, n int) (call string, err error) {
	runtime.LockOSThread() // one thread traces, ptrace(2)
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace, cmd.SysProcAttr.Setpgid = true, true
	if err := cmd.Start(); err != nil {
		return "", err
	}
	pid := cmd.Process.Pid
	defer cmd.Wait() // for its output: the rest is known
	under := map[int]string{}
	begun := false
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", os.NewSyscallError("wait4", err)
		}
		switch {
		case !status.Stopped():
			if tid != pid {
				continue
			}
			if call == "" && status != 0 {
				err = fmt.Errorf("status %#x", int(status))
			}
			return call, err
		case call != "":
			continue // it is being killed
		}
		signal := int(status.StopSignal())
		switch {
		case !begun: // at execve
			begun, signal = true, 0
			err = unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
		case status.StopSignal() == unix.SIGTRAP|0x80:
			signal = 0
			var i info
			if i, err = syscallOf(tid); err == nil && i.op == unix.PTRACE_SYSCALL_INFO_ENTRY {
				under[tid] = i.change(pid, tid, dir)
			}
			if under[tid] != "" {
				if n--; n == 0 {
					call = under[tid]
					err = unix.Kill(pid, unix.SIGKILL)
					break
				}
			}
		case status.StopSignal() == unix.SIGTRAP, status.StopSignal() == unix.SIGSTOP:
			signal = 0 // a thread begins
		}
		if call == "" && err == nil {
			err = unix.PtraceSyscall(tid, signal)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return "", errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
	}
}

// info is the kernel's struct ptrace_syscall_info.
type info struct {
	op     uint8
	number uint64
	args   [6]uint64
}

func syscallOf(tid int) (i info, err error) {
	var b [88]byte
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), uintptr(len(b)), uintptr(unsafe.Pointer(&b)), 0, 0)
	if e != 0 {
		return i, os.NewSyscallError("ptrace", e)
	}
	i.op, i.number = b[0], binary.NativeEndian.Uint64(b[24:])
	for n := range i.args {
		i.args[n] = binary.NativeEndian.Uint64(b[32+8*n:])
	}
	return i, nil
}

// Calls that change a file: by its descriptor, and by its path below a folder's.
var (
	byFile = map[uint64]string{
		unix.SYS_WRITE: "write", unix.SYS_WRITEV: "writev", unix.SYS_PWRITE64: "pwrite64", unix.SYS_PWRITEV: "pwritev", unix.SYS_PWRITEV2: "pwritev2",
		unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate", unix.SYS_FCHMOD: "fchmod",
	}
	byPath = map[uint64]string{
		unix.SYS_OPENAT: "openat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
		unix.SYS_LINKAT: "linkat", unix.SYS_FCHMODAT: "fchmodat",
	}
)

// change is the name of a call that changes what is below dir; otherwise it is empty.
func (i info) change(pid, tid int, dir string) string {
	file := func() string {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, int32(i.args[0])))
		return path
	}
	name, path := byFile[i.number], ""
	if name != "" {
		path = file()
	} else {
		name = byPath[i.number]
		if name == "" || name == "openat" && i.args[2]&(unix.O_CREAT|unix.O_TRUNC) == 0 {
			return ""
		}
		path = stringAt(tid, i.args[1])
		if !filepath.IsAbs(path) {
			path = filepath.Join(file(), path)
		}
	}
	if path == dir || strings.HasPrefix(path, dir+"/") {
		return name
	}
	return ""
}

// stringAt is a path in the memory of a thread.
func stringAt(tid int, address uint64) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", tid))
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, unix.PathMax)
	n, _ := f.ReadAt(b, int64(address))
	path, _, _ := strings.Cut(string(b[:n]), "\x00")
	return path
}
