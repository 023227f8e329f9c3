package ssh

import (
	"io"
	"time"

	"github.com/pkg/sftp"

	"sallyport/sandbox"
)

// writer writes a file from its start to its end, or adds to it; Close is the end of
// that. Where the file exists and is not to be emptied, only the first part shows
// whether the client writes from the start or adds. Written from the start, the file
// keeps what lies beyond what was written, unless the client cuts it off: scp does,
// which does not truncate as it opens, in case it reads that very file.
type writer struct {
	turn
	of    *filer
	call  streamCall
	adds  bool               // offsets mean nothing (SSH_FXF_APPEND): clients count from 0 or from the end
	unset bool               // whether it adds is not known yet; turn.at is the file's end
	to    *contents          // nil until it is
	tail  int64              // to where what there was stays
	after sandbox.Attributes // what the file is to be when it is closed
}

// beginAfter is for how long the part that would begin at the file's end waits for one
// that begins at 0, which is sent before it and may be worked on after it.
const beginAfter = 50 * time.Millisecond

// begin finds out with a part where the client begins.
func (w *writer) begin(off int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unset && off > 0 {
		wait := jumpAfter
		if off == w.at {
			wait = beginAfter
		}
		moved := w.moved
		w.mu.Unlock()
		late := time.NewTimer(wait)
		select {
		case <-moved:
		case <-late.C:
		}
		late.Stop()
		w.mu.Lock()
	}
	if w.unset {
		w.settle(off)
	}
}

// settle begins at 0 or at the file's end. w.mu is held.
func (w *writer) settle(off int64) {
	w.unset = false
	w.of.open.Add(-1)
	end := w.at
	switch {
	case off != 0 && off != end:
		w.move(end, errOrder)
		return
	case off == 0 && !w.adds:
		w.tail = end
	default:
		w.call.End = &end
	}
	to, err := w.of.stream(w.call)
	if err == nil {
		w.to = to
	}
	w.move(off, status(err))
}

func (w *writer) WriteAt(p []byte, off int64) (int, error) {
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
	if err != nil {
		// Why is said at the end.
		if ended := w.to.finish(); ended != nil {
			err = status(ended)
		}
	}
	w.move(w.at+int64(n), err)
	return n, err
}

// later notes what the file is to be.
func (w *writer) later(a sandbox.Attributes) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.unset: // it is in its place, as it was
		if _, err := w.of.call("set", string(w.call.Path), fileCall{Set: a}); err != nil {
			return err
		}
		if a.Size != nil {
			if w.at = *a.Size; w.at == 0 {
				w.settle(0)
			}
		}
	case a.Size == nil:
	case *a.Size == w.at:
		w.tail = 0
	case *a.Size > w.at && *a.Size <= w.tail:
		w.tail = *a.Size
	default:
		return sftp.ErrSSHFxOpUnsupported // it is as long as what is written
	}
	if a.Mode != nil {
		w.after.Mode = a.Mode
	}
	if a.Modified != nil {
		w.after.Accessed, w.after.Modified = a.Accessed, a.Modified
	}
	return nil
}

// TransferError is told that the end will not come: the file is left as it was.
func (w *writer) TransferError(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = sftp.ErrSSHFxConnectionLost
	}
}

// Close puts the file in its place, and says whether it is there.
func (w *writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of.forget(w)
	if w.unset {
		w.unset = false
		w.of.open.Add(-1)
	}
	if w.to == nil {
		return w.err // nothing has come
	}
	defer w.to.Close()
	if w.err != nil {
		return w.err
	}
	if err := w.keep(); err != nil {
		return status(err)
	}
	if err := w.to.finish(); err != nil || w.after == (sandbox.Attributes{}) {
		return status(err)
	}
	_, err := w.of.call("set", string(w.call.Path), fileCall{Set: w.after})
	return err
}

// keep adds what stays of what there was. w.mu is held.
func (w *writer) keep() error {
	if w.tail <= w.at {
		return nil
	}
	was, err := w.of.stream(streamCall{Path: w.call.Path})
	if err != nil {
		return err
	}
	defer was.Close()
	if _, err := io.CopyN(io.Discard, was, w.at); err != nil {
		return err
	}
	_, err = io.CopyN(w.to, was, w.tail-w.at)
	return err
}
