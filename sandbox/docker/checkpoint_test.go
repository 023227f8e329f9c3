package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/tmpfs"
	"sallyport/sandbox"
)

// sleepers is a runtime on the laboratory's engine whose sandboxes have a process
// below PID 1 that writes numbers, one a line, to /lines.
func (l *testEngine) sleepers(t *testing.T) (r *Runtime, start func(sandbox.Container) string) {
	t.Helper()
	cfg := l.runtime.cfg
	cfg.Agent, cfg.Dir = l.sleeper, t.TempDir()
	r, err := New(t.Context(), l.engine, cfg)
	must.OK(t, err)
	return r, func(c sandbox.Container) string {
		t.Helper()
		mem := t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(mem, "start"), []byte(writer20ms), 0o600))
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: mem, Target: "/memory"})
		if _, err := r.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Remove(context.Background(), c.ID) })
		if _, err := r.Start(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		l.await(t, c.ID, 3)
		return c.ID
	}
}

const writer20ms = "i=0; while :; do i=$((i+1)); echo $i >>/lines; sleep 0.02; done\n"

// asleep is a sandbox of sleepers whose memory is in dir, with so many lines written.
func (l *testEngine) asleep(t *testing.T) (r *Runtime, id, dir string, lines int) {
	t.Helper()
	r, start := l.sleepers(t)
	id = start(l.container(t, testImage))
	dir = filepath.Join(vault(t), "image")
	lines = l.lines(t, id)
	must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, false, nil))
	return r, id, dir, lines
}

// lines is how many numbers have been written, which must be all up to the last.
func (l *testEngine) lines(t *testing.T, id string) int {
	t.Helper()
	out := strings.Fields(l.sh(t, id, "cat /lines 2>/dev/null || :"))
	for i, n := range out {
		if n != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q", i+1, n)
		}
	}
	return len(out)
}

// await waits until so many lines are there.
func (l *testEngine) await(t *testing.T, id string, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if l.lines(t, id) >= n {
			return
		}
	}
	t.Fatalf("fewer than %d lines came: %d\n%s", n, l.lines(t, id), l.sh(t, id, "cat /tmp/start.log; ps ax"))
}

// vault is a folder in memory.
func vault(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ram")
	must.OK(t, tmpfs.Mount(dir))
	t.Cleanup(func() {
		if err := tmpfs.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestPause(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	id := start(l.container(t, testImage))
	for range 2 { // the second finds it so
		must.OK(t, r.Pause(t.Context(), id))
	}
	st, err := r.Status(t.Context(), id)
	if err != nil || !st.Running || !st.Paused || st.Link == 0 {
		t.Errorf("status while paused: %+v, %v", st, err)
	}
	before := ticks(t, st.PID)
	time.Sleep(300 * time.Millisecond)
	if after := ticks(t, st.PID); after > before+2 {
		t.Errorf("a paused sandbox took %d ticks of CPU time in 0.3 s", after-before)
	}
	for range 2 {
		must.OK(t, r.Resume(t.Context(), id))
	}
	if st, err := r.Status(t.Context(), id); err != nil || !st.Running || st.Paused {
		t.Errorf("status after resuming: %+v, %v", st, err)
	}
	l.await(t, id, l.lines(t, id)+3)
}

// ticks is the CPU time of a process, in units of sysconf(_SC_CLK_TCK).
func ticks(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.OK(t, err)
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
	user, _ := strconv.Atoi(f[12])
	system, _ := strconv.Atoi(f[13])
	return user + system
}

func TestCheckpointAndRestore(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	c := l.container(t, testImage)
	id := start(c)
	exits, err := r.Exits(t.Context())
	must.OK(t, err)
	shell := l.sh(t, id, "pgrep -f '[/]memory/start'")
	dir := filepath.Join(vault(t), "image")
	for i := range 2 {
		n := l.lines(t, id)
		// As a caller leaves it that ended before it heard of the restore.
		info, err := r.inspect(t.Context(), id)
		must.OK(t, err)
		note := filepath.Join(r.layout.handshakes(), info.ID)
		must.OK(t, os.WriteFile(note, []byte("/was\n"+markBegun+"\n"), 0o600))
		must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, false, nil))
		if _, err := r.CancelRestore(t.Context(), id); err != nil {
			t.Errorf("after what it has written: %v", err)
		}
		if st, err := r.Status(t.Context(), id); err != nil || st.Running || st.Link != 0 {
			t.Fatalf("status while asleep: %+v, %v", st, err)
		}
		if i == 1 {
			l.restartEngine(t) // what the engine knows of a run is lost; ours is not
		}
		st, err := r.Restore(t.Context(), id, dir, nil)
		must.OK(t, err)
		if !st.Running || st.Link == 0 {
			t.Errorf("status after waking: %+v", st)
		}
		if err := os.RemoveAll(dir); err != nil { // nothing reads it any more
			t.Fatal(err)
		}
		l.await(t, id, n+3)
		if got := l.sh(t, id, "pgrep -f '[/]memory/start'"); got != shell {
			t.Errorf("the process is %s, was %s", got, shell)
		}
		if got := l.sh(t, id, "hostname -I"); strings.TrimSpace(got) != c.Address.Addr().String() {
			t.Errorf("the address is %s, was %s", got, c.Address.Addr())
		}
	}
	if left, _ := filepath.Glob(filepath.Join(l.cfg.RunDir, "restore", "*")); len(left) > 0 {
		t.Errorf("notes are left: %v", left)
	}
	select {
	case id := <-exits:
		t.Errorf("the end of %s was reported, which we made", id)
	case <-time.After(200 * time.Millisecond):
	}

	t.Run("of a container older than the engine", func(t *testing.T) {
		l.restartEngine(t)
		n := l.lines(t, id)
		must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, false, nil))
		if _, err := r.Restore(t.Context(), id, dir, nil); err != nil {
			t.Fatal(err)
		}
		l.await(t, id, n+3)
		_ = os.RemoveAll(dir)
	})
	t.Run("leaving it running", func(t *testing.T) {
		must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
		l.await(t, id, l.lines(t, id)+3)
		_ = os.RemoveAll(dir)
	})
	t.Run("without a guard", func(t *testing.T) {
		must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, false, nil))
		must.OK(t, os.Remove(l.pinPath()))
		_, err := r.Restore(t.Context(), id, dir, nil)
		if perr := l.pin(); perr != nil {
			t.Fatal(perr)
		}
		if err == nil || !strings.Contains(err.Error(), "not guarding") {
			t.Errorf("a sandbox woke on a bridge that nothing guards: %v", err)
		}
		if st, err := r.Status(t.Context(), id); err != nil || st.Running {
			t.Errorf("status: %+v, %v", st, err)
		}
	})
	t.Run("a damaged image", func(t *testing.T) {
		pages := filepath.Join(dir, "checkpoint.img")
		must.OK(t, os.Truncate(pages, 4096))
		if _, err := r.Restore(t.Context(), id, dir, nil); err == nil {
			t.Error("memory was restored from a part of it")
		}
		if _, err := r.Start(t.Context(), id); err != nil {
			t.Fatalf("starting from its disk afterwards: %v", err)
		}
	})
}

