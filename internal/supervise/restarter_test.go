package supervise

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	callServe ipc.Method = 1 + iota
	callRefuse
	callRude // of the process's, which no owner has
)

// child is a process within this one: packages supervisor and e2e have real ones.
type child struct {
	peer *ipc.Peer
	said *os.File
	once sync.Once
	done chan struct{}
	how  error
}

func (c *child) PID() int              { return os.Getpid() }
func (c *child) Done() <-chan struct{} { return c.done }
func (c *child) Wait() error           { <-c.done; return c.how }
func (c *child) Kill()                 { c.end(errors.New("killed")) }
func (c *child) Pause()                {}
func (c *child) Resume()               {}

func (c *child) end(how error) {
	c.once.Do(func() {
		c.how = how
		_, _ = c.peer.Close(), c.said.Close()
		close(c.done)
	})
}

// ward is a Restarter with processes that do as told, and a clock that its waits move.
type ward struct {
	*Restarter
	t     *testing.T
	serve chan struct{} // processes wait for it before they serve

	mu      sync.Mutex
	clock   time.Time
	waits   []time.Duration
	events  []string
	child   *child // the latest
	failing int    // launches that fail yet
	asleep  <-chan time.Time
}

func newWard(t *testing.T) *ward {
	t.Helper()
	awake := make(chan time.Time)
	close(awake)
	w := &ward{t: t, clock: time.Now(), serve: make(chan struct{}), asleep: awake}
	close(w.serve)
	w.Restarter = New(Options{
		Name: "the process", Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Limit: OutputLimit{Line: 16, Rate: 1e-9, Burst: 3},
		Output: func(line []byte) { w.note("said " + string(line)) },
		Spec:   func() (jail.Spec, error) { w.note("ready"); return jail.Spec{}, nil },
		Peer:   func(*Process) ipc.Options { return ipc.Options{} },
		Serve: func(ctx context.Context, p *Process) error {
			p.State = jail.State{UID: 7}
			return p.Peer.Call(ctx, callServe, ipc.None{}, &ipc.None{})
		},
		Cleanup: func(_ *Process, last bool) error {
			w.note(map[bool]string{true: "the last has ended", false: "ended"}[last])
			return nil
		},
		OnExit: func(_ context.Context, cause error, in time.Duration) {
			w.note("lost: " + cause.Error())
			w.mu.Lock()
			defer w.mu.Unlock()
			w.waits = append(w.waits, in)
		},
		OnRestart: func(context.Context) { w.note("back") },
		Launch:    w.launch,
	})
	w.now = func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.clock }
	w.after = func(d time.Duration) <-chan time.Time { w.pass(d); return w.asleep }
	return w
}

func (w *ward) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = w.clock.Add(d)
}

func (w *ward) note(event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event)
}

func (w *ward) launch(s jail.Spec) (Child, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing > 0 {
		w.failing--
		return nil, errors.New("cannot be launched")
	}
	conn, err := net.FileConn(s.Files[0])
	if err != nil {
		return nil, err
	}
	said, err := unix.Dup(int(s.Stderr.Fd()))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	w.child = &child{said: os.NewFile(uintptr(said), "said"), done: make(chan struct{})}
	w.child.peer = ipc.New(conn.(*net.UnixConn), ipc.Options{Methods: map[ipc.Method]ipc.Handler{
		callServe: ipc.Handle(func(context.Context, ipc.None) (ipc.None, error) { <-w.serve; return ipc.None{}, nil }),
		callRefuse: ipc.Handle(func(context.Context, ipc.None) (ipc.None, error) {
			return ipc.None{}, errors.New("\x1b[2JI will not")
		}),
	}})
	go func(c *child) { _ = c.peer.Serve(); c.end(nil) }(w.child)
	return w.child, nil
}

// watch starts the first process and looks after it until the test ends.
func (w *ward) watch() {
	w.t.Helper()
	must.OK(w.t, w.Start(w.t.Context()))
	watched := make(chan error, 1)
	go func() { watched <- w.Watch(w.t.Context()) }()
	w.t.Cleanup(func() {
		if err := errors.Join(w.Stop(func(*Process) error { return nil }), <-watched); err != nil {
			w.t.Error(err)
		}
	})
}

// crash ends the process that serves.
func (w *ward) crash() {
	w.mu.Lock()
	c := w.child
	w.mu.Unlock()
	c.end(errors.New("crashed"))
}

// await waits until an event has happened so often.
func (w *ward) await(event string, often int) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n := 0
		for _, e := range w.events {
			if e == event {
				n++
			}
		}
		all := strings.Join(w.events, "\n")
		w.mu.Unlock()
		if n >= often {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %q, %d times, in:\n%s", event, often, all)
		}
	}
}

