package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"sallyport/sandbox/agent/wire"
)

// A client sends several parts of a file at once, in order, and those parts are worked on
// at the same time: one that is early waits. A part is a jump when nothing comes before it.
// Waiting is counted in pauses, between which all that can run does: on a busy machine the
// part that comes before may be late, however much time has passed.
const (
	pause      = 20 * time.Millisecond
	jumpPauses = 250 // with nothing before it
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
	for off > t.at && t.err == nil {
		if !t.await(jumpPauses) {
			return false
		}
	}
	return off == t.at
}

// await gives t.mu up until the next move; false: there has been none for so many pauses.
func (t *turn) await(pauses int) bool {
	moved := t.moved
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range pauses {
		t.mu.Unlock()
		select {
		case <-moved:
			t.mu.Lock()
			return true
		case <-tick.C:
			t.mu.Lock()
		}
	}
	return t.moved != moved
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
		pauses := jumpPauses
		if off == w.at {
			pauses = beginPauses
		}
		w.await(pauses)
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
	n, err := w.to.Write(p)
	w.move(w.at+int64(n), status(err))
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

// keep adds what stays of what there was. w.mu is held.
func (w *upload) keep() error {
	if w.tail <= w.at {
		return nil
	}
	was, _, err := open(w.path)
	if err != nil {
		return err
	}
	defer was.Close()
	_, err = io.CopyN(writeOnly{w.to}, io.NewSectionReader(was, w.at, w.tail-w.at), w.tail-w.at)
	if errors.Is(err, io.EOF) {
		err = fs.ErrInvalid // it has become shorter
	}
	return err
}
