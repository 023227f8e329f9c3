package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Kinds of file.
const (
	Regular = "file"
	Folder  = "folder"
	Link    = "link" // symbolic
	Other   = "other"
)

// Bounds of files.
const (
	// MaxPath bounds a path, in bytes (PATH_MAX of limits.h with its zero).
	MaxPath = 4095
	// MaxPage bounds the entries of one answer to a listing.
	MaxPage = 1000
	// MaxWatches bounds the folders of one watch.
	MaxWatches = 4096
)

// Mode is a file's permission bits with setuid, setgid and sticky (see
// inode(7)): as text an octal number.
type Mode uint32

func (m Mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// Query is the mode as a query has it, "" for none.
func (m Mode) Query() string {
	if m == 0 {
		return ""
	}
	return fmt.Sprintf("%04o", uint32(m))
}

func (m *Mode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o7777 {
		return fmt.Errorf("%q is not a mode as in 0644", text)
	}
	*m = Mode(n)
	return nil
}

// File is what is known of one.
type File struct {
	Name string `json:"name"`
	// Raw is the name where it is not UTF-8; Name then is like it.
	Raw      []byte    `json:"raw,omitempty"`
	Type     string    `json:"type"`
	Size     int64     `json:"size"` // in bytes
	Mode     Mode      `json:"mode"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // of a link
}

// Listing is the answer of GET /files/list.
type Listing struct {
	Files Files `json:"files"`          // by name, bytewise
	More  bool  `json:"more,omitempty"` // there are others after the last
}

// Raw is what a field beside a name holds: the name's bytes, when JSON cannot.
func Raw(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

// RawName is the bytes that a name and its raw form stand for.
func RawName(name string, raw []byte) string {
	if raw != nil {
		return string(raw)
	}
	return name
}

// MakeFolder is the body of POST /files/mkdir.
type MakeFolder struct {
	Mode    Mode `json:"mode,omitempty"` // 0: 0755
	Parents bool `json:"parents,omitempty"`
}

// Kinds of event of a watch.
const (
	Ready    = "ready"    // the first: what happens from here on is told
	Created  = "created"  // also what is moved in
	Written  = "written"  // and closed by who wrote
	Changed  = "changed"  // owner, mode or times
	Removed  = "removed"  // also what is moved out
	Overflow = "overflow" // events are lost: look at all of it again
	Unseen   = "unseen"   // a folder that is not watched, for there are too many
	Gone     = "gone"     // the last: what was watched is not there any more
)

// Event is a line of what GET /files/watch answers.
type Event struct {
	Op     string `json:"op"`
	Path   string `json:"path,omitempty"` // below what is watched; empty: itself
	Raw    []byte `json:"raw,omitempty"`  // of Path where that is not UTF-8
	Folder bool   `json:"folder,omitempty"`
}

// Packed is the answer of PUT /files/tar, and what is known of any archive that
// was written or read.
type Packed struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"` // of files' contents
	// Skipped is how many entries were left out: devices, pipes, sockets, and
	// whatever else the reader does not take.
	Skipped int64 `json:"skipped,omitempty"`
	// Why has a line for each of the first that were.
	Why []string `json:"why,omitempty"`
}

// maxWhy bounds Packed.Why.
const maxWhy = 20

// Skip counts one entry that is left out.
func (p *Packed) Skip(name, why string) {
	p.Skipped++
	if len(p.Why) < maxWhy {
		p.Why = append(p.Why, name+": "+why)
	}
}

// FileQuery is the query of a route of files: the path, the user whose rights count, and
// others by name and value, as far as they are not empty.
func FileQuery(path, user string, others ...string) string {
	q := url.Values{"path": {path}}
	for pair := range slices.Chunk(append(others, "user", user), 2) {
		if pair[1] != "" {
			q.Set(pair[0], pair[1])
		}
	}
	return "?" + q.Encode()
}

// Flag is a query's value for yes.
func Flag(yes bool) string {
	if yes {
		return "1"
	}
	return ""
}

// Head is what an answer with a file's contents says of the file.
func Head(resp *http.Response) (f File, err error) {
	text, err := strconv.Unquote(resp.Header.Get(FileHeader))
	if err == nil {
		err = json.Unmarshal([]byte(text), &f)
	}
	return f, err
}

const (
	// FileHeader has the JSON of [File] in an answer with a file's contents.
	FileHeader = "Sallyport-File"
	// ErrorTrailer says, after an answer's body, why that is not complete,
	// quoted as Go's strings are.
	ErrorTrailer = "Sallyport-Error"
)

// Body is an answer's body whose end is an error when the trailer says so.
func Body(resp *http.Response) io.ReadCloser { return &trailed{resp.Body, resp} }

type trailed struct {
	io.ReadCloser
	resp *http.Response
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		if why := t.resp.Trailer.Get(ErrorTrailer); why != "" {
			if text, err := strconv.Unquote(why); err == nil {
				why = text
			}
			return n, &Broken{why}
		}
	}
	return n, err
}

// Broken is why what was read is not complete, in the other side's words.
type Broken struct{ Why string }

func (b *Broken) Error() string { return b.Why }
