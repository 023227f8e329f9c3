package e2e

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

// hunt searches bytes for values in the spellings that they can be kept in. It
// shares no code with the gateway's scrubber, which it judges.
type hunt struct {
	marks   []mark
	window  int
	longest int
	// By the last two bytes of a window, after Horspool: how far the next one may be, and
	// the marks that a window with these bytes may begin. A secret of random bytes may end its
	// window with two zero bytes, and memory is full of those: few marks are compared there.
	shift [1 << 16]uint8
	ends  [1 << 16][]mark
}

type mark struct{ value, form, text string }

// forms returns a value's spellings by name.
func forms(value string) map[string]string {
	all := map[string]string{
		"raw":   value,
		"hex":   hex.EncodeToString([]byte(value)),
		"HEX":   strings.ToUpper(hex.EncodeToString([]byte(value))),
		"query": url.QueryEscape(value),
		"path":  url.PathEscape(value),
	}
	quoted, _ := json.Marshal(value) // a string always can be
	all["json"] = string(quoted[1 : len(quoted)-1])
	var wide []byte
	for _, u := range utf16.Encode([]rune(value)) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	all["utf-16"] = string(wide)
	for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
		for skip := range 3 {
			// Digits that neighbours have a part in are left out.
			text := enc.EncodeToString([]byte(strings.Repeat("\x00", skip) + value))
			text = text[(8*skip+5)/6 : 8*(skip+len(value))/6]
			all[fmt.Sprintf("%s+%d", name, skip)] = text
		}
	}
	return all
}

// newHunt takes values by name.
func newHunt(values map[string]string) *hunt {
	h := &hunt{window: 200}
	for name, value := range values {
		for form, text := range forms(value) {
			h.marks = append(h.marks, mark{name, form, text})
			h.window = min(h.window, len(text))
			h.longest = max(h.longest, len(text))
		}
	}
	for i := range h.shift {
		h.shift[i] = uint8(h.window - 1)
	}
	for _, m := range h.marks {
		end := uint16(m.text[h.window-2])<<8 | uint16(m.text[h.window-1])
		h.ends[end] = append(h.ends[end], m)
		for j := 1; j < h.window; j++ {
			at := &h.shift[uint16(m.text[j-1])<<8|uint16(m.text[j])]
			*at = min(*at, uint8(h.window-1-j))
		}
	}
	return h
}

func (h *hunt) each(data []byte, found func(mark)) {
	for i := h.window - 1; i < len(data); {
		end := uint16(data[i-1])<<8 | uint16(data[i])
		if skip := h.shift[end]; skip > 0 {
			i += int(skip)
			continue
		}
		for _, m := range h.ends[end] {
			if from := i - h.window + 1; bytes.HasPrefix(data[from:], []byte(m.text)) {
				found(m)
			}
		}
		i++
	}
}

// quarry is what was found where, and in how much.
type quarry struct {
	*hunt
	streams int
	bytes   int64
	found   map[string][]string // by "value as form": the first places
	buf     []byte
}

const morePlaces = 5

func (h *hunt) begin() *quarry { return &quarry{hunt: h, found: map[string][]string{}} }

// read searches a stream, and what a stream of zlib or gzip unpacks to.
func (q *quarry) read(place string, r io.Reader) error {
	q.streams++
	keep := q.longest - 1
	if q.buf == nil {
		q.buf = make([]byte, keep+1<<20)
	}
	buf, held := q.buf, 0
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf[held:])
		q.bytes += int64(n)
		data := buf[:held+n]
		q.each(data, func(m mark) {
			key := m.value + " as " + m.form
			if list := q.found[key]; len(list) < morePlaces && !slices.Contains(list, place) {
				q.found[key] = append(list, place)
			}
		})
		if first {
			q.unpack(place, data)
		}
		switch err {
		case nil:
			held = copy(buf, data[max(0, len(data)-keep):])
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

// unpack searches what the packed beginning of a stream holds.
func (q *quarry) unpack(place string, head []byte) {
	var plain io.Reader
	var err error
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		plain, err = gzip.NewReader(bytes.NewReader(head))
	case len(head) > 2 && head[0] == 0x78 && (uint(head[0])<<8|uint(head[1]))%31 == 0: // RFC 1950
		plain, err = zlib.NewReader(bytes.NewReader(head))
	default:
		return
	}
	if err != nil {
		return // it only looked like it
	}
	unpacked, _ := io.ReadAll(io.LimitReader(plain, 64<<20)) // as much as there is
	q.each(unpacked, func(m mark) {
		key := m.value + " as " + m.form
		q.found[key] = append(q.found[key], place+" (unpacked)")
	})
}

