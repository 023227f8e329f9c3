package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	// maxAccounts bounds /etc/passwd and /etc/group, in bytes: they are the
	// image's, and whoever is root inside writes them.
	maxAccounts = 1 << 20
	maxGroups   = 1 << 10 // of one user
)

// account is whom a command runs as.
type account struct {
	uid, gid uint32
	groups   []uint32 // supplementary
	home     string
}

// lookup resolves USER, USER:GROUP, UID or UID:GID as container engines do: a
// number need not be in the files, and a group that is given is the only one.
func lookup(who string) (account, error) {
	name, group, grouped := strings.Cut(who, ":")
	a := account{home: "/"}
	uid, err := number(name)
	numeric := err == nil
	found := false
	users, err := fields("/etc/passwd", 7)
	if err != nil {
		return a, err
	}
	for f := range users {
		id, err1 := number(f[2])
		gid, err2 := number(f[3])
		if err1 != nil || err2 != nil || f[0] != name && !(numeric && id == uid) {
			continue
		}
		name, found = f[0], true
		a.uid, a.gid, a.home = id, gid, f[5]
		break
	}
	if !found {
		if !numeric {
			return a, fmt.Errorf("no user %q in the sandbox", name)
		}
		a.uid = uid
	}
	groups, err := fields("/etc/group", 4)
	if err != nil {
		return a, err
	}
	if grouped {
		gid, err := number(group)
		if err == nil {
			a.gid = gid
			return a, nil
		}
		for f := range groups {
			if id, err := number(f[2]); err == nil && f[0] == group {
				a.gid = id
				return a, nil
			}
		}
		return a, fmt.Errorf("no group %q in the sandbox", group)
	}
	for f := range groups {
		id, err := number(f[2])
		if err == nil && found && slices.Contains(strings.Split(f[3], ","), name) && len(a.groups) < maxGroups {
			a.groups = append(a.groups, id)
		}
	}
	return a, nil
}

// number is a user's or group's. -1 means no change to the kernel.
func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

// fields yields the lines of a file of accounts, passwd(5) or group(5). A file
// that is not there has none.
func fields(path string, n int) (iter.Seq[[]string], error) {
	// Not a pipe, which would never end, nor a link to one.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return func(func([]string) bool) {}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if i, err := f.Stat(); err != nil || !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s in the sandbox is not a file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxAccounts {
		return nil, fmt.Errorf("%s in the sandbox has more than %d bytes", path, maxAccounts)
	}
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(data) {
			f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
			if len(f) == n && !yield(f) {
				return
			}
		}
	}, nil
}
