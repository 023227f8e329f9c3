package jail

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_AARCH64
	sysFstatat = unix.SYS_FSTATAT
)

// allowedHere are calls that this architecture has, or has of old.
var allowedHere = []uintptr{unix.SYS_EPOLL_PWAIT2}
