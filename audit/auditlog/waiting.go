package auditlog

import (
	"io"
	"math"
	"slices"
)

// Backlog is the part of a log after a record.
type Backlog struct {
	Records uint64
	Bytes   int64
}

// Waiting returns how much of the log in dir follows each of some records, by their
// numbers. It reads the ends of segments, and of those that the numbers are in as much as
// it takes to find them.
func Waiting(dir string, after ...uint64) ([]Backlog, error) {
	waiting := make([]Backlog, len(after))
	all, err := segments(dir)
	if err != nil || len(all) == 0 || len(after) == 0 {
		return waiting, err
	}
	end, next, err := all[len(all)-1].find(math.MaxUint64)
	if err != nil {
		return nil, err
	}
	for n, last := range after {
		if last+1 >= next {
			continue
		}
		waiting[n].Records = next - 1 - max(last, all[0].first-1)
		for i, s := range slices.Backward(all) {
			size := end
			if i+1 < len(all) {
				if size, err = s.size(); err != nil {
					return nil, err
				}
			}
			begin := int64(0)
			if s.first <= last {
				if begin, _, err = s.find(last + 1); err != nil {
					return nil, err
				}
			}
			if waiting[n].Bytes += size - min(begin, size); s.first <= last+1 {
				break
			}
		}
	}
	return waiting, nil
}

// size is how many bytes the segment has, compressed or not.
func (s segment) size() (int64, error) {
	f, err := s.open()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Size()
}

// find returns the offset of the first line whose number is at least from, or of the end
// of the last whole line, and the number there.
func (s segment) find(from uint64) (offset int64, number uint64, err error) {
	f, err := s.open()
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	offset, number, err = seek(f, s.first, from)
	if err != nil {
		return 0, 0, err
	}
	lines := f.lines(offset)
	defer lines.close()
	for {
		line, at, _, err := lines.next()
		if err == io.EOF {
			return offset, number, nil
		}
		if err != nil {
			return 0, 0, err
		}
		n, ok := numberOf(line)
		switch {
		case !ok:
			continue
		case n >= from:
			return at, n, nil
		}
		offset, number = lines.offset, n+1
	}
}
