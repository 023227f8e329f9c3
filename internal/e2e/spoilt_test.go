package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// Whatever a gateway's process did to the sockets that it was given, as one that
// was taken over might, the sandboxes' names and connections arrive at the next:
// the datapath's map of sockets holds the listener again, mended or new.
func testSpoiltSockets(t *testing.T, r *rig) {
	const fetch = "curl -sS --max-time 60 https://api.example.test/v1"
	if res := r.inside("agent", fetch); !strings.Contains(res.stdout, `"saw_key":true`) {
		t.Fatalf("before: %s\n%s", res, r.logged())
	}
	shut := func(fd int) error { _ = unix.Shutdown(fd, unix.SHUT_RDWR); return nil } // it works on UDP, and says that it does not
	lock := func(fd int) error {                                                     // Multipath TCP, as DNS's listener is, has no filters
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1); !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		return nil
	}
	for _, c := range []struct {
		name  string
		steps []func(fd int) error
	}{
		{"shut down", []func(int) error{shut}},
		{"shut down and connected", []func(int) error{shut, func(fd int) error {
			_ = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
			return nil
		}}},
		{"locked and shut down", []func(int) error{lock, shut}},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := r.gatewayPID()
			if n := spoil(t, was, c.steps); n != 3 {
				t.Fatalf("%d sockets of the sandboxes', want the listener and DNS over UDP and TCP", n)
			}
			_ = unix.Kill(was, unix.SIGKILL) // it may have ended by itself
			r.await("the next process", func() bool { pid := r.gatewayPID(); return pid != 0 && pid != was })
			if res := r.inside("agent", fetch); res.code != 0 || !strings.Contains(res.stdout, `"saw_key":true`) {
				t.Errorf("%s", res)
			}
			if res := r.inside("agent", "curl -sS --max-time 60 http://"+upstreamAddress+"/"); !strings.Contains(res.stdout, "ally") {
				t.Errorf("a bare address: %s", res)
			}
		})
	}
	if logged := r.logged(); strings.Contains(logged, "cannot be mended") {
		t.Error(logged)
	}
}

// spoil does something to each of the sandboxes' sockets that a process has: the
// transparent listener and those of port 53.
func spoil(t *testing.T, pid int, steps []func(fd int) error) (n int) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	must.OK(t, err)
	defer unix.Close(process)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must.OK(t, err)
	var shared []int
	for _, e := range fds {
		theirs, err := strconv.Atoi(e.Name())
		must.OK(t, err)
		fd, err := unix.PidfdGetfd(process, theirs, 0)
		if err != nil {
			continue // closed meanwhile
		}
		defer unix.Close(fd)
		if is, err := unix.Getsockname(fd); err == nil && sandboxes(fd, is) {
			shared = append(shared, fd)
		}
	}
	for _, step := range steps { // quick: the process ends at the first that it sees
		for _, fd := range shared {
			err = errors.Join(err, step(fd))
		}
	}
	must.OK(t, err)
	return len(shared)
}

func sandboxes(fd int, at unix.Sockaddr) bool {
	four, ok := at.(*unix.SockaddrInet4)
	if !ok {
		return false
	}
	if kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); kind == unix.SOCK_DGRAM {
		return four.Port == 53
	}
	listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	transparent, _ := unix.GetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT)
	return listens == 1 && (transparent == 1 || four.Port == 53)
}
