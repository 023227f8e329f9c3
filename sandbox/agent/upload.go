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
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// A client sends several parts of a file at once, in order, and those parts are worked on
// at the same time: one that is early waits. A part is a jump when its turn does not come.
// Waiting is counted in pauses, between which all that can run does: on a busy machine the
// part that comes before may be late, however much time has passed.
const (
	pause      = 20 * time.Millisecond
	jumpPauses = 250 // until its turn, whatever comes before it meanwhile
	// beginPauses is for how long the part that would begin at the file's end waits for one
	// that begins at 0, which is sent before it and may be worked on after it.
	beginPauses = 25
)

// errOrder refuses what is not written in order.
var errOrder = errors.New("files are written from one end to the other here")

// turn lets the parts of one file go in order.
type turn struct {
	mu    sync.Mutex
	at    int64         // where the next part begins
	moved chan struct{} // closed when it has
	err   error         // why there is no next
}

// wait returns with t.mu held: when it is the turn of the part at off, when there is
// none (t.err), or, false, when that part is a jump.
func (t *turn) wait(off int64) bool {
	t.mu.Lock()
	for left := newPauses(jumpPauses); off > t.at && t.err == nil; {
		if !t.await(left) {
			return false
		}
	}
	return off == t.at
}

// pauses are those that a part still waits for.
type pauses struct {
	left int
	next time.Time // when the one that goes on is over
}

func newPauses(n int) *pauses { return &pauses{n, time.Now().Add(pause)} }

// await gives t.mu up until the next move; false: no pauses are left.
func (t *turn) await(p *pauses) bool {
	for moved := t.moved; t.moved == moved; {
		if p.left == 0 {
			return false
		}
		t.mu.Unlock()
		over := time.NewTimer(time.Until(p.next))
		select {
		case <-moved:
		case <-over.C:
		}
		over.Stop()
		t.mu.Lock()
		if now := time.Now(); !now.Before(p.next) {
			p.left, p.next = p.left-1, now.Add(pause)
		}
	}
	return true
}

// move is to be called with t.mu held.
func (t *turn) move(to int64, err error) {
	t.at, t.err = to, err
	close(t.moved)
	t.moved = make(chan struct{})
}

// upload writes a file from its start to its end, or adds to it; Close is the end of
// that. Where the file exists and is not to be emptied, only the first part shows
// whether the client writes from the start or adds. Written from the start, the file
// keeps what lies beyond what was written, unless the client cuts it off: scp does,
// which does not truncate as it opens, in case it reads that very file.
type upload struct {
	turn
	x     *sftpSession
	path  string
	mode  wire.Mode    // of a file that is new; 0: 0644
	adds  bool         // offsets mean nothing (SSH_FXF_APPEND): clients count from 0 or from the end
	unset bool         // whether it adds is not known yet; turn.at is the file's end
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

// begin finds out with a part where the client begins.
func (w *upload) begin(off int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unset && off > 0 {
		n := jumpPauses
		if off == w.at {
			n = beginPauses
		}
		w.await(newPauses(n))
	}
	if w.unset {
		w.settle(off)
	}
}

// settle begins at 0 or at the file's end. w.mu is held.
func (w *upload) settle(off int64) {
	w.unset = false
	end := w.at
	switch {
	case off != 0 && off != end:
		w.move(end, errOrder)
	case off == 0 && !w.adds:
		w.tail = end
		w.move(off, w.whole())
	default:
		w.move(off, w.append(end))
	}
}

func (w *upload) WriteAt(p []byte, off int64) (int, error) {
	w.begin(off)
	orderly := w.wait(off)
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if !orderly {
		w.move(w.at, errOrder)
		return 0, errOrder
	}
	n := 0
	err := w.x.as(func() (err error) { n, err = w.to.Write(p); return err })
	w.move(w.at+int64(n), err)
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
