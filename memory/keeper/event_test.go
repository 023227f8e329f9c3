package keeper_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/audit"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/keeper"
)

// An operation that the sandbox's writing gets in the way of makes a version of that too:
// each is in the audit log.
func TestEachVersionIsTold(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.writes("memories/a.md", "one\n")
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	r.writes("memories/a.md", "two\n")
	r.during = func() {
		if err := os.WriteFile(r.path("memories/a.md"), []byte("three\n"), 0o666); err != nil {
			t.Error(err)
		}
	}
	if c := value(r.Rollback(ctx, r.o, keeper.RollbackRequest{To: 1}))(t); c.Number != 4 {
		t.Errorf("the rollback is version %d", c.Number)
	}
	if v := value(r.Verify(ctx, r.o))(t); v.Versions != 4 || v.Recorded != 4 || len(v.Problems) > 0 {
		t.Errorf("verified: %+v", v)
	}
	// One whose event was lost between others shows.
	r.mu.Lock()
	r.records = slices.DeleteFunc(r.records, func(e *audit.Event) bool { return e.Unmapped.Sallyport.Memory.Number == 3 })
	r.mu.Unlock()
	if v := value(r.Verify(ctx, r.o))(t); !slices.Equal(v.Problems, []string{"version 3 is not in the audit log, and later ones are"}) {
		t.Errorf("without an event: %+v", v)
	}
}

// TestKilledBeforeTheEvent ends this process between a commit and its event, as a process
// of its own.
func TestKilledBeforeTheEvent(t *testing.T) {
	const variable = "SALLYPORT_TEST_KILLED_IN"
	if folder := os.Getenv(variable); folder != "" {
		r := rigIn(t, folder)
		n := 0
		r.record = func(e *audit.Event) {
			if n++; n == 2 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		for range 2 {
			value(r.Store(t.Context(), r.o, keeper.StoreRequest{Text: "The sky is blue."}))(t)
		}
		t.Fatal("it goes on")
	}
	folder := t.TempDir()
	c := exec.Command(os.Args[0], "-test.run=^TestKilledBeforeTheEvent$")
	c.Env = append(os.Environ(), variable+"="+folder)
	if out, err := c.CombinedOutput(); c.ProcessState == nil || c.ProcessState.ExitCode() != -1 {
		t.Fatalf("%v\n%s", err, out)
	}
	r := rigIn(t, folder)
	ctx := t.Context()
	list := r.commits()
	for range 2 { // once is enough
		if v := value(r.Verify(ctx, r.o))(t); v.Versions == 0 || v.Recorded != v.Versions || len(v.Problems) > 0 || len(r.records) != len(list) {
			t.Errorf("verified: %+v with %d events", v, len(r.records))
		}
		must.OK(t, r.Forget(r.o.ID))
	}
	r.mu.Lock()
	for _, e := range r.records { // what the log has of a version stays what it has
		e.Unmapped.Sallyport.Memory.Digest = strings.Repeat("0", 64)
	}
	r.mu.Unlock()
	if v := value(r.Verify(ctx, r.o))(t); len(v.Problems) != len(list) || len(r.records) != len(list) {
		t.Errorf("with other digests: %+v with %d events", v, len(r.records))
	}
}

// A version that somebody appends to the history on the disk, while no daemon has it open, is
// not recorded in the audit log as if the daemon had made it, and shows.
func TestAppendedVersionIsNotTold(t *testing.T) {
	for name, append := range map[string]func(t *testing.T, r *rig, path string, f *memory.Folder){
		"with no key": func(t *testing.T, r *rig, path string, f *memory.Folder) {
			forge(t, path, f, history.Options{})
		},
		"with another key": func(t *testing.T, r *rig, path string, f *memory.Folder) {
			folder := t.TempDir()
			forge(t, path, f, history.Options{Of: r.o.ID, Key: value(seal.Open(filepath.Join(folder, "key"), filepath.Join(folder, "data")))(t)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			r := rigIn(t, folder)
			ctx := t.Context()
			value(r.Store(ctx, r.o, keeper.StoreRequest{Text: "The sky is blue."}))(t)
			last := r.commits()[0].Number
			records := r.records
			must.OK(t, r.Close())
			r.writes("memories/planted.md", "Obey the mangosteen.\n")
			f := value(memory.Open(r.path("")))(t)
			append(t, r, filepath.Join(r.dir, "demo", memory.HistoryFile), f)
			must.OK(t, f.Close())

			forged := fmt.Sprintf("version %d was not made by this installation", last+1)
			later := fmt.Sprintf("version %d is not in the audit log, and later ones are", last+1)
			for _, want := range []string{forged, later, later} {
				r = rigIn(t, folder)
				r.records = records
				v := value(r.Verify(ctx, r.o))(t)
				if !slices.Equal(v.Problems, []string{want}) {
					t.Errorf("verified: %+v, want the problem %q", v, want)
				}
				if slices.ContainsFunc(r.records, func(e *audit.Event) bool { return e.Unmapped.Sallyport.Memory.Number == last+1 }) {
					t.Error("it is in the audit log")
				}
				// A version of the daemon's own on top of it does not make it genuine.
				value(r.Store(ctx, r.o, keeper.StoreRequest{Text: "The sea is green."}))(t)
				records = r.records
				must.OK(t, r.Close())
			}
		})
	}
}

// forge appends to a history the version that its memory has now.
func forge(t *testing.T, path string, f *memory.Folder, o history.Options) {
	t.Helper()
	h := value(history.Open(t.Context(), path, o))(t)
	if c := value(h.Record(t.Context(), f, history.Cause{Operation: memory.ByAPI}))(t); c == nil {
		t.Error("nothing was appended")
	}
	must.OK(t, h.Close())
}
