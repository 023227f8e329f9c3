package tool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"sallyport/memory"
)

const (
	maxTries  = 10   // of an edit while others write
	maxToldOf = 1000 // lines that an error names
)

// edit changes a file, again if another writer came before it.
func (c *call) edit(name string, change func(p place, text []byte) (edited []byte, answer string, err error)) (string, error) {
	p, err := c.locate(name)
	if err != nil {
		return "", err
	}
	for range maxTries {
		info, err := c.lstat(p.real)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() == fs.ModeSymlink:
			return "", p.missing()
		case err != nil:
			return "", p.failed(err)
		case !info.Mode().IsRegular():
			return "", fmt.Errorf("The path %s is not a file.", p.path)
		}
		text, err := c.read(p)
		if err != nil {
			return "", err
		}
		edited, answer, err := change(p, text)
		if err != nil {
			return "", err
		}
		err = c.folder.Write(p.real, edited, memory.DigestOf(text))
		if err == nil {
			return answer, nil
		}
		if !errors.Is(err, memory.ErrChanged) {
			return "", p.failed(err)
		}
	}
	return "", p.failed(memory.ErrChanged)
}

func (c *call) replace() (string, error) {
	name, old, new := c.text("path"), c.text("old_str"), c.text("new_str")
	c.shown = true
	return c.edit(name, func(p place, text []byte) ([]byte, string, error) {
		lines, first, more := find(text, []byte(old))
		switch {
		case len(lines) == 0:
			return nil, "", fmt.Errorf("No replacement was performed, old_str `%s` did not appear verbatim in %s.", old, p.path)
		case len(lines) > 1:
			list := strings.Join(lines, ", ")
			if more > 0 {
				list += fmt.Sprintf(" and %d more", more)
			}
			return nil, "", fmt.Errorf("No replacement was performed. Multiple occurrences of old_str `%s` in lines: %s. Please ensure it is unique", old, list)
		}
		edited := slices.Concat(text[:first], []byte(new), text[first+len(old):])
		line := bytes.Count(text[:first], []byte("\n"))
		return edited, "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n" +
			numbered(edited, max(line-2, 0), min(line+3, count(edited))), nil
	})
}

// find returns the numbers of the lines that hold a string, where it is first, and how many
// lines more hold it. A string of several lines is in none.
func find(text, old []byte) (lines []string, first, more int) {
	for at, line := 0, 1; ; line++ {
		i := bytes.Index(text[at:], old)
		if i < 0 || bytes.IndexByte(old, '\n') >= 0 {
			return lines, first, more
		}
		if len(lines) == 0 {
			first = at + i
		}
		line += bytes.Count(text[at:at+i], []byte("\n"))
		if len(lines) < maxToldOf {
			lines = append(lines, strconv.Itoa(line))
		} else {
			more++
		}
		end := bytes.IndexByte(text[at+i:], '\n')
		if end < 0 {
			return lines, first, more
		}
		at += i + end + 1
	}
}

func (c *call) insert() (string, error) {
	name := c.text("path")
	var line int
	c.parameter("insert_line", "an integer", &line)
	added := strings.TrimSuffix(c.text("insert_text"), "\n")
	return c.edit(name, func(p place, text []byte) ([]byte, string, error) {
		n := count(text)
		if line < 0 || line > n {
			return nil, "", fmt.Errorf("Invalid `insert_line` parameter: %d. It should be within the range of lines of the file: [0, %d]", line, n)
		}
		answer := fmt.Sprintf("The file %s has been edited.", p.path)
		if line == n {
			return slices.Concat(text, []byte("\n"+added)), answer, nil
		}
		at := lineStart(text, line)
		return slices.Concat(text[:at], []byte(added+"\n"), text[at:]), answer, nil
	})
}
