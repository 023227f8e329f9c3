package manager

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
	"sallyport/sandbox"
)

// keep gives a bed the keeper of the next daemon, which is open until close is called.
func (b *bed) keep(t *testing.T) (k *keeper.Keeper, closed func()) {
	t.Helper()
	k = keeper.New(keeper.Options{
		Dir: b.dir, Hold: func(string) (func() error, error) { return func() error { return nil }, nil },
		Contacted: func(_ context.Context, _ string, after uint64, _ time.Time) ([]string, uint64, error) {
			return nil, after, nil
		},
		Secret:   func(context.Context, string) (string, bool, error) { return "", false, nil },
		Recorded: func(context.Context, string, uint64) (map[uint64]string, error) { return nil, nil },
		Record:   func(*audit.Event) error { return nil },
		Trusted:  func(string) bool { return true },
		Key:      b.key, Logger: slog.New(slog.DiscardHandler),
	})
	b.memories = k
	b.open(t)
	return k, func() { must.OK(t, k.Close()) }
}

// A memory that a restore has replaced has a version that says so, at whatever step of the
// restore the daemon ends.
func TestRestoreIsAVersion(t *testing.T) {
	for at := 1; ; at++ {
		b := newBed(t)
		_, closed := b.keep(t)
		i := b.live(t, "a")
		file := filepath.Join(memory.Dir(filepath.Join(b.dir, "a")), memory.Index)
		writes := func(text string) {
			must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
			must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		}
		writes("before")
		b.keeps(t, "a", sandbox.SnapshotSpec{Name: "s"})
		writes("now, which is longer")
		b.h.calls, b.h.crash = 0, at
		crashed := ends(func() { b.must(t)(b.Restore(t.Context(), "a", sandbox.RestoreSpec{Snapshot: "s"})) })
		b.h.crash = 0
		closed()
		k, closed := b.keep(t)
		b.must(t)(b.Start(t.Context(), "a"))
		text, err := os.ReadFile(file)
		must.OK(t, err)
		list, err := k.Commits(t.Context(), MemoryOwner(i), keeper.HistoryRequest{Path: memory.Index})
		must.OK(t, err)
		if len(list.Commits) == 0 {
			t.Fatalf("crash at call %d: no versions", at)
		}
		last := list.Commits[0].Cause
		if restored := string(text) == "before"; restored != (last.Operation == memory.Restored && last.From == "s") {
			t.Fatalf("crash at call %d: the memory has %q, and its last version is by %+v", at, text, last)
		}
		whole, err := k.Commits(t.Context(), MemoryOwner(i), keeper.HistoryRequest{})
		must.OK(t, err)
		kept := slices.ContainsFunc(whole.Commits, func(c history.Commit) bool { return c.Cause.Operation == memory.Restoring })
		if string(text) == "before" && !kept {
			t.Fatalf("crash at call %d: what it was before has no version: %+v", at, whole.Commits)
		}
		closed()
		if !crashed {
			if string(text) != "before" || at < 5 {
				t.Errorf("the restore has %d calls to crash at, and leaves %q", at, text)
			}
			return
		}
	}
}

// busy is a memory that another operation holds until it is interrupted.
type busy struct {
	noMemories
	free chan struct{}
}

func (b busy) Record(ctx context.Context, _ memory.Owner, _ memory.Cause) error {
	select {
	case <-b.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b busy) Interrupt(string) { close(b.free) }

// A snapshot ends the operation that has held a memory for longer than it waits, and so gets
// the disk.
func TestBusyMemoryIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		m := &Manager{opt: Options{Memories: busy{free: free}, Logger: slog.New(slog.DiscardHandler)}}
		m.recordMemory(t.Context(), &entry{}, memory.Cause{Operation: memory.Snapshot})
		select {
		case <-free:
		default:
			t.Error("the memory is still held")
		}
	})
}
