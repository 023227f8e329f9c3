package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// Bounds of TestListeners. Any listener keeps less than half of the connections that are
// opened to it and say nothing.
const (
	idleEach = 1300
	keptEach = 600
)

// Connections that say nothing to any listener that there is, found as the kernel lists
// them, take a bounded number of descriptors, and everything is served meanwhile.
func TestListeners(t *testing.T) {
	r := newRig(t, "")
	alice := newOperator(t, r.dir, "alice")
	r.configure(baseConfig, ruleConfig+sshRules+fmt.Sprintf(`
ssh: {listen: "127.0.0.1:%s", keys: [{name: alice, key: %q, sandboxes: [demo]}]}
api: {listen: "127.0.0.1:8443"}
proxy: {listen: "127.0.0.1:3128"}
inbound: {listen: "127.0.0.1:7080"}
`, sshPort, alice.line))
	r.up()
	r.know()
	r.ok("run", "demo", "--", "true")
	ssh, _ := r.sshProcess()
	pids := []int{r.daemon.PID(), r.gatewayPID(), ssh}
	listeners := listening(t, pids)
	for _, port := range []string{"9464", "8443", "3128", "7080", sshPort, "53"} {
		if !slices.ContainsFunc(listeners, func(at string) bool { return strings.HasSuffix(at, ":"+port) }) {
			t.Fatalf("nothing listens on port %s: %v", port, listeners)
		}
	}
	socket := filepath.Join(r.dir, "run", "sallyport.sock")
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit // of which the bounds of all listeners take less than a half
	if err := unix.Prlimit(pids[0], unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur < 1<<14 {
		t.Errorf("the daemon may have %d files open: %v", limit.Cur, err)
	}
	before := descriptors(t, pids)
	for _, at := range listeners {
		var held []net.Conn
		for range idleEach {
			c, err := net.DialTimeout("tcp", at, time.Minute)
			if err != nil {
				t.Fatalf("%s: connection %d: %v", at, len(held), err)
			}
			held = append(held, c)
		}
		served(t, r, alice, at)
		if grown := descriptors(t, pids) - before; grown > keptEach {
			t.Errorf("%d idle connections to %s take %d descriptors", idleEach, at, grown)
		}
		for _, c := range held {
			_ = c.Close()
		}
		r.await("the end of what was held", func() bool { return descriptors(t, pids)-before < 50 })
	}
	for _, listener := range []string{"metrics", "api", "ssh"} {
		if got := r.ok("audit", "query", "--kind", "lifecycle", "-o", "json"); !strings.Contains(got, "connections to the "+listener+" listener crowded") {
			t.Errorf("no event tells that the %s listener is crowded", listener)
		}
	}
	t.Run("host", func(t *testing.T) {
		for host, want := range map[string]int{"": 200, "localhost:9464": 200, "[::1]:9464": 200, "rebound.example.test": 421} {
			if got := metricsUnder(t, host); got != want {
				t.Errorf("Host %q: %d, want %d", host, got, want)
			}
		}
	})
}

// served tells that everything works that listens.
func served(t *testing.T, r *rig, alice *operator, during string) {
	t.Helper()
	defer r.within(t)()
	if got := metricsUnder(t, ""); got != 200 {
		t.Errorf("with idle connections to %s: metrics: %d", during, got)
	}
	r.ok("status")
	if res := r.inside("demo", "echo in"); res.stdout != "in\n" {
		t.Errorf("with idle connections to %s: run: %s", during, res)
	}
	if res := alice.ssh("demo", "echo in"); res.stdout != "in\n" {
		t.Errorf("with idle connections to %s: SSH: %s", during, res)
	}
	for url, want := range map[string]int{"http://127.0.0.1:3128/": 400, "http://127.0.0.1:7080/": 421, "https://127.0.0.1:8443/v1/status": 401} {
		res := curl(t, "-sk", "-o", "/dev/null", "-w", "%{http_code}", "-m", "60", url)
		if res.stdout != strconv.Itoa(want) && res.stdout != "407" {
			t.Errorf("with idle connections to %s: %s: %s", during, url, res)
		}
	}
}

// metricsUnder asks for the metrics under a Host, and returns the status.
func metricsUnder(t *testing.T, host string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:9464/metrics", nil)
	must.OK(t, err)
	req.Host, req.Close = host, true
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Do(req)
	if err != nil {
		t.Errorf("metrics: %v", err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// listening are the TCP addresses that processes listen on, as the kernel has them.
func listening(t *testing.T, pids []int) (list []string) {
	t.Helper()
	inodes := map[string]bool{}
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		must.OK(t, err)
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
				inodes[strings.Trim(to, "socket:[]")] = true
			}
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pids[0], table))
		must.OK(t, err)
		for _, line := range strings.Split(string(text), "\n") {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] {
				continue
			}
			host, port, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			must.OK(t, err)
			ip := "127.0.0.1" // of every address, or of loopback
			if len(host) == 8 && host != "00000000" {
				a, err := strconv.ParseUint(host, 16, 32)
				must.OK(t, err)
				ip = net.IPv4(byte(a), byte(a>>8), byte(a>>16), byte(a>>24)).String()
			}
			list = append(list, net.JoinHostPort(ip, strconv.FormatUint(n, 10)))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// descriptors is how many files processes have open.
func descriptors(t *testing.T, pids []int) (n int) {
	t.Helper()
	for _, pid := range pids {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		must.OK(t, err)
		n += len(open)
	}
	return n
}
