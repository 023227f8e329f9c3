package audit_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
)

// appendUntilKilled is the child of TestKill: it appends from several
// goroutines and prints each number and id as soon as it is acknowledged.
func appendUntilKilled(dir string) {
	l, err := audit.Open(dir, audit.Options{SegmentSize: 20_000})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for range 8 {
		go func() {
			for {
				e := event("from a child")
				if err := l.Append(context.Background(), e); err != nil {
					fmt.Println("append:", err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(e.Metadata.Sequence, e.ID())
				mu.Unlock()
			}
		}()
	}
	select {}
}

// TestKill kills a writer at arbitrary moments, many times over one log: what
// it was told is durable is there under its number, and the whole log reads
// without a gap.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[uint64]string{}
	for round := range 25 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "AUDIT_TEST_CHILD="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(20+round*7)*time.Millisecond, func() { cmd.Process.Kill() })
		s := bufio.NewScanner(out)
		for s.Scan() {
			number, id, ok := strings.Cut(s.Text(), " ")
			n, err := strconv.ParseUint(number, 10, 64)
			if !ok || err != nil {
				t.Fatalf("the child said %q", s.Text())
			}
			if len(id) != 36 {
				continue // the kill cut the line
			}
			if other, ok := acknowledged[n]; ok {
				t.Fatalf("number %d was given to %s and to %s", n, other, id)
			}
			acknowledged[n] = id
		}
		cmd.Wait()
		timer.Stop()
	}
	l := open(t, dir, audit.Options{}) // cuts a torn tail
	appendAll(t, l, "the end")
	next := uint64(1)
	for e, err := range audit.Read(t.Context(), dir, audit.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Metadata.Sequence != next {
			t.Fatalf("number %d where %d belongs", e.Metadata.Sequence, next)
		}
		if id, ok := acknowledged[next]; ok && id != e.ID() {
			t.Fatalf("number %d is %s, acknowledged as %s", next, e.ID(), id)
		}
		delete(acknowledged, next)
		next++
	}
	if len(acknowledged) > 0 {
		t.Errorf("%d acknowledged events are missing", len(acknowledged))
	}
	if next < 100 {
		t.Errorf("only %d events: the children hardly ran", next)
	}
	t.Logf("%d events over 25 kills", next-1)
}

// TestSyscalls asks the kernel: the data sync that covers an event comes after
// its write and before Append has returned.
func TestSyscalls(t *testing.T) {
	if dir := os.Getenv("AUDIT_TEST_TRACED"); dir != "" {
		l := open(t, dir, audit.Options{})
		for i := range 3 {
			appendAll(t, l, fmt.Sprintf("message-%d", i))
			syscall.Write(2, fmt.Appendf(nil, "returned-%d", i))
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("strace is not installed")
		}
		t.Skip("strace is not installed")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-s", "4096", "-o", trace, "-e", "trace=write,pwrite64,fdatasync",
		os.Args[0], "-test.run=^TestSyscalls$")
	cmd.Env = append(os.Environ(), "AUDIT_TEST_TRACED="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range 3 {
		for _, want := range []string{fmt.Sprintf("message-%d", i), "fdatasync(", "= 0", fmt.Sprintf("returned-%d", i)} {
			j := strings.Index(string(raw[at:]), want)
			if j < 0 {
				t.Fatalf("%q does not follow in\n%s", want, raw)
			}
			at += j + len(want)
		}
	}
}
