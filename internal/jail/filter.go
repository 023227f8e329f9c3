package jail

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// allowed are the system calls that Go's runtime, its net and os packages and
// our own reading and writing make, without regard to arguments. The frequent
// ones come first, for kernels before 5.11; later ones remember the answers.
var allowed = []uintptr{
	// Connections and files that are open.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP, unix.SYS_SENDMSG, unix.SYS_RECVMSG,
	unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_FDATASYNC, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_CLOSE, unix.SYS_ACCEPT4,
	unix.SYS_CONNECT, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SHUTDOWN,
	unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_FSYNC, unix.SYS_FTRUNCATE,
	unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_PIPE2, unix.SYS_DUP, unix.SYS_DUP3,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EVENTFD2,
	// Files by their path, within what the root and Landlock leave.
	sysFstatat, unix.SYS_STATX, unix.SYS_GETDENTS64, unix.SYS_READLINKAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
	// Memory, threads and time of this process.
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_MINCORE, unix.SYS_MREMAP,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER,
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_GETTIMEOFDAY,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER,
	unix.SYS_GETRANDOM, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETPPID,
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_CAPGET,
	unix.SYS_GETRUSAGE, unix.SYS_UNAME, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// killed are calls that nothing of ours makes and an intruder wants: the
// process ends at the attempt, and its keeper says so.
var killed = []uintptr{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
	unix.SYS_PIDFD_GETFD, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSCONFIG, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE,
	unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETGROUPS, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_CAPSET, unix.SYS_QUOTACTL, unix.SYS_ACCT,
	unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_PERSONALITY,
}

// Answers of a filter (linux/seccomp.h).
const (
	retKill  = unix.SECCOMP_RET_KILL_PROCESS
	retAllow = unix.SECCOMP_RET_ALLOW
	retDeny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	retNone  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// Offsets in struct seccomp_data. Arguments are 64 bits, low half first on the
// little-endian machines that Sallyport runs on.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

func low(arg int) bpf.Instruction {
	return bpf.LoadAbsolute{Off: uint32(offArgs + 8*arg), Size: 4}
}

// high is the other half.
func high(arg int) bpf.Instruction {
	return bpf.LoadAbsolute{Off: uint32(offArgs + 8*arg + 4), Size: 4}
}

func ret(v uint32) bpf.Instruction { return bpf.RetConstant{Val: v} }

// on answers one system call with what its rule says, which must end in a
// return whatever the arguments are.
func on(number uintptr, rule ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(number), SkipFalse: uint8(len(rule))}}, rule...)
}

// cloneNew are clone(2)'s flags that make namespaces, CLONE_NEWTIME aside, which
// is unshare's and clone3's only.
const cloneNew = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// options are those of sockets that may be set: what package net sets by itself,
// and how long a peer may be silent. Others can outlive a process on a socket
// that it was given, as a filter that was locked does (SO_LOCK_FILTER of
// socket(7)), or have the kernel parse for it (TCP_ULP).
var options = []struct {
	level uint32
	names []uint32
}{
	{unix.SOL_SOCKET, []uint32{unix.SO_BROADCAST, unix.SO_KEEPALIVE}},
	{unix.IPPROTO_TCP, []uint32{unix.TCP_NODELAY, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT}},
	{unix.IPPROTO_IPV6, []uint32{unix.IPV6_V6ONLY}},
}

// optionRule is setsockopt's.
func optionRule() (rule []bpf.Instruction) {
	for _, o := range options {
		n := len(o.names)
		rule = append(rule, low(1), bpf.JumpIf{Cond: bpf.JumpEqual, Val: o.level, SkipFalse: uint8(n + 3)}, low(2))
		for i, name := range o.names {
			rule = append(rule, bpf.JumpIf{Cond: bpf.JumpEqual, Val: name, SkipTrue: uint8(n - i)})
		}
		rule = append(rule, ret(retDeny), ret(retAllow))
	}
	return append(rule, ret(retDeny))
}

// prSetVMA names memory for /proc/PID/maps, which the runtime does.
const prSetVMA = 0x53564d41

