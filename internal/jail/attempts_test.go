package jail

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where an attempt finds what it is after: in its environment.
const (
	envSecrets = "SALLYPORT_TEST_SECRETS" // a folder of root's
	envSocket  = "SALLYPORT_TEST_SOCKET"  // a unix socket like Docker's
	envVictim  = "SALLYPORT_TEST_VICTIM"  // PID of another process
	envPeer    = "SALLYPORT_TEST_PEER"    // host:port of a TCP listener
)

// attempts are what an intruder would try. Each of them is possible to the test
// itself, which is root.
func attempts() map[string]func() error {
	secrets, victim := os.Getenv(envSecrets), number(os.Getenv(envVictim))
	read := func(path string) func() error {
		return func() error { _, err := os.ReadFile(path); return err }
	}
	socket := func(domain, kind, protocol int) func() error {
		return func() error { _, err := unix.Socket(domain, kind, protocol); return err }
	}
	call := func(number uintptr, args ...uintptr) func() error {
		return func() error {
			var a [6]uintptr
			copy(a[:], args)
			_, _, e := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
			if e != 0 {
				return e
			}
			return nil
		}
	}
	set := func(level, name int) func() error {
		return func() error { return setOption(level, name) }
	}
	// arguments says that a call is possible and only its arguments were wrong.
	arguments := func(f func() error) func() error {
		return possible(f, unix.EINVAL, unix.EFAULT, unix.EBADF, unix.ENOEXEC, unix.ENOKEY)
	}
	return map[string]func() error{
		"read the data directory":    func() error { _, err := os.ReadDir(secrets); return err },
		"read the CA's key":          read(filepath.Join(secrets, "root.pem")),
		"read another's environment": read(fmt.Sprintf("/proc/%d/environ", victim)),
		"read its own maps":          read("/proc/self/maps"),
		"read the kernel's settings": read("/proc/sys/kernel/hostname"),
		"read the password file":     read("/etc/passwd"),
		"find a device":              read("/dev/null"),
		"connect to Docker": func() error {
			c, err := net.Dial("unix", os.Getenv(envSocket))
			if err == nil {
				_ = c.Close()
			}
			return err
		},
		"write to the temporary folder": func() error { return os.WriteFile(filepath.Join(secrets, "new"), nil, 0o600) },
		"write to its root":             func() error { return os.WriteFile("/sallyport-test", nil, 0o600) },
		"make a folder":                 func() error { return os.Mkdir(filepath.Join(secrets, fmt.Sprint(os.Getpid())), 0o700) },
		"open a raw socket":             socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"open a packet socket":          socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"open a netlink socket":         socket(unix.AF_NETLINK, unix.SOCK_RAW, 0),
		"open a UDP-Lite socket":        possible(socket(unix.AF_INET, unix.SOCK_DGRAM, 136), unix.EPROTONOSUPPORT),
		"open a unix socket":            socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"listen": func() error {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err == nil {
				_ = l.Close()
			}
			return err
		},
		"bind UDP": func() error {
			l, err := net.ListenPacket("udp4", "127.0.0.1:0")
			if err == nil {
				_ = l.Close()
			}
			return err
		},
		// Options that would stay on a socket that others have too.
		"filter a socket": func() error {
			return onSocket(func(fd int) error {
				all := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}
				return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &all)
			})
		},
		"lock a socket's filter": set(unix.SOL_SOCKET, unix.SO_LOCK_FILTER),
		"share a port":           set(unix.SOL_SOCKET, unix.SO_REUSEPORT),
		"mark packets":           set(unix.SOL_SOCKET, unix.SO_MARK),
		"take any address":       set(unix.SOL_IP, unix.IP_TRANSPARENT),
		"linger": func() error {
			return onSocket(func(fd int) error {
				return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			})
		},
		"cork":                set(unix.IPPROTO_TCP, unix.TCP_CORK),
		"repair a connection": set(unix.IPPROTO_TCP, unix.TCP_REPAIR),
		"execute":             func() error { return unix.Exec("/bin/true", []string{"true"}, nil) },
		"fork": func() error {
			pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if e == 0 && pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			return errno(e)
		},
		"trace":            func() error { return unix.PtraceSeize(victim) },
		"read a process":   arguments(call(unix.SYS_PROCESS_VM_READV, uintptr(victim))),
		"kill":             func() error { return unix.Kill(victim, unix.SIGCONT) },
		"kill by a thread": func() error { return unix.Tgkill(victim, victim, unix.SIGCONT) },
		"become root":      func() error { _, _, e := unix.RawSyscall(unix.SYS_SETUID, 0, 0, 0); return errno(e) },
		"set groups":       func() error { _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); return errno(e) },
		"mount":            func() error { return unix.Mount("none", secrets, "tmpfs", unix.MS_RDONLY, "") },
		"change root":      func() error { return unix.Chroot("/") },
		"load a BPF program": arguments(func() error {
			attr := [4]uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
			_, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			return errno(e)
		}),
		"watch performance": arguments(call(unix.SYS_PERF_EVENT_OPEN)),
		"make a namespace":  func() error { return unix.Unshare(unix.CLONE_NEWUTS) },
		"enter a namespace": arguments(call(unix.SYS_SETNS, ^uintptr(0), 0)),
		"use the keyring":   func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_PROCESS_KEYRING, true); return err },
		"load a kernel":     possible(call(unix.SYS_KEXEC_LOAD, 0, 1, 0, 1<<40), unix.ENOSYS, unix.EINVAL),
		"load a module":     possible(call(unix.SYS_FINIT_MODULE, ^uintptr(0), 0, 0), unix.ENOSYS, unix.EBADF),
		"open by handle":    arguments(call(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0))),
		"set up io_uring":   arguments(call(unix.SYS_IO_URING_SETUP, 1, 0)),
		"set a limit":       func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) },
		"become dumpable":   func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
		"run made-up code": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		},
		"make memory executable": func() error {
			m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return err
			}
			return unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC)
		},
		"make a file in memory": func() error { _, err := unix.MemfdCreate("x", 0); return err },
	}
}

