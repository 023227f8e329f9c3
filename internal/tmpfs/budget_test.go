package tmpfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/internal/tmpfs"
)

const mib = 1 << 20

// queue is a Room of 1000 MiB, and who has waited in it.
type queue struct {
	*tmpfs.Budget
	t   *testing.T
	dir string
	in  chan string
}

func newQueue(t *testing.T) *queue {
	dir := t.TempDir()
	return &queue{tmpfs.NewBudget(dir, 1000*mib), t, dir, make(chan string, 100)}
}

// now takes room that must be there.
func (q *queue) now(owner string, n int64) *tmpfs.Reservation {
	q.t.Helper()
	l, err := q.Reserve(q.t.Context(), owner, n*mib, 0)
	if err != nil {
		q.t.Fatalf("%s: %v", owner, err)
	}
	return l
}

// wait has somebody stand in the queue, who tells q.in when they are in.
func (q *queue) wait(owner string, n int64) (lease func() *tmpfs.Reservation) {
	var l *tmpfs.Reservation
	go func() {
		var err error
		if l, err = q.Reserve(q.t.Context(), owner, n*mib, time.Hour); err == nil {
			q.in <- fmt.Sprint(owner, " ", n)
		}
	}()
	synctest.Wait()
	return func() *tmpfs.Reservation { return l }
}

// came checks who has got in since it was called last.
func (q *queue) came(want ...string) {
	q.t.Helper()
	synctest.Wait()
	var got []string
	for len(q.in) > 0 {
		got = append(got, <-q.in)
	}
	seen := map[string]int{}
	for i := range got {
		seen[got[i]]++
	}
	for i := range want {
		seen[want[i]]--
	}
	for _, n := range seen {
		if n != 0 {
			q.t.Fatalf("got in: %q, want %q", got, want)
		}
	}
}

// fill writes into a folder.
func (q *queue) fill(name string, n int64) {
	q.t.Helper()
	dir := filepath.Join(q.dir, name)
	must.OK(q.t, os.MkdirAll(dir, 0o700))
	must.OK(q.t, os.WriteFile(filepath.Join(dir, "image"), make([]byte, n*mib), 0o600))
}

func (q *queue) empty(name string) {
	q.t.Helper()
	must.OK(q.t, os.RemoveAll(filepath.Join(q.dir, name)))
}