// roomRule is fallocate's: room on the disk is held behind the end of a file alone, and not
// further than a file may go (RLIMIT_FSIZE, and 2 MiB), which is no limit of fallocate(2).
// Its other modes move what a file has, or make it longer.
func roomRule(most uint64) []bpf.Instruction {
	const deny, mib = retDeny, 20
	rule := []bpf.Instruction{low(1), bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.FALLOC_FL_KEEP_SIZE, SkipTrue: 1}, ret(deny)}
	if most == unix.RLIM_INFINITY {
		return append(rule, ret(retAllow))
	}
	for i, arg := range []int{2, 3} { // the offset and the length in MiB, which have 32 bits
		rule = append(rule,
			high(arg), bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: 1<<mib/4 - 1, SkipFalse: 1}, ret(deny),
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 32 - mib}, bpf.TAX{},
			low(arg), bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: mib}, bpf.ALUOpX{Op: bpf.ALUOpOr}, bpf.StoreScratch{Src: bpf.RegA, N: i})
	}
	return append(rule,
		bpf.LoadScratch{Dst: bpf.RegX, N: 0}, bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: uint32(min(most>>mib, 1<<31)) + 1, SkipFalse: 1}, ret(deny), ret(retAllow))
}

// program is the filter of a process that may make files so large.
func program(pid uint32, fileSize uint64) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		ret(retKill),
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		// Numbers of x32, which have this bit, are not those of the lists.
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: 0x40000000, SkipFalse: 1},
		ret(retKill),
	}
	for _, n := range append(allowed, allowedHere...) {
		p = append(p, on(n, ret(retAllow))...)
	}
	// Files are opened to be read.
	p = append(p, on(unix.SYS_OPENAT, low(2),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC, SkipFalse: 1},
		ret(retDeny), ret(retAllow))...)
	// No memory is executable that the kernel has not mapped from the program.
	for _, n := range []uintptr{unix.SYS_MMAP, unix.SYS_MPROTECT} {
		p = append(p, on(n, low(2),
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.PROT_EXEC, SkipFalse: 1},
			ret(retDeny), ret(retAllow))...)
	}
	// Threads, not processes. The C library's clone3 has its flags in memory,
	// where a filter cannot see them; told that there is none, it takes clone.
	p = append(p, on(unix.SYS_CLONE, low(0),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: cloneNew, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_THREAD, SkipTrue: 1},
		ret(retDeny), ret(retAllow))...)
	p = append(p, on(unix.SYS_CLONE3, ret(retNone))...)
	// TCP and UDP.
	p = append(p, on(unix.SYS_SOCKET, low(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 1},
		ret(retDeny),
		low(1),
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf}, // SOCK_TYPE_MASK
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
		ret(retDeny),
		low(2),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_IP, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1},
		ret(retDeny),
		ret(retAllow))...)
	p = append(p, on(unix.SYS_SETSOCKOPT, optionRule()...)...)
	p = append(p, on(unix.SYS_FALLOCATE, roomRule(fileSize)...)...)
	// The runtime interrupts its own threads.
	p = append(p, on(unix.SYS_TGKILL, low(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: pid, SkipTrue: 1},
		ret(retDeny), ret(retAllow))...)
	p = append(p, on(unix.SYS_PRCTL, low(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: prSetVMA, SkipTrue: 1},
		ret(retDeny), ret(retAllow))...)
	// Limits are read, not set: the new one is a null pointer.
	p = append(p, on(unix.SYS_PRLIMIT64, low(2),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		ret(retDeny),
		high(2),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		ret(retDeny), ret(retAllow))...)
	for _, n := range killed {
		p = append(p, on(n, ret(retKill))...)
	}
	return append(p, ret(retDeny))
}

// installFilter puts the filter on every thread. The kernel's audit log gets
// what it denies (Documentation/userspace-api/seccomp_filter.rst).
func installFilter() error {
	var size unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &size); err != nil {
		return fmt.Errorf("RLIMIT_FSIZE: %w", err)
	}
	raw, err := bpf.Assemble(program(uint32(unix.Getpid()), size.Cur))
	if err != nil {
		return fmt.Errorf("assembling the filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_LOG
	thread, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	switch {
	case e != 0:
		return fmt.Errorf("seccomp: %w: is CONFIG_SECCOMP_FILTER on in this kernel?", e)
	case thread != 0:
		return fmt.Errorf("seccomp: thread %d cannot take the filter", thread)
	}
	return nil
}
