// Package layer gives a sandbox's memory the three layers that agents work with: the
// working one (state), the episodic one (entries and conversation turns) and the
// procedural one (scripts). It writes the text for a system prompt, and compacts old
// entries.
//
// It promises: each entry, turn, state and script is an ordinary file, or a line of
// one, that the sandbox may read and edit; a crash leaves a file as it was or as it was
// meant to be; and text that was stored cannot pass for the lines around it in what
// [Layers.FormatForContext] and [Layers.Prompt] return.
//
// It does not promise that what was stored is true or harmless. [Layers.Trust] is
// asked about each file that is shown.
package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"time"
	"unicode/utf8"

	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/memory/search"
)

// ErrInvalid is of an argument that cannot be stored. The error's text says why.
var ErrInvalid = errors.New("not valid for the memory")

// Layers are the layers of one sandbox's memory. They are safe for concurrent use.
type Layers struct {
	Folder *memory.Folder
	Search Searcher
	// Read returns the contents of a file as they may be given out: those that Trust judges.
	// nil is Folder.Read.
	Read func(path string) ([]byte, error)
	// Session names what the agent is doing now, in the entries and turns that are added.
	// It may be "" and has at most 256 bytes.
	Session string
	// Trust says why the file at a path is not to be trusted, such as "learned after
	// contact with evil.example", and "" if it is. nil trusts all.
	Trust func(path string) string
	// Now is the time of what is added. nil is time.Now.
	Now func() time.Time
}

// Searcher finds what is in the files of a memory: a [search.Index].
type Searcher interface {
	Update(ctx context.Context, f *memory.Folder, progress search.Progress) error
	Search(ctx context.Context, q search.Query) ([]search.Hit, error)
}

func (l *Layers) now() time.Time {
	if l.Now != nil {
		return l.Now().UTC()
	}
	return time.Now().UTC()
}

// contents returns what may be given out of a file.
func (l *Layers) contents(name string) ([]byte, error) {
	if l.Read != nil {
		return l.Read(name)
	}
	return l.Folder.Read(name)
}

// untrusted says why a file is not trusted, in one line, or "".
func (l *Layers) untrusted(path string) string {
	if l.Trust == nil {
		return ""
	}
	return memory.Clip(terminal.Escape(l.Trust(path)), 512)
}

// Find updates the index and asks it. One that has not all of a very large memory, or
// words without their meaning, is asked too. [Searcher.Update] is what can tell of that.
func (l *Layers) Find(ctx context.Context, q search.Query) ([]search.Hit, error) {
	err := l.Search.Update(ctx, l.Folder, nil)
	if err != nil && !errors.Is(err, memory.ErrTruncated) && !errors.Is(err, search.ErrFull) && !errors.Is(err, search.ErrEmbedding) {
		return nil, err
	}
	hits, err := l.Search.Search(ctx, q)
	if errors.Is(err, search.ErrEmbedding) {
		err = nil
	}
	return hits, err
}

// change replaces a file by what edit makes of its contents, which are nil if there is no
// file. edit runs again when another has changed the file meanwhile.
func (l *Layers) change(ctx context.Context, name string, edit func(old []byte) ([]byte, error)) error {
	var err error
	for range 100 {
		if err := ctx.Err(); err != nil {
			return err
		}
		old, readErr := l.Folder.Read(name)
		digest := memory.DigestOf(old)
		if errors.Is(readErr, fs.ErrNotExist) {
			digest = ""
		} else if readErr != nil {
			return readErr
		}
		data, editErr := edit(old)
		if editErr != nil {
			return editErr
		}
		err = l.Folder.Write(name, data, digest)
		if !errors.Is(err, memory.ErrChanged) && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return err
}

// invalid is an ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// validText refuses text that is empty, too long or not text.
func validText(what, s string, most int) error {
	switch {
	case s == "":
		return invalid("%s is empty", what)
	case len(s) > most:
		return invalid("%s has %d bytes; the most is %d", what, len(s), most)
	case !utf8.ValidString(s):
		return invalid("%s is not UTF-8", what)
	}
	return nil
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
