package auditlog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/internal/durable"
)

// A segment is a file of JSON Lines named by the sequence number of its first
// event. Its lines from the number on that names the following segment were
// never acknowledged and do not count.
type segment struct {
	dir   string
	first uint64
}

const suffix = ".jsonl"

func (s segment) path() string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d%s", s.first, suffix))
}

// segments lists the segments in dir in order.
func segments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []segment
	for _, e := range entries {
		digits, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), zstSuffix), suffix)
		if !ok || len(digits) != 20 || !e.Type().IsRegular() {
			continue
		}
		if first, err := strconv.ParseUint(digits, 10, 64); err == nil && first > 0 {
			all = append(all, segment{dir, first})
		}
	}
	slices.SortFunc(all, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	return slices.Compact(all), nil // one that is being compressed may have two files
}

// Written is which file has the log's last events, and when it was written last. Both are
// zero for a log without one.
func Written(dir string) (file string, at time.Time, err error) {
	all, err := segments(dir)
	if err != nil || len(all) == 0 {
		return "", time.Time{}, err
	}
	for _, path := range []string{all[len(all)-1].path(), all[len(all)-1].path() + zstSuffix} {
		info, err := os.Stat(path)
		if err == nil {
			return info.Name(), info.ModTime(), nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", time.Time{}, err
		}
	}
	return "", time.Time{}, nil // deleted since it was listed
}

// Settle returns when the disk has what is written of the log in dir by now.
func Settle(dir string) error {
	all, err := segments(dir)
	if err != nil || len(all) == 0 {
		return err
	}
	f, err := os.Open(all[len(all)-1].path())
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Segment is a part of the log that has a file of its own.
type Segment struct {
	First      uint64 // number of its first event
	Last       uint64 // of its last one; 0 of the segment that is written
	Bytes      int64  // that it takes on the disk
	Compressed bool
	// Written is when something was written last: by the system's clock, while the times
	// of events are their writer's word.
	Written time.Time
}

// Segments lists the segments of the log in dir, the oldest first. All but the last are
// sealed: they do not change any more.
func Segments(dir string) ([]Segment, error) {
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	list := make([]Segment, 0, len(all))
	for i, s := range all {
		one := Segment{First: s.first}
		if i+1 < len(all) {
			one.Last = all[i+1].first - 1
		}
		info, err := os.Stat(s.path())
		if errors.Is(err, fs.ErrNotExist) {
			one.Compressed = true
			info, err = os.Stat(s.path() + zstSuffix)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return nil, err
		}
		one.Bytes, one.Written = info.Size(), info.ModTime()
		list = append(list, one)
	}
	return list, nil
}

// sealedSegment is the sealed segment that begins with an event.
func sealedSegment(dir string, first uint64) (segment, error) {
	all, err := segments(dir)
	if err != nil {
		return segment{}, err
	}
	if i := slices.Index(all, segment{dir, first}); i < 0 || i == len(all)-1 {
		return segment{}, fmt.Errorf("the audit log has no sealed segment that begins with event %d", first)
	}
	return segment{dir, first}, nil
}

// Sum is the SHA-256 of what a sealed segment holds, whichever form its file has.
func Sum(ctx context.Context, dir string, first uint64) ([]byte, error) {
	s, err := sealedSegment(dir, first)
	if err != nil {
		return nil, err
	}
	c, err := s.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return copySum(ctx, io.NewSectionReader(c, 0, maxSealed), nil)
}

// Remove deletes sealed segments from the oldest one on, up to the one that has event
// last, with all that was set aside of them.
func Remove(dir string, last uint64) error {
	all, err := Segments(dir)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Last == 0 || s.Last > last {
			break
		}
		files, err := filepath.Glob(segment{dir, s.First}.path() + "*")
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	return durable.SyncDir(dir)
}

// lineReader reads lines of bounded length. After close another one may have its buffer.
type lineReader struct {
	r      *bufio.Reader
	offset int64 // of the next line
}

var lineBuffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxLine) }}

func newLineReader(r io.Reader, offset int64) *lineReader {
	b := lineBuffers.Get().(*bufio.Reader)
	b.Reset(r)
	return &lineReader{b, offset}
}

func (r *lineReader) close() {
	r.r.Reset(nil)
	lineBuffers.Put(r.r)
	r.r = nil
}

// next returns a line without its newline, valid until the following call, and
// its offset. A line that is too long is nil. At the end err is io.EOF, and a
// rest without newline stays unread: n is its length.
func (r *lineReader) next() (line []byte, offset int64, n int, err error) {
	offset = r.offset
	b, err := r.r.ReadSlice('\n')
	n = len(b)
	switch {
	case err == nil:
		r.offset += int64(n)
		return b[:n-1], offset, n, nil
	case errors.Is(err, bufio.ErrBufferFull):
		for errors.Is(err, bufio.ErrBufferFull) {
			b, err = r.r.ReadSlice('\n')
			n += len(b)
		}
		if err == nil {
			r.offset += int64(n)
		}
		return nil, offset, n, err
	}
	return nil, offset, n, err
}

// maxGone is how many lines that are gone from a segment do not hide those after them.
const maxGone = 1 << 16

// reaches reports whether a line at an offset of the segment can have a number: each line
// before it takes minEvent bytes. Otherwise one line of whoever has rewritten the segment
// could use up any number of numbers, for each of which the tree has a leaf.
func (s segment) reaches(number uint64, offset int64) bool {
	return s.first <= number && number < maxSequence && number-s.first <= uint64(offset)/minEvent+maxGone
}

// survey is what Open finds in the last segment.
type survey struct {
	next   uint64       // number of the event to follow
	size   int64        // bytes of whole, good lines from the start
	torn   int64        // bytes after them: the writer's zeros, and what a crash left unfinished
	damage *DamageError // a line that was altered, or a bad one with events after it

	compressed bool // what came after it is gone, and nothing is appended to it
}

// inspect reads the last segment.
func inspect(s segment) (survey, error) {
	f, err := s.open()
	if err != nil {
		return survey{}, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return survey{}, err
	}
	v := survey{next: s.first, compressed: f.frames != nil}
	var bad *DamageError
	count, highest := uint64(0), s.first-1
	// Offsets count up to the first hole, which no good line follows.
	r := f.dense()
	defer r.close()
	for {
		b, offset, n, err := r.next()
		if err == io.EOF {
			v.torn = r.offset - v.size + int64(n)
			break
		}
		if err != nil {
			return survey{}, err
		}
		count++
		sequence, ok := sequenceOf(b)
		switch {
		case !ok:
			if bad == nil {
				bad = &DamageError{s.path(), offset, "not an event"}
			}
			// A crash leaves pages unwritten, which read as zeros. A whole line
			// without any was altered.
			if v.damage == nil && b != nil && !bytes.Contains(b, []byte{0}) {
				v.damage = bad
			}
		case bad != nil:
			if v.damage == nil {
				v.damage = bad // it is followed by an event: no torn tail
			}
		case sequence != v.next:
			bad = &DamageError{s.path(), offset, fmt.Sprintf("event %d where %d belongs", sequence, v.next)}
			v.damage = bad
		default:
			v.next++
			v.size = r.offset
		}
		// An altered line does not use the numbers up.
		if ok && s.reaches(sequence, size) {
			highest = max(highest, sequence)
		}
	}
	if v.damage != nil {
		// No number may be given twice, even if the line that had it is lost; nor does a line
		// that is too short for any use one up.
		v.next, v.torn = max(highest+1, s.first+min(count, uint64(size)/minEvent+maxGone)), 0
	}
	return v, nil
}
