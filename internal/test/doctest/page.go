// Package doctest reads the documents of docs/ for the tests that follow them: what
// they list is written into files, what they show at a prompt is run, and what
// came of it is compared with what they say.
//
// A fence says what a block is, and which file it is: ```yaml candidate.yaml. A
// yaml block without a name is sallyport.yaml, a rego block policy.d/NAME.rego with
// the last word of its package. In a ```console block each line that begins with
// "$ " is a command, with the lines after it that end in a backslash, and what
// follows is what it prints. Of that:
//
//   - … within a line is any text, and on a line of its own any lines;
//   - an id or a digest is any other, but the same one wherever the document has it
//     again, in a command too: what is shown is asked about;
//   - a time, a time that something takes, and a number after pid are any other,
//     and columns are as wide as they need to be.
//
// 2026-12-01T00:00:00Z in a file or a command stands for a day from now, or two, so
// that it is ahead whenever the document is followed. Everything else has to be so.
package doctest

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Block is what stands in one fence.
type Block struct {
	Kind string // yaml, rego, console, …; "" without
	File string // that the fence names
	Text string
	Line int // of its first line in the document, from 1
}

// Command is one of a console block, and what is shown of it.
type Command struct {
	Text string
	Want string // with a newline after each line
	Line int
}

var opening = regexp.MustCompile("^```(\\w*)(?: (\\S+))?$")

// Blocks lists what a document has in fences.
func Blocks(text string) (list []Block) {
	var open *Block
	for i, line := range strings.Split(text, "\n") {
		switch m := opening.FindStringSubmatch(line); {
		case open != nil && line == "```":
			list, open = append(list, *open), nil
		case open != nil:
			open.Text += line + "\n"
		case m != nil:
			open = &Block{Kind: m[1], File: m[2], Line: i + 2}
		}
	}
	return list
}

// Commands lists those of a console block.
func (b Block) Commands() (list []Command) {
	going := false // the line before ended in a backslash
	for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
		last := len(list) - 1
		switch text, prompt := strings.CutPrefix(line, "$ "); {
		case going:
			list[last].Text += "\n" + line
		case prompt:
			list = append(list, Command{Text: text, Line: b.Line + i})
		case last >= 0:
			list[last].Want += line + "\n"
			continue
		default:
			continue
		}
		going = strings.HasSuffix(line, "\\")
	}
	return list
}

var team = regexp.MustCompile(`(?m)^package \S*?(\w+)$`)

// Name is the file that a block is written to, or "".
func (b Block) Name() string {
	switch {
	case b.File != "" || b.Kind != "yaml" && b.Kind != "rego":
		return b.File
	case b.Kind == "yaml":
		return "sallyport.yaml"
	}
	if m := team.FindStringSubmatch(b.Text); m != nil {
		return "policy.d/" + m[1] + ".rego"
	}
	return "policy.d/team.rego"
}

// Actor does what a document says.
type Actor interface {
	Write(file, text string) error
	// Run gives what a terminal would show. Its error says that the command could
	// not be run, or failed without saying so.
	Run(command string) (shown string, err error)
}

// ErrUnused is wrapped where no command uses a listing. A document that is looked
// things up in may have some, a guide has none.
var ErrUnused = errors.New("used by no command")

// Follow plays a document from its beginning to its end. It returns what is not as
// the document says, the document as it would have to be, and how many commands
// were run.
func Follow(document string, a Actor) (faults []error, mended string, ran int) {
	fault := func(line int, format string, args ...any) {
		faults = append(faults, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
	}
	tomorrow := strings.NewReplacer("2026-12-01T00:00:00Z", time.Now().UTC().Add(48*time.Hour).Truncate(24*time.Hour).Format(time.RFC3339))
	var edits []edit
	known := Bindings{}
	unused := map[string]int{} // lines of listings that nothing has used
	config := ""
	for _, b := range Blocks(document) {
		if file := b.Name(); file != "" {
			if line, is := unused[file]; is {
				fault(line, "%s is %w", file, ErrUnused)
			}
			unused[file] = b.Line
			if file == "sallyport.yaml" {
				config = b.Text
			}
			if err := a.Write(file, tomorrow.Replace(b.Text)); err != nil {
				fault(b.Line, "%w", err)
			}
			continue
		}
		if b.Kind != "console" {
			continue
		}
		for _, c := range b.Commands() {
			for file := range unused {
				if uses(c.Text, file, config) {
					delete(unused, file)
				}
			}
			ran++
			want := tomorrow.Replace(c.Want)
			got, now, err := run(a, known, tomorrow.Replace(known.Replace(c.Text)), want)
			if err != nil {
				fault(c.Line, "%s: %w", c.Text, err)
			}
			if now == nil {
				fault(c.Line, "%s shows\n%s\nrather than\n%s", c.Text, got, c.Want)
				edits = append(edits, edit{c.end() - strings.Count(c.Want, "\n"), c.end(), got})
				continue
			}
			known = now
		}
	}
	for file, line := range unused {
		fault(line, "%s is %w", file, ErrUnused)
	}
	return faults, mend(document, edits), ran
}

// edit replaces lines of a document, counted from 0.
type edit struct {
	from, to int
	text     string
}

// mend makes edits, which are in order.
func mend(document string, edits []edit) string {
	lines := strings.SplitAfter(document, "\n")
	for i := len(edits) - 1; i >= 0; i-- {
		e := edits[i]
		text := e.text
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		lines = append(lines[:e.from:e.from], append([]string{text}, lines[e.to:]...)...)
	}
	return strings.Join(lines, "")
}

// end is the line after what is shown, counted from 0.
func (c Command) end() int {
	return c.Line - 1 + strings.Count(c.Text, "\n") + 1 + strings.Count(c.Want, "\n")
}

// uses tells whether a command reads a file: it names it or its folder, or the
// configuration that it is a part of.
func uses(command, file, config string) bool {
	folder, _, inside := strings.Cut(file, "/")
	switch {
	case strings.Contains(command, file), inside && strings.Contains(command, folder):
		return true
	case !strings.Contains(command, "sallyport ") || strings.Contains(command, "--config") && !strings.Contains(command, "sallyport.yaml"):
		return inside && strings.Contains(command, "sallyport ") // a candidate's folder
	}
	return file == "sallyport.yaml" || strings.Contains(config, file) || inside && strings.Contains(config, folder)
}

// Again is for how long a command that only looks is run again until it shows what
// it should: what is under way may take its time, as for who reads the document.
const (
	again = time.Minute
	pause = 100 * time.Millisecond
)

// looks are the commands that change nothing.
var looks = regexp.MustCompile(`^(cat \S+|sallyport (status|limits|sandbox ls|approvals ls|audit (tail|query)[^|>]*|policy explain [^|>]*))$`)

func run(a Actor, known Bindings, command, want string) (got string, now Bindings, err error) {
	for end := time.Now().Add(again); ; time.Sleep(pause) {
		got, err = a.Run(command)
		if now = known.Match(want, got); now != nil || !looks.MatchString(command) || time.Now().After(end) {
			return got, now, err
		}
	}
}
