package resolver

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"sallyport/internal/durable"
	"sallyport/internal/hostname"
)

// nameFile is one sandbox's names. Its file has one line for each, in the order of their
// addresses: "198.18.0.16 api.example.com 8d3f0a1c\n". The last word is the CRC-32
// (Castagnoli) in hex of the line up to its space.
type nameFile struct {
	path string

	mu      sync.RWMutex
	loaded  bool
	gone    bool
	names   []string       // the nth stands behind address(n)
	numbers map[string]int // its inverse
	size    int64          // of the file up to the last whole line
}

func (b *nameFile) name(a netip.Addr) (string, bool, error) {
	n, ok := index(a)
	if !ok {
		return "", false, nil
	}
	b.mu.RLock()
	if b.loaded {
		defer b.mu.RUnlock()
		return b.at(n)
	}
	b.mu.RUnlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.load(); err != nil {
		return "", false, err
	}
	return b.at(n)
}

func (b *nameFile) at(n int) (string, bool, error) {
	if b.gone || n >= len(b.names) {
		return "", false, nil
	}
	return b.names[n], true, nil
}

// has reports whether a name has an address.
func (b *nameFile) has(name string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	_, ok := b.numbers[name]
	return ok && !b.gone
}

func (b *nameFile) assign(name string, limit int) (netip.Addr, error) {
	b.mu.RLock()
	n, ok := b.numbers[name]
	ok = ok && !b.gone
	b.mu.RUnlock()
	if ok {
		return address(n), nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return netip.Addr{}, errForgotten
	}
	if err := b.load(); err != nil {
		return netip.Addr{}, err
	}
	if n, ok := b.numbers[name]; ok {
		return address(n), nil
	}
	if len(b.names) >= limit {
		return netip.Addr{}, fmt.Errorf("%w: %d", ErrTableFull, limit)
	}
	n = len(b.names)
	line := appendLine(nil, n, name)
	if err := b.append(line); err != nil {
		// The file's state is not known now: read it again.
		b.loaded, b.names, b.numbers = false, nil, nil
		return netip.Addr{}, err
	}
	b.size += int64(len(line))
	b.names = append(b.names, name)
	b.numbers[name] = n
	return address(n), nil
}

// append writes a line so that it is on disk when append returns.
func (b *nameFile) append(line []byte) error {
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(line, b.size)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if b.size == 0 {
		return durable.SyncDir(filepath.Dir(b.path))
	}
	return nil
}

// load reads the file once. A last line that is cut off was answered to no one, and is
// removed. Any other line that this package did not write is errDamaged: an address might
// be given twice.
func (b *nameFile) load() error {
	if b.loaded {
		return nil
	}
	data, err := os.ReadFile(b.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names, size, err := parse(data)
	if err != nil {
		return fmt.Errorf("%w: %s: %w: restore it from a backup, or remove the sandbox", errDamaged, b.path, err)
	}
	if len(data) > 0 {
		if err := truncate(b.path, size); err != nil {
			return err
		}
	}
	numbers := make(map[string]int, len(names))
	for n, name := range names {
		numbers[name] = n
	}
	b.names, b.numbers, b.size, b.loaded = names, numbers, size, true
	return nil
}

// truncate cuts a file to size and makes the rest durable, which it may not be if the
// process was killed before its sync.
func truncate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), durable.SyncDir(filepath.Dir(path)))
}

// contents returns the whole lines of the file.
func (b *nameFile) contents() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return nil, errForgotten
	}
	if err := b.load(); err != nil {
		return nil, err
	}
	var data []byte
	for n, name := range b.names {
		data = appendLine(data, n, name)
	}
	return data, nil
}

// create fills a file that has no names.
func (b *nameFile) create(data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return errForgotten
	}
	if err := b.load(); err != nil {
		return err
	}
	if len(b.names) > 0 {
		return errors.New("it has names already")
	}
	if len(data) == 0 {
		return nil
	}
	b.loaded = false
	return durable.WriteFile(b.path, data, 0o600)
}

func (b *nameFile) remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	return durable.Remove(b.path)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendLine(to []byte, n int, name string) []byte {
	start := len(to)
	to = address(n).AppendTo(to)
	to = append(to, ' ')
	to = append(to, name...)
	return append(to, " "+checksum(to[start:])+"\n"...)
}

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)) }

// parse returns the names in data and how much of it is whole lines.
func parse(data []byte) (names []string, size int64, err error) {
	seen := map[string]bool{}
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			return names, size, nil // torn
		}
		name, err := parseLine(line, len(names))
		if err == nil && seen[name] {
			err = errors.New("name given twice")
		}
		if err != nil && len(bytes.Trim(rest, "\x00")) == 0 && torn(line) {
			return names, size, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", len(names)+1, err)
		}
		seen[name] = true
		names = append(names, name)
		size += int64(len(line)) + 1
		data = rest
	}
	return names, size, nil
}

// torn reports whether a last line can be one that was partly written: some file
// systems leave blocks of zeros in what had not reached the disk.
func torn(line []byte) bool { return bytes.IndexByte(line, 0) >= 0 }

func parseLine(line []byte, n int) (string, error) {
	i := bytes.LastIndexByte(line, ' ')
	if i < 0 {
		return "", errors.New("no checksum")
	}
	if string(line[i+1:]) != checksum(line[:i]) {
		return "", errors.New("wrong checksum")
	}
	addr, name, ok := bytes.Cut(line[:i], []byte(" "))
	if !ok || n >= maxPerSandbox || string(addr) != address(n).String() {
		return "", fmt.Errorf("not the line of %s", address(n))
	}
	if !hostname.Valid(string(name)) {
		return "", errors.New("not a host name")
	}
	return string(name), nil
}
