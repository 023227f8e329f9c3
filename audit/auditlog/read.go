package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"strconv"
	"time"

	"sallyport/audit"
	"sallyport/internal/periodic"
)

// Query selects events. The zero Query selects all of them.
type Query struct {
	From    uint64    // the first sequence number
	Last    int       // only the last so many of what is there; 0 is all
	Since   time.Time // not older
	Sandbox string    // name
	Kind    audit.Kind
	Denied  bool // refusals only: denied decisions and dropped packets
	Follow  bool // wait for more until ctx is done
}

func (q *Query) wants(e *audit.Event) bool {
	switch {
	case e.Metadata.Sequence < q.From,
		!q.Since.IsZero() && e.Time < q.Since.UnixMilli(),
		q.Sandbox != "" && e.Unmapped.Sallyport.Sandbox != q.Sandbox,
		q.Kind != "" && e.Unmapped.Sallyport.Kind != q.Kind,
		q.Denied && e.Action != audit.ActionDenied && e.Unmapped.Sallyport.Kind != audit.KindDrop:
		return false
	}
	return true
}

// poll is how often a reader that follows looks for more.
const poll = 100 * time.Millisecond

// Read yields the selected events of the log in dir in order, also while another process
// writes it. It needs no lock and no daemon.
//
// Where the log is damaged it yields a *DamageError in place of the missing events and
// goes on; any other error is the last value. The end of a live log may not be durable
// yet. A Follow ends without an error when ctx is done.
func Read(ctx context.Context, dir string, q Query) iter.Seq2[*audit.Event, error] {
	return func(yield func(*audit.Event, error) bool) {
		for entry, err := range Entries(ctx, dir, q) {
			if !yield(entry.Event, err) {
				return
			}
		}
	}
}

// Entry is an event as the log has it.
type Entry struct {
	Number uint64 // the event's metadata.sequence
	// JSON is the line as it is stored, without its newline: in the canonical form of
	// RFC 8785, unless an older Sallyport or somebody else wrote it. It is valid until
	// the next entry, or the end of the loop.
	JSON  []byte
	Event *audit.Event
	// Offset is where the line begins in the file of its segment, in bytes: see [Picker].
	Offset int64
}

// Entries is Read with the lines, for what proves or passes on what is in the log: an
// event that is encoded again need not be the same bytes.
func Entries(ctx context.Context, dir string, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r := &reader{ctx: ctx, dir: dir, query: q, yield: yield}
		if err := r.read(); err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, err)
		}
	}
}

// errStop says that the consumer has had enough.
var errStop = errors.New("stop")

type reader struct {
	ctx   context.Context
	dir   string
	query Query
	yield func(Entry, error) bool

	next uint64 // number expected, 0 when not known
	half half
	bad  int // what was wrong with the line before
}

// Kinds of lines that are not the events that belong there. Many in a row are one place of
// damage: of each two bytes that somebody else has written there could be one.
const (
	bad     = iota + 1 // not an event
	surplus            // an event of a number that was passed
	astray             // an event of a number that the segment does not reach
)

func (r *reader) read() error {
	all, err := segments(r.dir)
	if err != nil {
		return err
	}
	if r.query.Last > 0 {
		if err := r.skipToLast(all); err != nil {
			return err
		}
	}
	// Only the segments that can have something.
	at := 0
	for i, s := range all {
		if s.first <= r.query.From {
			at = i
		}
	}
	var current segment
	if len(all) > 0 {
		current = all[at]
	}
	for {
		if current.first == 0 { // none yet
			if !r.query.Follow || !r.wait() {
				return nil
			}
			all, err := segments(r.dir)
			if err != nil {
				return err
			}
			if len(all) > 0 {
				current = all[0]
			}
			continue
		}
		following, err := r.segment(current)
		if err != nil {
			return err
		}
		if following.first == 0 {
			return nil
		}
		current = following
	}
}

