package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sync"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// errOrder refuses what is not written in order.
var errOrder = errors.New("files are written from one end to the other here")

// upload writes a file from its start to its end, or adds to it, until Close. Parts come
// in the client's order (see paced). If the file exists and is not to be emptied, the
// first part shows whether the client writes from the start or adds. A file that is written
// from its start keeps what lies beyond what was written, unless the client cuts that off.
// scp does: it does not truncate the file as it opens it, in case it reads that very file.
type upload struct {
	x    *sftpSession
	path string
	mode wire.Mode // of a file that is new; 0: 0644
	adds bool      // offsets mean nothing (SSH_FXF_APPEND): clients count from 0 or from the end

	mu    sync.Mutex   // guards what follows
	at    int64        // where the next part begins; the file's end while unset
	err   error        // why there is no next
	unset bool         // whether it adds is not known yet
	to    *os.File     // nil until it is
	new   *replacement // that to is of, where the file is written as a whole
	tail  int64        // to where what there was stays
	after attributes   // what the file is to be when it is closed
}

// whole begins to write the file as a whole.
func (w *upload) whole() error {
	return w.x.as(func() (err error) {
		if w.new, err = replacing(w.path, w.mode); err == nil {
			w.to = w.new.f
		}
		return err
	})
}

// append begins to add to the file, which is to end there.
func (w *upload) append(end int64) error {
	return w.x.as(func() error {
		f, err := writable(w.path, os.O_APPEND)
		if err != nil {
			return err
		}
		i, err := f.Stat()
		if err == nil && i.Size() != end {
			err = fmt.Errorf("%s: it does not end at %d", w.path, end)
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
		w.to = f
		return nil
	})
}

// settle begins at 0 or at the file's end. w.mu is held.
func (w *upload) settle(off int64) {
	w.unset = false
	end := w.at
	w.at = off
	switch {
	case off != 0 && off != end:
		w.err = errOrder
	case off == 0 && !w.adds:
		w.tail, w.err = end, w.whole()
	default:
		w.err = w.append(end)
	}
}

func (w *upload) WriteAt(p []byte, off int64) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unset {
		w.settle(off)
	}
	if w.err == nil && off != w.at {
		w.err = errOrder
	}
	if w.err != nil {
		return 0, w.err
	}
	w.err = w.x.as(func() (err error) { n, err = w.to.Write(p); return err })
	w.at += int64(n)
	return n, w.err
}

// later notes what the file is to be.
func (w *upload) later(a attributes) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.unset: // it is in its place, as it was
		if err := w.x.as(func() error { return set(w.path, a) }); err != nil {
			return err
		}
		if a.size != nil {
			if w.at = *a.size; w.at == 0 {
				w.settle(0)
			}
		}
	case a.size == nil:
	case *a.size == w.at:
		w.tail = 0
	case *a.size > w.at && *a.size <= w.tail:
		w.tail = *a.size
	default:
		return sftp.ErrSSHFxOpUnsupported // it is as long as what is written
	}
	if a.mode != nil {
		w.after.mode = a.mode
	}
	if a.modified != nil {
		w.after.accessed, w.after.modified = a.accessed, a.modified
	}
	return nil
}

// TransferError is told that the end will not come: the file is left as it was.
func (w *upload) TransferError(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = sftp.ErrSSHFxConnectionLost
	}
}

// Close puts the file in its place, and says whether it is there.
func (w *upload) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.x.mu.Lock()
	if w.x.uploads[w.path] == w {
		delete(w.x.uploads, w.path)
	}
	w.x.mu.Unlock()
	w.x.leave()
	w.unset = false
	if w.to == nil {
		return w.err // nothing has come
	}
	return w.x.as(func() error {
		err := w.err
		if err == nil {
			err = w.keep()
		}
		if w.new != nil {
			err = w.new.done(err)
		} else {
			err = errors.Join(err, w.to.Close())
		}
		if err != nil || w.after == (attributes{}) {
			return err
		}
		return set(w.path, w.after)
	})
}

// keep adds what stays of what there was, its holes as holes, while the client is there.
// w.mu is held.
func (w *upload) keep() error {
	if w.tail <= w.at {
		return nil
	}
	was, _, err := open(w.path)
	if err != nil {
		return err
	}
	defer was.Close()
	buf, none := make([]byte, copySize), make([]byte, copySize)
	for at := w.at; at < w.tail; {
		if w.x.broken() {
			return sftp.ErrSSHFxConnectionLost
		}
		at = min(nextData(was, at), w.tail)
		n, err := was.ReadAt(buf[:min(int64(len(buf)), w.tail-at)], at)
		if n > 0 && !bytes.Equal(buf[:n], none[:n]) { // gVisor knows no holes
			if _, err := w.to.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			break
		}
	}
	if i, err := was.Stat(); err != nil || i.Size() < w.tail {
		return errors.Join(err, fs.ErrInvalid) // it has become shorter
	}
	return w.to.Truncate(w.tail)
}

// nextData is the offset at or after another where a file may have more than zeros
// (lseek(2), SEEK_DATA).
func nextData(f *os.File, at int64) int64 {
	n, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO:
		return math.MaxInt64
	case err != nil:
		return at
	}
	return n
}