// One that crashes whenever it is up is started less and less often. That a start
// went well changes nothing: a minute of service does.
func TestBackoff(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	w := newWard(t)
	w.watch()
	backs := 0
	for _, tt := range []struct {
		after   time.Duration // it has served for
		failing int           // starts that fail then
		want    []time.Duration
	}{
		{0, 0, []time.Duration{100 * ms}},
		{0, 0, []time.Duration{200 * ms}},
		{999 * ms, 2, []time.Duration{400 * ms, 800 * ms, 1600 * ms}},
		{59 * s, 0, []time.Duration{3200 * ms}},
		{59 * s, 0, []time.Duration{5900 * ms}}, // a tenth of what it served
		{6 * s, 0, []time.Duration{600 * ms}},
		{6 * s, 1, []time.Duration{600 * ms, 1200 * ms}},
		{s, 0, []time.Duration{100 * ms}},
		{61 * s, 1, []time.Duration{100 * ms, 200 * ms}},
		{0, 0, []time.Duration{400 * ms}},
		{0, 0, []time.Duration{800 * ms}},
		{0, 6, []time.Duration{1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30 * s, 30 * s}},
		{0, 0, []time.Duration{30 * s}},
		{6 * s, 0, []time.Duration{600 * ms}},
		{time.Hour, 0, []time.Duration{100 * ms}},
	} {
		w.pass(tt.after)
		w.mu.Lock()
		w.waits, w.failing = nil, tt.failing
		w.mu.Unlock()
		w.crash()
		backs++
		w.await("back", backs)
		w.mu.Lock()
		got := slices.Clone(w.waits)
		w.mu.Unlock()
		if diff := cmp.Diff(got, tt.want); diff != "" {
			t.Errorf("after %v of service and %d more failures (-got +want):\n%s", tt.after, tt.failing, diff)
		}
	}
	if got := w.Status(); got.Restarts != backs || got.PID != os.Getpid() || got.UID != 7 || got.Failure != "crashed" {
		t.Errorf("the status says %+v", got)
	}
}

// A next one is started when all of the one before is over, and of each that was
// readied the end is seen to.
func TestOrder(t *testing.T) {
	w := newWard(t)
	w.watch()
	w.mu.Lock()
	w.failing = 1
	c := w.child
	w.mu.Unlock()
	_, _ = c.said.WriteString("one\na line that is too long\n\nfour\nfive")
	w.crash()
	w.await("back", 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	want := []string{
		"ready", "said one", "said a line that is t", "said ", "ended", "lost: crashed",
		"ready", "ended", "lost: cannot be launched", "ready", "back",
	}
	if diff := cmp.Diff(w.events, want); diff != "" {
		t.Errorf("it happened otherwise (-got +want):\n%s", diff)
	}
}

// A process that does not do as it is told is ended, and it is said why.
func TestUnruly(t *testing.T) {
	for what, tt := range map[string]struct {
		do   func(w *ward, c *child)
		want string
	}{
		"refuses":             {func(w *ward, _ *child) { w.Notify(time.Minute, callRefuse, ipc.None{}) }, `did not do as told: \x1b[2JI will not (killed)`},
		"breaks the protocol": {func(_ *ward, c *child) { _ = c.peer.Call(context.Background(), callRude, ipc.None{}, &ipc.None{}) }, ipc.ErrProtocol.Error()},
		"leaves":              {func(_ *ward, c *child) { c.end(nil) }, "it ended by itself"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWard(t)
			w.watch()
			w.mu.Lock()
			c := w.child
			w.mu.Unlock()
			tt.do(w, c)
			w.await("back", 1)
			if got := w.Status(); !strings.Contains(got.Failure, tt.want) || got.Restarts != 1 {
				t.Errorf("the status says %+v, want %q", got, tt.want)
			}
		})
	}
}

// Stop waits for a start that is under way, and ends what it has started; in a wait
// between two it need not, and there is no other. While somebody holds its life,
// there is none either.
func TestStop(t *testing.T) {
	t.Run("during a start", func(t *testing.T) {
		w := newWard(t)
		w.serve = make(chan struct{})
		began, stopped := make(chan error, 1), make(chan error, 1)
		go func() { began <- w.Start(t.Context()) }()
		w.await("ready", 1)
		go func() { stopped <- w.Stop(func(*Process) error { w.note("told to stop"); return nil }) }()
		close(w.serve)
		must.OK(t, errors.Join(<-began, <-stopped, w.Watch(t.Context())))
		if diff := cmp.Diff(w.events, []string{"ready", "told to stop", "the last has ended"}); diff != "" {
			t.Errorf("it happened otherwise (-got +want):\n%s", diff)
		}
		if err := w.Start(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("another start: %v", err)
		}
	})
	t.Run("between two", func(t *testing.T) {
		w := newWard(t)
		awake := make(chan time.Time)
		w.asleep = awake
		w.watch()
		w.crash()
		w.await("lost: crashed", 1)
		if err := w.Stop(func(*Process) error { t.Error("nobody is there"); return nil }); err != nil {
			t.Error(err)
		}
		close(awake)
		if err := w.Watch(t.Context()); err != nil { // as the other one: nothing is started
			t.Error(err)
		}
		if diff := cmp.Diff(w.events, []string{"ready", "ended", "lost: crashed"}); diff != "" {
			t.Errorf("it happened otherwise (-got +want):\n%s", diff)
		}
	})
	t.Run("held", func(t *testing.T) {
		w := newWard(t)
		w.watch()
		release := w.Hold()
		w.crash()
		w.await("lost: crashed", 1)
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
		started := slices.Index(w.events[1:], "ready")
		w.mu.Unlock()
		if started >= 0 || w.Process() != nil || w.Status().PID != 0 {
			t.Error("one is started while its life is held")
		}
		release()
		w.await("back", 1)
	})
}
