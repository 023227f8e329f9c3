package tree_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/internal/seal"
	"sallyport/internal/test/kill"
)

// appendAndSeal is the child of TestKill. It writes each number with its event's id as
// soon as the event is acknowledged. It appends a little to a log that is there; in a new
// one it begins a segment, keeps zeros ahead, and seals two checkpoints before the last.
func appendAndSeal(root string) error {
	rounds := 0
	if _, err := os.Stat(filepath.Join(root, "data", "audit")); err != nil {
		rounds = 2
	}
	s, err := reopen(root, tree.Options{Every: time.Hour, Poll: time.Millisecond})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	size := 40_000 // of the first event's message: a segment, with zeros ahead
	put := func(e *audit.Event) error {
		e.Message = strings.Repeat("x", size)
		if err := s.log.Append(ctx, e); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(e.Metadata.Sequence, e.ID())
		return nil
	}
	exchange := func() error {
		d := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
		d.Action = audit.ActionAllowed
		c := audit.New(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("GET"))
		c.Metadata.CorrelationUID = d.ID()
		if err := put(d); err != nil {
			return err
		}
		return put(c)
	}
	for range 2 {
		if err := exchange(); err != nil {
			return err
		}
		size = 1000
	}
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for covered := uint64(0); rounds > 0; rounds-- {
		failed := make(chan error)
		for range 3 {
			go func() { failed <- exchange() }()
		}
		for range 3 {
			if err := <-failed; err != nil {
				return err
			}
		}
		for s.Status().Covered == covered {
			time.Sleep(time.Millisecond)
		}
		covered = s.Status().Covered
	}
	cancel()
	<-ended
	if err := s.Sealer.Close(); err != nil {
		return err
	}
	return s.log.Close()
}

// child is a process that appends and seals.
func child(root string) (*exec.Cmd, *bytes.Buffer) {
	cmd, out := exec.Command(os.Args[0]), new(bytes.Buffer)
	cmd.Env = append(os.Environ(), "TREE_TEST_CHILD="+root)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// TestKill kills a writer at each system call that changes a file of the log or of its
// tree: before the call, and with SALLYPORT_SOAK also after it, which leaves the same files
// as before the next one. The log has what was acknowledged, once, and nothing is found in
// it but decisions without completions. It goes on.
func TestKill(t *testing.T) {
	torn := closed(t, 3)
	f, err := os.OpenFile(torn.segments(t)[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"metadata":{"version":` + strings.Repeat("\x00", 5000)); err != nil {
		t.Fatal(err)
	}
	step := 2  // of two stops for each call
	again := 0 // kills after the first
	if os.Getenv("SALLYPORT_SOAK") != "" {
		step, again = 1, 5
	}
	empty := tempDir(t)
	if _, err := seal.Open(filepath.Join(empty, "key"), filepath.Join(empty, "data")); err != nil {
		t.Fatal(err)
	}
	for name, begin := range map[string]string{"a new log": empty, "a torn one": filepath.Dir(filepath.Dir(torn.dir))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kills := map[string]int{}
			for n, ended := 1, false; !ended; n += step {
				root := tempDir(t)
				if err := os.CopyFS(root, os.DirFS(begin)); err != nil {
					t.Fatal(err)
				}
				os.Chmod(filepath.Join(root, "key"), 0o600)
				dir := filepath.Join(root, "data", "audit")
				cmd, out := child(root)
				call, err := kill.At(cmd, dir, n)
				if err != nil {
					t.Fatalf("stop %d: %v\n%s", n, err, out)
				}
				kills[call]++
				ended = call == ""
				where, said := fmt.Sprintf("%s, stop %d", call, n), out.String()
				for range again {
					cmd, out := child(root)
					stop := 1 + rand.IntN(100)
					if call, err = kill.At(cmd, dir, stop); err != nil {
						t.Fatalf("%s: %v\n%s", where, err, out)
					}
					where += fmt.Sprintf("; %s, stop %d", call, stop)
					said += out.String()
				}
				survives(t, root, said, where)
				os.RemoveAll(root)
			}
			t.Logf("killed at %v", kills)
		})
	}
}

// survives checks what a process has left of a log.
func survives(t *testing.T, root, said, where string) {
	t.Helper()
	acknowledged := map[uint64]string{}
	for line := range strings.Lines(said) {
		number, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || len(id) != 36 || acknowledged[n] != "" {
			t.Fatalf("%s: the writer said %q", where, said)
		}
		acknowledged[n] = id
	}
	s := open(t, root)
	if _, err := tree.ReadKey(s.dir); err == nil {
		if r := s.verify(t); len(r.Findings) > 0 {
			t.Fatalf("%s: %s", where, r)
		}
	}
	s.exchanges(t, 2)
	s.end(t)
	r := s.verify(t)
	if len(r.Findings) > 0 || len(r.Ranges) != 1 || r.Ranges[0].Anchor != tree.ByCheckpoint || r.Ranges[0].Last != r.Records {
		t.Fatalf("%s, and gone on: %s", where, r)
	}
	open, records := uint64(0), uint64(0)
	for e, err := range auditlog.Read(t.Context(), s.dir, auditlog.Query{}) {
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if records++; e.Metadata.Sequence != records {
			t.Fatalf("%s: number %d after %d", where, e.Metadata.Sequence, records-1)
		}
		if id := acknowledged[records]; id != "" && id != e.ID() {
			t.Fatalf("%s: number %d is %s, acknowledged as %s", where, records, e.ID(), id)
		}
		delete(acknowledged, records)
		switch e.Unmapped.Sallyport.Kind {
		case audit.KindDecision:
			open++
		case audit.KindCompletion:
			open--
		}
	}
	if len(acknowledged) > 0 || r.IncompleteCount != open || r.Records != records {
		t.Fatalf("%s: acknowledged and missing: %v; %d records, %d decisions without completions: %s", where, acknowledged, records, open, r)
	}
}
