package datapath

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// daemon is the process that tests kill: it takes the datapath over, echoes on
// the steered listener, and says so.
func daemon() error {
	d, err := Open(Config{Bridge: testBridge, Subnet: subnet})
	if err != nil {
		return err
	}
	listener, err := Listen()
	if err != nil {
		return err
	}
	if err := d.Steer(listener); err != nil {
		return err
	}
	go echo(listener)
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin) // until the test ends
	return err
}

// echo greets with the address dialled and returns what it is sent.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, c.LocalAddr())
			io.Copy(c, c)
		}()
	}
}

// startDaemon returns when the daemon steers.
func startDaemon(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envDaemon+"=1")
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	must.OK(t, err)
	stdout, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	t.Cleanup(func() {
		stdin.Close()
		var exit *exec.ExitError
		if err := c.Wait(); err != nil && !errors.As(err, &exit) && !strings.Contains(err.Error(), "already") {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the daemon said %q, %v", line, err)
	}
	return c
}