// skipToLast moves From to the first of the last events that are wanted. It
// looks from the newest segment back, no further than it must.
func (r *reader) skipToLast(all []segment) error {
	want := r.query.Last
	for i := len(all) - 1; i >= 0; i-- {
		limit := uint64(math.MaxUint64)
		if i+1 < len(all) {
			limit = all[i+1].first
		}
		var found []uint64 // numbers of the last that are wanted, at most want
		q := r.query
		q.Last = 0
		look := &reader{ctx: r.ctx, dir: r.dir, query: q, yield: func(e Entry, err error) bool {
			if err == nil && e.Number < limit {
				found = append(found, e.Number)
				if len(found) > 2*want {
					found = append(found[:0], found[len(found)-want:]...)
				}
			}
			return true
		}}
		if want == 1 && q == (Query{From: q.From, Follow: q.Follow}) {
			if err := look.once(all[i], limit, true); err != nil {
				return err
			}
		}
		if len(found) < want {
			found = found[:0]
			if err := look.once(all[i], limit, false); err != nil {
				return err
			}
		}
		if len(found) >= want {
			r.query.From = max(r.query.From, found[len(found)-want])
			return nil
		}
		want -= len(found)
	}
	return nil
}

// once reads what is in one segment now, or of its end some of the last events.
func (r *reader) once(s segment, limit uint64, end bool) error {
	f, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted since it was listed
	}
	if err != nil {
		return err
	}
	defer f.Close()
	offset, next := int64(0), s.first
	if end {
		if offset, next, err = seek(f, s.first, math.MaxUint64); err != nil {
			return err
		}
	}
	r.next = next
	lines := f.lines(offset)
	defer lines.close()
	_, err = r.lines(s, lines, limit)
	if r.ctx.Err() != nil {
		return r.ctx.Err()
	}
	return err
}

// wait is false when there is nothing more to wait for.
func (r *reader) wait() bool { return periodic.Sleep(r.ctx, poll) }

// segment reads one segment to its end and returns the one after it, or none.
func (r *reader) segment(s segment) (segment, error) {
	f, err := s.open()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return segment{}, err
	}
	defer func() { f.Close() }()
	// A segment that has a successor grows no more and counts only up to it: so look for
	// one before reading.
	following, deleted, lerr := after(s)
	if lerr != nil {
		return segment{}, lerr
	}
	if deleted {
		r.next = 0
		return following, nil
	}
	if err != nil {
		return segment{}, err
	}
	if r.next != 0 && r.next < s.first {
		if err := r.damage(s, 0, fmt.Sprintf("events %d to %d are missing before it", r.next, s.first-1)); err != nil {
			return segment{}, err
		}
	}
	if f.bad != "" {
		if err := r.damage(s, 0, f.bad); err != nil {
			return segment{}, err
		}
	}
	offset, next := int64(0), s.first
	if r.query.From > s.first {
		if offset, next, err = seek(f, s.first, r.query.From); err != nil {
			return segment{}, err
		}
	}
	r.next = next
	lines := f.lines(offset)
	defer func() { lines.close() }()
	r.half = half{all: r.half.all}
	for {
		if r.half.size, err = f.Size(); err != nil {
			return segment{}, err
		}
		unread, err := r.lines(s, lines, following.first)
		if err != nil {
			return segment{}, err
		}
		if following.first != 0 {
			return following, r.ended(s, lines.offset, unread, following)
		}
		if !r.query.Follow && !r.half.found || !r.wait() {
			return segment{}, nil
		}
		again, offset, err := refresh(s, f, lines.offset)
		if err != nil {
			return segment{}, err
		}
		if offset < lines.offset {
			r.next = 0 // the writer took back what it could not make durable
		}
		f = again
		lines.close()
		lines = f.lines(offset)
		if following, deleted, err = after(s); err != nil {
			return segment{}, err
		}
		if deleted {
			r.next = 0
			return following, nil
		}
	}
}

// Bounds of seek, in bytes: what it leaves to be read in order, and where in a line it
// looks for the line's number.
const (
	seekSpan = 256 << 10
	seekLook = 128 << 10
)

// seek finds a line to begin at whose number is not above from, without reading what is
// before it: the numbers of a segment rise, so that it is found by halving. Where it
// finds no number, it begins further ahead than it had to.
func seek(f *content, first, from uint64) (offset int64, number uint64, err error) {
	size, err := f.Size()
	if err != nil {
		return 0, 0, err
	}
	low, high, number := int64(0), size, first
	var buf []byte
	for high-low > seekSpan {
		if buf == nil {
			buf = make([]byte, seekLook)
		}
		middle := low + (high-low)/2
		n, err := f.ReadAt(buf, middle)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		at, found, ok := numbered(buf[:n])
		if !ok || found < number || found > from || !(segment{first: first}).reaches(found, middle+at) {
			high = middle
			continue
		}
		low, number = middle+at, found
	}
	return low, number, nil
}

