package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

// screen gathers what a terminal shows.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.b.String(), text)
}

// testSSHTerminal types into a shell: its size follows, keys are signals, what it
// shows comes as it is.
func testSSHTerminal(t *testing.T, o *operator) {
	text, err := os.ReadFile(o.file)
	must.OK(t, err)
	signer, err := ssh.ParsePrivateKey(text)
	must.OK(t, err)
	c, err := ssh.Dial("tcp", "127.0.0.1:"+sshPort, &ssh.ClientConfig{
		User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	must.OK(t, err)
	defer c.Close()
	s, err := c.NewSession()
	must.OK(t, err)
	defer s.Close()
	var shown screen
	s.Stdout = &shown
	keys, err := s.StdinPipe()
	must.OK(t, err)
	must.OK(t, s.RequestPty("xterm-256color", 33, 101, ssh.TerminalModes{}))
	must.OK(t, s.Shell())
	kind := func(keystrokes, until string) {
		t.Helper()
		if _, err := keys.Write([]byte(keystrokes)); err != nil {
			t.Fatal(err)
		}
		must.Soon(t, fmt.Sprintf("%q after %q", until, keystrokes), func() bool { return shown.has(until) })
	}
	// insist types what may come too early, or be discarded, again until it has been seen to.
	insist := func(keystrokes, until string) {
		t.Helper()
		next := time.Now()
		must.Soon(t, fmt.Sprintf("%q after %q", until, keystrokes), func() bool {
			if now := time.Now(); now.After(next) {
				next = now.Add(2 * time.Second)
				if _, err := keys.Write([]byte(keystrokes)); err != nil {
					t.Fatal(err)
				}
			}
			return shown.has(until)
		})
	}
	kind("echo it is $TERM; stty size\r", "it is xterm-256color\r\n33 101")
	must.OK(t, s.WindowChange(44, 120))
	insist("stty size\r", "44 120")
	kind("sleep 600; echo woken=$?\r", "sleep 600")
	time.Sleep(300 * time.Millisecond)
	if _, err := keys.Write([]byte("\x03")); err != nil { // which discards what is typed with it
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	insist("echo after=$?\r", "after=130")
	kind("printf '\\033[1mbold\\033[0m'; echo\r", "\x1b[1mbold\x1b[0m")
	if _, err := keys.Write([]byte("exit 5\r")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := err.(*ssh.ExitError); !ok || exit.ExitStatus() != 5 {
			t.Errorf("the shell ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the shell does not end")
	}

	// A signal as SSH has them.
	s, err = c.NewSession()
	must.OK(t, err)
	var out screen
	s.Stdout = &out
	must.OK(t, s.Start("echo begun; exec sleep 600"))
	must.Soon(t, "the command", func() bool { return out.has("begun") })
	must.OK(t, s.Signal(ssh.SIGTERM))
	go func() { ended <- s.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := err.(*ssh.ExitError); !ok || exit.Signal() != "TERM" {
			t.Errorf("a command that a signal ends: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a signal does not come")
	}
}
