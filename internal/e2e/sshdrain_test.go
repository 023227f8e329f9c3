package e2e

import (
	"bytes"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestSSHDrain ends the daemon under two shells: who is done in the time that is
// configured ends well, who is not is broken off then, and the log tells how each
// ended.
func TestSSHDrain(t *testing.T) {
	const drain = 10 * time.Second
	r := newRig(t, "")
	alice, bob := newOperator(t, r.dir, "alice"), newOperator(t, r.dir, "bob")
	r.configure(baseConfig, "gateway: {drain: 10s}\n"+ruleConfig+sshRules+sshKeys(alice, bob))
	r.up()
	r.know()
	r.ok("run", "demo", "--", "true")
	type shell struct {
		c     *exec.Cmd
		in    io.WriteCloser
		out   *bytes.Buffer
		ended chan error
	}
	open := func(o *operator) *shell {
		s := &shell{c: exec.Command("ssh", append(o.options(), "-tt", "demo@127.0.0.1")...), out: new(bytes.Buffer), ended: make(chan error, 1)}
		out, err := s.c.StdoutPipe()
		must.OK(t, err)
		if s.in, err = s.c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		must.OK(t, s.c.Start())
		begun := make(chan struct{})
		go func() {
			buf := make([]byte, 4096)
			for first := true; ; first = false {
				n, err := out.Read(buf)
				s.out.Write(buf[:n])
				if first {
					close(begun)
				}
				if err != nil {
					s.ended <- s.c.Wait()
					return
				}
			}
		}()
		select {
		case <-begun: // its prompt
		case <-time.After(2 * time.Minute):
			t.Fatal("no shell")
		}
		return s
	}
	done, stays := open(alice), open(bob)
	defer func() { _ = stays.c.Process.Kill() }()
	asked := time.Now()
	must.OK(t, r.daemon.Signal(syscall.SIGTERM))
	time.Sleep(drain / 10)
	if _, err := io.WriteString(done.in, "exit 7\r"); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done.ended:
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 7 {
			t.Errorf("who is done in time: %v\n%s", err, done.out)
		}
	case <-time.After(drain):
		t.Error("who is done in time does not end")
	}
	select {
	case err := <-stays.ended:
		if took := time.Since(asked); err == nil || took < drain-200*time.Millisecond {
			t.Errorf("who is not ended with %v after %v", err, took)
		}
	case <-time.After(4 * drain):
		t.Error("who is not goes on")
	}
	r.await("the daemon's end", func() bool { return syscall.Kill(r.daemon.PID(), 0) != nil })

	how := map[string]string{}
	for record, err := range auditlog.Pair(t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{}, 0) {
		switch {
		case err != nil:
			t.Fatal(err)
		case record.Decision == nil || record.Decision.ClassUID != audit.ClassSSH:
		case record.Completion == nil:
			t.Errorf("a decision without a completion: %s", auditlog.Line(record))
		default:
			d := record.Decision
			how[d.Actor.User.Name+" "+d.Unmapped.Sallyport.Protocol] = record.Completion.Detail
		}
	}
	if len(how) != 4 || how["alice shell"] != "exit 7" || how["bob shell"] != "the daemon is shutting down" {
		t.Errorf("the log says %q", how)
	}
	r.up()
	r.await("the end of what was left of the shells", func() bool {
		res := alice.ssh("demo", "ps ax")
		return res.code == 0 && !strings.Contains(res.stdout, "bash -l")
	})
}