// numbered finds the first line that begins in b after a newline, and its number.
func numbered(b []byte) (at int64, number uint64, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return 0, 0, false
	}
	line, _, _ := bytes.Cut(b[i+1:], []byte("\n"))
	number, ok = numberOf(line)
	return int64(i + 1), number, ok
}

// numberOf is the number of a line, of which the end may be missing. Nothing else of the
// line is checked. Text that somebody chose has its quotes escaped, so that it is never
// taken for the key.
func numberOf(line []byte) (uint64, bool) {
	_, rest, ok := bytes.Cut(line, sequenceKey)
	if !ok {
		return 0, false
	}
	end := bytes.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
	if end <= 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	return n, err == nil
}

// after is the segment that follows s, or none, and whether s was deleted: the oldest ones
// are, so that the log begins after it.
func after(s segment) (following segment, deleted bool, err error) {
	all, err := segments(s.dir)
	if err != nil {
		return segment{}, false, err
	}
	for i, other := range all {
		if other.first > s.first {
			return other, i == 0, nil
		}
	}
	return segment{}, false, nil
}

// refresh notices that the file shrank or was made anew since it was read up to
// offset, and says from where to go on.
func refresh(s segment, f *content, offset int64) (*content, int64, error) {
	if f.frames != nil {
		return f, offset, nil
	}
	have, err := f.file.Stat()
	if err != nil {
		return f, offset, err
	}
	now, err := os.Stat(s.path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, min(offset, have.Size()), nil // about to be made anew
	case err != nil:
		return f, offset, err
	case os.SameFile(have, now):
		return f, min(offset, now.Size()), nil
	}
	again, err := s.open()
	if err != nil {
		return f, offset, err
	}
	f.Close()
	return again, 0, nil
}

// lines yields what is there up to the number limit, which is 0 for no limit.
// It returns the length of an unfinished last line.
func (r *reader) lines(s segment, lines *lineReader, limit uint64) (int, error) {
	r.half.found = false
	for {
		if err := r.ctx.Err(); err != nil {
			if r.query.Follow {
				return 0, errStop
			}
			return 0, err
		}
		b, offset, n, err := lines.next()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		if limit != 0 && r.next >= limit {
			continue // never acknowledged
		}
		if limit == 0 && bytes.IndexByte(b, 0) >= 0 && r.half.wait(offset, r.query.Follow) {
			lines.offset = offset
			return n, nil
		}
		e, err := decode(b)
		if err != nil {
			if r.bad != bad {
				if err := r.damage(s, offset, "not an event"); err != nil {
					return 0, err
				}
			}
			if r.bad = bad; r.next != 0 {
				r.next++
			}
			continue
		}
		number, kind := e.Metadata.Sequence, 0
		switch {
		case !s.reaches(number, offset), limit != 0 && number >= limit:
			kind = astray
		case number < r.next:
			kind = surplus
		}
		if kind != 0 && r.bad != kind || kind == 0 && r.next != 0 && number != r.next {
			if err := r.damage(s, offset, fmt.Sprintf("event %d where %d belongs", number, r.next)); err != nil {
				return 0, err
			}
		}
		if r.bad = kind; kind != 0 {
			if kind == astray && r.next != 0 {
				r.next++
			}
			continue
		}
		r.next = number + 1
		if r.query.wants(e) && !r.yield(Entry{number, b, e, offset}, nil) {
			return 0, errStop
		}
	}
}

// ended checks that a segment that grows no more has all up to its successor.
func (r *reader) ended(s segment, offset int64, unread int, following segment) error {
	if r.next >= following.first {
		return nil
	}
	reason := fmt.Sprintf("events %d to %d are missing", r.next, following.first-1)
	if unread > 0 {
		reason = "the last line is not finished"
	}
	r.next = following.first
	return r.damage(s, offset, reason)
}

func (r *reader) damage(s segment, offset int64, reason string) error {
	if !r.yield(Entry{}, &DamageError{s.path(), offset, reason}) {
		return errStop
	}
	return nil
}
