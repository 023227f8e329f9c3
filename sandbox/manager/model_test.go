package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sallyport/internal/test/model"
	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/sandbox"
)

const modelPids = 100

// newRoomyBed has place for many sandboxes, and is in memory where it can be, so
// that many calls are not as many waits for a disk.
func newRoomyBed(t *testing.T) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sallyport-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := newBedIn(t, dir)
	b.subnet = netip.MustParsePrefix("10.9.0.0/24")
	b.open(t)
	return b
}

// do does to the manager what a client wants, who asks again where a sandbox was
// stopped that was to wake, and nothing done.
func (b *bed) do(ctx context.Context, op model.Op) model.Result {
	for {
		if r, err := b.try(ctx, op); !errors.Is(err, errEnded) {
			return r
		}
	}
}

func (b *bed) try(ctx context.Context, op model.Op) (r model.Result, err error) {
	var i sandbox.Info
	switch op.Verb {
	case model.Create:
		var created bool
		i, created, err = b.GetOrCreate(ctx, op.Name, sandbox.Spec{})
		r.Created = &created
	case model.Start:
		i, err = b.Start(ctx, op.Name)
	case model.Stop:
		i, err = b.Stop(ctx, op.Name)
	case model.Pause:
		i, err = b.Pause(ctx, op.Name)
	case model.Hibernate:
		i, err = b.Hibernate(ctx, op.Name)
	case model.Wake:
		i, err = b.Wake(ctx, op.Name)
	case model.Get:
		i, err = b.Get(op.Name)
	case model.Remove:
		err = b.Remove(ctx, op.Name)
	case model.Set:
		i, err = b.Set(ctx, op.Name, sandbox.SpecChange{Labels: map[string]string{"n": op.Arg}, Pids: &op.Pids})
	case model.Snapshot:
		_, err = b.Snapshot(ctx, op.Name, sandbox.SnapshotSpec{Name: op.Arg, Memory: op.Memory})
	case model.Restore:
		i, err = b.Restore(ctx, op.Name, sandbox.RestoreSpec{Snapshot: op.Arg})
	case model.Fork:
		r.Child, err = b.child(ctx, op)
	default:
		err = b.use(ctx, op, &r)
	}
	r.State, r.Label, r.Pids = string(i.State), i.Spec.Labels["n"], i.Spec.Pids
	if i.Next != nil {
		r.Next = i.Next.Pids
	}
	switch {
	case err == nil:
	case errors.Is(err, sandbox.ErrNotFound):
		r.Outcome = model.NoSandbox
	case errors.Is(err, sandbox.ErrNoSnapshot):
		r.Outcome = model.NoSnapshot
	case errors.Is(err, sandbox.ErrState):
		r.Outcome = model.NoState
	default:
		r.Outcome, r.Err = model.Unknown, err
	}
	return r, err
}

// use is in place of a command: what it does to files and memory.
func (b *bed) use(ctx context.Context, op model.Op, r *model.Result) error {
	e, err := b.lockWithMemory(ctx, op.Name, "starting", b.memoryToWake)
	if err != nil {
		return err
	}
	defer b.release(e)
	if err := b.Manager.start(ctx, e); err != nil {
		return err
	}
	file := filepath.Join(b.h.layers, e.Rec.ID, "file")
	store := filepath.Join(memory.Dir(b.Manager.dir(op.Name)), "file")
	write := func(path string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(op.Arg), 0o600))
	}
	read := func(path string) error {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			r.Outcome, err = model.NoFile, nil
		}
		r.Text = string(text)
		return err
	}
	switch op.Verb {
	case model.WriteFile:
		return write(file)
	case model.WriteStore:
		return write(store)
	case model.ReadFile:
		return read(file)
	case model.ReadStore:
		return read(store)
	}
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	n, _ := strconv.ParseInt(b.h.memory[e.Rec.ID], 10, 64) // one that is fresh has no number yet
	r.Count = n + 1
	b.h.memory[e.Rec.ID] = strconv.FormatInt(r.Count, 10)
	return nil
}

