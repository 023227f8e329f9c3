// Command suite runs every test of the module in one run: several processes of
// test binaries at a time, and those that take long first. The end-to-end tests
// run in a process each, since each has a daemon and a network of its own. It
// prints a line as each process ends, all that a failed test printed, and at the
// end the tests that took longest and those that were skipped. It exits with 1 if
// a test failed.
//
// It runs in the root of the module.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"sallyport/internal/test/env"
)

const (
	// split is the package whose tests run in a process each.
	split = "sallyport/internal/e2e"
	// timeout ends a process that hangs.
	timeout = "20m"
)

// programs are those that tests run besides the daemon and the agent.
var programs = []string{
	"./internal/e2e/client", "./internal/e2e/bypass/probe", "./internal/test/testhost",
	"./examples/demo", "./examples/agent", "./cmd/sallyport-cni",
}

func main() {
	workers := flag.Int("workers", runtime.NumCPU()+1, "processes at a time")
	only := flag.String("only", "", "a regexp of packages, and of tests of "+split)
	flag.Parse()
	failed, err := run(*workers, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

// suite is one run.
type suite struct {
	dir    string // for test binaries and programs
	test2  string // the path of test2json
	report report
	last   map[string]float64 // seconds that units took the last time

	mu      sync.Mutex
	change  sync.Cond
	ready   []unit
	pending bool // binaries are being built, so that more units come
	over    bool // nothing more is to run
	errs    []error
}

// unit is what runs in one process.
type unit struct {
	binary, pkg, folder string
	test                string // "": all
}

func (u unit) name() string { return strings.TrimSpace(u.pkg + " " + u.test) }

func run(workers int, only string) (failed bool, err error) {
	filter, err := regexp.Compile(only)
	if err != nil {
		return false, err
	}
	s := &suite{report: report{out: os.Stdout}, pending: true, last: remembered()}
	s.change.L = &s.mu
	var done func()
	if s.dir, done, err = binaries(); err != nil {
		return false, err
	}
	defer done()
	tools, err := env.Build(filepath.Join(s.dir, "programs"), ".", programs...)
	if err != nil {
		return false, err
	}
	if err := tools.Share(); err != nil {
		return false, err
	}
	if s.test2, err = output("go", "tool", "-n", "test2json"); err != nil {
		return false, err
	}
	groups, err := packages()
	if err != nil {
		return false, err
	}
	// A terminal interrupts the tests as well. They end, and what was built goes.
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(interrupted, s.abandon)
	go s.build(groups, filter)
	var all sync.WaitGroup
	for range workers {
		all.Go(s.work)
	}
	all.Wait()
	s.report.table()
	s.remember()
	return s.report.failed, errors.Join(s.errs...)
}

// binaries is the folder for what is built, and what leaves it. It is in the user's
// cache, where go links only that anew whose sources have changed. While another
// suite has that one, it is a folder for this run alone.
func binaries() (dir string, done func(), err error) {
	if kept := cached("tests"); kept != "" {
		if err := os.MkdirAll(kept, 0o700); err != nil {
			return "", nil, err
		}
		lock, err := os.Open(kept)
		if err != nil {
			return "", nil, err
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return kept, func() { lock.Close() }, nil
		}
		lock.Close()
	}
	dir, err = os.MkdirTemp("", "sallyport-suite-")
	return dir, func() { os.RemoveAll(dir) }, err
}

func output(name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// packages are those with tests, in groups that are built one after another. Names
// of binaries are the last parts of paths, so that those of a group differ.
func packages() ([][]unit, error) {
	list, err := output("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}", "./...")
	if err != nil {
		return nil, err
	}
	groups := make([][]unit, 1) // the first has only the package that is split
	seen := map[string]int{}
	for line := range strings.Lines(list) {
		pkg, folder, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		n, name := 0, filepath.Base(pkg)
		if pkg != split {
			seen[name]++
			n = seen[name]
		}
		if n == len(groups) {
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], unit{pkg: pkg, folder: folder, binary: filepath.Join(fmt.Sprint(n), name+".test")})
	}
	return groups, nil
}

// build makes the test binaries, and puts the units that they make possible into
// the queue.
func (s *suite) build(groups [][]unit, filter *regexp.Regexp) {
	for n, group := range groups {
		other := func(u unit) bool { return !filter.MatchString(u.name()) }
		if n > 0 {
			group = slices.DeleteFunc(group, other)
		}
		units, err := s.compile(n, group)
		units = slices.DeleteFunc(units, other)
		s.mu.Lock()
		if s.over {
			s.mu.Unlock()
			return
		}
		s.ready = append(s.ready, units...)
		// New units come first, packages before single tests, then those that took longest.
		slices.SortStableFunc(s.ready, func(a, b unit) int {
			return cmp.Or(order(s.known(a), s.known(b)), cmp.Compare(s.last[b.name()], s.last[a.name()]), order(a.test != "", b.test != ""))
		})
		if err != nil {
			s.errs = append(s.errs, err)
		}
		s.pending = n < len(groups)-1
		s.change.Broadcast()
		s.mu.Unlock()
	}
}

// abandon has the workers end with the units that they are at.
func (s *suite) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.pending, s.ready = true, false, nil
	s.errs = append(s.errs, errors.New("interrupted"))
	s.change.Broadcast()
}

func (s *suite) known(u unit) bool { _, ok := s.last[u.name()]; return ok }

// order has false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (s *suite) compile(n int, group []unit) ([]unit, error) {
	if len(group) == 0 {
		return nil, nil
	}
	to := filepath.Join(s.dir, fmt.Sprint(n)) + "/"
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", to}
	for i := range group {
		args = append(args, group[i].pkg)
		group[i].binary = filepath.Join(s.dir, group[i].binary)
	}
	if _, err := output("go", args...); err != nil {
		return nil, err
	}
	if n > 0 {
		return group, nil
	}
	c := exec.Command(group[0].binary, "-test.list", ".")
	c.Dir, c.Stderr = group[0].folder, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests of %s: %w", group[0].pkg, err)
	}
	var tests []unit
	for name := range strings.Lines(string(out)) {
		if name = strings.TrimSpace(name); !strings.HasPrefix(name, "Benchmark") {
			u := group[0]
			u.test = name
			tests = append(tests, u)
		}
	}
	return tests, nil
}

