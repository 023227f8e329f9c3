package manifest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of what one file may take in an archive, in bytes.
const (
	maxPath = 1 << 20
	// maxHead is of an extended header, in which a sparse file has a line of text
	// for each of its parts. Only the parts are kept.
	maxHead = 256 << 20
	// maxValue is of one value in it: a path or an extended attribute.
	maxValue = maxPath
)

// archive yields what is in a tar archive that GNU tar has written, in order
// (POSIX.1-2024, pax, "ustar Interchange Format"; GNU tar manual, "Sparse Formats",
// PAX 0.0). Package archive/tar gives up on a sparse file of 20,000 parts, which
// anybody can make.
func archive(ctx context.Context, from io.Reader, at string) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		r := &tape{r: bufio.NewReaderSize(from, 256<<10), at: at, seed: maphash.MakeSeed(), whiteouts: map[uint64]bool{}}
		for last := (&entry{}); ; {
			e, err := r.next(ctx)
			if err == nil && e != nil && order(last, e) >= 0 {
				err = fmt.Errorf("%w: %q comes after %q", ErrDamaged, e.path, last.path)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if e == nil {
				// To where what is below says that it is whole.
				if _, err := io.Copy(io.Discard, r.r); err != nil {
					yield(nil, err)
				}
				return
			}
			if last = e; !yield(e, nil) {
				return
			}
		}
	}
}

// tape reads an archive.
type tape struct {
	r  *bufio.Reader
	at string
	// whiteouts are those that have been: an overlay gives one file all the names.
	whiteouts map[uint64]bool
	seed      maphash.Seed
}

// head is what an extended header says.
type head struct {
	values map[string]string
	attrs  []string // "name=value"
	opaque bool
	parts  []part // of a sparse file
	sparse bool
}

// part is what a sparse file has at an offset.
type part struct{ offset, size int64 }

const (
	block = 512
	// Places in a header.
	nameAt, modeAt, uidAt, gidAt, sizeAt, timeAt, typeAt, linkAt, majorAt, minorAt, prefixAt, endAt = 0, 100, 108, 116, 124, 136, 156, 157, 329, 337, 345, 500
)

// next returns the next file; nil at the end.
func (t *tape) next(ctx context.Context) (*entry, error) {
	var h head
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var b [block]byte
		if _, err := io.ReadFull(t.r, b[:]); err != nil {
			return nil, cut(err)
		}
		if b == [block]byte{} {
			return nil, nil
		}
		if !bytes.HasPrefix(b[257:], []byte("ustar\x00")) {
			return nil, fmt.Errorf("%w: it is no ustar archive", ErrDamaged)
		}
		stored, err := h.number(&b, "size", sizeAt, timeAt)
		if err != nil {
			return nil, err
		}
		if b[typeAt] == 'x' {
			if h, err = t.extended(stored); err != nil {
				return nil, err
			}
			continue
		}
		e, err := t.file(ctx, &b, &h, stored)
		if err != nil || e != nil {
			return e, err
		}
		h = head{} // that was the root itself
	}
}

func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends early", ErrDamaged)
	}
	return err
}

// field is what a header says as text.
func field(b *[block]byte, from, to int) string {
	s, _, _ := strings.Cut(string(b[from:to]), "\x00")
	return s
}

// number is one that the extended header says in decimal or the header in octal.
func (h *head) number(b *[block]byte, name string, from, to int) (n int64, err error) {
	if v, ok := h.values[name]; ok {
		n, err = strconv.ParseInt(v, 10, 64)
	} else if v := strings.Trim(field(b, from, to), " "); v != "" {
		n, err = strconv.ParseInt(v, 8, 64)
	}
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: a number in it", ErrDamaged)
	}
	return n, nil
}

// text is one that the extended header says or the header.
func (h *head) text(name, short string) string {
	if v, ok := h.values[name]; ok {
		return v
	}
	return short
}

// extended reads an extended header: lines of "LENGTH NAME=VALUE\n".
func (t *tape) extended(n int64) (h head, err error) {
	bad := fmt.Errorf("%w: an extended header", ErrDamaged)
	if n > maxHead {
		return h, bad
	}
	h.values = map[string]string{}
	pad := padding(n)
	for n > 0 {
		text, err := t.r.ReadSlice(' ')
		length, perr := strconv.ParseInt(strings.TrimSuffix(string(text), " "), 10, 64)
		rest := length - int64(len(text))
		if err != nil || perr != nil || rest < 2 || rest > maxValue || length > n {
			return h, bad
		}
		line := make([]byte, rest)
		if _, err := io.ReadFull(t.r, line); err != nil {
			return h, cut(err)
		}
		name, value, ok := strings.Cut(string(line[:rest-1]), "=")
		if !ok || line[rest-1] != '\n' || !h.take(name, value) {
			return h, bad
		}
		n -= length
	}
	_, err = t.r.Discard(pad)
	return h, cut(err)
}

// take notes one value of an extended header.
func (h *head) take(name, value string) bool {
	number, err := strconv.ParseInt(value, 10, 64)
	switch attr, ok := strings.CutPrefix(name, "SCHILY.xattr."); {
	case ok && attr == opaqueAttr:
		h.opaque = value == "y"
	case ok && strings.HasPrefix(attr, overlayAttr):
		// It is the overlay's own, and changes with what is in a folder.
	case ok, strings.HasPrefix(name, "SCHILY.acl."):
		h.attrs = append(h.attrs, name+"="+value)
	case name == "GNU.sparse.size":
		h.sparse, h.values[name] = true, value
	case name == "GNU.sparse.offset":
		h.parts = append(h.parts, part{number, -1})
		return err == nil && number >= 0
	case name == "GNU.sparse.numbytes":
		n := len(h.parts) - 1
		if err != nil || number < 0 || n < 0 || h.parts[n].size >= 0 {
			return false
		}
		h.parts[n].size = number
	case name == "GNU.sparse.numblocks":
	default:
		h.values[name] = value
	}
	return true
}

