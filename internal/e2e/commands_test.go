package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/datapath"
)

// Commands belong to their sandbox: they outlive the daemon, and their output is
// fetched from where the reader left off.
func TestCommands(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.ok("run", "agent", "--", "true")
	r.ok("run", "other", "--", "true")
	t.Run("background", func(t *testing.T) { testBackground(t, r) })
	t.Run("terminal", func(t *testing.T) { testTerminal(t, r) })
	t.Run("streams", func(t *testing.T) { testStreams(t, r) })
	t.Run("strangers", func(t *testing.T) { testStrangers(t, r) })
	t.Run("usurper", func(t *testing.T) { testUsurper(t, r) })
	t.Run("impostor", func(t *testing.T) { testImpostor(t, r) })
}

func testBackground(t *testing.T, r *rig) {
	id := strings.TrimSpace(r.ok("sandbox", "exec", "agent", "-d", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.1; done"))
	r.await("the first lines", func() bool { return strings.Contains(r.ok("sandbox", "output", "agent", id), "tick 3\n") })
	had := r.ok("sandbox", "output", "agent", id)
	r.kill(syscall.SIGKILL)
	time.Sleep(500 * time.Millisecond)
	r.up()
	var rest string
	r.await("more lines", func() bool {
		rest = r.ok("sandbox", "output", "agent", id, "--from", fmt.Sprint(len(had)))
		return strings.Count(rest, "\n") >= 5
	})
	var lines []string
	for i := 1; i < 1+strings.Count(had+rest, "\n"); i++ {
		lines = append(lines, fmt.Sprintf("tick %d\n", i))
	}
	if whole := strings.Join(lines, ""); had+rest != whole {
		t.Errorf("before and after a restart: %q and %q", had, rest)
	}
	if list := r.ok("sandbox", "commands", "agent"); !strings.Contains(list, id+"  running") {
		t.Errorf("listed:\n%s", list)
	}
	r.ok("sandbox", "kill", "agent", id)
	var info struct {
		State, Signal string
		Code          int
	}
	for _, i := range decodeList[json.RawMessage](t, r.ok("-o", "json", "sandbox", "commands", "agent")) {
		if strings.Contains(string(i), id) {
			must.OK(t, json.Unmarshal(i, &info))
		}
	}
	if info.State != "exited" || info.Signal != "KILL" || info.Code != 137 {
		t.Errorf("after its end: %+v", info)
	}
	// A command has every signal as a process has it that nobody ignored any for.
	const signals = "trap 'echo hup' HUP; trap 'echo usr' USR1; kill -HUP $$; kill -USR1 $$; yes | head -n 1"
	if res := r.sallyport("run", "agent", "--", "sh", "-c", signals); res.code != 0 || res.stdout != "hup\nusr\ny\n" || res.stderr != "" {
		t.Errorf("signals: %s", res)
	}
	// Followed to its end, with what is lost said.
	id = strings.TrimSpace(r.ok("sandbox", "exec", "agent", "-d", "--keep", "100", "--", "sh", "-c", "seq 1000; echo wrong >&2; until [ -e /tmp/end ]; do sleep 0.1; done; echo end"))
	r.await("output to be lost", func() bool { return strings.Contains(r.sallyport("sandbox", "output", "agent", id).stderr, "wrong") })
	follow := exec.Command(filepath.Join(tools.Dir, "sallyport"), "--config", r.config, "sandbox", "output", "agent", id, "--follow")
	var shown, said screen
	follow.Stdout, follow.Stderr = &shown, &said
	must.OK(t, follow.Start())
	r.await("what is kept", func() bool { return shown.has("999\n1000\n") })
	r.ok("run", "agent", "--", "touch", "/tmp/end")
	if err := follow.Wait(); err != nil || !shown.has("999\n1000\nend\n") || !said.has("wrong\n") || !said.has("3793 bytes of stdout are lost") {
		t.Errorf("followed: %v, %q, %q", err, shown.b.String(), said.b.String())
	}
	r.ok("sandbox", "stop", "other")
	if got := r.ok("-o", "json", "sandbox", "commands", "other"); strings.TrimSpace(got) != "[]" {
		t.Errorf("of a sandbox that is stopped: %s", got)
	}
	if res := r.sallyport("sandbox", "output", "agent", "none"); res.code != 1 || !strings.Contains(res.stderr, "no such command") {
		t.Errorf("of no command: %s", res)
	}
	r.ok("sandbox", "start", "other")
}

func decodeList[T any](t *testing.T, text string) (list []T) {
	t.Helper()
	must.OK(t, json.Unmarshal([]byte(text), &list))
	return list
}

// A shell has a terminal that follows ours: script(1) gives us one.
func testTerminal(t *testing.T, r *rig) {
	c := exec.Command("script", "-qec", fmt.Sprintf("stty rows 33 cols 101; exec %s --config %s sandbox shell agent", filepath.Join(tools.Dir, "sallyport"), r.config), "/dev/null")
	in, err := c.StdinPipe()
	must.OK(t, err)
	var out screen
	c.Stdout, c.Stderr = &out, &out
	must.OK(t, c.Start())
	late := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	defer late.Stop()
	r.await("a prompt", func() bool { return out.has("# ") }) // then our terminal is raw
	io.WriteString(in, "stty size; tty; sleep 100\n")
	r.await("a terminal", func() bool { return out.has("/dev/pts/") })
	in.Write([]byte{3}) // ends the sleep and not the shell
	time.Sleep(200 * time.Millisecond)
	io.WriteString(in, "echo a$((40+2))b; exit 7\n")
	err = c.Wait()
	if c.ProcessState.ExitCode() != 7 || !out.has("33 101") || !out.has("a42b") {
		t.Errorf("got %v, %q", err, out.b.String())
	}
}

func testStreams(t *testing.T, r *rig) {
	res := r.sallyport("-o", "json", "run", "agent", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
	var got struct {
		Code           int
		Stdout, Stderr string
	}
	if err := json.Unmarshal([]byte(res.stdout), &got); err != nil || res.code != 3 || got.Code != 3 || got.Stdout != "out\n" || got.Stderr != "err\n" {
		t.Errorf("as JSON: %s (%v)", res, err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--timeout", "300ms", "--", "sleep", "100"}, 124, ""},
		{[]string{"--user", "nobody", "--", "id", "-un"}, 0, "nobody\n"},
		{[]string{"-w", "/usr", "--", "pwd"}, 0, "/usr\n"},
		{[]string{"-w", "/no/such", "--", "pwd"}, 126, ""},
		{[]string{"--", "/etc"}, 126, ""},
		{[]string{"--", "no-such-program"}, 127, ""},
		{[]string{"-t", "--", "sh", "-c", "test -t 1 && echo yes"}, 0, "yes\r\n"},
	} {
		res := r.sallyport(append([]string{"sandbox", "exec", "agent"}, tt.args...)...)
		if res.code != tt.code || res.stdout != tt.want {
			t.Errorf("%q: got %s, want %d and %q", tt.args, res, tt.code, tt.want)
		}
	}
}

// knock says what the agent at an address answers to somebody who cannot prove
// to be the host.
const knock = `
import socket, sys
def knock(host):
    s = socket.socket(); s.settimeout(4)
    try:
        s.connect((host, 1023))
    except OSError as e:
        return "no way"
    s.settimeout(60)
    try:
        got = b""
        while len(got) < 32:
            part = s.recv(64)
            if not part: return "closed after %%d" %% len(got)
            got += part
        s.sendall(b"\0" * 64 + b"GET /commands HTTP/1.1\r\nHost: agent\r\n\r\n")
        more = s.recv(64)
        return "ANSWERED" if more else "refused"
    except ConnectionResetError:
        return "refused"
    finally:
        s.close()
for host in %q.split():
    print(host, knock(host))
`

// Nobody but the daemon gets a word from an agent: not root inside, not a user
// inside, no other sandbox, and no process of the host, which the datapath keeps
// away.
func testStrangers(t *testing.T, r *rig) {
	mine, other := r.address("agent"), r.address("other")
	var knocking sync.WaitGroup // at once, since silence takes seconds
	for _, tt := range []struct{ who, user string }{{"root inside", "root"}, {"a user inside", "nobody"}} {
		knocking.Go(func() {
			res := r.feed(fmt.Sprintf(knock, mine+" 127.0.0.1 "+other), "sandbox", "exec", "agent", "-u", tt.user, "--", "python3", "-")
			want := fmt.Sprintf("%s closed after 0\n127.0.0.1 closed after 0\n%s no way\n", mine, other)
			if res.stdout != want {
				t.Errorf("%s: got %s, want %q", tt.who, res, want)
			}
		})
	}
	// The gateway's process is one of these, with fewer rights.
	for _, uid := range []uint32{0, 65534} {
		knocking.Go(func() {
			c := exec.Command("/usr/bin/python3", "-")
			c.Stdin = strings.NewReader(fmt.Sprintf(knock, mine))
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			out, err := c.CombinedOutput()
			if err != nil || string(out) != mine+" no way\n" {
				t.Errorf("user %d of the host: got %q, %v", uid, out, err)
			}
		})
	}
	knocking.Wait()
	// A signature of the daemon's for one sandbox opens no other, also not to one that has a
	// live challenge of the other's; see package agent's tests for each part of a proof.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := datapath.Dial(ctx, netip.AddrPortFrom(addr(t, mine), wire.Port))
	must.OK(t, err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	if n, err := io.ReadFull(conn, make([]byte, wire.ChallengeSize)); err != nil {
		t.Fatalf("%d bytes of a challenge: %v", n, err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("who says nothing is kept: %v", err)
	}
	// The key is nowhere but sealed.
	data, err := os.ReadFile(filepath.Join(r.dir, "data/agent.key"))
	if err != nil || !strings.HasPrefix(string(data), "age-encryption.org/v1\n") {
		t.Errorf("the key on disk: %.40q, %v", data, err)
	}
}

// usurp tries to take the agent's port, at every address and in every way, and says
// which it got.
const usurp = `
import itertools, socket, sys
own, port = %q, int(sys.argv[1])
got = []
hosts = [own, "127.0.0.1", "0.0.0.0", "127.0.0.2", "255.255.255.255", "224.0.0.1", "::", "::ffff:" + own, "::ffff:127.0.0.1", "::ffff:0.0.0.0"]
options = [(socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.SOL_SOCKET, socket.SO_REUSEPORT), (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)]
for host in hosts:
    for n in range(len(options) + 1):
        for some in itertools.combinations(options, n):
            if host == "::" and options[2] in some: continue # where nobody dials: the network has no IPv6
            try:
                s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            except OSError:
                continue
            for o in some:
                try: s.setsockopt(*o, 1)
                except OSError: pass
            try:
                s.bind((host, port)); s.listen()
                got.append(host + " " + str([o[1] for o in some]))
            except OSError: pass
            s.close()
print(len(got), *got, sep="; ")
`

// A user other than root has no part in the agent's port, in a sandbox as in a fork of its
// memory, which has another address.
func testUsurper(t *testing.T, r *rig) {
	r.ok("run", "agent", "--", "sh", "-c", "useradd -u 1000 worker 2>/dev/null; id -u")
	r.ok("sandbox", "fork", "agent", "child")
	for _, name := range []string{"agent", "child"} {
		at := r.address(name)
		take := func(port string) string {
			return r.feed(fmt.Sprintf(usurp, at), "sandbox", "exec", name, "-u", "1000", "--", "python3", "-", port).stdout
		}
		if got := take("1023"); !strings.HasPrefix(got, "0") {
			t.Errorf("user 1000 in %s took the agent's port: %s", name, got)
		}
		if got := take("8123"); strings.HasPrefix(got, "0") || !strings.Contains(got, at) {
			t.Errorf("user 1000 in %s takes no port at all: the test shows nothing: %s", name, got)
		}
	}
	r.ok("sandbox", "rm", "child")
}

// A root inside can end its own agent's answers, and nothing else.
func testImpostor(t *testing.T, r *rig) {
	if out := r.engineExec("other", `
import os, signal
for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGUSR1):
    try: os.kill(1, s)
    except OSError as e: print(e)
try:
    with open("/.sallyport/host.pub", "w") as f: f.write("mine")
    print("WRITTEN")
except OSError: pass
try:
    with open("/.sallyport/agent", "wb") as f: f.write(b"mine")
    print("WRITTEN")
except OSError: pass
`); strings.Contains(out, "WRITTEN") {
		t.Errorf("root inside has changed what the host mounts: %s", out)
	}
	begin := time.Now()
	r.ok("run", "agent", "--", "true")
	if took := time.Since(begin); took > calmWait {
		t.Errorf("another sandbox's command took %v", took)
	}
	r.ok("sandbox", "stop", "other")
	r.ok("run", "other", "--", "true")
}

func addr(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	must.OK(t, err)
	return a
}
