package ssh

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
)

// Packets of SFTP (draft-ietf-secsh-filexfer-02, section 3).
const (
	sftpRealPath byte = 16
	sftpReadLink byte = 19
	sftpName     byte = 104
)

const (
	// maxPacket bounds a packet of SFTP without its length, in bytes, as OpenSSH does.
	maxPacket = 256 << 10
	// maxPaths bounds the requests for paths that have no answer.
	maxPaths = 256
	// maxName bounds the name of a file in a folder, in bytes.
	maxName = 255
)

// errSFTP: one side says over SFTP what is not passed on to the other.
var errSFTP = errors.New("a file name that no folder has, or a packet that is too long, was sent over SFTP")

// sftpFilter keeps from a client the names of files that no folder has. Clients put a name
// that a folder is said to have behind a path of their own.
type sftpFilter struct {
	mu    sync.Mutex
	paths []uint32 // requests whose answer is a path, and no name in a folder
}

// asked notes a request.
func (f *sftpFilter) asked(kind byte, id uint32) error {
	if kind != sftpRealPath && kind != sftpReadLink {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.paths) >= maxPaths {
		return errSFTP
	}
	f.paths = append(f.paths, id)
	return nil
}

// answered forgets a request, and tells whether its answer is a path.
func (f *sftpFilter) answered(id uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.paths, id)
	if i >= 0 {
		f.paths = slices.Delete(f.paths, i, i+1)
	}
	return i >= 0
}

// answers carries what the sandbox says to its end, or to what is not passed on.
func (f *sftpFilter) answers(to io.Writer, from io.Reader) error {
	r, w := bufio.NewReaderSize(from, 32<<10), bufio.NewWriterSize(to, 32<<10)
	for {
		head, err := r.Peek(4)
		if len(head) == 0 && errors.Is(err, io.EOF) {
			return nil
		}
		size := 0
		if err == nil {
			if size = int(binary.BigEndian.Uint32(head)); size == 0 || size > maxPacket {
				return errSFTP
			}
			head, err = r.Peek(4 + min(size, 5))
		}
		switch {
		case err != nil:
		case head[4] == sftpName:
			packet := make([]byte, 4+size)
			if _, err = io.ReadFull(r, packet); err != nil {
				break
			}
			if !f.passes(packet[5:]) {
				return errSFTP
			}
			_, err = w.Write(packet)
		default:
			if size >= 5 {
				f.answered(binary.BigEndian.Uint32(head[5:]))
			}
			_, err = io.CopyN(w, r, int64(4+size))
		}
		if err == nil && r.Buffered() == 0 {
			err = w.Flush()
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // amid a packet
		}
		if err != nil {
			return err
		}
	}
}

// passes tells whether a packet of names, from its id on, may pass.
func (f *sftpFilter) passes(b []byte) bool {
	p := fields{b: b}
	id, n := p.uint32(), p.uint32()
	if path := f.answered(id); path && n == 1 {
		return !p.short
	}
	for ; n > 0 && !p.short; n-- {
		name := p.string()
		if len(name) == 0 || len(name) > maxName || slices.Contains(name, '/') || slices.Contains(name, 0) {
			return false
		}
		p.string() // as a line of a list
		p.attributes()
	}
	return !p.short
}

// fields reads what a packet has; short: it has less.
type fields struct {
	b     []byte
	short bool
}

func (p *fields) next(n uint64) (b []byte) {
	if p.short = p.short || n > uint64(len(p.b)); p.short {
		return nil
	}
	b, p.b = p.b[:n], p.b[n:]
	return b
}

func (p *fields) uint32() uint32 {
	if b := p.next(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (p *fields) string() []byte { return p.next(uint64(p.uint32())) }

// attributes are a file's (section 5).
func (p *fields) attributes() {
	flags := p.uint32()
	for flag, size := range map[uint32]uint64{1: 8, 2: 8, 4: 4, 8: 8} { // size, owners, permissions, times
		if flags&flag != 0 {
			p.next(size)
		}
	}
	if flags&(1<<31) != 0 {
		for n := p.uint32(); n > 0 && !p.short; n-- {
			p.string()
			p.string()
		}
	}
}

// sftpRequests passes on what a client says, and notes its requests before.
type sftpRequests struct {
	to   io.Writer
	f    *sftpFilter
	head []byte // of a packet, to its id
	rest int    // bytes of the packet to come
}

func (q *sftpRequests) Write(p []byte) (int, error) {
	for b := p; len(b) > 0; {
		if q.rest > 0 {
			n := min(q.rest, len(b))
			q.rest, b = q.rest-n, b[n:]
			continue
		}
		q.head, b = append(q.head, b[0]), b[1:]
		if len(q.head) < 4 {
			continue
		}
		size := int(binary.BigEndian.Uint32(q.head))
		if size == 0 || size > maxPacket {
			return 0, errSFTP
		}
		if len(q.head) < 4+min(size, 5) {
			continue
		}
		if size >= 5 {
			if err := q.f.asked(q.head[4], binary.BigEndian.Uint32(q.head[5:])); err != nil {
				return 0, err
			}
		}
		q.head, q.rest = q.head[:0], 4+size-len(q.head)
	}
	return q.to.Write(p)
}