// onSocket does something to a new TCP socket.
func onSocket(f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

// setOption sets an option of a socket to 1.
func setOption(level, name int) error {
	return onSocket(func(fd int) error { return unix.SetsockoptInt(fd, level, name, 1) })
}

// chores are what a network server has to be able to do.
func chores() map[string]func() error {
	return map[string]func() error{
		"connect": func() error {
			c, err := net.DialTimeout("tcp", os.Getenv(envPeer), 5*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := io.WriteString(c, "hello"); err != nil {
				return err
			}
			got, err := io.ReadAll(io.LimitReader(c, 5))
			if err == nil && string(got) != "hello" {
				err = fmt.Errorf("got %q", got)
			}
			return err
		},
		"send a datagram": func() error {
			c, err := net.Dial("udp", "127.0.0.1:9")
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("hello"))
			return errors.Join(err, c.Close())
		},
		"tune a connection": func() error {
			for level, names := range map[int][]int{
				unix.SOL_SOCKET:  {unix.SO_BROADCAST, unix.SO_KEEPALIVE},
				unix.IPPROTO_TCP: {unix.TCP_NODELAY, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT},
			} {
				for _, name := range names {
					if err := setOption(level, name); err != nil {
						return fmt.Errorf("option %d of level %d: %w", name, level, err)
					}
				}
			}
			return nil
		},
		"read the resolver's configuration": func() error { _, err := os.ReadFile("/etc/resolv.conf"); return err },
	}
}

// possible takes some errors for success: the call itself was there.
func possible(f func() error, fine ...unix.Errno) func() error {
	return func() error {
		err := f()
		for _, e := range fine {
			if errors.Is(err, e) {
				return nil
			}
		}
		return err
	}
}

func errno(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