// tree searches every file below a folder, and the names, but not what is
// mounted there from another file system.
func (q *quarry) tree(t *testing.T, root string) {
	t.Helper()
	var top unix.Stat_t
	must.OK(t, unix.Lstat(root, &top))
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		var at unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &at)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a daemon works here meanwhile
		case err != nil:
			return err
		case at.Dev == top.Dev || onDisk(path):
			return q.file(path, d.Type())
		case d.IsDir():
			return filepath.SkipDir
		}
		return nil
	})
	must.OK(t, err)
}

// onDisk tells whether a file lies on a disk of a sandbox's own, which is another
// file system within the data directory, and not on what is made of such.
func onDisk(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.EXT4_SUPER_MAGIC
}

// written are the parts of a file that are no holes (lseek(2)): a sandbox's disk
// is a sparse file.
type written struct {
	f  *os.File
	at int64 // of the hole to come
}

func (w *written) Read(p []byte) (int, error) {
	here, err := w.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	if here >= w.at {
		if here, err = w.f.Seek(here, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return 0, io.EOF
		} else if err != nil {
			return 0, err
		}
		if w.at, err = w.f.Seek(here, unix.SEEK_HOLE); err != nil {
			return 0, err
		}
		if _, err = w.f.Seek(here, io.SeekStart); err != nil {
			return 0, err
		}
	}
	return w.f.Read(p[:min(int64(len(p)), w.at-here)])
}

func (q *quarry) file(path string, kind fs.FileMode) error {
	q.each([]byte(path), func(m mark) {
		q.found[m.value+" as "+m.form] = append(q.found[m.value+" as "+m.form], "the name "+path)
	})
	switch {
	case kind&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return q.read("the link "+path, strings.NewReader(to))
	case !kind.IsRegular():
		return nil
	}
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return q.read(path, &written{f: f})
}

// memory searches a process's memory, as proc(5) shows it.
func (q *quarry) memory(pid int) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || mode[0] != 'r' || strings.Contains(line, "[v") {
			continue
		}
		// A hole ends a mapping: there is nothing to be read behind it.
		_ = q.read(fmt.Sprintf("memory of %d: %s", pid, strings.TrimSpace(line)), io.NewSectionReader(mem, from, to-from))
	}
	return nil
}

// has tells where a value was found in a form.
func (q *quarry) has(value, form string) []string { return q.found[value+" as "+form] }

// of lists everything that was found of a value.
func (q *quarry) of(value string) (all []string) {
	for key, places := range q.found {
		if strings.HasPrefix(key, value+" as ") {
			all = append(all, fmt.Sprintf("%s in %q", key, places))
		}
	}
	slices.Sort(all)
	return all
}

// The search finds each spelling, wherever a read may cut it, and nothing else.
func TestHunt(t *testing.T) {
	value := "sk+e2e/" + "0123456789ABCDEFGHIJ" + "/%=&~+=="
	h := newHunt(map[string]string{"value": value})
	for form, text := range forms(value) {
		for _, before := range []int{0, 1, 2, 1<<20 - 10, 1<<20 + h.longest - 12, 3 << 20} {
			q := h.begin()
			must.OK(t, q.read("here", strings.NewReader(strings.Repeat("-", before)+text+"--")))
			if len(q.has("value", form)) != 1 {
				t.Errorf("%s after %d bytes: not found", form, before)
			}
		}
	}
	for name, text := range map[string]string{
		"base64 of user and password": base64.StdEncoding.EncodeToString([]byte("x-access-token:" + value)),
		"base64 in a longer text":     base64.URLEncoding.EncodeToString([]byte("ab" + value + "cd")),
	} {
		q := h.begin()
		_ = q.read(name, strings.NewReader(text))
		if len(q.of("value")) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("some " + value))
	_ = z.Close()
	q := h.begin()
	if _ = q.read("packed", &packed); len(q.of("value")) == 0 {
		t.Error("gzip: not found")
	}
	q = h.begin()
	if _ = q.read("other", strings.NewReader(strings.Repeat(value[:len(value)-1], 1000))); len(q.of("value")) != 0 {
		t.Errorf("found %v in what does not hold it", q.of("value"))
	}
}
