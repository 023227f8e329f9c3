package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// resolving looks one name up again and again, and writes when each lookup began, how
// long it took and what came of it.
const resolving = `import socket, time
out = open("/memory/lookups", "a", buffering=1)
while True:
    began = time.time()
    try:
        outcome = socket.getaddrinfo("api.example.test", 443, proto=socket.IPPROTO_TCP)[0][4][0]
    except OSError as e:
        outcome = "failed: %s" % e
    out.write("%.6f %.6f %s\n" % (began, time.time() - began, outcome))
`

// A lost question is asked again after a second. Resolvers that are told nothing
// wait for five.
const longestLookup = 4 * time.Second

// A question that a killed gateway, or a killed daemon, has not answered is asked again
// and answered: no lookup in a sandbox fails, and none takes as long as a resolver's own
// patience.
func testLookupsWhileKilled(t *testing.T, r *rig) {
	if res := r.feed(resolving, "run", "agent", "--", "sh", "-c", "cat > /root/look.py"); res.code != 0 {
		t.Fatal(res)
	}
	r.ok("run", "agent", "--", "sh", "-c", "setsid python3 /root/look.py </dev/null >/dev/null 2>&1 &")
	r.awaitLookup(time.Now())
	address := r.lookups()[0].outcome
	if strings.HasPrefix(address, "failed") {
		t.Fatal(address)
	}
	for what, kill := range map[string]func(){
		"gateway": func() {
			was := r.gatewayPID()
			must.OK(t, syscall.Kill(was, syscall.SIGKILL))
			r.await("another gateway", func() bool { is := r.gatewayPID(); return is != 0 && is != was })
		},
		"daemon": func() {
			r.kill(syscall.SIGKILL)
			r.up()
		},
	} {
		since := time.Now()
		kills := soak(2, 5)
		// Nothing answers while what was killed is away, which on a busy machine may be for
		// longer than a resolver asks.
		away := time.Duration(0)
		for range kills {
			killed := time.Now()
			kill()
			away = max(away, time.Since(killed))
			r.awaitLookup(time.Now())
		}
		bound := max(longestLookup, away+2*time.Second)
		var longest time.Duration
		count := 0
		for _, l := range r.lookups() {
			if !l.began.After(since) {
				continue
			}
			count++
			longest = max(longest, l.took)
			if l.outcome != address && bound == longestLookup {
				t.Errorf("%s killed: %v after the first time, a lookup: %s", what, l.began.Sub(since), l.outcome)
			}
		}
		t.Logf("%s killed %d times, and away for %v: the longest of %d lookups took %v", what, kills, away.Round(time.Millisecond), count, longest.Round(time.Millisecond))
		if longest >= bound {
			t.Errorf("%s killed: a lookup took %v", what, longest)
		}
	}
}

type lookup struct {
	began   time.Time
	took    time.Duration
	outcome string
}

func (r *rig) lookups() (list []lookup) {
	data, _ := os.ReadFile(filepath.Join(r.dir, "data/sandboxes/agent/memory/lookups"))
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) != 3 || !strings.HasSuffix(line, "\n") {
			continue
		}
		began, err := strconv.ParseFloat(f[0], 64)
		took, terr := strconv.ParseFloat(f[1], 64)
		if err == nil && terr == nil {
			list = append(list, lookup{time.UnixMicro(int64(began * 1e6)), time.Duration(took * float64(time.Second)), f[2]})
		}
	}
	return list
}

// awaitLookup waits for a lookup that began after a moment.
func (r *rig) awaitLookup(after time.Time) {
	r.t.Helper()
	r.await("a lookup", func() bool {
		all := r.lookups()
		return len(all) > 0 && all[len(all)-1].began.After(after)
	})
}
