package keeper_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/keeper"
)

// opened counts how often a folder was opened since the last call.
func opened(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must.OK(t, err)
	watch := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { watch.Close() })
	// The kernel makes one of two events that are the same and follow each other: a close
	// stands between two that open.
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_CLOSE_NOWRITE)
	must.OK(t, err)
	return func() (n int) {
		buffer := make([]byte, 64<<10)
		for {
			got, err := unix.Read(fd, buffer)
			if err != nil {
				return n
			}
			for at := 0; at < got; { // inotify(7): watch, mask, cookie, length of the name, name
				mask, length := binary.NativeEndian.Uint32(buffer[at+4:]), binary.NativeEndian.Uint32(buffer[at+12:])
				if mask&unix.IN_OPEN != 0 && length == 0 {
					n++
				}
				at += unix.SizeofInotifyEvent + int(length)
			}
		}
	}
}

// An index and the question after it look at the files once, and so does a question alone. A
// question after another use of the memory looks again.
func TestOneLook(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.writes("memories/a.md", "The first apple.\n")
	must.OK(t, os.Mkdir(r.path("plans"), 0o777)) // which only a look opens: nothing is in it
	looks := opened(t, r.path("plans"))
	index := func() (look string) {
		t.Helper()
		must.OK(t, r.Index(ctx, r.o, func(s keeper.Step) error {
			if s.Index != nil {
				look = s.Index.Look
			}
			return nil
		}))
		return look
	}
	find := func(what, word, look string, want, wantLooks int) {
		t.Helper()
		list := value(r.Search(ctx, r.o, keeper.Question{Query: word, Look: look}))(t)
		if len(list.Found) != want {
			t.Errorf("%s: found %+v, want %d", what, list.Found, want)
		}
		if n := looks(); n != wantLooks {
			t.Errorf("%s: %d looks, want %d", what, n, wantLooks)
		}
	}
	find("a question alone", "apple", "", 1, 1)
	find("an index and a question", "apple", index(), 1, 1)
	look := index()
	r.writes("memories/b.md", "A papaya.\n")
	looks()
	find("written after the index", "papaya", look, 0, 0)
	find("the same look again", "papaya", look, 1, 1)
	look = index()
	r.writes("memories/c.md", "A quince.\n")
	must.OK(t, r.Record(ctx, r.o, memory.Cause{Operation: memory.Found}))
	looks()
	find("after another use", "quince", look, 1, 1)
	find("a look that is none", "quince", "x", 1, 1)
	// The answer says what the index had not.
	for i := range 3 {
		r.writes(fmt.Sprintf("memories/large%d.md", i), fmt.Sprintf("%0800000d", i))
	}
	look = index()
	if list := value(r.Search(ctx, r.o, keeper.Question{Query: "apple", Look: look}))(t); list.Incomplete == "" {
		t.Error("the answer is not said to be incomplete")
	}
}
