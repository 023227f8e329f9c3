// Package agent is the first process in every sandbox.
//
// As PID 1 it adopts and reaps orphans, and passes a request to end on to every
// process. For the host, over an authenticated connection (see package wire), it runs
// commands, keeps their output and reports their end; it reads, writes and watches
// files, serves SFTP, and connects to ports. It is linked statically and uses nothing of
// the image, so any image works. It holds no secret, only the host's public key.
//
// It guarantees nothing about hostile code beside it: root inside can do all that the
// agent can do, and the host treats the agent's answers as hostile. Nobody but the host
// gets an answer, neither from inside the sandbox nor from another sandbox.
package agent

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// poll is how often a stopping agent looks whether the others are gone.
const poll = 20 * time.Millisecond

// Run is the life of PID 1: it returns after SIGTERM or SIGINT, when every
// other process has ended. The host, which stops the sandbox, bounds that wait with a
// SIGKILL, which ends all of them at once. Commands that name no user have the
// given one; empty: root. Where the host has mounted no key, or the port is
// taken, it runs without answering.
func Run(user string) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	// A terminal that goes away, or a stray signal from inside, ends nothing. They
	// are caught and dropped: what is ignored stays so in every command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2)
	children := newChildren(true)
	if key, err := hostKey(); err == nil {
		if l, err := listen(); err == nil {
			s := NewServer(Options{Key: key, User: user, Init: true})
			children = s.children
			go s.Serve(l)
		}
	}
	children.reap() // a child may have ended before Notify
	for s := range signals {
		children.reap()
		if s != syscall.SIGCHLD {
			break
		}
	}
	// -1 is everybody but ourselves, see kill(2). SIGCONT wakes the stopped
	// ones, which else would never see it.
	syscall.Kill(-1, syscall.SIGTERM)
	syscall.Kill(-1, syscall.SIGCONT)
	for others() {
		time.Sleep(poll)
		children.reap()
	}
}

// others says whether any other process is alive.
func others() bool {
	self := os.Getpid()
	for _, pid := range processes() {
		if pid != self && !zombie(pid) {
			return true
		}
	}
	return false
}

// processes lists the process identifiers in /proc.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
