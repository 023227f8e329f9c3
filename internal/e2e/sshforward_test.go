package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// greeter has a word for who connects, and then none.
const greeter = `import socket, time
s = socket.create_server(("127.0.0.1", 8005))
c, _ = s.accept()
c.sendall(b"hello\n")
time.sleep(1000)`

func testSSHForward(t *testing.T, r *rig, alice, bob *operator) {
	r.ok("sandbox", "exec", "demo", "-d", "--", "python3", "-c", inside)
	begin := func(o *operator, to string) (stop func() string) {
		c := exec.Command("ssh", append(append([]string{"-o", "LogLevel=INFO"}, o.options()...), "-N", "-L", "127.0.0.1:7999:"+to, "demo@127.0.0.1")...)
		var said bytes.Buffer
		c.Stderr = &said
		must.OK(t, c.Start())
		r.await("the forward's listener", func() bool {
			table, err := os.ReadFile("/proc/thread-self/net/tcp") // this thread is in the test's network: local address, remote, state
			must.OK(t, err)
			return strings.Contains(string(table), "0100007F:1F3F 00000000:0000 0A")
		})
		return func() string { _ = c.Process.Kill(); _ = c.Wait(); return said.String() }
	}
	get := func() string {
		c, err := net.DialTimeout("tcp", "127.0.0.1:7999", time.Minute)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, "GET /hello.txt HTTP/1.0\r\n\r\n")
		all, _ := io.ReadAll(c)
		return string(all)
	}
	stop := begin(alice, "localhost:8000")
	r.await("the server inside", func() bool { return strings.HasSuffix(get(), "hello from inside\n") })
	stop()
	// A server for the sandbox alone is reached, and one on the sandbox's own address by that.
	address := strings.Fields(strings.Split(r.ok("sandbox", "get", "demo"), "\n")[1])[4]
	listening := map[string][]string{
		"127.0.0.1": {"localhost:8012", "127.0.0.1:8012"},
		"::1":       {"localhost:8013", "[::1]:8013"},
		address:     {"localhost:8004", address + ":8004"},
	}
	if res := r.sallyport("run", "demo", "--", "python3", "-c", `import socket; socket.socket(socket.AF_INET6).bind(("::1", 8013))`); res.code != 0 {
		t.Log("sandboxes have no ::1 here")
		delete(listening, "::1")
	}
	for at, tos := range listening {
		port := tos[0][len("localhost:"):]
		r.ok("sandbox", "exec", "demo", "-d", "-w", "/tmp/www", "--", "python3", "-m", "http.server", port, "--bind", at)
		for _, to := range tos {
			stop := begin(alice, to)
			r.await("what listens on "+at+" by "+to, func() bool { return strings.HasSuffix(get(), "hello from inside\n") })
			stop()
		}
	}
	// A forwarded connection breaks off when the sandbox goes to sleep, and the next wakes it.
	r.ok("sandbox", "exec", "demo", "-d", "--", "python3", "-c", greeter)
	stop = begin(alice, "localhost:8005")
	greeted := make([]byte, len("hello\n"))
	var stays net.Conn
	r.await("a connection that stays", func() (made bool) {
		var err error
		if stays, err = net.Dial("tcp", "127.0.0.1:7999"); err != nil {
			t.Fatal(err)
		}
		_ = stays.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err = io.ReadFull(stays, greeted); err != nil {
			_ = stays.Close()
		}
		return err == nil
	})
	defer stays.Close()
	r.ok("sandbox", "hibernate", "demo")
	_ = stays.SetReadDeadline(time.Now().Add(time.Minute))
	if all, err := io.ReadAll(stays); len(all) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what was open when the sandbox went to sleep: %q, %v", all, err)
	}
	stop()
	stop = begin(alice, "localhost:8012")
	if got := get(); !strings.HasSuffix(got, "hello from inside\n") {
		t.Errorf("the next one: %q", got)
	}
	stop()
	stop = begin(alice, "127.0.0.1:8013")
	got := get()
	if said := stop(); got != "" || !strings.Contains(said, "nothing listens on port 8013") {
		t.Errorf("what listens on ::1 by 127.0.0.1: %q, and ssh says %q", got, said)
	}
	for what, tt := range map[string]struct {
		o    *operator
		to   string
		says string
	}{
		"a key that may not": {bob, "localhost:8000", "forwarding is off for this key"},
		"a port of no rule":  {alice, "localhost:22", "no expose rule allows forwarding over SSH to port 22 of demo"},
		"the agent":          {alice, "localhost:1023", "agent cannot be forwarded"},
		"another host":       {alice, upstreamAddress + ":80", "only ports of the sandbox itself"},
		"the host's own":     {alice, "10.232.0.1:9464", "only ports of the sandbox itself"},
	} {
		stop := begin(tt.o, tt.to)
		got := get()
		if said := stop(); got != "" || !strings.Contains(said, tt.says) {
			t.Errorf("%s: %q, and ssh says %q", what, got, said)
		}
	}
	if res := alice.run("", "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "7998:127.0.0.1:9464", "demo@127.0.0.1", "true"); res.code == 0 || !strings.Contains(res.stderr, "remote port forwarding failed") {
		t.Errorf("a port of the operator's for the sandbox: %s", res)
	}
}
