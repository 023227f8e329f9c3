package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// shown is the number of tests in the table.
const shown = 40

// event is one line of what go tool test2json prints.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

type key struct{ pkg, test string }

type timing struct {
	key
	seconds float64
}

// report is of several runs of test binaries at once.
type report struct {
	out io.Writer

	mu      sync.Mutex
	tests   []timing // without subtests, whose time their test has too
	units   []duration
	skipped []string // with the reasons
	failed  bool
}

type duration struct {
	name    string
	seconds float64
}

// stream is what one run of a test binary says.
type stream struct {
	*report
	name    string
	printed map[key]*strings.Builder // by what has not ended
}

// read takes the events of one run until the end of r.
func (p *report) read(name string, r io.Reader) error {
	s := &stream{p, name, map[key]*strings.Builder{}}
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.take(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *stream) take(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(p.out, line)
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		if p.printed[k] == nil {
			p.printed[k] = &strings.Builder{}
		}
		p.printed[k].WriteString(e.Output)
	case "pass", "skip", "fail":
		p.end(k, e)
	}
}

func (p *stream) end(k key, e event) {
	if e.Test != "" && !strings.Contains(e.Test, "/") {
		p.tests = append(p.tests, timing{k, e.Elapsed})
	}
	if e.Action == "fail" {
		p.failed = true
		p.print(k)
	}
	if e.Action == "skip" && e.Test != "" {
		p.skipped = append(p.skipped, p.name+": "+e.Test+"\n"+p.text(k))
	}
	delete(p.printed, k)
	if e.Test != "" {
		return
	}
	// A test without an end is one that the process ended in: a panic, a time limit.
	for other := range p.printed {
		if e.Action == "fail" {
			p.print(other)
		}
	}
	p.units = append(p.units, duration{p.name, e.Elapsed})
	word := map[string]string{"pass": "ok", "skip": "none", "fail": "FAIL"}[e.Action]
	fmt.Fprintf(p.out, "%-4s %7.1f s  %s\n", word, e.Elapsed, p.name)
}

func (p *report) fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

func (p *stream) text(k key) string {
	if text := p.printed[k]; text != nil {
		return text.String()
	}
	return ""
}

func (p *stream) print(k key) { fmt.Fprint(p.out, p.text(k)) }

// table prints the tests that took longest, and those that did not run.
func (p *report) table() {
	slices.SortStableFunc(p.tests, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(p.out, "\nThe slowest tests:")
	for _, t := range p.tests[:min(shown, len(p.tests))] {
		fmt.Fprintf(p.out, "%9.1f s  %s %s\n", t.seconds, t.pkg, t.test)
	}
	if len(p.skipped) > 0 {
		fmt.Fprintf(p.out, "\nSkipped:\n%s", strings.Join(p.skipped, ""))
	}
}
