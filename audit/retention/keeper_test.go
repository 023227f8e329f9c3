package retention_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/retention"
	"sallyport/audit/tree"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) {
	if root := os.Getenv("RETENTION_TEST_CHILD"); root != "" {
		child(root)
		return
	}
	goleak.VerifyTestMain(m)
}

// kept is a log with what seals and what keeps it.
type kept struct {
	dir     string
	log     *auditlog.Log
	seal    func() error // signs checkpoints of what is there
	covered uint64
	*retention.Keeper
	sinks sinks
	now   time.Time
	alter func(*audit.Event) // what is appended
}

// sinks have the records up to a number.
type sinks struct{ last uint64 }

func (s *sinks) Shipped() (uint64, string) { return s.last, "siem" }

func (k *kept) Append(ctx context.Context, events ...*audit.Event) error {
	audit.Attribute(ctx, events...)
	if k.alter != nil {
		for i := range events {
			e := *events[i]
			k.alter(&e)
			events[i] = &e
		}
	}
	return k.log.Append(ctx, events...)
}

func (k *kept) Durable() uint64 { return k.log.Begins() - 1 + k.log.Stats().Events }

func reopen(root string, p retention.Policy) (*kept, error) {
	k := &kept{dir: filepath.Join(root, "data", "audit"), sinks: sinks{1 << 40}, now: time.Now()}
	key, err := seal.Open(filepath.Join(root, "key"), filepath.Join(root, "data"))
	if err != nil {
		return nil, err
	}
	if k.log, err = auditlog.Open(k.dir, auditlog.Options{SegmentSize: 8 << 10, After: tree.Sealed(k.dir)}); err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	k.seal = func() error {
		s := tree.NewSealer(tree.Options{Dir: k.dir, Log: k, Key: key, Logger: quiet, Records: 8})
		defer func() { k.covered = s.Status().Saved }()
		return s.Close()
	}
	k.keep(p)
	return k, nil
}

// keep makes the Keeper.
func (k *kept) keep(p retention.Policy) {
	k.Keeper = retention.NewKeeper(retention.Options{
		Dir: k.dir, Log: k, Covered: func() uint64 { return k.covered }, Sinks: &k.sinks, Logger: slog.New(slog.DiscardHandler),
	}.At(func() time.Time { return k.now }), p)
}

func open(t testing.TB, root string, p retention.Policy) *kept {
	t.Helper()
	k, err := reopen(root, p)
	must.OK(t, err)
	t.Cleanup(func() { k.log.Close() })
	return k
}

func (k *kept) exchanges(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		d := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
		d.Action, d.Message = audit.ActionAllowed, fmt.Sprint("request ", i)
		c := audit.New(audit.KindCompletion, audit.ClassHTTP, audit.HTTPActivity("GET"))
		c.Metadata.CorrelationUID = d.ID()
		must.OK(t, k.log.Append(t.Context(), d, c))
	}
}

func (k *kept) turn(t testing.TB) (busy bool) {
	t.Helper()
	busy, err := k.Turn(t.Context())
	must.OK(t, err)
	return busy
}

// sealed makes a log of n exchanges that checkpoints cover.
func sealed(t testing.TB, n int, p retention.Policy) (k *kept, root string) {
	t.Helper()
	root = t.TempDir()
	k = open(t, root, p)
	k.exchanges(t, n)
	k.checkpoint(t)
	return k, root
}

func (k *kept) checkpoint(t testing.TB) {
	t.Helper()
	must.OK(t, k.seal())
}

func (k *kept) segments(t testing.TB) []auditlog.Segment {
	t.Helper()
	all, err := auditlog.Segments(k.dir)
	must.OK(t, err)
	return all
}

// states lists the states of events of the log about itself.
func (k *kept) states(t testing.TB) (all []string) {
	t.Helper()
	for e, err := range auditlog.Read(t.Context(), k.dir, auditlog.Query{Kind: audit.KindLifecycle}) {
		must.OK(t, err)
		if s := e.Unmapped.Sallyport.State; s != tree.State {
			all = append(all, s)
		}
	}
	return all
}

// verify fails if something is wrong with the log, and returns which records were deleted.
func (k *kept) verify(t testing.TB) []tree.Deleted {
	t.Helper()
	key, err := tree.ReadKey(k.dir)
	must.OK(t, err)
	r, err := tree.VerifyLog(t.Context(), k.dir, key, nil)
	if err != nil || len(r.Findings) > 0 {
		t.Fatal(r, err)
	}
	return r.Deleted
}

// settle has everything done that is due.
func (k *kept) settle(t testing.TB) {
	t.Helper()
	for n := 0; k.turn(t); n++ {
		if k.checkpoint(t); n > 100 {
			t.Fatal("it does not end")
		}
	}
}

