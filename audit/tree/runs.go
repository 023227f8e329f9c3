package tree

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
)

// maxRun is how much of what is sorted is in memory, in bytes.
const maxRun = 8 << 20

// runs sorts any number of short byte strings: what does not fit in memory goes into a
// temporary file without a name, as sorted runs.
type runs struct {
	buf  []byte
	at   []int // of the strings in buf, each after its length in four bytes
	file *os.File
	ends []int64 // of the runs in file
}

func (r *runs) add(parts ...[]byte) error {
	n := 4
	for _, p := range parts {
		n += len(p)
	}
	if len(r.buf)+n > maxRun {
		if err := r.spill(); err != nil {
			return err
		}
	}
	r.at = append(r.at, len(r.buf))
	r.buf = binary.BigEndian.AppendUint32(r.buf, uint32(n-4))
	for _, p := range parts {
		r.buf = append(r.buf, p...)
	}
	return nil
}

func (r *runs) string(at int) []byte {
	return r.buf[at+4:][:binary.BigEndian.Uint32(r.buf[at:])]
}

func (r *runs) sort() {
	slices.SortFunc(r.at, func(a, b int) int { return bytes.Compare(r.string(a), r.string(b)) })
}

// spill writes what is in memory as a run.
func (r *runs) spill() error {
	if r.file == nil {
		f, err := os.CreateTemp("", "sallyport-verify-*")
		if err != nil {
			return err
		}
		r.file = f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	}
	r.sort()
	w := bufio.NewWriterSize(r.file, 1<<20)
	for _, at := range r.at {
		w.Write(r.buf[at : at+4+len(r.string(at))]) // Flush has the error
	}
	if err := w.Flush(); err != nil {
		return err
	}
	end, err := r.file.Seek(0, io.SeekCurrent)
	r.ends, r.buf, r.at = append(r.ends, end), r.buf[:0], r.at[:0]
	return err
}

// sorted yields all strings in order. A string is valid until the next.
func (r *runs) sorted() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if r.file == nil {
			r.sort()
			for _, at := range r.at {
				if !yield(r.string(at), nil) {
					return
				}
			}
			return
		}
		if err := r.spill(); err != nil {
			yield(nil, err)
			return
		}
		var heads []*run
		from := int64(0)
		for _, end := range r.ends {
			heads = append(heads, &run{r: bufio.NewReaderSize(io.NewSectionReader(r.file, from, end-from), 64<<10)})
			from = end
		}
		least := heads // those to read on from
		for {
			for _, one := range least {
				if err := one.next(); errors.Is(err, io.EOF) {
					heads = slices.DeleteFunc(slices.Clone(heads), func(other *run) bool { return other == one })
				} else if err != nil {
					yield(nil, err)
					return
				}
			}
			if len(heads) == 0 {
				return
			}
			one := slices.MinFunc(heads, func(a, b *run) int { return bytes.Compare(a.head, b.head) })
			if !yield(one.head, nil) {
				return
			}
			least = []*run{one}
		}
	}
}

func (r *runs) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

// run reads one of the sorted runs.
type run struct {
	r    *bufio.Reader
	head []byte
}

func (r *run) next() error {
	var n [4]byte
	if _, err := io.ReadFull(r.r, n[:]); err != nil {
		return err
	}
	r.head = slices.Grow(r.head[:0], int(binary.BigEndian.Uint32(n[:])))[:binary.BigEndian.Uint32(n[:])]
	_, err := io.ReadFull(r.r, r.head)
	return err
}
