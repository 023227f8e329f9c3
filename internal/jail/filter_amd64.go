package jail

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_X86_64
	sysFstatat = unix.SYS_NEWFSTATAT
)

// allowedHere are calls that this architecture has, or has of old.
var allowedHere = []uintptr{unix.SYS_EPOLL_WAIT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ARCH_PRCTL, unix.SYS_TIME, unix.SYS_EPOLL_PWAIT2}