const hour = time.Hour

// Records are compressed once a checkpoint covers them, and deleted once they are old and
// a checkpoint covers the event that says so.
func TestAge(t *testing.T) {
	root := t.TempDir()
	k := open(t, root, retention.Policy{Keep: hour})
	k.exchanges(t, 60)
	k.now = k.now.Add(2 * hour)
	k.turn(t)
	before := k.segments(t)
	if k.segments(t)[0].Compressed || len(before) < 4 {
		t.Fatalf("%+v", before)
	}
	k.now = k.now.Add(-2 * hour)
	k.checkpoint(t)
	k.turn(t)
	st := k.Status()
	if all := k.segments(t); !all[0].Compressed || !all[1].Compressed || st.Compressed < 3 || st.Oldest != 1 || st.Bytes == 0 || st.Since.IsZero() {
		t.Fatalf("%+v, %+v", all, st)
	}
	k.now = k.now.Add(2 * hour)
	if !k.turn(t) || len(k.segments(t)) < len(before) || !slices.Equal(k.states(t), []string{audit.StateDeleted}) {
		t.Fatalf("%+v, %v", k.segments(t), k.states(t))
	}
	if k.turn(t); len(k.segments(t)) < len(before) || len(k.verify(t)) > 0 {
		t.Fatal("files are gone that a checkpoint does not cover yet")
	}
	k.settle(t)
	all := k.segments(t)
	deleted := k.verify(t)
	if all[0].First <= before[2].First || len(deleted) == 0 || deleted[0].First != 1 || deleted[len(deleted)-1].Last != all[0].First-1 || k.Status().Deleted != all[0].First-1 {
		t.Errorf("%+v, %v", all, deleted)
	}
	if k.turn(t); k.Status().Oldest != all[0].First {
		t.Errorf("%+v", k.Status())
	}
	if files, _ := filepath.Glob(filepath.Join(k.dir, "00000000000000000001*")); len(files) > 0 {
		t.Error(files)
	}
}

