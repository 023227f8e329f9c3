package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// CommandEnv is the environment variable that marks the processes of one
// command; its value is the command's identifier.
const CommandEnv = "SALLYPORT_COMMAND"

// Kill ends every process that carries the command's identifier in the
// environment that it was started with, and those they start meanwhile. It
// reaches what a cancelled command left in other process groups too, but not a
// process that was started with another environment on purpose.
func Kill(command string) {
	mark := []byte(CommandEnv + "=" + command)
	self := os.Getpid()
	// A process can fork between the listing and the signal; its child is found
	// in the next round. The bound is for a command that forks without end.
	for range 100 {
		found := false
		for _, pid := range processes() {
			if pid == self || pid == 1 || zombie(pid) || !carries(pid, mark) {
				continue
			}
			found = true
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if !found {
			return
		}
	}
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
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	// The state follows the command's name, which may hold anything, so after
	// the last parenthesis: proc_pid_stat(5).
	i := bytes.LastIndexByte(stat, ')')
	return i >= 0 && i+2 < len(stat) && (stat[i+2] == 'Z' || stat[i+2] == 'X')
}
