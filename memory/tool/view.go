package tool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"sallyport/memory"
)

const (
	maxLines = 999_999
	maxView  = 1 << 20 // bytes
	maxNames = memory.MaxListed
)

func (c *call) view() (string, error) {
	name := c.text("path")
	var lines []int
	if raw := c.fields["view_range"]; raw != nil && string(raw) != "null" {
		c.parameter("view_range", "a list of two integers", &lines)
	}
	p, err := c.locate(name)
	if err != nil {
		return "", err
	}
	info, err := c.lstat(p.real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", p.missing()
	case err != nil:
		return "", p.failed(err)
	case info.IsDir():
		return c.list(p, info)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("Unsupported file type for %s", p.path)
	}
	text, err := c.read(p)
	if err != nil {
		return "", err
	}
	c.shown = true
	n := count(text)
	if n > maxLines {
		return "", fmt.Errorf("File %s has too many lines (%d). Maximum is 999,999 lines.", p.path, n)
	}
	from, to := 0, n
	if len(lines) == 2 { // another list is of no effect
		from, to = min(max(lines[0], 1)-1, n), min(lines[1], n)
		if to == -1 {
			to = n
		} else if to < 0 { // counts from the end
			to = max(n+to, 0)
		}
	}
	return fmt.Sprintf("Here's the content of %s with line numbers:\n%s", p.path, numbered(text, from, to)), nil
}

func (c *call) read(p place) ([]byte, error) {
	c.path = p.real
	text, err := c.folder.Read(p.real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("The file %s no longer exists (may have been deleted or renamed concurrently).", p.path)
	}
	if err != nil {
		return nil, p.failed(err)
	}
	return text, nil
}

// count returns how many lines a text has: one more than it has line feeds.
func count(text []byte) int { return bytes.Count(text, []byte("\n")) + 1 }

// lineStart returns where the line with the index n begins.
func lineStart(text []byte, n int) int {
	at := 0
	for ; n > 0; n-- {
		at += bytes.IndexByte(text[at:], '\n') + 1
	}
	return at
}

// numbered returns the lines with the indices from, but not to, each with its number, and
// says so when it leaves some out.
func numbered(text []byte, from, to int) string {
	var b strings.Builder
	rest := text[lineStart(text, min(from, to)):]
	for n := from; n < to; n++ {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if n > from {
			b.WriteByte('\n')
		}
		left := maxView - b.Len()
		fmt.Fprintf(&b, "%6d\t%s", n+1, line[:min(max(left, 0), len(line))])
		if len(line) > left {
			fmt.Fprintf(&b, "\n[The view ends in line %d of %d after 1 MiB: use view_range to see what follows.]", n+1, count(text))
			break
		}
		rest = after
	}
	return b.String()
}

func (c *call) list(p place, info fs.FileInfo) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Here're the files and directories up to 2 levels deep in %s, excluding hidden items and node_modules:\n%s\t%s", p.path, size(info.Size()), p.path)
	complete, err := c.entries(&b, p.real, p.path, 1)
	if err != nil {
		return "", p.failed(err)
	}
	if !complete {
		fmt.Fprintf(&b, "\n[The list is not complete: %s holds too much. View the directories in it.]", p.path)
	}
	return b.String(), nil
}

// entries writes what is in a folder, which the model knows by a path, and reports whether
// that is all.
func (c *call) entries(b *strings.Builder, dir, shown string, depth int) (complete bool, err error) {
	names, err := c.folder.Names(dir, c.names)
	complete = err == nil
	if err != nil && !errors.Is(err, memory.ErrTruncated) {
		return false, err
	}
	c.names -= len(names)
	names = slices.DeleteFunc(names, func(name string) bool {
		return name[0] == '.' || name == "node_modules" || !utf8.ValidString(name)
	})
	slices.SortFunc(names, func(x, y string) int {
		return slices.Compare(utf16.Encode([]rune(x)), utf16.Encode([]rune(y)))
	})
	for _, name := range names {
		real, err := c.step(dir, name, new(int))
		var info fs.FileInfo
		if err == nil {
			info, err = c.lstat(real)
		}
		switch {
		case err == errWork || b.Len() > maxView:
			return false, nil
		case err != nil: // a link that leads nowhere, or out
		case info.IsDir():
			fmt.Fprintf(b, "\n%s\t%s/%s/", size(info.Size()), shown, name)
			if depth == 1 {
				if all, err := c.entries(b, real, shown+"/"+name, 2); err != nil || !all {
					complete = false
				}
			}
		case info.Mode().IsRegular():
			fmt.Fprintf(b, "\n%s\t%s/%s", size(info.Size()), shown, name)
		}
	}
	return complete, nil
}

// size writes bytes by units of 1,024, with one decimal unless it is whole.
func size(n int64) string {
	unit, left := int64(1), "BKMGTPE"
	for ; n/unit >= 1024; unit *= 1024 {
		left = left[1:]
	}
	if n%unit == 0 {
		return fmt.Sprintf("%d%c", n/unit, left[0])
	}
	tenths := int64(math.Floor(float64(n)/float64(unit)*10 + 0.5))
	return fmt.Sprintf("%d.%d%c", tenths/10, tenths%10, left[0])
}
