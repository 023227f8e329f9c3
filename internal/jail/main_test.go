package jail

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/testnet"
)

// role is what this binary does when it is not the test: an attempt, in a jail
// or outside of one.
const role = "SALLYPORT_TEST_ATTEMPT"

func TestMain(m *testing.M) {
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
	if name := os.Getenv(role); name != "" {
		os.Exit(play(name))
	}
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "isolating:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// runtimeEnv keeps the runtime from watching the control group's files.
var runtimeEnv = []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0"}

// How an attempt ends, beside by a signal.
const (
	exitDone    = 0
	exitRefused = 3
	exitBroken  = 4
)

// play makes one attempt and says how it went.
func play(name string) int {
	if os.Getenv("SALLYPORT_TEST_CONFINE") != "" {
		s, err := Confine("/etc/resolv.conf")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitBroken
		}
		fmt.Fprintf(os.Stderr, "state: %+v\n", s)
	}
	switch name {
	case "stay":
		time.Sleep(time.Minute)
		return exitDone
	case "keep":
		return keep()
	case "grow":
		return grow()
	case "hold":
		return hold()
	case "hoard":
		return hoard()
	}
	if name, ok := strings.CutPrefix(name, "started: "); ok {
		return startAgain(name)
	}
	try, ok := attempts()[name]
	if !ok {
		try, ok = chores()[name]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "no such attempt:", name)
		return exitBroken
	}
	if err := try(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitRefused
	}
	return exitDone
}

// hoarded is kept from being collected.
var hoarded [][]byte

// hoard has memory of twice what it may.
func hoard() int {
	for range 2 * memory >> 20 {
		hoarded = append(hoarded, make([]byte, 1<<20))
	}
	return exitDone
}

// grow makes the file that it was given larger, as far as it may and further.
func grow() int {
	for _, size := range []int64{fileSize, fileSize + 1} {
		if err := syscall.Ftruncate(3, size); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitRefused
		}
	}
	return exitDone
}

// hold holds room on the disk for the file that it was given: as much as it may, and more in
// each way there is.
func hold() int {
	if err := unix.Fallocate(3, unix.FALLOC_FL_KEEP_SIZE, fileSize/2, fileSize/2); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitBroken
	}
	for _, c := range []struct {
		mode     uint32
		off, len int64
	}{
		{unix.FALLOC_FL_KEEP_SIZE, 0, fileSize + 3<<20},
		{unix.FALLOC_FL_KEEP_SIZE, fileSize + 3<<20, fileSize},
		{unix.FALLOC_FL_KEEP_SIZE, 0, 5 << 30},
		{unix.FALLOC_FL_KEEP_SIZE, 5 << 30, fileSize},
		{unix.FALLOC_FL_INSERT_RANGE, 0, 4096},
		{unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, 0, 4096},
	} {
		if err := unix.Fallocate(3, c.mode, c.off, c.len); !errors.Is(err, unix.EPERM) {
			fmt.Fprintf(os.Stderr, "%+v: %v\n", c, err)
			return exitDone
		}
	}
	return exitRefused
}

// keep starts a jail and stays until it is killed.
func keep() int {
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(runtimeEnv, role+"=stay", "SALLYPORT_TEST_CONFINE=1"),
		Root: os.Getenv("SALLYPORT_TEST_VIEW"), IDs: IDs{Nobody, Nobody},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitBroken
	}
	fmt.Println(p.PID())
	time.Sleep(time.Minute)
	return exitDone
}

// startAgain makes an attempt in a jail that this process, which is not root,
// starts.
func startAgain(name string) int {
	p, err := Start(Spec{
		Args: []string{"attempt"}, Env: append(os.Environ(), role+"="+name, "SALLYPORT_TEST_CONFINE=1"), Stderr: os.Stderr,
	})
	if err == nil {
		err = p.Wait()
	}
	got := end(err, "")
	if got.signal == syscall.SIGSYS {
		return exitRefused
	}
	return got.code
}