func TestCheckpointRefusals(t *testing.T) {
	l := need(t)
	dir := filepath.Join(vault(t), "image")
	stopped := l.create(t, l.container(t, testImage))
	if err := l.runtime.Checkpoint(t.Context(), stopped, dir, plenty, false, nil); err == nil {
		t.Error("the memory of a stopped sandbox was written")
	}
	c := l.container(t, testImage)
	c.Spec.Runtime = sandbox.RunC
	id := l.start(t, c)
	if err := l.runtime.Checkpoint(t.Context(), id, dir, plenty, false, nil); !errors.Is(err, sandbox.ErrNoCheckpoint) {
		t.Errorf("Checkpoint with runc: %v", err)
	}
	for _, bad := range []string{"relative", "/two\n/lines", `/back\slash`} {
		if _, err := l.runtime.Restore(t.Context(), stopped, bad, nil); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// A sandbox that is stopped starts, whatever is left of its restores. After a restore that
// gVisor refuses, nothing of the container runs. A handshake that is left because the
// daemon ended in the middle of a restore does not bring that memory back.
func TestStartsAfterRestoreFails(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	id := start(l.container(t, testImage))
	must.OK(t, r.Stop(t.Context(), id, 0))
	info, err := r.inspect(t.Context(), id)
	must.OK(t, err)
	if _, err := r.Restore(t.Context(), id, t.TempDir(), nil); err == nil {
		t.Error("restored from nothing")
	}
	eventually(t, patience, func() error {
		paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range paths {
			if line, _ := os.ReadFile(p); strings.Contains(string(line), info.ID) {
				return fmt.Errorf("left of it: %q", line)
			}
		}
		return nil
	})
	note := filepath.Join(r.layout.handshakes(), info.ID)
	must.OK(t, os.WriteFile(note, []byte(filepath.Join(t.TempDir(), "gone")+"\n"), 0o600))
	if st, err := r.Start(t.Context(), id); err != nil || !st.Running {
		t.Errorf("started: %+v, %v", st, err)
	}
	if _, err := os.Lstat(note); !os.IsNotExist(err) {
		t.Errorf("the handshake is left: %v", err)
	}
}

func TestBuild(t *testing.T) {
	l := need(t)
	a, err := l.runtime.Build(t.Context())
	if err != nil || !strings.Contains(a, " ") {
		t.Fatalf("Build = %q, %v", a, err)
	}
	if b, err := l.runtime.Build(t.Context()); err != nil || a != b {
		t.Errorf("Build = %q, %v, was %q", b, err, a)
	}
}

func TestUsage(t *testing.T) {
	l := need(t)
	id := l.start(t, l.container(t, testImage))
	before, err := l.runtime.Usage(t.Context(), id)
	must.OK(t, err)
	l.sh(t, id, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; ping -c1 -W1 "+testGateway.String()+" >/dev/null 2>&1; (echo x >/dev/udp/"+testGateway.String()+"/9) 2>/dev/null; :")
	after, err := l.runtime.Usage(t.Context(), id)
	if err != nil || after.CPU < before.CPU+20*time.Millisecond {
		t.Errorf("usage %+v, %v, was %+v before some work", after, err, before)
	}
	l.sh(t, id, "bash -c 'exec 3<>/dev/tcp/"+testGateway.String()+"/9' 2>/dev/null || :")
	later, err := l.runtime.Usage(t.Context(), id)
	if err != nil || later.Sent <= before.Sent {
		t.Errorf("usage %+v, %v, was %+v before it sent something", later, err, before)
	}
}

// TestResident: what is said to be resident is what a checkpoint takes, and little
// more.
func TestResident(t *testing.T) {
	l := need(t)
	r, start := l.sleepers(t)
	id := start(l.container(t, testImage))
	dir := filepath.Join(vault(t), "image")
	for _, more := range []int64{0, 200 << 20} {
		if more > 0 { // in the memory of a process that goes on
			l.sh(t, id, fmt.Sprintf(`perl -e '$x = "a" x %d; open F, ">/full"; close F; sleep 1000' >/dev/null 2>&1 </dev/null & until [ -e /full ]; do sleep 0.1; done`, more))
		}
		said, err := r.Resident(t.Context(), id)
		must.OK(t, err)
		must.OK(t, r.Checkpoint(t.Context(), id, dir, plenty, true, nil))
		var took int64
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			info, err := os.Stat(f)
			must.OK(t, err)
			took += info.Size()
		}
		t.Logf("with %d MiB more: %d MiB resident, a checkpoint of %d MiB", more>>20, said>>20, took>>20)
		if said < more || took > said+16<<20 || said > took+64<<20 {
			t.Errorf("with %d bytes more: %d are said to be resident, and a checkpoint takes %d", more, said, took)
		}
		must.OK(t, os.RemoveAll(dir))
	}
	must.OK(t, r.Stop(t.Context(), id, 0))
	if n, err := r.Resident(t.Context(), id); err == nil {
		t.Errorf("a sandbox that is stopped has %d bytes resident", n)
	}
}

// restartEngine kills dockerd as a crash would, and waits for the next.
func (l *testEngine) restartEngine(t *testing.T) {
	t.Helper()
	p := l.engine.parts[1]
	p.Signal(syscall.Signal(unix.SIGKILL))
	must.OK(t, p.Wait(t.Context()))
	must.OK(t, p.launch())
	must.OK(t, p.await(t.Context()))
}

// Nothing of a sandbox runs before its memory has been filled in, nor where that
// fails, or where who was to do it has ended.
func TestRestoreWaitsForItsMemory(t *testing.T) {
	l := need(t)
	r, id, dir, n := l.asleep(t)
	info, err := r.inspect(t.Context(), id)
	must.OK(t, err)
	asleep := func(t *testing.T) {
		t.Helper()
		if st, err := r.Status(t.Context(), id); err != nil || st.Running {
			t.Errorf("status: %+v, %v", st, err)
		}
	}
	t.Run("which cannot be had", func(t *testing.T) {
		fault := errors.New("a fault of the test's")
		if _, err := r.Restore(t.Context(), id, dir, func() error { return fault }); !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
		asleep(t)
	})
	t.Run("of a process that has ended", func(t *testing.T) {
		n, err := newHandshake(filepath.Join(r.layout.handshakes(), info.ID))
		must.OK(t, err)
		began := time.Now()
		time.AfterFunc(time.Second, n.unlock) // as the kernel does
		_, err = r.client.ContainerStart(t.Context(), info.ID, client.ContainerStartOptions{})
		if err == nil || !strings.Contains(err.Error(), "not filled in") {
			t.Errorf("it started, or not for this: %v", err)
		}
		if waited := time.Since(began); waited < time.Second {
			t.Errorf("the guard did not wait: %v", waited)
		}
		if known, err := r.CancelRestore(t.Context(), id); !known || err != nil {
			t.Errorf("the next process is told: %v, %v", known, err)
		}
		asleep(t)
	})
	t.Run("of a process that has ended, and the next gives up", func(t *testing.T) {
		n, err := newHandshake(filepath.Join(r.layout.handshakes(), info.ID))
		if err == nil {
			err = n.publish(dir)
		}
		must.OK(t, err)
		n.close()
		if known, err := r.CancelRestore(t.Context(), id); !known || err != nil {
			t.Errorf("the next process is told: %v, %v", known, err)
		}
		if _, err := r.client.ContainerStart(t.Context(), info.ID, client.ContainerStartOptions{}); err == nil {
			t.Error("it has begun nevertheless")
		}
		asleep(t)
	})
	t.Run("which is cut off", func(t *testing.T) {
		bad := t.TempDir()
		err := os.CopyFS(bad, os.DirFS(dir))
		if err == nil {
			path := filepath.Join(bad, "checkpoint.img")
			var info os.FileInfo
			if info, err = os.Stat(path); err == nil {
				err = os.Truncate(path, info.Size()/2)
			}
		}
		must.OK(t, err)
		_, err = r.Restore(t.Context(), id, bad, nil)
		if err == nil || errors.Is(err, sandbox.ErrRan) {
			t.Errorf("got %v", err)
		}
		asleep(t)
	})
	t.Run("which takes its time", func(t *testing.T) {
		aside := dir + ".aside"
		must.OK(t, os.Rename(dir, aside))
		st, err := r.Restore(t.Context(), id, dir, func() error {
			time.Sleep(time.Second)
			return os.Rename(aside, dir)
		})
		if err != nil || !st.Running {
			t.Fatalf("%+v, %v", st, err)
		}
		l.await(t, id, n+3)
	})
}

// A process that an engine which has died left waiting for a sandbox's memory does not begin
// with it later, nor without: nobody knows that it runs then.
func TestEngineDiesWhileMemoryIsFilledIn(t *testing.T) {
	l := need(t)
	r, id, dir, n := l.asleep(t)
	p := l.engine.parts[1]
	_, err := r.Restore(t.Context(), id, dir, func() error {
		time.Sleep(time.Second) // the guard waits
		p.Signal(syscall.Signal(unix.SIGKILL))
		if err := p.Wait(t.Context()); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		return nil
	})
	if err == nil {
		t.Error("it started without an engine")
	}
	time.Sleep(1500 * time.Millisecond) // for the guard
	must.OK(t, errors.Join(p.launch(), p.await(t.Context())))
	if st, err := r.Status(t.Context(), id); err != nil || st.Running {
		t.Errorf("it runs, though the wake has failed: %+v, %v", st, err)
	}
	st, err := r.Restore(t.Context(), id, dir, nil)
	if err != nil || !st.Running {
		t.Fatalf("the next wake: %+v, %v", st, err)
	}
	l.await(t, id, n+3)
}

// An engine that dies once the guard has begun does not say what came of it: whoever
// asked is told that the processes may have gone on.
func TestEngineDiesWhileMemoryIsRestored(t *testing.T) {
	l := need(t)
	r, id, dir, _ := l.asleep(t)
	info, err := r.inspect(t.Context(), id)
	must.OK(t, err)
	p := l.engine.parts[1]
	note := filepath.Join(r.layout.handshakes(), info.ID)
	restore := func() (killed bool, err error) {
		over, died := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(died)
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
				if text, err := os.ReadFile(note); err == nil && strings.Contains(string(text), markBegun) {
					p.Signal(syscall.Signal(unix.SIGKILL))
					died <- p.Wait(t.Context())
					return
				}
			}
		}()
		_, err = r.Restore(t.Context(), id, dir, nil)
		close(over)
		derr, killed := <-died
		must.OK(t, derr)
		return killed, err
	}
	killed, err := restore()
	for !killed || err == nil { // it was done before: once more
		if killed {
			must.OK(t, errors.Join(p.launch(), p.await(t.Context())))
		}
		must.OK(t, errors.Join(err, os.RemoveAll(dir), r.Checkpoint(t.Context(), id, dir, plenty, false, nil)))
		killed, err = restore()
	}
	if !errors.Is(err, sandbox.ErrRan) {
		t.Errorf("got %v", err)
	}
	must.OK(t, errors.Join(p.launch(), p.await(t.Context())))
	for range 2 { // so is the next process of ours
		if known, err := r.CancelRestore(t.Context(), id); !known || !errors.Is(err, sandbox.ErrRan) {
			t.Errorf("the next is told: %v, %v", known, err)
		}
	}
	must.OK(t, r.Stop(t.Context(), id, 0))
	if st, err := r.Start(t.Context(), id); err != nil || !st.Running {
		t.Errorf("starting it from its disk: %+v, %v", st, err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.layout.handshakes(), "*")); len(left) > 0 {
		t.Errorf("notes are left: %v", left)
	}
}
