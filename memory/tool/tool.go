// Package tool runs the commands of the memory tool memory_20250818, by which a model
// reads and edits its memory: view, create, str_replace, insert, delete and rename of paths
// below /memories.
//
// It promises: answers and errors read as those of BetaLocalFilesystemMemoryTool in
// the npm package @anthropic-ai/sdk, which a test compares. /memories is the root of a
// [memory.Folder]: nothing outside it is opened or shown, whatever the sandbox puts there,
// and no error tells of a path of the host. An edit that another writer comes before is
// made anew on what that one wrote.
//
// Where it differs: a file over 16 MiB is refused, and a path over 4,096 bytes or 64
// folders. A view ends after 1 MiB, a list after 10,000 names, and both say so. An edit
// through a link changes what the link points to, and bytes that are not UTF-8 stay as they
// are. A link with an absolute path leads outside. A parameter of a wrong type is refused.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"sallyport/memory"
)

// Answer is content and is_error of a tool_result block.
type Answer struct {
	Content string `json:"content"`
	IsError bool   `json:"is_error"`
	// Path is of the file that was shown or written, relative to the memory, or "". Shown says
	// whether the content has text of it.
	Path  string `json:"-"`
	Shown bool   `json:"-"`
}

// Run runs the command in the input of a tool_use block, as the model wrote it.
func Run(ctx context.Context, f *memory.Folder, input json.RawMessage) Answer {
	c := call{ctx: ctx, folder: f, names: maxNames, work: maxWork}
	content, err := c.run(input)
	if err != nil {
		content = err.Error()
	}
	a := Answer{Content: strings.ToValidUTF8(content, "\uFFFD"), IsError: err != nil}
	if err == nil {
		a.Path, a.Shown = c.path, c.shown
	}
	return a
}

// call is one command.
type call struct {
	ctx     context.Context
	folder  *memory.Folder
	command string
	fields  map[string]json.RawMessage
	err     error  // of the parameters, the first one
	path    string // as of Answer
	shown   bool
	names   int // how many more are listed
	work    int // how many more folders are walked through
}

var commands = map[string]func(*call) (string, error){
	"view":        (*call).view,
	"create":      (*call).create,
	"str_replace": (*call).replace,
	"insert":      (*call).insert,
	"delete":      (*call).delete,
	"rename":      (*call).rename,
}

func (c *call) run(input json.RawMessage) (string, error) {
	if json.Unmarshal(input, &c.fields) != nil || c.fields == nil {
		return "", errors.New("The input must be a JSON object with the parameter `command`.")
	}
	name := c.text("command")
	if c.err != nil {
		return "", c.err
	}
	run, ok := commands[name]
	if !ok {
		return "", fmt.Errorf("Unknown command: %s. Use view, create, str_replace, insert, delete or rename.", name)
	}
	c.command = " of the command " + name
	return run(c)
}

// parameter reads a parameter, and keeps the first error.
func (c *call) parameter(name, kind string, v any) {
	raw, ok := c.fields[name]
	switch {
	case c.err != nil:
	case !ok:
		c.err = fmt.Errorf("Missing parameter `%s`%s.", name, c.command)
	case string(raw) == "null" || json.Unmarshal(raw, v) != nil:
		c.err = fmt.Errorf("The parameter `%s`%s must be %s.", name, c.command, kind)
	}
}

func (c *call) text(name string) (s string) {
	c.parameter(name, "a string", &s)
	return s
}

func (c *call) create() (string, error) {
	name, text := c.text("path"), c.text("file_text")
	p, err := c.locate(name)
	if err != nil {
		return "", err
	}
	if c.path, err = p.real, p.fits(); err == nil {
		err = c.folder.Write(p.real, []byte(text), "")
	}
	switch {
	case p.real == "." || errors.Is(err, fs.ErrExist):
		return "", fmt.Errorf("File %s already exists", p.path)
	case err != nil:
		return "", p.failed(err)
	}
	return "File created successfully at: " + p.path, nil
}

func (c *call) delete() (string, error) {
	p, err := c.locate(c.text("path"))
	if err != nil {
		return "", err
	}
	if p.name == "." {
		return "", errors.New("Cannot delete the /memories directory itself")
	}
	if err := c.folder.Remove(p.name); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("The path %s does not exist", p.path)
	} else if err != nil {
		return "", p.failed(err)
	}
	return "Successfully deleted " + p.path, nil
}

func (c *call) rename() (string, error) {
	from, to := c.text("old_path"), c.text("new_path")
	source, err := c.locate(from)
	if err != nil {
		return "", err
	}
	destination, err := c.locate(to)
	if err != nil {
		return "", err
	}
	if source.name == "." {
		return "", errors.New("Cannot rename the /memories directory itself")
	}
	exists := fmt.Errorf("The destination %s already exists", to)
	if _, err := c.lstat(destination.real); err == nil {
		return "", exists
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", destination.failed(err)
	}
	info, err := c.lstat(source.name)
	if err == nil && info.IsDir() && strings.HasPrefix(destination.name, source.name+"/") {
		return "", fmt.Errorf("The path %s cannot be renamed to a path inside itself: %s", from, to)
	}
	if err == nil {
		if err = destination.fits(); err != nil {
			return "", destination.failed(err)
		}
		err = c.folder.Rename(source.name, destination.name)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return "", exists
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("The path %s does not exist", from)
	case err != nil:
		return "", source.failed(err)
	}
	return fmt.Sprintf("Successfully renamed %s to %s", from, to), nil
}

// missing is the error for a path where nothing is.
func (p place) missing() error {
	return fmt.Errorf("The path %s does not exist. Please provide a valid path.", p.path)
}

// failed is the error for what the contract has no words for.
func (p place) failed(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, memory.ErrTooLarge):
		return fmt.Errorf("File %s is too large. Maximum is 16 MiB.", p.path)
	case errors.Is(err, memory.ErrChanged):
		return fmt.Errorf("The file %s has been changed meanwhile. View it and try again.", p.path)
	case errors.Is(err, memory.ErrNotFile):
		return fmt.Errorf("The path %s is not a file.", p.path)
	case errors.As(err, &errno):
		return fmt.Errorf("The path %s cannot be used: %v.", p.path, errno)
	}
	return fmt.Errorf("The path %s cannot be used: it has been changed meanwhile.", p.path)
}
