package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/seal"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/memory/layer"
)

// rig is a keeper with one sandbox, whose records and contacts a test sees and makes.
type rig struct {
	*keeper.Keeper
	t   testing.TB
	dir string // of the sandboxes
	o   memory.Owner

	mu        sync.Mutex
	records   []*audit.Event
	contacted []string
	during    func() // runs once, after the memory was looked at
	trusting  func() // runs once, before a destination is looked up
	record    func(*audit.Event)
	known     []string
	away      error  // of the source of all that is known
	asked     func() // runs when a text is compared
	log       buffer
	last      uint64

	now       atomic.Value // the ID that has the sandbox's name
	summarize atomic.Pointer[keeper.Summarizer]
}

// buffer is what was logged.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const secret = "correct-horse-battery-staple"

func newRig(t testing.TB, options ...func(*keeper.Options)) *rig {
	t.Helper()
	return rigIn(t, t.TempDir(), options...)
}

// withText is of a memory of which so many bytes are searched.
func withText(most int64) func(*keeper.Options) { return func(o *keeper.Options) { o.MaxText = most } }

// rigIn is a rig in a folder, in which there may have been another one before.
func rigIn(t testing.TB, folder string, options ...func(*keeper.Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(folder, "sandboxes"), o: memory.Owner{ID: "id-of-demo", Name: "demo", Session: "s1"}, known: []string{secret}}
	key, err := seal.Open(filepath.Join(folder, "key"), r.dir)
	if err != nil {
		t.Fatal(err)
	}
	r.now.Store(r.o.ID)
	var extract keeper.Summarizer = func(context.Context, []layer.Entry) (string, error) { return "A summary.", nil }
	r.summarize.Store(&extract)
	o := keeper.Options{
		Dir: r.dir, Hold: func(string) (func() error, error) { return func() error { return nil }, nil },
		Contacted: func(_ context.Context, _ string, after uint64, _ time.Time) ([]string, uint64, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			hosts := r.contacted
			r.contacted = nil
			r.last++
			if r.during != nil {
				r.during()
				r.during = nil
			}
			return hosts, max(r.last, after), nil
		},
		Secret: func(_ context.Context, text string) (string, bool, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.asked != nil && text != "" {
				r.asked()
			}
			if r.away != nil {
				return "", false, r.away
			}
			return "api", slices.ContainsFunc(r.known, func(k string) bool { return strings.Contains(text, k) }), nil
		},
		Recorded: func(_ context.Context, id string, _ uint64) (map[uint64]string, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			found := map[uint64]string{}
			for _, e := range r.records {
				if m := e.Unmapped.Sallyport.Memory; m != nil && e.Unmapped.Sallyport.SandboxID == id {
					found[m.Number] = m.Digest
				}
			}
			return found, nil
		},
		Record: func(e *audit.Event) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.record != nil {
				r.record(e)
			}
			r.records = append(r.records, e)
			return nil
		},
		Current: func(o memory.Owner) bool { return o.Name != "demo" || o.ID == r.now.Load() },
		Trusted: func(host string) bool {
			if do := r.trusting; do != nil {
				r.trusting = nil
				do()
			}
			return host == "good.example"
		},
		Summarize: func(ctx context.Context, list []layer.Entry) (string, error) { return (*r.summarize.Load())(ctx, list) },
		Key:       key, MaxText: 1 << 20, Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	for _, set := range options {
		set(&o)
	}
	r.Keeper = keeper.New(o)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := memory.Ensure(filepath.Join(r.dir, "demo")); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) path(name string) string {
	return filepath.Join(memory.Dir(filepath.Join(r.dir, "demo")), name)
}

// writes is a file that the sandbox writes, after contact with destinations.
func (r *rig) writes(name, text string, contacted ...string) {
	r.t.Helper()
	r.mu.Lock()
	r.contacted = append(r.contacted, contacted...)
	r.mu.Unlock()
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.path(name)), 0o777), os.WriteFile(r.path(name), []byte(text), 0o666)); err != nil {
		r.t.Fatal(err)
	}
}

func value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *rig) commits() []history.Commit {
	r.t.Helper()
	return value(r.Commits(r.t.Context(), r.o, keeper.HistoryRequest{}))(r.t).Commits
}
