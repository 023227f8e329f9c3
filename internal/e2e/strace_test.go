package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// call is one system call of a trace. Entry and exit are places in the order in
// which the kernel stopped the threads for the tracer, which no clock blurs: a
// call that returned before another one began has the smaller number.
type call struct {
	name, args  string
	entry, exit int
}

var (
	whole   = regexp.MustCompile(`^(\d+) +[\d.]+ (\w+)\((.*)\) += (-?\d+|\?).*$`)
	began   = regexp.MustCompile(`^(\d+) +[\d.]+ (\w+)\((.*) <unfinished \.\.\.>$`)
	resumed = regexp.MustCompile(`^(\d+) +[\d.]+ <\.\.\. (\w+) resumed>(.*)\) += (-?\d+|\?).*$`)
)

// parseTrace reads what `strace -f -ttt -y` writes.
func parseTrace(text string) ([]call, error) {
	var calls []call
	open := map[string]int{} // by thread
	n := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		n++
		if m := began.FindStringSubmatch(line); m != nil {
			open[m[1]] = len(calls)
			calls = append(calls, call{m[2], m[3], n, 0})
		} else if m := resumed.FindStringSubmatch(line); m != nil {
			i, ok := open[m[1]]
			if !ok || calls[i].name != m[2] {
				continue // begun before the tracer came
			}
			calls[i].args += m[3]
			calls[i].exit = n
			delete(open, m[1])
		} else if m := whole.FindStringSubmatch(line); m != nil {
			calls = append(calls, call{m[2], m[3], n, n})
		} else if !strings.Contains(line, " --- ") && !strings.Contains(line, " +++ ") && !strings.Contains(line, "resumed>") {
			return nil, fmt.Errorf("line %d: %q", n, line)
		}
	}
	return calls, nil
}

func TestParseTrace(t *testing.T) {
	got, err := parseTrace(`11 1.000001 write(7</a/audit/1.jsonl>, "{\"uid\":\"x\"}\n", 12) = 12
12 1.000002 futex(0xc0, FUTEX_WAIT, 0, NULL <unfinished ...>
11 1.000003 fdatasync(7</a/audit/1.jsonl> <unfinished ...>
12 1.000004 connect(9<socket:[5]>, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("198.51.100.10")}, 16) = -1 EINPROGRESS (Operation now in progress)
11 1.000005 <... fdatasync resumed>)     = 0
13 1.000006 --- SIGURG {si_signo=SIGURG, si_code=SI_TKILL, si_pid=1, si_uid=0} ---
14 1.000007 <... futex resumed>)        = 0
`)
	must.OK(t, err)
	var said []string
	for _, c := range got {
		said = append(said, fmt.Sprintf("%s %d-%d", c.name, c.entry, c.exit))
	}
	if want := "write 1-1, futex 2-0, fdatasync 3-5, connect 4-4"; strings.Join(said, ", ") != want {
		t.Errorf("got %q, want %q", strings.Join(said, ", "), want)
	}
	if _, err := parseTrace("nonsense\n"); err == nil {
		t.Error("nonsense is a trace")
	}
}

// trace runs f while every thread of the gateway's process is traced.
func (r *rig) trace(f func()) []call {
	r.t.Helper()
	out := filepath.Join(r.t.TempDir(), "trace")
	c := exec.Command("strace", "-f", "-ttt", "-y", "-s", "65536", "-o", out, "-p", fmt.Sprint(r.gatewayPID()),
		"-e", "trace=fsync,fdatasync,sync_file_range,connect,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendmmsg,sendfile,splice,io_uring_enter")
	said, err := c.StderrPipe()
	must.OK(r.t, err)
	if err := c.Start(); err != nil {
		r.t.Fatalf("strace: %v: apt-get install strace", err)
	}
	attached, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			select {
			case attached <- lines.Text():
			default:
			}
		}
	}()
	select {
	case line := <-attached:
		if !strings.Contains(line, "attached") {
			r.t.Fatalf("strace: %s", line)
		}
	case <-time.After(time.Minute):
		_ = c.Process.Kill()
		r.t.Fatal("strace does not attach")
	}
	f()
	must.OK(r.t, c.Process.Signal(syscall.SIGINT))
	<-ended
	_ = c.Wait() // it ends by the signal
	text, err := os.ReadFile(out)
	must.OK(r.t, err)
	calls, err := parseTrace(string(text))
	must.OK(r.t, err)
	return calls
}

