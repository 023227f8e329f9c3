package disk_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/sandbox/disk"
)

// made is a sandbox's folder with a disk in it, which the test leaves detached.
func made(t *testing.T) string {
	t.Helper()
	testnet.Privileged(t)
	folder := t.TempDir()
	must.OK(t, disk.Make(folder, disk.Min))
	t.Cleanup(func() {
		if err := disk.Detach(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// Writes stay, through Detach and Attach, each again and again, and a disk that is full is
// full for itself.
func TestDiskKeepsAndBounds(t *testing.T) {
	folder := made(t)
	file := filepath.Join(folder, "memory/kept")
	must.OK(t, os.WriteFile(file, []byte("x"), 0o600))
	for range 2 {
		must.OK(t, disk.Detach(folder))
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is in sight of a disk that is detached: %v", err)
	}
	for range 2 {
		must.OK(t, disk.Attach(folder))
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "x" {
		t.Errorf("got %q, %v", data, err)
	}
	err := os.WriteFile(filepath.Join(disk.Layer(folder), "full"), make([]byte, disk.Min), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than fits: %v", err)
	}
	if n, err := disk.Used(folder); err != nil || n > disk.Min+1<<20 {
		t.Errorf("it takes %d bytes of the host's: %v", n, err)
	}
}

// Hold shows the memory of a sandbox that sleeps, and only as long.
func TestHold(t *testing.T) {
	folder := made(t)
	file := filepath.Join(folder, "memory/kept")
	must.OK(t, errors.Join(os.WriteFile(file, []byte("x"), 0o600), disk.Detach(folder)))
	release, err := disk.Hold(folder)
	must.OK(t, err)
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	must.OK(t, release())
	if _, err := os.Stat(file); err == nil {
		t.Error("it is in sight afterwards")
	}
	// One that is awake is left so.
	must.OK(t, disk.Attach(folder))
	release, err = disk.Hold(folder)
	if err = errors.Join(err, release()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// A failure leaves nothing, and a disk that cannot be read says what to do. Attach and Detach
// wait while another looks at a disk's memory, and find it as if nobody had looked.
func TestHoldKeepsOthersWaiting(t *testing.T) {
	folder := made(t)
	file := filepath.Join(folder, "memory/kept")
	must.OK(t, errors.Join(os.WriteFile(file, []byte("x"), 0o600), disk.Detach(folder)))
	for _, attach := range []bool{true, false} { // by Hold attached, then already
		step := disk.Detach
		if attach {
			step = disk.Attach
		}
		release, err := disk.Hold(folder)
		must.OK(t, err)
		done := make(chan error, 1)
		go func() { done <- step(folder) }()
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "x" {
			t.Errorf("while it is held: %q, %v", data, err)
		}
		must.OK(t, errors.Join(release(), <-done))
		_, memory := os.Stat(file)
		_, layer := os.Stat(disk.Layer(folder))
		if (memory == nil) != attach || (layer == nil) != attach {
			t.Errorf("attached %v: memory %v, layer %v", attach, memory, layer)
		}
	}
}

func TestDiskRefuses(t *testing.T) {
	testnet.Privileged(t)
	folder := t.TempDir()
	if err := disk.Make(folder, disk.Min-1); err == nil || disk.Exists(folder) {
		t.Errorf("too small a disk: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "disk"), nil, 0o600); err != nil { // in the way
		t.Fatal(err)
	}
	if err := disk.Make(folder, disk.Min); err == nil || disk.Exists(folder) {
		t.Errorf("with a file in the way: %v", err)
	}
	folder = made(t)
	must.OK(t, disk.Detach(folder))
	image := filepath.Join(folder, "disk.img")
	whole, err := os.ReadFile(image)
	must.OK(t, err)
	must.OK(t, os.WriteFile(image, make([]byte, disk.Min), 0o600))
	if err := disk.Attach(folder); err == nil {
		t.Error("a disk of zeros was attached")
	} else {
		t.Log(err)
	}
	// The way back is a copy of it.
	must.OK(t, os.WriteFile(image, whole, 0o600))
	if err := disk.Attach(folder); err != nil {
		t.Errorf("a disk that was put back: %v", err)
	}
}

// Programs are started all the time. Until a process that was forked runs its program, it
// has what was open as well: that keeps no disk attached.
func TestDetachWhileProgramsStart(t *testing.T) {
	folder := made(t)
	var programs sync.WaitGroup
	defer programs.Wait()
	over := make(chan struct{})
	defer close(over)
	for range 4 {
		programs.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = exec.Command("true").Run()
				}
			}
		})
	}
	for n := range 100 {
		if err := disk.Detach(folder); err != nil {
			t.Fatalf("round %d: %v", n, err)
		}
		must.OK(t, disk.Attach(folder))
	}
}
