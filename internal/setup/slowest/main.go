// Command slowest reads what `go test -json` prints, from the files that it is
// given. It prints a line as each package ends, all that a failed test printed,
// and at the end the tests that took longest. It exits with 1 if a test failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// shown is the number of tests in the table.
const shown = 40

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

type key struct{ pkg, test string }

type timing struct {
	key
	seconds float64
}

// report collects the events of tests; several files may be read into it at once.
type report struct {
	out io.Writer

	mu      sync.Mutex
	printed map[key]*strings.Builder // by what has not passed
	tests   []timing                 // without subtests, whose time their test has too
	failed  bool
}

func newReport(out io.Writer) *report {
	return &report{out: out, printed: map[key]*strings.Builder{}}
}

// read takes events until the end of r.
func (p *report) read(r io.Reader) error {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.take(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *report) take(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(p.out, line)
		return
	}
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(p.out, e.Output)
	case "build-fail":
		p.failed = true
	case "output":
		if p.printed[k] == nil {
			p.printed[k] = &strings.Builder{}
		}
		p.printed[k].WriteString(e.Output)
	case "pass", "skip", "fail":
		p.end(k, e)
	}
}

func (p *report) end(k key, e event) {
	if e.Test != "" && !strings.Contains(e.Test, "/") {
		p.tests = append(p.tests, timing{k, e.Elapsed})
	}
	if e.Action == "fail" {
		p.failed = true
		p.print(k)
	}
	delete(p.printed, k)
	if e.Test != "" {
		return
	}
	// A test without an end is one that the process ended in: a panic, a time limit.
	for other := range p.printed {
		if other.pkg != k.pkg {
			continue
		}
		if e.Action == "fail" {
			p.print(other)
		}
		delete(p.printed, other)
	}
	word := map[string]string{"pass": "ok", "skip": "none", "fail": "FAIL"}[e.Action]
	fmt.Fprintf(p.out, "%-4s %7.1f s  %s\n", word, e.Elapsed, e.Package)
}

func (p *report) print(k key) {
	if text := p.printed[k]; text != nil {
		fmt.Fprint(p.out, text)
	}
}

// table prints the tests that took longest.
func (p *report) table() {
	slices.SortStableFunc(p.tests, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(p.out, "\nThe slowest tests:")
	for _, t := range p.tests[:min(shown, len(p.tests))] {
		fmt.Fprintf(p.out, "%9.1f s  %s %s\n", t.seconds, t.pkg, t.test)
	}
}

func main() {
	p := newReport(os.Stdout)
	var all sync.WaitGroup
	for _, name := range os.Args[1:] {
		all.Go(func() {
			f, err := os.Open(name)
			if err == nil {
				err = errors.Join(p.read(f), f.Close())
			}
			if err != nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				fmt.Fprintln(os.Stderr, "slowest:", err)
				p.failed = true
			}
		})
	}
	all.Wait()
	p.table()
	if p.failed {
		os.Exit(1)
	}
}
