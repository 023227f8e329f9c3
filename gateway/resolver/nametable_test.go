package resolver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("RESOLVER_TEST_ASSIGN"); dir != "" {
		assignForever(dir)
	}
	goleak.VerifyTestMain(m)
}

func openTable(t testing.TB, dir string, o NameTableOptions) *NameTable {
	t.Helper()
	table, err := OpenNameTable(dir, o)
	must.OK(t, err)
	return table
}

func assign(t testing.TB, table *NameTable, id, name string) netip.Addr {
	t.Helper()
	a, err := table.Assign(id, name)
	must.OK(t, err)
	return a
}

func TestAddressesAreStable(t *testing.T) {
	dir := t.TempDir()
	table := openTable(t, dir, NameTableOptions{})
	given := map[netip.Addr]string{}
	for i := range 300 {
		name := fmt.Sprintf("n%d.example.test", i)
		a := assign(t, table, "a", name)
		if !Prefix.Contains(a) || a == Refusal || a == Prefix.Addr() {
			t.Fatalf("%s got %v", name, a)
		}
		if was, ok := given[a]; ok {
			t.Fatalf("%v was given to %s and %s", a, was, name)
		}
		given[a] = name
	}
	for _, again := range []*NameTable{table, openTable(t, dir, NameTableOptions{})} {
		for a, name := range given {
			if got, ok := again.Name("a", a); !ok || got != name {
				t.Fatalf("%v stands for %q, want %q", a, got, name)
			}
			if got := assign(t, again, "a", name); got != a {
				t.Fatalf("%s got %v, then %v", name, a, got)
			}
		}
		if a := assign(t, again, "a", "n299.example.test"); given[a] != "n299.example.test" {
			t.Errorf("got %v", a)
		}
	}
}

func TestNamesBelongToTheirSandbox(t *testing.T) {
	table := openTable(t, t.TempDir(), NameTableOptions{})
	a := assign(t, table, "a", "one.example.test")
	if b := assign(t, table, "b", "two.example.test"); b != a {
		t.Fatalf("test assumes both get their first address, got %v and %v", a, b)
	}
	if got, _ := table.Name("b", a); got != "two.example.test" {
		t.Errorf("sandbox b sees %q", got)
	}
	if got, ok := table.Name("c", a); ok {
		t.Errorf("sandbox c sees %q", got)
	}
	for _, s := range []string{"198.18.0.1", "198.18.0.0", "198.18.0.17", "198.19.255.255", "198.51.100.1", "::1"} {
		if got, ok := table.Name("a", netip.MustParseAddr(s)); ok {
			t.Errorf("%s stands for %q", s, got)
		}
	}
}

func TestTableRefuses(t *testing.T) {
	table := openTable(t, t.TempDir(), NameTableOptions{PerSandbox: 2})
	first := assign(t, table, "a", "1.example.test")
	assign(t, table, "a", "2.example.test")
	if _, err := table.Assign("a", "3.example.test"); !errors.Is(err, ErrTableFull) {
		t.Errorf("third of two: %v", err)
	}
	if got := assign(t, table, "a", "1.example.test"); got != first {
		t.Errorf("a full table forgot %v", first)
	}
	assign(t, table, "b", "3.example.test")
	for _, name := range []string{"", "a b", "a\nb", "A.test", "a..b", "a.", strings.Repeat("a", 64), "é.test"} {
		if _, err := table.Assign("c", name); err == nil {
			t.Errorf("%q got an address", name)
		}
	}
	for _, id := range []string{"", ".", "..", "../a", "a/b", "a b"} {
		if _, err := table.Assign(id, "a.test"); err == nil {
			t.Errorf("sandbox %q got an address", id)
		}
	}
	if _, err := OpenNameTable(t.TempDir(), NameTableOptions{PerSandbox: 1 << 17}); err == nil {
		t.Error("more names than addresses")
	}
}