// The log's writer does not have records deleted before their time by the times that it
// writes, whether they are compressed or not.
func TestAgeByFiles(t *testing.T) {
	for _, plain := range []bool{false, true} {
		k := open(t, t.TempDir(), retention.Policy{Keep: hour, Plain: plain})
		k.exchanges(t, 10)
		for range 60 {
			e := audit.New(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
			e.Time = 0
			must.OK(t, k.log.Append(t.Context(), e))
		}
		k.checkpoint(t)
		before := k.segments(t)
		k.settle(t)
		if len(before) < 4 || len(k.segments(t)) < len(before) {
			t.Fatalf("plain %v: %+v", plain, k.segments(t))
		}
		if p, err := k.Delete(t.Context(), k.now.Add(-hour), false); !errors.Is(err, retention.ErrNothing) {
			t.Error(p, err)
		}
		k.now = k.now.Add(2 * hour)
		if k.settle(t); len(k.segments(t)) >= len(before) {
			t.Errorf("plain %v: nothing is deleted when it is old", plain)
		}
	}
}

func TestBytes(t *testing.T) {
	k, _ := sealed(t, 200, retention.Policy{})
	k.settle(t)
	before := k.Status()
	k.Use(retention.Policy{Bytes: before.Bytes * 2 / 3})
	k.settle(t)
	if now := k.Status(); now.Bytes > before.Bytes || now.Oldest == 1 || len(k.verify(t)) == 0 {
		t.Errorf("%+v", now)
	}
	if all := k.segments(t); len(all) < 3 {
		t.Errorf("too much was deleted: %+v", all)
	}
	// Without a bound nothing is.
	k.Use(retention.Policy{})
	was := k.Status().Oldest
	k.exchanges(t, 60)
	k.checkpoint(t)
	k.settle(t)
	if k.Status().Oldest != was {
		t.Error("something was deleted")
	}
}

func TestSinksBehind(t *testing.T) {
	k, _ := sealed(t, 60, retention.Policy{Keep: hour})
	k.now = k.now.Add(2 * hour)
	all := k.segments(t)
	k.sinks.last = all[1].Last + 2 // in the middle of one
	k.settle(t)
	if st := k.Status(); k.segments(t)[0].First != all[2].First || st.Sink != "siem" || st.Waiting == 0 || st.Held != 0 {
		t.Fatalf("%+v, %+v", k.segments(t), st)
	}
	if _, err := k.Delete(t.Context(), k.now, false); !errors.Is(err, retention.ErrUnshipped) || !strings.Contains(err.Error(), "siem") {
		t.Error(err)
	}
	ctx := audit.By(t.Context(), operator("anna"), nil)
	p, err := k.Delete(ctx, k.now, true)
	if err != nil || p.First != all[2].First || p.Segments == 0 {
		t.Fatal(p, err)
	}
	k.settle(t)
	if k.segments(t)[0].First != p.Last+1 {
		t.Errorf("%+v, %+v", p, k.segments(t))
	}
	forced := 0
	for e, err := range auditlog.Read(t.Context(), k.dir, auditlog.Query{}) {
		must.OK(t, err)
		if d := e.Unmapped.Sallyport.Deleted; d != nil && d.Forced {
			if forced++; e.Actor == nil || e.Actor.User.Name != "anna" || d.Last != p.Last || len(d.Segments) != p.Segments || len(d.Segments[0].SHA256) != 64 {
				t.Errorf("%+v", d)
			}
		}
	}
	if forced != 1 {
		t.Errorf("%d forced deletions", forced)
	}
	k.verify(t)
}

func operator(name string) *audit.Actor {
	a := new(audit.Actor)
	a.User.Name = name
	return a
}

// Nothing that is due, ordered or under way is deleted under a hold, also after a restart.
func TestHold(t *testing.T) {
	k, root := sealed(t, 60, retention.Policy{Keep: hour})
	k.now = k.now.Add(2 * hour)
	before := k.segments(t)
	if !k.turn(t) {
		t.Fatal("nothing is under way")
	}
	ctx := audit.By(t.Context(), operator("anna"), nil)
	h, err := k.AddHold(ctx, "case-7", "a letter of the court")
	if err != nil || h.By != "anna" {
		t.Fatal(h, err)
	}
	if _, err := k.AddHold(ctx, "case-7", "again"); !errors.Is(err, retention.ErrHoldExists) {
		t.Error(err)
	}
	for _, wrong := range [][2]string{{"", "why"}, {"../x", "why"}, {"x", ""}} {
		if _, err := k.AddHold(ctx, wrong[0], wrong[1]); !errors.Is(err, retention.ErrInvalid) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	for n := range 99 {
		if _, err := k.AddHold(ctx, fmt.Sprint(n), "one more"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.AddHold(ctx, "x", "too many"); !errors.Is(err, retention.ErrHoldsFull) {
		t.Error(err)
	}
	for n := range 99 {
		must.OK(t, k.RemoveHold(ctx, fmt.Sprint(n), "over"))
	}
	k.checkpoint(t)
	k.settle(t)
	if _, err := k.Delete(t.Context(), k.now, true); !errors.Is(err, retention.ErrHeld) {
		t.Error(err)
	}
	must.OK(t, k.log.Close())
	again := open(t, root, retention.Policy{Bytes: 1})
	again.checkpoint(t)
	again.settle(t)
	st := again.Status()
	if len(again.segments(t)) < len(before) || len(again.verify(t)) > 0 || st.Held == 0 || len(st.Holds) != 1 || st.Holds[0].Reason != h.Reason {
		t.Fatalf("%+v", st)
	}
	if got, want := slices.Compact(again.states(t)), []string{audit.StateDeleted, "added", "removed", "audit-kept"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if looked, err := retention.Look(t.Context(), again.dir); err != nil || looked.Oldest != 1 || len(looked.Holds) != 1 {
		t.Error(looked, err)
	}
	if err := again.RemoveHold(t.Context(), "case-8", "over"); !errors.Is(err, retention.ErrNoHold) {
		t.Error(err)
	}
	must.OK(t, again.RemoveHold(t.Context(), "case-7", "over"))
	again.checkpoint(t)
	again.settle(t)
	if len(again.verify(t)) == 0 {
		t.Error("nothing was deleted after the hold")
	}
}

// A log that is not certain to be as it should has nothing deleted.
func TestRefuses(t *testing.T) {
	t.Run("a state that cannot be read", func(t *testing.T) {
		k, _ := sealed(t, 60, retention.Policy{Bytes: 1})
		must.OK(t, os.WriteFile(filepath.Join(k.dir, "retention.json"), []byte("{"), 0o600))
		before := len(k.segments(t))
		for range 3 {
			if _, err := k.Turn(t.Context()); err == nil {
				t.Error("no error")
			}
			k.checkpoint(t)
		}
		if _, err := k.Delete(t.Context(), time.Now().Add(hour), true); err == nil || len(k.segments(t)) < before {
			t.Error(err)
		}
	})
	t.Run("an event that the writer has changed", func(t *testing.T) {
		k, _ := sealed(t, 60, retention.Policy{Bytes: 1})
		before := len(k.segments(t))
		k.alter = func(e *audit.Event) {
			if d := e.Unmapped.Sallyport.Deleted; d != nil {
				other := *d
				other.Last--
				e.Unmapped.Sallyport.Deleted = &other
			}
		}
		k.turn(t)
		k.checkpoint(t)
		if _, err := k.Turn(t.Context()); err == nil || len(k.segments(t)) < before {
			t.Error(err)
		}
	})
	t.Run("too new", func(t *testing.T) {
		k, _ := sealed(t, 60, retention.Policy{})
		if _, err := k.Delete(t.Context(), time.Now().Add(-hour), true); !errors.Is(err, retention.ErrNothing) {
			t.Error(err)
		}
	})
}

// A later deletion does not explain what others have removed before it, and says all that
// earlier ones did, whose events may be deleted.
func TestEarliest(t *testing.T) {
	for _, lost := range []bool{false, true} {
		k, _ := sealed(t, 60, retention.Policy{Keep: hour})
		k.now = k.now.Add(2 * hour)
		k.turn(t)
		k.checkpoint(t)
		k.turn(t)
		if lost {
			must.OK(t, os.Remove(filepath.Join(k.dir, "retention.json")))
			k.keep(retention.Policy{Keep: hour})
		}
		k.exchanges(t, 30)
		k.checkpoint(t)
		k.settle(t)
		if d := k.verify(t); d[0].First != 1 || d[len(d)-1].Last != k.segments(t)[0].First-1 {
			t.Error(d)
		}
	}
	k, _ := sealed(t, 60, retention.Policy{Bytes: 60 << 10})
	all := k.segments(t)
	must.OK(t, auditlog.Remove(k.dir, all[1].Last))
	k.settle(t)
	k.Use(retention.Policy{Bytes: 1})
	k.settle(t)
	key, err := tree.ReadKey(k.dir)
	must.OK(t, err)
	r, err := tree.VerifyLog(t.Context(), k.dir, key, nil)
	if err != nil || r.Findings[0].Kind != tree.Missing || r.Findings[0].First != 1 || r.Findings[0].Last != all[1].Last || len(r.Deleted) == 0 {
		t.Error(r, err)
	}
}

// Run does the same by itself.
func TestRun(t *testing.T) {
	k, _ := sealed(t, 60, retention.Policy{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	for !k.segments(t)[0].Compressed {
		time.Sleep(time.Millisecond)
	}
	k.Use(retention.Policy{Bytes: 1})
	for !slices.Contains(k.states(t), audit.StateDeleted) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// child deletes the oldest records of a log.
func child(root string) {
	runtime.LockOSThread() // strace counts the calls of each thread
	k, err := reopen(root, retention.Policy{Bytes: 1})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for err == nil && len(mustSegments(k.dir)) > 3 {
		if err = k.seal(); err == nil {
			_, err = k.Turn(context.Background())
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func mustSegments(dir string) []auditlog.Segment {
	all, err := auditlog.Segments(dir)
	if err != nil {
		panic(err)
	}
	return all
}

// At each system call that renames, removes or syncs a file the process is killed: the log is as it was, or its beginning is gone and the log says so, once.
func TestKilled(t *testing.T) {
	strace := must.Program(t, "strace")
	first, whole := sealed(t, 40, retention.Policy{})
	must.OK(t, first.log.Close())
	kills := map[string]int{}
	for _, call := range []string{"renameat", "unlinkat", "fsync"} {
		for n, killed := 1, true; killed; n++ {
			root := t.TempDir()
			must.OK(t, os.CopyFS(root, os.DirFS(whole)))
			must.OK(t, os.Chmod(filepath.Join(root, "key"), 0o600))
			cmd := exec.Command(strace, "-f", "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), os.Args[0])
			cmd.Env = append(os.Environ(), "RETENTION_TEST_CHILD="+root)
			out, err := cmd.CombinedOutput()
			if killed = err != nil; killed && !strings.Contains(err.Error(), "killed") {
				t.Fatalf("%s %d: %v\n%s", call, n, err, out)
			}
			k := open(t, root, retention.Policy{Bytes: 1})
			k.verify(t)
			for len(k.segments(t)) > 3 {
				k.checkpoint(t)
				k.turn(t)
			}
			k.checkpoint(t)
			deleted, said := k.verify(t), 0
			for _, s := range k.states(t) {
				if s == audit.StateDeleted {
					said++
				}
			}
			if len(deleted) != said || deleted[0].First != 1 || deleted[len(deleted)-1].Last+1 != k.segments(t)[0].First {
				t.Fatalf("%s %d: %d events of %v", call, n, said, deleted)
			}
			must.OK(t, k.log.Close())
			if killed {
				kills[call]++
			}
		}
	}
	t.Logf("killed at %v", kills)
	for call, least := range map[string]int{"renameat": 5, "unlinkat": 5, "fsync": 5} {
		if kills[call] < least {
			t.Errorf("killed at %v", kills)
		}
	}
}
