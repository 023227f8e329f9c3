package sink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"
)

// fileSink appends records to a file, a line each, which is on stable storage before they
// count as sent. The file is rotated by size.
type fileSink struct {
	path string
	out  *lumberjack.Logger
	torn bool // the file may end within a line
}

func openFile(c Config) *fileSink {
	const megabyte = 1 << 20 // lumberjack's unit
	out := &lumberjack.Logger{Filename: c.Path, MaxSize: int(max(c.MaxSize/megabyte, 1)), MaxBackups: c.Keep}
	return &fileSink{c.Path, out, true}
}

func (s *fileSink) Send(_ context.Context, batch []Item) (Answer, error) {
	body := lines(batch)
	if s.torn {
		whole, err := endsLine(s.path)
		if err != nil {
			return Answer{}, err
		}
		if !whole {
			body = append([]byte{'\n'}, body...)
		}
	}
	s.torn = true
	// One call writes to one file: rotation comes before it.
	if _, err := s.out.Write(body); err != nil {
		return Answer{}, err
	}
	f, err := os.Open(s.path)
	if err != nil {
		return Answer{}, err
	}
	// The next batch opens the file anew, which somebody else may have moved.
	if err := errors.Join(f.Sync(), f.Close(), s.out.Close()); err != nil {
		return Answer{}, err
	}
	s.torn = false
	return Answer{Text: fmt.Sprintf("%d bytes written", len(body))}, nil
}

func (s *fileSink) Close() error { return s.out.Close() }

// endsLine reports whether a file ends with a whole line.
func endsLine(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return true, err
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return last[0] == '\n', err
}