func TestCopyAndForget(t *testing.T) {
	dir := t.TempDir()
	table := openTable(t, dir, NameTableOptions{})
	a := assign(t, table, "parent", "one.example.test")
	must.OK(t, table.Copy("parent", "child"))
	if got, _ := table.Name("child", a); got != "one.example.test" {
		t.Errorf("the child sees %q", got)
	}
	// From here they differ.
	assign(t, table, "parent", "two.example.test")
	second := assign(t, table, "child", "three.example.test")
	table = openTable(t, dir, NameTableOptions{})
	if got, _ := table.Name("child", second); got != "three.example.test" {
		t.Errorf("the child sees %q", got)
	}
	if got, _ := table.Name("parent", second); got != "two.example.test" {
		t.Errorf("the parent sees %q", got)
	}
	if err := table.Copy("parent", "child"); err == nil {
		t.Error("a copy replaced names that a sandbox knows")
	}
	if err := table.Copy("empty", "other"); err != nil {
		t.Errorf("copying nothing: %v", err)
	}
	for range 2 {
		must.OK(t, table.Forget("parent"))
	}
	if _, ok := table.Name("parent", a); ok {
		t.Error("a forgotten sandbox has names")
	}
	if got, _ := table.Name("child", a); got != "one.example.test" {
		t.Errorf("the child lost its names with its parent: %q", got)
	}
	must.OK(t, table.Forget("child"))
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

func TestTornAndDamagedFiles(t *testing.T) {
	var good []byte
	for n := range 3 {
		good = appendLine(good, n, fmt.Sprintf("n%d.example.test", n))
	}
	lines := bytes.SplitAfter(good, []byte("\n"))
	two := append(append([]byte(nil), lines[0]...), lines[1]...)
	zeros := make([]byte, 64)
	type file struct {
		name  string
		data  []byte
		names int // -1: damaged
	}
	tests := []file{
		{"whole", good, 3},
		{"empty", nil, 0},
		{"zeros after", append(append([]byte(nil), good...), zeros...), 3},
		{"zeros in the last line", append(append([]byte(nil), two...), "\x00\x00\x00\x00ample.test 12345678\n"...), 2},
		{"a line is missing", append(append([]byte(nil), lines[0]...), lines[2]...), -1},
		{"a line twice", append(append([]byte(nil), two...), lines[1]...), -1},
		{"flipped bit", bytes.Replace(good, []byte("n1"), []byte("n3"), 1), -1},
		{"flipped bit in the last line", bytes.Replace(good, []byte("n2"), []byte("n3"), 1), -1},
		{"zeros in the middle", bytes.Replace(good, []byte("n1"), []byte{0, 0}, 1), -1},
		{"name twice", appendLine(append([]byte(nil), two...), 2, "n0.example.test"), -1},
		{"no host name", appendLine(append([]byte(nil), two...), 2, "a b"), -1},
	}
	for cut := len(two) + 1; cut < len(good); cut++ {
		tests = append(tests, file{fmt.Sprintf("cut at %d", cut), good[:cut], 2})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.names")
			must.OK(t, os.WriteFile(path, tt.data, 0o600))
			table := openTable(t, dir, NameTableOptions{})
			next, err := table.Assign("a", "x") // shorter than what may be left of a torn line
			if tt.names < 0 {
				if !errors.Is(err, errDamaged) {
					t.Fatalf("got %v, %v, want errDamaged", next, err)
				}
				if _, ok := table.Name("a", address(0)); ok {
					t.Error("a damaged table gives names")
				}
				if got, _ := os.ReadFile(path); !bytes.Equal(got, tt.data) {
					t.Error("a damaged file was changed")
				}
				return
			}
			must.OK(t, err)
			if next != address(tt.names) {
				t.Errorf("got %v, want %v", next, address(tt.names))
			}
			again := openTable(t, dir, NameTableOptions{})
			for n := range tt.names {
				if got, _ := again.Name("a", address(n)); got != fmt.Sprintf("n%d.example.test", n) {
					t.Errorf("%v stands for %q", address(n), got)
				}
			}
			if got, _ := again.Name("a", next); got != "x" {
				t.Errorf("%v stands for %q", next, got)
			}
		})
	}
}

func TestFullDiskGivesNoAddress(t *testing.T) {
	dir := t.TempDir()
	table := openTable(t, dir, NameTableOptions{})
	first := assign(t, table, "a", "one.example.test")
	path := filepath.Join(dir, "a.names")
	kept := path + ".kept"
	must.OK(t, os.Rename(path, kept))
	must.OK(t, os.Symlink("/dev/full", path))
	if a, err := table.Assign("a", "two.example.test"); err == nil {
		t.Errorf("got %v although it cannot be on disk", a)
	}
	must.OK(t, os.Rename(kept, path))
	if got := assign(t, table, "a", "three.example.test"); got == first {
		t.Errorf("%v was given twice", got)
	}
	if got, _ := table.Name("a", first); got != "one.example.test" {
		t.Errorf("%v stands for %q", first, got)
	}
}