// A decision is on disk before anything of it leaves: no lookup, no connection,
// no byte.
func TestWriteAhead(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")
	from := len(r.decisions("agent"))
	calls := r.trace(func() {
		if res := r.inside("agent", "curl -sS https://api.example.test/v1/traced"); !strings.Contains(res.stdout, `"saw_key":true`) {
			t.Fatal(res)
		}
		r.await("the completion", func() bool { return strings.Contains(r.ok("audit", "tail", "-n", "5"), " 200 ") })
	})
	ids := r.decisions("agent")[from:]
	if len(ids) == 0 {
		t.Fatal("no decision was recorded")
	}
	trail := filepath.Join(r.dir, "data/audit") + "/"
	writes := func(name string) bool { return strings.Contains(name, "write") || strings.HasPrefix(name, "send") }

	// The packets that left, by the first of each kind.
	left := map[string]call{}
	sockets := map[string]string{} // of connected sockets, by "fd<socket:[inode]>"
	for _, c := range calls {
		fd, _, _ := strings.Cut(c.args, ",")
		kind := ""
		switch {
		case c.name == "connect" && strings.Contains(c.args, `"`+upstreamAddress+`"`):
			peer := "resolver"
			if strings.Contains(c.args, "htons(443)") {
				peer = "upstream"
			} else if !strings.Contains(c.args, "htons(53)") {
				t.Errorf("connects elsewhere: %s", c.args)
			}
			sockets[fd] = peer
			kind = "connect to the " + peer
		case writes(c.name) && sockets[fd] != "":
			kind = "write to the " + sockets[fd]
		case writes(c.name) && strings.Contains(c.args, `"`+upstreamAddress+`"`):
			kind = "datagram"
		}
		if _, seen := left[kind]; kind != "" && !seen {
			left[kind] = c
		}
	}
	for _, kind := range []string{"connect to the resolver", "write to the resolver", "connect to the upstream", "write to the upstream"} {
		if _, ok := left[kind]; !ok {
			t.Errorf("no %s in %d system calls: the trace proves nothing", kind, len(calls))
		}
	}
	for _, id := range ids {
		// The write that holds the decision, and the first sync of that file
		// that began after it.
		var written, synced *call
		for i, c := range calls {
			switch onTrail := strings.Contains(c.args, "<"+trail); {
			case written == nil && onTrail && writes(c.name) && strings.Contains(c.args, id):
				written = &calls[i]
			case written != nil && synced == nil && onTrail && strings.HasSuffix(c.name, "sync") && c.entry > written.exit && written.exit > 0:
				synced = &calls[i]
			}
		}
		if written == nil || synced == nil || synced.exit == 0 {
			t.Errorf("decision %s: written %v, synced %v: the trace proves nothing", id, written != nil, synced != nil)
			continue
		}
		for kind, c := range left {
			if c.entry <= synced.exit {
				t.Errorf("decision %s is on disk at %d, after %s at %d", id, synced.exit, kind, c.entry)
			}
		}
		t.Logf("decision %s: written %d, on disk %d", id, written.exit, synced.exit)
	}
	for kind, c := range left {
		t.Logf("%s: %d", kind, c.entry)
	}
}

// decisions lists the allowing decisions of a sandbox.
func (r *rig) decisions(sandbox string) (ids []string) {
	r.t.Helper()
	for line := range strings.Lines(r.ok("audit", "query", "--sandbox", sandbox, "--kind", "decision", "-o", "json")) {
		var record struct {
			Decision struct {
				Metadata struct {
					UID string `json:"uid"`
				} `json:"metadata"`
				Action int `json:"action_id"`
			} `json:"decision"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
		if record.Decision.Action == 1 {
			ids = append(ids, record.Decision.Metadata.UID)
		}
	}
	return ids
}
