package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// AppendLine adds a line, without its line feed, to the end of a regular file by one
// write(2) and makes the file if there is none. A last line that is not ended stays a line
// of its own. Several processes may append at the same time.
func (f *Folder) AppendLine(name string, line []byte) error {
	if len(line) >= MaxFile {
		return fmt.Errorf("%q: %w", name, ErrTooLarge)
	}
	err := f.appendLine(name, line)
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.Write(name, nil, ""); err == nil || errors.Is(err, fs.ErrExist) {
			err = f.appendLine(name, line)
		}
	}
	return err
}

func (f *Folder) appendLine(name string, line []byte) error {
	f.write.Lock()
	defer f.write.Unlock()
	file, err := f.openAs(name, unix.O_RDWR|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	data := append(bytes.Clone(line), '\n')
	if last := []byte{'\n'}; info.Size() > 0 {
		if _, err := file.ReadAt(last, info.Size()-1); err != nil {
			return fmt.Errorf("%q: %w", name, cause(err))
		}
		if last[0] != '\n' {
			data = append([]byte{'\n'}, data...)
		}
	}
	if _, err := file.Write(data); err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	return file.Sync()
}