// assignForever assigns names and prints each pair once it was given.
func assignForever(dir string) {
	table, err := OpenNameTable(dir, NameTableOptions{})
	count, _ := strconv.Atoi(os.Getenv("RESOLVER_TEST_COUNT"))
	for i := 0; err == nil; i++ {
		if count > 0 && i == count {
			os.Exit(0)
		}
		name := fmt.Sprintf("p%d-%d.example.test", os.Getpid(), i)
		var a netip.Addr
		if a, err = table.Assign("a", name); err == nil {
			fmt.Println(a, name)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	given := map[string]string{}
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "RESOLVER_TEST_ASSIGN="+dir)
		out, err := cmd.StdoutPipe()
		must.OK(t, err)
		must.OK(t, cmd.Start())
		r := bufio.NewReader(out)
		for n := 1; ; n++ {
			line, err := r.ReadString('\n')
			if err != nil {
				break // what it was about to say
			}
			if n == 20 {
				must.OK(t, cmd.Process.Signal(syscall.SIGKILL))
			}
			a, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if was, ok := given[a]; ok {
				t.Fatalf("%s was given to %s and %s", a, was, name)
			}
			given[a] = name
		}
		_ = cmd.Wait()
	}
	table := openTable(t, dir, NameTableOptions{})
	for a, name := range given {
		if got, _ := table.Name("a", netip.MustParseAddr(a)); got != name {
			t.Errorf("%s stands for %q, want %q", a, got, name)
		}
	}
}

// TestSyncsBeforeItAnswers traces the system calls: no pair is printed before the
// file that holds it was synced, and the folder too for a sandbox's first.
func TestSyncsBeforeItAnswers(t *testing.T) {
	must.Program(t, "strace")
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-y", "-o", trace, "-e", "trace=write,pwrite64,fsync", os.Args[0])
	cmd.Env = append(os.Environ(), "RESOLVER_TEST_ASSIGN="+t.TempDir(), "RESOLVER_TEST_COUNT=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tracing: %v\n%s", err, out)
	}
	data, err := os.ReadFile(trace)
	must.OK(t, err)
	var calls strings.Builder
	for line := range strings.Lines(string(data)) {
		switch {
		case strings.Contains(line, "resumed>"):
		case strings.Contains(line, "pwrite64(") && strings.Contains(line, "a.names>"):
			calls.WriteString("write ")
		case strings.Contains(line, "fsync(") && strings.Contains(line, "a.names>"):
			calls.WriteString("sync ")
		case strings.Contains(line, "fsync("):
			calls.WriteString("syncdir ")
		case strings.Contains(line, "write(1"):
			calls.WriteString("answer ")
		}
	}
	want := "write sync syncdir answer write sync answer write sync answer "
	if got := calls.String(); got != want {
		t.Errorf("system calls: %s\nwant %s", got, want)
	}
}

func TestConcurrentAssign(t *testing.T) {
	table := openTable(t, t.TempDir(), NameTableOptions{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				name := fmt.Sprintf("n%d.example.test", i)
				a, err := table.Assign("a", name)
				if err != nil {
					t.Error(err)
				}
				if got, _ := table.Name("a", a); got != name {
					t.Errorf("%v stands for %q, want %q", a, got, name)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkAssignKnown(b *testing.B) {
	table := openTable(b, b.TempDir(), NameTableOptions{})
	assign(b, table, "a", "api.example.test")
	b.ReportAllocs()
	for b.Loop() {
		assign(b, table, "a", "api.example.test")
	}
}

func BenchmarkAssignNew(b *testing.B) {
	table := openTable(b, b.TempDir(), NameTableOptions{PerSandbox: maxPerSandbox})
	for i := 0; b.Loop(); i++ {
		assign(b, table, fmt.Sprintf("s%d", i/1000), fmt.Sprintf("n%d.example.test", i))
	}
}

func BenchmarkName(b *testing.B) {
	table := openTable(b, b.TempDir(), NameTableOptions{})
	a := assign(b, table, "a", "api.example.test")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := table.Name("a", a); !ok {
			b.Fatal("unknown")
		}
	}
}
