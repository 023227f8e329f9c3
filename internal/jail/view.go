package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport/internal/periodic"
)

// refreshEvery is how long a change of the host's file may go unseen.
const refreshEvery = time.Second

// maxCopy bounds a file that is copied, in bytes.
const maxCopy = 4 << 20

// View is the folder that becomes a jail's root: copies under the names of the originals,
// so that no file of the host is reachable. Changes are seen inside at once. View is safe
// for concurrent use.
type View struct {
	dir string
	log *slog.Logger

	mu     sync.Mutex
	copies map[string]*copied // by path on the host
}

// Copy is a file of the host's to show.
type Copy struct {
	Path string // absolute
	// Keep returns what may be shown of the content. Default: all of it.
	Keep func([]byte) []byte
}

type copied struct {
	Copy
	info   fs.FileInfo // of the original when it was copied; nil: there was none
	failed fs.FileInfo // of an original that could not be copied, which was said
}

// same reports whether a file is the one of before, unchanged.
func same(now, before fs.FileInfo) bool {
	return before != nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime()) && now.Size() == before.Size()
}

// OpenView makes the folder anew, empty.
func OpenView(dir string, log *slog.Logger) (*View, error) {
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(dir), 0o700)
	}
	if err == nil {
		err = folder(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("making the jail's root: %w", err)
	}
	return &View{dir: filepath.Clean(dir), log: log, copies: map[string]*copied{}}, nil
}

// Dir is the folder.
func (v *View) Dir() string { return v.dir }

// at is where a path of the inside lies.
func (v *View) at(name string) string { return filepath.Join(v.dir, filepath.Clean("/"+name)) }

// folder makes one that everybody may look into, whatever the umask is.
func folder(dir string) error {
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// folders makes the folders down to dir, which is at or below the view's.
func (v *View) folders(dir string) error {
	if dir == v.dir {
		return nil
	}
	if err := v.folders(filepath.Dir(dir)); err != nil {
		return err
	}
	return folder(dir)
}

// Write makes a file of the inside hold data, whole at any moment.
func (v *View) Write(name string, data []byte) error {
	to := v.at(name)
	if err := v.folders(filepath.Dir(to)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Remove takes a file or folder of the inside away.
func (v *View) Remove(name string) error { return os.RemoveAll(v.at(name)) }

// Show has the copies that it is given, and no others, follow their originals.
func (v *View) Show(copies ...Copy) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := map[string]*copied{}
	for _, c := range copies {
		if have := v.copies[c.Path]; have != nil {
			next[c.Path] = have
		} else {
			next[c.Path] = &copied{Copy: c}
		}
	}
	var errs []error
	for path := range v.copies {
		if next[path] == nil {
			errs = append(errs, v.Remove(path))
		}
	}
	v.copies = next
	return errors.Join(append(errs, v.refresh())...)
}

// Watch keeps the copies true until ctx is done.
func (v *View) Watch(ctx context.Context) {
	_ = periodic.Run(ctx, refreshEvery, func(time.Time) {
		v.mu.Lock()
		err := v.refresh()
		v.mu.Unlock()
		if err != nil {
			v.log.Warn("a file cannot be shown in the jail", "error", err)
		}
	})
}

// refresh copies what has changed, and tries again what could not be copied. It says an error
// once until the file changes. v.mu is held.
func (v *View) refresh() error {
	var errs []error
	for path, c := range v.copies {
		info, err := os.Stat(path)
		switch {
		case err != nil && c.info == nil:
			// It was not there before either.
		case err != nil:
			c.info = nil
			errs = append(errs, v.Remove(path))
		case same(info, c.info):
		default:
			err := v.copy(c, info)
			switch {
			case err == nil:
				c.info, c.failed = info, nil
			case !same(info, c.failed):
				c.failed = info
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (v *View) copy(c *copied, info fs.FileInfo) error {
	if !info.Mode().IsRegular() || info.Size() > maxCopy {
		return fmt.Errorf("not a file of at most %d bytes", maxCopy)
	}
	f, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCopy))
	if err != nil {
		return err
	}
	if c.Keep != nil {
		data = c.Keep(data)
	}
	return v.Write(c.Path, data)
}
