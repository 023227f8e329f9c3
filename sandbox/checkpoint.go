package sandbox

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/internal/durable"
	"sallyport/internal/seal"
)

// checkpointFile is a hibernated sandbox's memory, in its folder: a sealed stream
// of a header and of files as they are in the folder that the runtime wrote.
const checkpointFile = "checkpoint"

// maxCheckpointHeader bounds a header, in bytes.
const maxCheckpointHeader = 64 << 10

// header says what the memory is of. It is sealed together with it, so that none
// can be given to another sandbox or session, and what is changed or cut short is
// noticed (see seal.Reader).
type header struct {
	Version int       `json:"version"`
	Build   string    `json:"build"` // of the runtime, which reads its own only
	ID      string    `json:"id"`
	Session string    `json:"session"`
	Made    time.Time `json:"made"`
	Files   []file    `json:"files"`
}

type file struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

const checkpointVersion = 1

// errUnusable says that memory cannot be restored, now or ever: the sandbox starts
// from its disk.
var errUnusable = errors.New("its memory cannot be restored")

// size is that of all files, in bytes.
func (h header) size() (n int64) {
	for _, f := range h.Files {
		n += f.Size
	}
	return n
}

// sealCheckpoint writes what is in the folder from to the file to, durably, while
// roomy agrees.
func sealCheckpoint(key *seal.Key, h header, from, to string, roomy func() error) (size int64, err error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return 0, err
	}
	h.Version, h.Files = checkpointVersion, nil
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		if !info.Mode().IsRegular() {
			return 0, fmt.Errorf("%s is not a regular file", filepath.Join(from, e.Name()))
		}
		h.Files = append(h.Files, file{e.Name(), info.Size()})
	}
	text, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = os.Rename(part, to)
		}
		if err == nil {
			err = durable.SyncDir(filepath.Dir(to))
		}
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	// A disk works while the next part is being sealed.
	w, err := key.NewWriter(&flushing{f: out, roomy: roomy})
	if err != nil {
		return 0, err
	}
	if _, err := w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(text)))); err != nil {
		return 0, err
	}
	if _, err := w.Write(text); err != nil {
		return 0, err
	}
	for _, f := range h.Files {
		if err := copyFrom(w, filepath.Join(from, f.Name), f.Size); err != nil {
			return 0, err
		}
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	return h.size(), out.Sync()
}

func copyFrom(w io.Writer, path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// Without File.WriteTo, whose buffer is smaller than a chunk.
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(f, size)}, make([]byte, 256<<10))
	return err
}

// unsealing is a sealed checkpoint of which the header has been read.
type unsealing struct {
	header
	io.Closer
	rest io.Reader
}

// openCheckpoint reads the header of a sealed checkpoint, with which check must
// agree. What is wrong with the checkpoint is errUnusable, here and of unseal; any
// other error says that it could not be read or written now.
func openCheckpoint(key *seal.Key, from string, check func(header) error) (_ *unsealing, err error) {
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is gone", errUnusable, from)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(unusable(err), in.Close())
		}
	}()
	sealed, err := key.NewReader(bufio.NewReaderSize(in, 256<<10))
	if err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(sealed, size[:]); err != nil {
		return nil, short(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxCheckpointHeader {
		return nil, fmt.Errorf("%w: its header has %d bytes", errUnusable, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(sealed, text); err != nil {
		return nil, short(err)
	}
	u := &unsealing{Closer: in, rest: sealed}
	if err := json.Unmarshal(text, &u.header); err != nil {
		return nil, fmt.Errorf("%w: its header: %w", errUnusable, err)
	}
	if u.Version != checkpointVersion {
		return nil, fmt.Errorf("%w: it is of format %d, and this daemon reads %d", errUnusable, u.Version, checkpointVersion)
	}
	for _, f := range u.Files {
		if f.Name != filepath.Base(f.Name) || strings.HasPrefix(f.Name, ".") || f.Size < 0 {
			return nil, fmt.Errorf("%w: a file in it is called %q", errUnusable, f.Name)
		}
	}
	if err := check(u.header); err != nil {
		return nil, err
	}
	return u, nil
}

// unseal writes the files of the checkpoint into the folder to, which it makes anew.
// They are whole when it returns nil.
func (u *unsealing) unseal(to string) (err error) {
	defer func() { err = unusable(err) }()
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, f := range u.Files {
		if err := copyTo(filepath.Join(to, f.Name), u.rest, f.Size); err != nil {
			return err
		}
	}
	// Only the end says that it is whole.
	if n, err := u.rest.Read(make([]byte, 1)); err != io.EOF || n > 0 {
		if err == nil || err == io.EOF {
			return fmt.Errorf("%w: there is more in it than its header says", errUnusable)
		}
		return err
	}
	return nil
}

// unsealCheckpoint is both.
func unsealCheckpoint(key *seal.Key, from, to string, check func(header) error) error {
	u, err := openCheckpoint(key, from, check)
	if err != nil {
		return err
	}
	defer u.Close()
	return u.unseal(to)
}

func unusable(err error) error {
	if errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrWrongKey) {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	return err
}

func short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: there is less in it than its header says", errUnusable)
	}
	return err
}

func copyTo(path string, r io.Reader, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(r, size), make([]byte, 64<<10))
	if err == nil && n < size {
		err = short(io.EOF)
	}
	return err
}

// flushing writes to a file and has the kernel begin to bring it to the disk every
// few megabytes, so that the end of it need not wait for all. It asks as often
// whether there is room for more.
type flushing struct {
	f       *os.File
	roomy   func() error
	pending int64
	at      int64
}

const flushEvery = 8 << 20

func (w *flushing) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if w.pending += int64(n); w.pending >= flushEvery {
		writeBack(w.f, w.at, w.pending)
		w.at, w.pending = w.at+w.pending, 0
		if err == nil {
			err = w.roomy()
		}
	}
	return n, err
}

// checkHeader says why memory is not that of a session on this build.
func checkHeader(rec record, build string) func(header) error {
	return func(h header) error {
		switch {
		case h.ID != rec.ID || h.Session != rec.Session:
			return fmt.Errorf("%w: it is of another sandbox or session", errUnusable)
		case h.Build != build:
			return fmt.Errorf("%w: gVisor %s wrote it, and this is %s", errUnusable, h.Build, build)
		case slices.IndexFunc(h.Files, func(f file) bool { return f.Size > 0 }) < 0:
			return fmt.Errorf("%w: there is nothing in it", errUnusable)
		}
		return nil
	}
}
