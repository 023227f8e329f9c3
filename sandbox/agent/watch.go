package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// watched is what is asked of inotify(7) for each folder or file.
const watched = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK

// watcher tells what happens to a file, or to what is in a folder.
type watcher struct {
	fd        int
	f         *os.File // the same, by the runtime's poller
	top       string
	recursive bool
	folders   map[int32]string // by watch descriptor: path below top
	tell      func(wire.Event) error
}

// watch streams events as lines of JSON until the other side goes away. A slow
// reader loses events, which is told: the kernel's queue is the only one.
func (s *files) watch(w http.ResponseWriter, r *http.Request) {
	defer s.using()()
	path, err := named(r)
	if err != nil {
		refuseFile(w, err)
		return
	}
	begun := false
	err = asUser(s.whose(r), func() error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return err
		}
		x := &watcher{
			fd: fd, f: os.NewFile(uintptr(fd), "inotify"), top: path, recursive: r.URL.Query().Get("recursive") == "1",
			folders: map[int32]string{},
		}
		defer x.f.Close()
		lines := json.NewEncoder(w)
		x.tell = func(e wire.Event) error { return lines.Encode(e) }
		if _, err := x.add("", 0); err != nil {
			return err
		}
		begun = true
		w.Header().Set("Content-Type", "application/x-ndjson")
		if x.recursive {
			if err := x.below("", false); err != nil {
				return err
			}
		}
		if err := x.tell(wire.Event{Op: wire.Ready}); err != nil {
			return err
		}
		return x.follow(r.Context(), http.NewResponseController(w).Flush)
	})
	if err != nil && !begun {
		refuseFile(w, err)
	}
}

// add watches what is at a path below the top.
func (x *watcher) add(path string, flags uint32) (bool, error) {
	if len(x.folders) >= wire.MaxWatches {
		return false, x.tell(event(wire.Unseen, path, true))
	}
	wd, err := unix.InotifyAddWatch(x.fd, filepath.Join(x.top, path), watched|flags)
	if err != nil {
		return false, &os.PathError{Op: "watch", Path: filepath.Join(x.top, path), Err: err}
	}
	x.folders[int32(wd)] = path
	return true, nil
}

// below watches every folder below one that is watched. With fresh, what is
// found is told as made: it came before its folder was watched.
func (x *watcher) below(path string, fresh bool) error {
	f, err := os.OpenFile(filepath.Join(x.top, path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // it has gone again, or is no folder
	}
	defer f.Close()
	for {
		some, err := f.ReadDir(256)
		for _, e := range some {
			p := filepath.Join(path, e.Name())
			if fresh {
				if err := x.tell(event(wire.Created, p, e.IsDir())); err != nil {
					return err
				}
			}
			if !e.IsDir() {
				continue
			}
			ok, err := x.folder(p)
			if err != nil {
				return err
			}
			if ok {
				if err := x.below(p, fresh); err != nil {
					return err
				}
			}
		}
		if err != nil || len(some) == 0 {
			return nil
		}
	}
}

// folder watches a folder if that can be.
func (x *watcher) folder(path string) (bool, error) {
	ok, err := x.add(path, unix.IN_ONLYDIR)
	var failed *os.PathError
	if !errors.As(err, &failed) {
		return ok, err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return false, x.tell(event(wire.Unseen, path, true)) // not readable, or the kernel has no more
}

// follow tells what happens until that is over.
func (x *watcher) follow(ctx context.Context, flush func() error) error {
	defer context.AfterFunc(ctx, func() { _ = x.f.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64<<10)
	for {
		if err := flush(); err != nil {
			return err
		}
		n, err := x.f.Read(buf)
		if err != nil {
			return err
		}
		over, err := x.read(buf[:n])
		if over || err != nil {
			return errors.Join(err, flush())
		}
	}
}

// read tells a buffer of events; over says that nothing is watched any more.
func (x *watcher) read(buf []byte) (over bool, err error) {
	for len(buf) >= unix.SizeofInotifyEvent {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		end := unix.SizeofInotifyEvent + int(e.Len)
		if end > len(buf) {
			return true, errors.New("half an event of inotify")
		}
		name := strings.TrimRight(string(buf[unix.SizeofInotifyEvent:end]), "\x00")
		if over, err = x.one(*e, name); over || err != nil {
			return over, err
		}
		buf = buf[end:]
	}
	return false, nil
}

func (x *watcher) one(e unix.InotifyEvent, name string) (over bool, err error) {
	if e.Mask&unix.IN_Q_OVERFLOW != 0 {
		return false, x.tell(wire.Event{Op: wire.Overflow})
	}
	at, known := x.folders[e.Wd]
	if !known {
		return false, nil // of a folder that has been moved away
	}
	top := at == ""
	if e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0 {
		if top {
			return true, x.tell(wire.Event{Op: wire.Gone})
		}
		if e.Mask&unix.IN_IGNORED != 0 {
			delete(x.folders, e.Wd)
		}
		return false, nil // its parent tells
	}
	if name == "" && !top {
		return false, nil // what its parent tells too
	}
	path, dir := filepath.Join(at, name), e.Mask&unix.IN_ISDIR != 0
	op := ""
	switch {
	case e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		op = wire.Created
	case e.Mask&unix.IN_CLOSE_WRITE != 0:
		op = wire.Written
	case e.Mask&unix.IN_ATTRIB != 0:
		op = wire.Changed
	case e.Mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		op = wire.Removed
	default:
		return false, nil
	}
	if err := x.tell(event(op, path, dir)); err != nil || !dir || !x.recursive || name == "" {
		return false, err
	}
	switch op {
	case wire.Removed:
		x.drop(path)
	case wire.Created:
		ok, err := x.folder(path)
		if err != nil || !ok {
			return false, err
		}
		return false, x.below(path, true)
	}
	return false, nil
}

// drop ends the watches of a folder that was moved away.
func (x *watcher) drop(path string) {
	for wd, p := range x.folders {
		if p == path || strings.HasPrefix(p, path+"/") {
			delete(x.folders, wd)
			_, _ = unix.InotifyRmWatch(x.fd, uint32(wd)) // it may have gone
		}
	}
}

func event(op, path string, dir bool) wire.Event {
	return wire.Event{Op: op, Path: path, Raw: wire.Raw(path), Folder: dir}
}
