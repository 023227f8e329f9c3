// Package jail runs a program that reads hostile bytes where it can do little
// harm when one of its parsers fails.
//
// [Start] makes the process, [Enter] and [Confine] are what the process does to
// itself before it reads its first byte. Then it holds, for every one of its
// threads and for good:
//
//   - it has a user and a group that nothing else has, no supplementary group,
//     no capability in any set, the bounding one included, and no_new_privs
//     (Documentation/userspace-api/no_new_privs.rst);
//   - its root is one folder of copies ([View]), read-only; there is no /proc,
//     no /dev, no socket and nothing of the host's in it, and Landlock denies
//     whatever else a path could lead to (Documentation/userspace-api/landlock.rst);
//   - a seccomp filter lets it make the system calls that a network server
//     written in Go makes (see filter.go), of sockets only TCP and UDP, which it
//     may connect and not bind, and of whose options it may set only those that
//     package net does; it opens files for reading only, cannot execute anything,
//     nor make memory executable;
//   - it sees no other process, has no descriptor that it was not given, leaves
//     no core, and cannot be looked into by processes of its own user;
//   - it dies with the thread that started it.
//
// It shares the network of the process that started it, unless [Spec.Offline] is
// set. It can use each descriptor that it was given. Without root it has no user and
// no root directory of its own; everything else holds.
package jail

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// IDs is the user and group of a jailed process.
type IDs struct{ UID, GID int }

// Nobody is the user where none was made for the purpose: a number that neither
// distributions nor systemd assign (https://systemd.io/UIDS-GIDS), nor user namespaces by
// default.
const Nobody = 2031023100

// DefaultUser is looked for when no user is configured.
const DefaultUser = "sallyport"

// Lookup finds the user by name or number. An empty name is DefaultUser where
// it exists, else Nobody. Root is refused.
func Lookup(name string) (IDs, error) {
	if name == "" {
		if ids, err := Lookup(DefaultUser); err == nil {
			return ids, nil
		}
		return IDs{Nobody, Nobody}, nil
	}
	ids, err := lookup(name)
	if err != nil {
		return IDs{}, fmt.Errorf("%w: add it with `useradd --system %s`, or write a number", err, name)
	}
	if ids.UID == 0 || ids.GID == 0 {
		return IDs{}, fmt.Errorf("the user %q is root or in root's group: name another", name)
	}
	return ids, nil
}

func lookup(name string) (IDs, error) {
	u, err := user.Lookup(name)
	if err != nil {
		// A number need not be in the user database.
		if n, perr := strconv.ParseUint(name, 10, 31); perr == nil {
			return IDs{int(n), int(n)}, nil
		}
		return IDs{}, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return IDs{}, err
	}
	gid, err := strconv.Atoi(u.Gid)
	return IDs{uid, gid}, err
}

// Spec is the process to start, and its bounds.
type Spec struct {
	// Args are the program's, its name first. The program is this one.
	Args []string
	// Env is its whole environment, as os.Environ has it.
	Env []string
	// Files become its descriptors 3, 4, … Every other one but standard error is
	// closed.
	Files []*os.File
	// Stderr is its standard error. Default: none.
	Stderr *os.File
	// Root is the folder that becomes its root. It is needed by root, and
	// without effect for others.
	Root string
	// IDs is its user and group; likewise.
	IDs IDs
	// OpenFiles is how many descriptors it may have (RLIMIT_NOFILE). Default:
	// 262144, or what the host allows.
	OpenFiles uint64
	// Offline gives it a network of its own with nothing in it: of the host's it
	// has the sockets that are among Files. It is root's to give, and without effect
	// for others.
	Offline bool
	// FileSize is how large it may make a file, in bytes (RLIMIT_FSIZE): it ends
	// at the attempt to make one larger. Default: what the host allows.
	FileSize uint64
	// Memory bounds what it may allocate, in bytes (RLIMIT_DATA): a Go program ends
	// at the attempt to have more. Default: what the host allows.
	Memory uint64
	// Spare makes it the first to be ended when the host's memory runs out
	// (oom_score_adj of proc(5)).
	Spare bool
}