func padding(n int64) int { return int(-n & (block - 1)) }

// types of a header's and the system's.
var types = map[byte]int64{
	'0': syscall.S_IFREG, 0: syscall.S_IFREG, '7': syscall.S_IFREG, '1': syscall.S_IFREG, '2': syscall.S_IFLNK,
	'3': syscall.S_IFCHR, '4': syscall.S_IFBLK, '5': syscall.S_IFDIR, '6': syscall.S_IFIFO,
}

// file reads one that has so many bytes in the archive; nil is the root.
func (t *tape) file(ctx context.Context, b *[block]byte, h *head, stored int64) (*entry, error) {
	kind, ok := types[b[typeAt]]
	if !ok {
		return nil, fmt.Errorf("%w: a file of type %q", ErrDamaged, b[typeAt])
	}
	short := field(b, nameAt, modeAt)
	if prefix := field(b, prefixAt, endAt); prefix != "" {
		short = prefix + "/" + short
	}
	e := &entry{path: t.path(h.text("path", short)), opaque: h.opaque && kind == syscall.S_IFDIR}
	var err error
	read := func(to int, name string, from, until int) {
		if err == nil {
			e.stat[to], err = h.number(b, name, from, until)
		}
	}
	read(mode, "", modeAt, uidAt)
	read(uid, "uid", uidAt, gidAt)
	read(gid, "gid", gidAt, sizeAt)
	if err == nil {
		err = e.modified(h.text("mtime", ""), b)
	}
	if err != nil {
		return nil, err
	}
	e.stat[mode] = e.stat[mode]&0o7777 | kind
	e.attrs = h.attributes()
	switch link := h.text("linkpath", field(b, linkAt, 257)); {
	case b[typeAt] == '1':
		if e.hard = t.path(link); t.whiteouts[maphash.String(t.seed, e.hard)] {
			e.stat[mode], e.hard = syscall.S_IFCHR, ""
		}
	case kind == syscall.S_IFLNK:
		e.link = link
	case kind == syscall.S_IFCHR || kind == syscall.S_IFBLK:
		major, merr := h.number(b, "", majorAt, minorAt)
		minor, nerr := h.number(b, "", minorAt, prefixAt)
		if merr != nil || nerr != nil {
			return nil, ErrDamaged
		}
		if e.stat[rdev] = int64(unix.Mkdev(uint32(major), uint32(minor))); e.whiteout() {
			t.whiteouts[maphash.String(t.seed, e.path)] = true
		}
	case kind == syscall.S_IFREG:
		if err := t.contents(ctx, e, h, stored); err != nil {
			return nil, err
		}
		stored = 0
	}
	if stored != 0 {
		return nil, fmt.Errorf("%w: %q has contents", ErrDamaged, e.path)
	}
	if e.path == t.at {
		return nil, nil
	}
	return e, nil
}

// path is a name's as the sandbox has it. Names are GNU tar's of ".".
func (t *tape) path(name string) string {
	return path.Join(t.at, strings.TrimPrefix(name, "./"))
}

// modified takes a time in seconds with a fraction, or the header's.
func (e *entry) modified(text string, b *[block]byte) error {
	if text == "" {
		n, err := (&head{}).number(b, "", timeAt, 148)
		e.stat[seconds] = n
		return err
	}
	whole, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	n, nerr := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	if err != nil || nerr != nil || n < 0 {
		return fmt.Errorf("%w: the time %q", ErrDamaged, text)
	}
	if strings.HasPrefix(whole, "-") && n > 0 { // as stat(2) has it
		s, n = s-1, 1e9-n
	}
	e.stat[seconds], e.stat[nanoseconds] = s, n
	return nil
}

func (h *head) attributes() (d digest) {
	if len(h.attrs) == 0 {
		return d
	}
	slices.Sort(h.attrs)
	sum := sha256.New()
	for _, a := range h.attrs {
		_ = binary.Write(sum, binary.BigEndian, int64(len(a)))
		_, _ = io.WriteString(sum, a)
	}
	sum.Sum(d[:0])
	return d
}

// contents reads and sums up what a file has.
func (t *tape) contents(ctx context.Context, e *entry, h *head, stored int64) (err error) {
	parts := h.parts
	if e.stat[size] = stored; !h.sparse {
		parts = []part{{0, stored}}
	} else if e.stat[size], err = strconv.ParseInt(h.values["GNU.sparse.size"], 10, 64); err != nil || e.stat[size] < 0 {
		return fmt.Errorf("%w: the size of %q", ErrDamaged, e.path)
	}
	left, end := stored, int64(0)
	c := newContents()
	for _, p := range parts {
		if p.offset < end || p.size < 0 || p.size > left || p.offset > e.stat[size]-p.size {
			return fmt.Errorf("%w: the parts of %q", ErrDamaged, e.path)
		}
		if err := c.read(ctx, t.r, p.offset, p.size); err != nil {
			return cut(err)
		}
		left, end = left-p.size, p.offset+p.size
	}
	if left != 0 {
		return fmt.Errorf("%w: the parts of %q", ErrDamaged, e.path)
	}
	e.sum = c.sum()
	_, err = t.r.Discard(padding(stored))
	return cut(err)
}