func TestRoom(t *testing.T) {
	for name, f := range map[string]func(*queue){
		"another owner finds the other half": func(q *queue) {
			for range 5 {
				q.now("a", 100)
			}
			for range 50 {
				q.wait("a", 100)
			}
			q.came()
			q.now("b", 500)
		},
		"who has least comes first": func(q *queue) {
			a, _ := q.now("a", 250), q.now("a", 250)
			b := q.now("b", 500)
			q.wait("a", 200)
			q.wait("b", 200)
			q.wait("c", 250)
			a.Release()
			q.came("c 250")
			b.Release() // 500 are free, b has none and a 250
			q.came("b 200", "a 200")
		},
		"first come, first served": func(q *queue) {
			a, b := q.now("a", 500), q.now("b", 500)
			q.wait("c", 300)
			q.wait("d", 300)
			a.Release()
			q.came("c 300")
			b.Release()
			q.came("d 300")
		},
		"large ones of one owner do not starve another": func(q *queue) {
			a := q.now("a", 700)
			next := q.wait("a", 700)
			q.wait("a", 700)
			q.wait("b", 400)
			q.wait("c", 400)
			a.Release()
			q.came("b 400", "c 400")
			if next() != nil {
				q.t.Error("it came twice before another came once")
			}
		},
		"of one owner too": func(q *queue) {
			a := q.now("a", 400)
			q.wait("a", 200)
			q.wait("a", 10) // there would be room
			q.came()
			a.Release()
			q.came("a 200", "a 10")
		},
		"small ones do not starve a large one": func(q *queue) {
			var small []*tmpfs.Reservation
			for i := range 10 {
				small = append(small, q.now(fmt.Sprint("s", i), 90))
			}
			q.wait("large", 450)
			for i := range 10 {
				q.wait(fmt.Sprint("t", i), 90)
			}
			for _, l := range small[:3] {
				l.Release()
				q.came()
			}
			small[3].Release()
			q.came("large 450")
			small[4].Release()
			q.came("t0 90")
		},
		"more than the half, alone": func(q *queue) {
			a := q.now("a", 900)
			q.wait("a", 50)
			q.came()
			q.now("b", 100)
			a.Release()
			q.came("a 50")
		},
		"what was written counts": func(q *queue) {
			a := q.now("a", 500)
			a.AddFolder("one")
			q.fill("one", 20)
			if left := a.Left(); left != 480*mib {
				q.t.Errorf("left: %d", left)
			}
			q.wait("a", 470)
			q.came()
			if err := a.Settle(); err != nil || a.Bytes() != 20*mib {
				q.t.Errorf("corrected to %d, %v", a.Bytes(), err)
			}
			q.came("a 470")
			q.empty("one")
			a.Release()
			a.Release()
			q.now("b", 500)
			if _, err := q.Reserve(q.t.Context(), "b", 31*mib, 0); !errors.Is(err, tmpfs.ErrBusy) {
				q.t.Errorf("room was given back twice: %v", err)
			}
		},
		"what is being written counts once": func(q *queue) {
			a := q.now("a", 500)
			a.AddFolder("one")
			q.fill("one.part", 400)
			q.now("b", 500)
		},
		"what was written beyond it is its owner's": func(q *queue) {
			a := q.now("a", 10)
			a.AddFolder("one")
			q.fill("one", 450)
			q.wait("a", 100)
			q.came()
			q.now("b", 500)
		},
		"what was written beyond it counts": func(q *queue) {
			a := q.now("a", 10)
			a.AddFolder("one")
			q.fill("one.part", 60)
			q.now("b", 480)
			q.wait("c", 470)
			q.came()
			q.empty("one.part")
			time.Sleep(2 * time.Second)
			q.came("c 470")
		},
		"what is nobody's counts until it is gone": func(q *queue) {
			q.fill("before", 50)
			for _, owner := range []string{"a", "b"} {
				q.now(owner, 470)
			}
			q.wait("c", 20)
			q.came()
			q.empty("before")
			time.Sleep(2 * time.Second)
			q.came("c 20")
		},
		"what a lease leaves behind counts": func(q *queue) {
			a := q.now("a", 500)
			a.AddFolder("one")
			q.fill("one", 40)
			a.Release()
			q.wait("b", 970)
			q.came()
			q.empty("one")
			time.Sleep(2 * time.Second)
			q.came("b 970")
		},
		"whom nobody waits for any more": func(q *queue) {
			q.now("a", 900)
			ctx, cancel := context.WithCancelCause(q.t.Context())
			why := errors.New("gone")
			done := make(chan error, 1)
			go func() {
				_, err := q.Reserve(ctx, "b", 200*mib, time.Hour)
				done <- err
			}()
			synctest.Wait()
			q.wait("c", 100) // behind b
			q.came()
			cancel(why)
			if err := <-done; !errors.Is(err, why) {
				q.t.Errorf("got %v", err)
			}
			q.came("c 100")
		},
		"for so long, and no longer": func(q *queue) {
			q.now("b", 400)
			q.now("a", 300)
			began := time.Now()
			_, err := q.Reserve(q.t.Context(), "a", 300*mib, time.Minute)
			if !errors.Is(err, tmpfs.ErrBusy) || time.Since(began) != time.Minute {
				q.t.Errorf("got %v after %v", err, time.Since(began))
			}
			want := "300MiB are needed, 300MiB of 1000MiB are free, and this owner has 300MiB, where one may have 500MiB: try again"
			if !strings.Contains(fmt.Sprint(err), want) {
				q.t.Errorf("%v does not say %q", err, want)
			}
			q.now("a", 200)
		},
		"more than there ever is": func(q *queue) {
			_, err := q.Reserve(q.t.Context(), "a", 1001*mib, time.Hour)
			if !errors.Is(err, tmpfs.ErrTooLarge) || !strings.Contains(err.Error(), "1001MiB are needed, and there are 1000MiB in all") {
				q.t.Errorf("got %v", err)
			}
		},
		"a queue has an end": func(q *queue) {
			q.now("a", 500)
			for range 1024 {
				q.wait("a", 1)
			}
			if _, err := q.Reserve(q.t.Context(), "a", mib, time.Hour); !errors.Is(err, tmpfs.ErrBusy) || !strings.Contains(err.Error(), "1024") {
				q.t.Errorf("got %v", err)
			}
			q.now("b", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.t = t
				f(q)
			})
		})
	}
}

// TestRoomOfFileSystem: it is what the file system holds, and what is in that counts
// before anything is reserved.
func TestRoomOfFileSystem(t *testing.T) {
	testnet.Privileged(t)
	dir := t.TempDir()
	must.OK(t, unix.Mount("test", dir, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	must.OK(t, os.WriteFile(filepath.Join(dir, "before"), make([]byte, 4*mib), 0o600))
	r := tmpfs.NewBudget(dir, 0)
	if got := r.Share(); got != 6*mib {
		t.Errorf("a share is %d bytes", got)
	}
	a, err := r.Reserve(t.Context(), "a", 12*mib, 0)
	must.OK(t, err)
	if _, err := r.Reserve(t.Context(), "b", mib, 0); !errors.Is(err, tmpfs.ErrBusy) {
		t.Errorf("one beyond what is free: %v", err)
	}
	if _, err := r.Reserve(t.Context(), "b", 17*mib, 0); !errors.Is(err, tmpfs.ErrTooLarge) {
		t.Errorf("one beyond what there is: %v", err)
	}
	a.Release()
	if _, err := r.Reserve(t.Context(), "b", 12*mib, 0); err != nil {
		t.Error(err)
	}
}
