package manager

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/sandbox"
)

// body is a Meter and a Busy of the test's.
type body struct {
	cpu, sent, commands atomic.Int64
	fails               atomic.Bool
}

func (b *body) Usage(context.Context, string) (sandbox.Usage, error) {
	if b.fails.Load() {
		return sandbox.Usage{}, errFault
	}
	return sandbox.Usage{CPU: time.Duration(b.cpu.Load()), Sent: uint64(b.sent.Load())}, nil
}

func (b *body) Resident(context.Context, string) (int64, error) {
	if b.fails.Load() {
		return 0, errFault
	}
	return 1 << 20, nil
}

func (b *body) busy(context.Context, string) (int, bool) { return int(b.commands.Load()), true }

// TestIdle: each thing that goes on keeps a sandbox awake, and nothing else does.
func TestIdle(t *testing.T) {
	const idle = time.Minute
	for name, tt := range map[string]struct {
		spec sandbox.Spec
		work func(t *testing.T, b *bed, o *body) // each second
		want sandbox.State
	}{
		"nothing":             {sandbox.Spec{Idle: sandbox.Duration(idle)}, nil, sandbox.Hibernated},
		"pause":               {sandbox.Spec{Idle: sandbox.Duration(idle), OnIdle: sandbox.IdlePause}, nil, sandbox.Paused},
		"stop":                {sandbox.Spec{Idle: sandbox.Duration(idle), OnIdle: sandbox.IdleStop}, nil, sandbox.Stopped},
		"runc":                {sandbox.Spec{Idle: sandbox.Duration(idle), Runtime: sandbox.RunC}, nil, sandbox.Stopped},
		"no limit":            {sandbox.Spec{}, nil, sandbox.Running},
		"processor time":      {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.cpu.Add(int64(100 * time.Millisecond)) }, sandbox.Running},
		"gVisor's own timers": {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.cpu.Add(int64(5 * time.Millisecond)) }, sandbox.Hibernated},
		"packets":             {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.sent.Add(1000) }, sandbox.Running},
		"keep-alives":         {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.sent.Add(66) }, sandbox.Hibernated},
		"a command":           {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.commands.Store(1) }, sandbox.Running},
		"nobody knows":        {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, _ *bed, o *body) { o.fails.Store(true) }, sandbox.Running},
		"use of the API": {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(t *testing.T, b *bed, _ *body) {
			_, _ = b.Exec(t.Context(), "a", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{}) // which no agent answers
		}, sandbox.Running},
		"a look at it": {sandbox.Spec{Idle: sandbox.Duration(idle)}, func(_ *testing.T, b *bed, _ *body) { b.List() }, sandbox.Hibernated},
	} {
		t.Run(name, func(t *testing.T) {
			b, o := newBed(t), &body{}
			synctest.Test(t, func(t *testing.T) {
				b.opt.Meter, b.opt.busy = o, o.busy
				if _, _, err := b.GetOrCreate(t.Context(), "a", tt.spec); err != nil {
					t.Fatal(err)
				}
				b.must(t)(b.Start(t.Context(), "a"))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = b.WatchIdle(ctx) }()
				go b.expire(ctx)
				if tt.want != sandbox.Running {
					time.Sleep(idle - 2*time.Second)
					if i := b.must(t)(b.Get("a")); i.State != sandbox.Running {
						t.Errorf("before its time it is %s", i.State)
					}
				}
				for range 90 {
					if tt.work != nil && b.must(t)(b.Get("a")).State == sandbox.Running {
						tt.work(t, b, o)
					}
					time.Sleep(time.Second)
				}
				cancel()
				<-done
				if i := b.must(t)(b.Get("a")); i.State != tt.want {
					t.Errorf("it is %s, want %s", i.State, tt.want)
				}
			})
		})
	}
}

func TestIdleSpecs(t *testing.T) {
	b := newBed(t)
	for name, spec := range map[string]sandbox.Spec{
		"too short": {Idle: sandbox.Duration(time.Second)}, "of no kind": {OnIdle: "sleep"}, "negative": {Lifetime: -1},
		"runc hibernates": {Runtime: sandbox.RunC, Idle: sandbox.Duration(time.Hour), OnIdle: sandbox.IdleHibernate},
	} {
		if _, _, err := b.GetOrCreate(t.Context(), "a", spec); !errors.Is(err, sandbox.ErrBadSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Idle: sandbox.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.GetOrCreate(t.Context(), "a", sandbox.Spec{Idle: sandbox.Duration(time.Minute)}); !errors.Is(err, sandbox.ErrSpecMismatch) {
		t.Errorf("another idle time: %v", err)
	}
}

// A sandbox whose agent takes its time keeps no other awake.
func TestIdleDoesNotWait(t *testing.T) {
	b, o := newBed(t), &body{}
	synctest.Test(t, func(t *testing.T) {
		b.opt.Meter = o
		slow := b.must(t)(b.start(t, "slow", sandbox.Spec{Idle: sandbox.Duration(time.Minute), OnIdle: sandbox.IdlePause}))
		b.must(t)(b.start(t, "other", sandbox.Spec{Idle: sandbox.Duration(time.Minute), OnIdle: sandbox.IdlePause}))
		ctx, cancel := context.WithCancel(t.Context())
		b.opt.busy = func(_ context.Context, id string) (int, bool) {
			if id == slow.ID {
				<-ctx.Done()
			}
			return 0, true
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = b.WatchIdle(ctx) }()
		time.Sleep(90 * time.Second)
		states(t, b.Manager, "other paused, slow running")
		cancel()
		<-done
	})
}

// One that cannot be hibernated is not tried at each look: each time costs it
// connections.
func TestIdleAndUnable(t *testing.T) {
	b, o := newBed(t), &body{}
	synctest.Test(t, func(t *testing.T) {
		b.opt.Meter, b.opt.busy = o, o.busy
		b.must(t)(b.start(t, "a", sandbox.Spec{Idle: sandbox.Duration(time.Minute)}))
		b.h.fault = "checkpoint"
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = b.WatchIdle(ctx) }()
		time.Sleep(330 * time.Second)
		cancel()
		<-done
		states(t, b.Manager, "a running")
		if n := strings.Count(strings.Join(b.h.gate, " "), "sleep"); n < 4 || n > 5 {
			t.Errorf("%d tries in five and a half minutes, each minute one is wanted", n)
		}
	})
}

func (b *bed) start(t *testing.T, name string, spec sandbox.Spec) (sandbox.Info, error) {
	t.Helper()
	if _, _, err := b.GetOrCreate(t.Context(), name, spec); err != nil {
		t.Fatal(err)
	}
	return b.Start(t.Context(), name)
}
