package tree_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/internal/seal"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("TREE_TEST_CHILD"); dir != "" {
		if err := appendAndSeal(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// sealed is a log with its Sealer.
type sealed struct {
	dir string // of the log
	key *seal.Key
	log *auditlog.Log
	*tree.Sealer
}

func (s *sealed) Append(ctx context.Context, events ...*audit.Event) error {
	return s.log.Append(ctx, events...)
}

func (s *sealed) Durable() uint64 { return s.log.Begins() - 1 + s.log.Stats().Events }

// open opens the log in a folder that may be there, with a checkpoint each 8 records.
func open(t testing.TB, root string) *sealed {
	t.Helper()
	s, err := reopen(root, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reopen(root string, o tree.Options) (*sealed, error) {
	s := &sealed{dir: filepath.Join(root, "data", "audit")}
	var err error
	if s.key, err = seal.Open(filepath.Join(root, "key"), filepath.Join(root, "data")); err != nil {
		return nil, err
	}
	if s.log, err = auditlog.Open(s.dir, auditlog.Options{SegmentSize: 16 << 10, After: tree.Sealed(s.dir)}); err != nil {
		return nil, err
	}
	o.Dir, o.Log, o.Key, o.Logger = s.dir, s, s.key, slog.New(slog.DiscardHandler)
	if o.Records == 0 {
		o.Records = 8
	}
	s.Sealer = tree.NewSealer(o)
	return s, nil
}

// exchanges appends decisions with their completions.
func (s *sealed) exchanges(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		d := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
		d.Action = audit.ActionAllowed
		d.Message = fmt.Sprintf("request %d \u001f\u2028 \"{", i)
		c := audit.New(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("GET"))
		c.Metadata.CorrelationUID = d.ID()
		if err := s.log.Append(t.Context(), d, c); err != nil {
			t.Fatal(err)
		}
	}
}

// end seals and closes the log as the daemon does.
func (s *sealed) end(t testing.TB) {
	t.Helper()
	if err := s.Sealer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.log.Close(); err != nil {
		t.Fatal(err)
	}
}

// closed makes a log of n exchanges that was ended in order.
func closed(t testing.TB, n int) *sealed {
	t.Helper()
	s := open(t, tempDir(t))
	s.exchanges(t, n)
	s.end(t)
	return s
}

func (s *sealed) publicKey(t testing.TB) tree.Key {
	t.Helper()
	k, err := tree.ReadKey(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (s *sealed) verify(t testing.TB) *tree.Report {
	t.Helper()
	r, err := tree.VerifyLog(t.Context(), s.dir, s.publicKey(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// records are the lines of the log.
func (s *sealed) records(t testing.TB) (all []string) {
	t.Helper()
	for e, err := range auditlog.Entries(t.Context(), s.dir, auditlog.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(e.JSON))
	}
	return all
}

func (s *sealed) segments(t testing.TB) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.dir, "*.jsonl"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all
}

func kinds(r *tree.Report) (all []string) {
	for _, f := range r.Findings {
		if !slices.Contains(all, string(f.Kind)) {
			all = append(all, string(f.Kind))
		}
	}
	slices.Sort(all)
	return all
}

func found(r *tree.Report, k tree.Kind) bool {
	return slices.ContainsFunc(r.Findings, func(f tree.Finding) bool { return f.Kind == k })
}

// whole fails unless all of a log is anchored and nothing is wrong.
func whole(t *testing.T, r *tree.Report, records int) {
	t.Helper()
	want := []tree.Range{{First: 1, Last: uint64(records), Anchor: tree.ByCheckpoint}}
	if len(r.Findings) > 0 || r.Records != uint64(records) || !slices.Equal(r.Ranges, want) || r.IncompleteCount != 0 {
		t.Fatalf("%d records: %s", records, r)
	}
}

func TestClosedLog(t *testing.T) {
	s := closed(t, 20)
	r := s.verify(t)
	whole(t, r, len(s.records(t)))
	if r.Checkpoints < 5 {
		t.Errorf("%d checkpoints of 40 records", r.Checkpoints)
	}
	// Once more: the tree goes on.
	again := open(t, filepath.Dir(filepath.Dir(s.dir)))
	again.exchanges(t, 3)
	again.end(t)
	whole(t, again.verify(t), len(again.records(t)))
	if before, now := s.publicKey(t).String(), again.publicKey(t).String(); before != now {
		t.Errorf("the key was %s and is %s", before, now)
	}
}

// A checkpoint is signed when it is due, and not for the record of the one before.
func TestDue(t *testing.T) {
	s, err := reopen(tempDir(t), tree.Options{Records: 1 << 20, Every: time.Millisecond, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	s.exchanges(t, 1)
	size := uint64(0)
	for size < 3 { // its own record too
		size = s.Status().Size
		time.Sleep(time.Millisecond)
	}
	for range 50 { // looks at a log without anything new
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-ended
	s.end(t)
	checkpoints := 0
	for _, r := range s.records(t) {
		checkpoints += strings.Count(r, `"state":"checkpoint"`)
	}
	if checkpoints > 2 || checkpoints == 0 {
		t.Errorf("%d checkpoints of one exchange", checkpoints)
	}
	whole(t, s.verify(t), len(s.records(t)))
}

// A decision without a completion is listed, and no finding.
func TestIncomplete(t *testing.T) {
	s := open(t, tempDir(t))
	s.exchanges(t, 2)
	d := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
	d.Action = audit.ActionAllowed
	if err := s.log.Append(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	r := s.verify(t)
	if r.IncompleteCount != 1 || r.Incomplete[0].ID != d.ID() || r.Incomplete[0].Number != 5 || len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
}

// tempDir is a folder in memory, where there is one: thousands of data syncs are not what
// is tested here.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sallyport-tree-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
