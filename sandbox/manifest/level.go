package manifest

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpen bounds how many folders on the way to one file are open: the deepest.
const maxOpen = 32

// level is a folder on the way.
type level struct {
	dir  *os.Root // nil: not open
	info fs.FileInfo
	at   string
}

// unlisted is a folder that is there, and some of whose files are not told.
type unlisted struct {
	at, why string
}

func (u *unlisted) Error() string { return fmt.Sprintf("%.200q: %s", u.at, u.why) }

// enter goes down into a folder, and closes the one that is too far above.
func (w *walker) enter(l *level) {
	w.way = append(w.way, l)
	if n := len(w.way) - 1 - maxOpen; n >= 0 {
		w.way[n].close()
	}
}

// leave goes back up, and opens the folder there again if need be: by ".." of the one that
// is left, or from the top where that has been moved. Where neither finds the very folder
// it stays closed.
func (w *walker) leave() {
	n := len(w.way) - 1
	l := w.way[n]
	defer l.close()
	w.way = w.way[:n]
	if n == 0 || w.way[n-1].dir != nil {
		return
	}
	above := w.way[n-1]
	if above.dir = above.same(l.parent()); above.dir == nil {
		rel := strings.TrimPrefix(strings.TrimPrefix(above.at, w.way[0].at), "/")
		above.dir = above.same(descend(w.folder, strings.Split(rel, "/")))
	}
}

func (l *level) close() {
	if l.dir != nil {
		_ = l.dir.Close()
		l.dir = nil
	}
}

// same is dir if it is the level's, else nil.
func (l *level) same(dir *os.Root, err error) *os.Root {
	if err != nil {
		return nil
	}
	if info, err := dir.Stat("."); err != nil || !os.SameFile(info, l.info) {
		_ = dir.Close()
		return nil
	}
	return dir
}

// parent opens "..", which may be any folder of the host's by now: see same.
func (l *level) parent() (*os.Root, error) {
	if l.dir == nil {
		return nil, fs.ErrClosed
	}
	f, err := l.dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.Openat(int(f.Fd()), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}
