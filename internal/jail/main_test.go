package jail

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