// work runs units until there are no more.
func (s *suite) work() {
	for {
		s.mu.Lock()
		for len(s.ready) == 0 && s.pending {
			s.change.Wait()
		}
		if len(s.ready) == 0 {
			s.mu.Unlock()
			return
		}
		u := s.ready[0]
		s.ready = s.ready[1:]
		s.mu.Unlock()
		if err := s.play(u); err != nil {
			s.mu.Lock()
			s.errs = append(s.errs, fmt.Errorf("%s: %w", u.name(), err))
			s.mu.Unlock()
		}
	}
}

// play runs one unit as go test does.
func (s *suite) play(u unit) error {
	// test2json ignores interrupts, and its child would too: shells set no trap for what was
	// ignored when they began.
	args := []string{"-t", "-p", u.pkg, "env", "--default-signal=INT,QUIT", u.binary, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + timeout}
	if u.test != "" {
		args = append(args, "-test.run=^"+u.test+"$")
	}
	c := exec.Command(s.test2, args...)
	c.Dir = u.folder
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	err = s.report.read(u.name(), out)
	var exit *exec.ExitError
	if ended := c.Wait(); errors.As(ended, &exit) {
		s.report.fail() // a test has said why
	} else {
		err = errors.Join(err, ended)
	}
	return err
}

// cached is a path in the user's cache; "": there is none.
func cached(name string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sallyport", name)
}

// The seconds that units took the last time are in a file there.
const times = "test-times.json"

// remembered is empty where nothing is known: units then run as they come.
func remembered() map[string]float64 {
	last := map[string]float64{}
	if raw, err := os.ReadFile(cached(times)); err == nil {
		_ = json.Unmarshal(raw, &last)
	}
	return last
}

func (s *suite) remember() {
	for _, u := range s.report.units {
		s.last[u.name] = u.seconds
	}
	if raw, err := json.Marshal(s.last); err == nil {
		_ = os.WriteFile(cached(times), raw, 0o644)
	}
}
