package scrub

import (
	"io"
	"sync"
	"time"
)

// Writer passes what is written to it on, scrubbed. It keeps back the bytes since the last
// line's end, but no more than the longest possible occurrence of a value, until more
// comes or the text ends: with Flush, or when nothing has been written for a while. A value
// that is written with such a pause in its midst is not found. It is safe for concurrent use.
type Writer struct {
	dst   io.Writer
	pause time.Duration // 0: none ends a text

	mu    sync.Mutex
	text  text
	timer *time.Timer
	err   error // of dst
}

// Writer returns one that writes to dst. hit, unless nil, is called for each occurrence. A
// text ends when nothing has been written for pause, unless that is 0.
func (s *Scrubber) Writer(dst io.Writer, pause time.Duration, hit func(Found)) *Writer {
	w := &Writer{dst: dst, pause: pause, text: s.text(hit)}
	w.text.lined = true
	return w
}

// Write implements io.Writer. Its error is dst's, if need be that of a later Write.
func (w *Writer) Write(p []byte) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 && w.err == nil {
		some := p[:min(len(p), payloadChunk)]
		copy(w.text.room(len(some)), some)
		w.pass(w.text.add(len(some), false))
		n += len(some)
		p = p[len(some):]
	}
	if w.pause > 0 && w.text.kept() > 0 {
		if w.timer == nil {
			w.timer = time.AfterFunc(w.pause, func() { _ = w.Flush() })
		} else {
			w.timer.Reset(w.pause)
		}
	}
	return n, w.err
}

func (w *Writer) pass(decided []byte) {
	if len(decided) > 0 && w.err == nil {
		_, w.err = w.dst.Write(decided)
	}
}

// Flush ends a text: all that is kept back is passed on. Call it after the last Write.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.pass(w.text.add(0, true))
	return w.err
}
