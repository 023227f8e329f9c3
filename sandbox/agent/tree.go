package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// commandEnv is the environment variable that marks the processes of one
// command; its value is the command's identifier.
const commandEnv = "SALLYPORT_COMMAND"

// rounds bound the killing of a command that forks without end.
const rounds = 100

// killTree ends every process of a command: those of its session, those that
// descend from one of them, and those that carry its identifier in the
// environment that they were started with. A process that left the session, lost its
// parents and was started with another environment is not reached.
func killTree(command string, leader int) {
	mark := []byte(commandEnv + "=" + command)
	// All stand still before the first one ends: a process that sees the end of another, or
	// of its input, would take that for the whole. One can fork between the listing and the
	// signal; its child is found in the next round.
	stopped := map[int]bool{}
	for range rounds {
		before := len(stopped)
		for pid := range tree(leader, mark) {
			if !stopped[pid] {
				stopped[pid] = true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if len(stopped) == before {
			break
		}
	}
	for range rounds {
		found := tree(leader, mark)
		if len(found) == 0 {
			return
		}
		for pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// tree lists the living processes of a command.
func tree(leader int, mark []byte) map[int]bool {
	self := os.Getpid()
	parents := map[int]int{}
	members := map[int]bool{}
	for _, pid := range processes() {
		if pid == self || pid == 1 {
			continue
		}
		s, ok := stat(pid)
		if !ok || s.zombie {
			continue
		}
		parents[pid] = s.parent
		if s.session == leader || carries(pid, mark) {
			members[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for pid, parent := range parents {
			if !members[pid] && members[parent] {
				members[pid], grew = true, true
			}
		}
	}
	return members
}

// process is what proc_pid_stat(5) says of one.
type process struct {
	parent, session int
	zombie          bool // ended, and waits for its parent
}

func stat(pid int) (p process, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	// The fields follow the command's name, which may hold anything, so after
	// the last parenthesis: state, parent, group, session.
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(f) < 4 {
		return p, false
	}
	p.zombie = f[0] == "Z" || f[0] == "X"
	p.parent, _ = strconv.Atoi(f[1])
	p.session, _ = strconv.Atoi(f[3])
	return p, true
}

// carries says whether one of the process's environment entries is mark.
func carries(pid int, mark []byte) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(entry, mark) {
			return true
		}
	}
	return false
}

// zombie says whether the process has ended and waits for its parent.
func zombie(pid int) bool {
	s, ok := stat(pid)
	return !ok || s.zombie
}
