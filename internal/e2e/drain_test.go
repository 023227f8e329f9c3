package e2e

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestDrain restarts the daemon with requests under way: what ends in the time
// that is configured ends well, what does not is broken off then, nothing new is
// taken, the next daemon serves at once, and the log tells how each ended.
func TestDrain(t *testing.T) {
	const drain = 8 * time.Second // not the default
	const late = 20 * time.Second // what a busy machine may be
	begun, release, broken := make(chan string, 3), make(chan struct{}), make(chan struct{}, 1)
	r, client := newProxyRigOf(t, "gateway: {drain: 8s}\n", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/in-time":
			begun <- r.URL.Path
			<-release
			io.WriteString(w, "whole")
		case "/never":
			io.WriteString(w, "some\n")
			w.(http.Flusher).Flush()
			begun <- r.URL.Path
			<-r.Context().Done()
			broken <- struct{}{}
		default:
			io.WriteString(w, `"saw_key":true`)
		}
	}))
	type answer struct {
		body string
		err  error
		at   time.Time
	}
	ask := func(path string) <-chan answer {
		out := make(chan answer, 1)
		go func() {
			resp, err := client.Get("https://api.example.test" + path)
			if err != nil {
				out <- answer{"", err, time.Now()}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			out <- answer{string(body), err, time.Now()}
		}()
		return out
	}
	inTime, never := ask("/in-time"), ask("/never")
	<-begun
	<-begun
	asked := time.Now()
	must.OK(t, r.daemon.Signal(syscall.SIGTERM))
	r.await("the listener to close", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:3128")
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	time.Sleep(drain/4 - time.Since(asked))
	close(release)
	if a := <-inTime; a.err != nil || a.body != "whole" {
		t.Errorf("what ended in time: %q, %v", a.body, a.err)
	}
	a := <-never
	if took := a.at.Sub(asked); a.err == nil || a.body != "some\n" || took < drain-100*time.Millisecond || took > drain+late {
		t.Errorf("what did not: %q, %v, after %v", a.body, a.err, took)
	}
	<-broken
	r.await("the daemon's end", func() bool { return syscall.Kill(r.daemon.PID(), 0) != nil })
	if took := time.Since(asked); took > drain+2*late {
		t.Errorf("the daemon took %v to end", took)
	}
	r.up()
	if err := fetch(client); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	r.kill(syscall.SIGTERM) // idle connections do not hold it up
	r.up()

	how := map[string]string{}
	for record, err := range auditlog.Pair(t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{}, 0) {
		switch {
		case err != nil:
			t.Fatal(err)
		case record.Decision == nil:
			t.Errorf("a completion without a decision: %+v", record.Completion)
		case record.Decision.Unmapped.Sallyport.Kind != audit.KindDecision:
		case record.Completion == nil:
			t.Errorf("a decision without a completion: %s", auditlog.Line(record))
		default:
			how[record.Decision.HTTPRequest.URL.Path] = record.Completion.Detail
		}
	}
	if len(how) != 3 || how["/in-time"] != "" || how["/v1"] != "" || how["/never"] != "the gateway is shutting down" {
		t.Errorf("the log says %q", how)
	}
}