// child makes a fork, looks at what it has, and removes it.
func (b *bed) child(ctx context.Context, op model.Op) (*model.Contents, error) {
	list, err := b.Fork(ctx, op.Name, sandbox.ForkSpec{Snapshot: op.Arg, Count: 1})
	if err != nil {
		return nil, err
	}
	c := &model.Contents{Live: list[0].State == sandbox.Running}
	name := list[0].Name
	for verb, see := range map[model.Verb]func(model.Result){
		model.ReadFile:  func(r model.Result) { c.File = r.Text },
		model.ReadStore: func(r model.Result) { c.Store = r.Text },
		model.Bump:      func(r model.Result) { c.Count = r.Count - 1 },
	} {
		r := b.do(ctx, model.Op{Verb: verb, Name: name})
		if r.Err != nil {
			return nil, r.Err
		}
		see(r)
	}
	return c, b.Remove(ctx, name)
}

// seeds are those of few games, or many in `make soak`, from the first on.
func seeds(t *testing.T, few, many int) (first int64, n int) {
	t.Helper()
	s := os.Getenv("SALLYPORT_SEED")
	if s == "" {
		if os.Getenv("SALLYPORT_SOAK") != "" {
			few = many
		}
		return time.Now().UnixNano(), few
	}
	first, err := strconv.ParseInt(s, 10, 64)
	must.OK(t, err)
	return first, 1
}

// TestModel: clients that do things at random to the same sandboxes are told what a
// simple one would tell them, and each change is one event. SALLYPORT_SEED plays
// one game again. In each other game only one of them can have its memory in RAM at a
// time, so that clients wait for each other.
func TestModel(t *testing.T) {
	first, games := seeds(t, 4, 40)
	calls := 0
	for n := range games {
		seed := uint64(first) + uint64(n)
		b := newRoomyBed(t)
		if seed%2 == 1 {
			b.ramSize = 2 * margin
			b.open(t)
		}
		g := model.Game{Seed: seed, Clients: 8, Calls: 400, Names: 10, Pids: modelPids, Do: func(op model.Op) model.Result { return b.do(t.Context(), op) }}
		all := g.Play()
		calls += len(all)
		if err := model.Check(all, b.h.log, modelPids, time.Minute); err != nil {
			t.Fatalf("SALLYPORT_SEED=%d: %v", seed, err)
		}
		b.agrees(t, fmt.Sprintf("SALLYPORT_SEED=%d", seed))
	}
	t.Logf("%d calls in %d games from SALLYPORT_SEED=%d on", calls, games, first)
}

// agrees checks that what there is, is what is listed and recorded; then removes
// all, after which there is nothing.
func (b *bed) agrees(t *testing.T, when string) {
	t.Helper()
	states, err := model.Path(b.h.log)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	live, there := 0, 0
	for _, i := range b.List() {
		there++
		want := map[sandbox.State]string{sandbox.Failed: "stopped"}[i.State]
		if want == "" {
			want = string(i.State)
		}
		if got := states[i.Name]; got != want {
			t.Fatalf("%s: %s is %s (%s), and %s by what is recorded", when, i.Name, i.State, i.Reason, got)
		}
		attached := i.State == sandbox.Running || i.State == sandbox.Paused
		if attached {
			live++
		}
		if ep, ok := b.h.endpoints[i.Generation]; attached && (!ok || ep.ID != i.ID || ep.Address != i.Address) || !attached && ok {
			t.Fatalf("%s: %s is %s, and its endpoint %v %+v", when, i.Name, i.State, ok, ep)
		}
		if runs := b.h.containers[i.ID]; runs != attached || b.h.paused[i.ID] && runs != (i.State == sandbox.Paused) {
			t.Fatalf("%s: %s is %s, and its container runs: %v, paused: %v", when, i.Name, i.State, runs, b.h.paused[i.ID])
		}
		if _, err := os.Stat(filepath.Join(b.dir, i.Name, checkpointFile)); (err == nil) != (i.State == sandbox.Hibernated) {
			t.Fatalf("%s: %s is %s, and its checkpoint: %v", when, i.Name, i.State, err)
		}
	}
	for name, state := range states {
		if _, err := b.Get(name); (err == nil) != (state != "") {
			t.Fatalf("%s: %s is %q by what is recorded, and not so listed: %v", when, name, state, err)
		}
	}
	if len(b.h.containers) != there || len(b.h.endpoints) != live {
		t.Fatalf("%s: %d sandboxes, %d of them attached, have %d containers and %d endpoints", when, there, live, len(b.h.containers), len(b.h.endpoints))
	}
	for _, i := range b.List() {
		if err := b.Remove(t.Context(), i.Name); err != nil {
			t.Fatalf("%s: removing %s: %v", when, i.Name, err)
		}
	}
	ram, _ := os.ReadDir(b.ram)
	folders, _ := filepath.Glob(filepath.Join(b.dir, "[a-z]*"))
	if len(ram)+len(folders)+len(b.h.containers)+len(b.h.endpoints)+len(b.h.roots)+len(b.Identities()) != 0 {
		t.Fatalf("%s: left: %v %v %v %v %v", when, ram, folders, b.h.containers, b.h.endpoints, b.h.roots)
	}
	if _, err := model.Path(b.h.log); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

// TestModelFaults: calls one after the other, of which each may meet a fault at any step, or a
// crash of the daemon. The events are always those that a sandbox can go through, no memory is
// lost without a word, and every state has a way out.
func TestModelFaults(t *testing.T) {
	first, games := seeds(t, 12, 200)
	var done, faults, crashes int
	for n := range games {
		seed := uint64(first) + uint64(n)
		b := newRoomyBed(t)
		random, memories := rand.New(rand.NewPCG(seed, 0)), map[string]string{}
		g := model.Game{Seed: seed, Clients: 1, Calls: 80, Names: 2, Pids: modelPids}
		g.Do = func(op model.Op) model.Result {
			at := 1 + random.IntN(8) // the step that fails, of those of the call
			was, events := b.session(op.Name), len(b.h.log)
			crash := false
			switch random.IntN(4) {
			case 0:
				b.h.failing = func() bool { at--; return at == 0 }
			case 1:
				b.h.calls, b.h.crash = 0, at
				crash = true
			}
			var r model.Result
			crashed := ends(func() { r = b.do(t.Context(), op) })
			b.h.failing, b.h.crash = nil, 0
			done++
			if r.Err != nil {
				faults++
			}
			if crashed {
				crashes++
				b.open(t)
			}
			when := fmt.Sprintf("SALLYPORT_SEED=%d, after %v (crash %v at %d: %v): %v", seed, op, crash, at, crashed, r.Err)
			// The remains of a fault are settled within half a minute.
			if _, err := b.reconcile(t.Context()); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if _, err := model.Path(b.h.log); err != nil {
				t.Fatalf("%s: %v\n%v", when, err, b.h.events[max(0, len(b.h.events)-8):])
			}
			b.remembers(t, when, op, was, events)
			for _, i := range b.List() {
				if _, err := os.Stat(filepath.Join(b.dir, i.Name, checkpointFile)); (err == nil) != (i.State == sandbox.Hibernated) {
					t.Fatalf("%s: %s is %s, and its checkpoint: %v", when, i.Name, i.State, err)
				}
			}
			// A sandbox in the same session has what it had in its memory.
			for _, i := range b.List() {
				if now := b.h.memory[i.ID]; i.State == sandbox.Running {
					if then, known := memories[i.Session]; known && then != now && !(op.Name == i.Name && op.Verb == model.Bump) {
						t.Fatalf("%s: %s had %q in its memory and has %q", when, i.Name, then, now)
					}
					memories[i.Session] = now
				}
			}
			return r
		}
		g.Play()
		b.agrees(t, fmt.Sprintf("SALLYPORT_SEED=%d", seed))
	}
	t.Logf("%d calls, of which %d met faults and %d crashes, from SALLYPORT_SEED=%d on", done, faults, crashes, first)
}

func (b *bed) session(name string) string {
	i, _ := b.Get(name)
	return i.Session
}

// remembers: the session that a sandbox had it still has, or its end is on record;
// and it can be used.
func (b *bed) remembers(t *testing.T, when string, op model.Op, session string, since int) {
	t.Helper()
	i, err := b.Get(op.Name)
	if err == nil && i.State == sandbox.Failed {
		t.Fatalf("%s: it is in error: %s", when, i.Reason)
	}
	if session == "" || err == nil && i.Session == session {
		return
	}
	for _, e := range b.h.log[since:] {
		if e.Name == op.Name && e.Session == session && e.State == "stopped" {
			return
		}
	}
	t.Fatalf("%s: its session %s is gone without a word: %+v, %v", when, session, i, err)
}
