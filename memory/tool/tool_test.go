package tool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/memory"
	"sallyport/memory/tool"
)

func open(t *testing.T, dir string) *memory.Folder {
	t.Helper()
	f, err := memory.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mkfifo(t *testing.T, name string) {
	t.Helper()
	if err := unix.Mkfifo(name, 0o666); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// input makes the JSON of a command: its name, then parameters and their values.
func input(t *testing.T, command string, parameters ...any) json.RawMessage {
	t.Helper()
	in := map[string]any{"command": command}
	for i := 0; i < len(parameters); i += 2 {
		in[parameters[i].(string)] = parameters[i+1]
	}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// An input that is not a command, or lacks something, is answered with what is wrong.
func TestInput(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	for in, want := range map[string]string{
		``:                               "The input must be a JSON object with the parameter `command`.",
		`[]`:                             "The input must be a JSON object with the parameter `command`.",
		`null`:                           "The input must be a JSON object with the parameter `command`.",
		`{"command":`:                    "The input must be a JSON object with the parameter `command`.",
		`{}`:                             "Missing parameter `command`.",
		`{"Command":"x"}`:                "Missing parameter `command`.",
		`{"command":1}`:                  "The parameter `command` must be a string.",
		`{"command":"ls"}`:               "Unknown command: ls. Use view, create, str_replace, insert, delete or rename.",
		`{"command":"view"}`:             "Missing parameter `path` of the command view.",
		`{"command":"view","path":null}`: "The parameter `path` of the command view must be a string.",
		`{"command":"view","path":["/memories"]}`:                                                "The parameter `path` of the command view must be a string.",
		`{"command":"view","path":"/memories","view_range":"1,2"}`:                               "The parameter `view_range` of the command view must be a list of two integers.",
		`{"command":"view","path":"/memories","view_range":[1.5,2]}`:                             "The parameter `view_range` of the command view must be a list of two integers.",
		`{"command":"create","path":"/memories/x"}`:                                              "Missing parameter `file_text` of the command create.",
		`{"command":"create","path":"/memories/x","file_text":{}}`:                               "The parameter `file_text` of the command create must be a string.",
		`{"command":"str_replace","path":"/memories/x","old_str":"x"}`:                           "Missing parameter `new_str` of the command str_replace.",
		`{"command":"insert","path":"/memories/x","insert_line":"1","insert_text":""}`:           "The parameter `insert_line` of the command insert must be an integer.",
		`{"command":"insert","path":"/memories/x","insert_line":1e300,"insert_text":""}`:         "The parameter `insert_line` of the command insert must be an integer.",
		`{"command":"rename","old_path":"/memories/x"}`:                                          "Missing parameter `new_path` of the command rename.",
		`{"command":"view","path":"/memories/` + strings.Repeat("a/", 3000) + `"}`:               "Path is too long (6010 bytes). Maximum is 4096 bytes.",
		`{"command":"create","path":"/memories` + strings.Repeat("/a", 70) + `","file_text":""}`: "Path /memories" + strings.Repeat("/a", 70) + " is too deep (69 folders). Maximum is 64 folders.",
		`{"command":"create","path":"/memories/a\u0000b","file_text":""}`:                        "The path /memories/a\x00b cannot be used: invalid argument.",
		`{"command":"create","path":"/memories/new/` + strings.Repeat("a", 256) + `","file_text":""}`: "The path /memories/new/" + strings.Repeat("a", 256) +
			" cannot be used: file name too long.",
	} {
		if got := tool.Run(t.Context(), f, json.RawMessage(in)); got != (tool.Answer{Content: want, IsError: true}) {
			t.Errorf("%.100s: %+v", in, got)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Files that a hostile sandbox puts into its memory harm nothing, and no command gets out.
func TestHostile(t *testing.T) {
	base := t.TempDir()
	plant(t, base, true)
	root, outside := filepath.Join(base, "memories"), filepath.Join(base, "outside")
	if err := os.Symlink("/dev/zero", filepath.Join(root, "zero")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(root, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Logf("no device without root: %v", err)
		mkfifo(t, filepath.Join(root, "device"))
	}
	sparse := filepath.Join(root, "sparse")
	write(t, sparse, nil)
	if err := os.Truncate(sparse, 1<<30); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "bad\xffname"), nil)
	f := open(t, root)
	for _, name := range []string{"pipe", "device", "sparse", "link-out", "link-abs", "link-abs/passwd", "zero", "link-loop", "link-self/link-out", "c.md/x"} {
		name = "/memories/" + name
		for _, in := range []json.RawMessage{
			input(t, "view", "path", name),
			input(t, "create", "path", name, "file_text", "x"),
			input(t, "str_replace", "path", name, "old_str", "", "new_str", "x"),
			input(t, "insert", "path", name, "insert_line", 0, "insert_text", "x"),
			input(t, "rename", "old_path", "/memories/c.md", "new_path", name),
		} {
			got := tool.Run(t.Context(), f, in)
			if !got.IsError || strings.Contains(got.Content, base) || strings.Contains(got.Content, "secret") {
				t.Errorf("%s: %+v", in, got)
			}
		}
	}
	if got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories/sparse")); got.Content != "File /memories/sparse is too large. Maximum is 16 MiB." {
		t.Errorf("%+v", got)
	}
	got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories"))
	for _, name := range []string{"pipe", "device", "link-out", "link-abs", "zero", "link-none", "link-loop", "bad"} {
		if strings.Contains(got.Content, name) {
			t.Errorf("%s is listed: %s", name, got.Content)
		}
	}
	if !strings.Contains(got.Content, "\n1G\t/memories/sparse") {
		t.Error(got.Content)
	}
	for _, name := range []string{"pipe", "device", "sparse", "a"} {
		if got := tool.Run(t.Context(), f, input(t, "delete", "path", "/memories/"+name)); got.IsError {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "secret\n" {
		t.Errorf("outside: %q, %v", data, err)
	}
}

// Bytes that are not UTF-8 are shown as U+FFFD, and stay in a file that is edited. An edit
// through a link is one of the file.
func TestEditKeeps(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "binary")
	write(t, name, []byte("a\xff\nb\r\n"))
	if err := os.Symlink("binary", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	f := open(t, dir)
	if got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories/binary")); !strings.HasSuffix(got.Content, "\n     1\ta\uFFFD\n     2\tb\r\n     3\t") {
		t.Errorf("%+v", got)
	}
	if got := tool.Run(t.Context(), f, input(t, "str_replace", "path", "/memories/link", "old_str", "b", "new_str", "c")); got.IsError {
		t.Errorf("%+v", got)
	}
	if got := tool.Run(t.Context(), f, input(t, "insert", "path", "/memories/link", "insert_line", 3, "insert_text", "end\n")); got.IsError {
		t.Errorf("%+v", got)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "a\xff\nc\r\n\nend" {
		t.Errorf("%q, %v", data, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != "binary" {
		t.Errorf("%q, %v", target, err)
	}
}

// Eight callers insert lines into one file, and none is lost.
func TestCallers(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "shared"), nil)
	f := open(t, dir)
	const each = 20
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := 0; i < each; {
				got := tool.Run(t.Context(), f, input(t, "insert", "path", "/memories/shared", "insert_line", 0, "insert_text", fmt.Sprint(n, "-", i)))
				if !got.IsError {
					i++
				} else if !strings.Contains(got.Content, "View it and try again") {
					t.Errorf("%+v", got)
					return
				}
			}
		})
	}
	all.Wait()
	data, err := os.ReadFile(filepath.Join(dir, "shared"))
	if lines := strings.Fields(string(data)); err != nil || len(lines) != 8*each {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

// A long output ends early, and says so.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	text := func(name, text string) string {
		t.Helper()
		write(t, filepath.Join(dir, name), []byte(text))
		got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories/"+name))
		if len(got.Content) > 2<<20 {
			t.Errorf("%s: %d bytes", name, len(got.Content))
		}
		return got.Content[strings.LastIndex(got.Content, "\n")+1:]
	}
	if got := text("long", strings.Repeat("x", 9<<20)); got != "[The view ends in line 1 of 1 after 1 MiB: use view_range to see what follows.]" {
		t.Error(got)
	}
	if got := text("many", strings.Repeat("\n", 999_998)); got != "[The view ends in line 131074 of 999999 after 1 MiB: use view_range to see what follows.]" {
		t.Error(got)
	}
	if got := text("more", strings.Repeat("\n", 999_999)); got != "File /memories/more has too many lines (1000000). Maximum is 999,999 lines." {
		t.Error(got)
	}
	got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories/many", "view_range", []int{999_998, -1}))
	if !strings.HasSuffix(got.Content, "numbers:\n999998\t\n999999\t") {
		t.Errorf("%.200s", got.Content)
	}
	got = tool.Run(t.Context(), f, input(t, "str_replace", "path", "/memories/many", "old_str", "", "new_str", "x"))
	if !strings.HasSuffix(got.Content, ", 999, 1000 and 998999 more. Please ensure it is unique") {
		t.Errorf("%.200s", got.Content)
	}
	large := strings.Repeat("x", 16<<20)
	for _, in := range []json.RawMessage{
		input(t, "create", "path", "/memories/new", "file_text", large+"x"),
		input(t, "insert", "path", "/memories/long", "insert_line", 0, "insert_text", large),
	} {
		if got := tool.Run(t.Context(), f, in); !got.IsError || !strings.HasSuffix(got.Content, " is too large. Maximum is 16 MiB.") {
			t.Errorf("%.200s", got.Content)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file was made")
	}
}

// A list ends after 10,000 names, also where they are in many folders or are links of
// which each leads a long way.
func TestBoundsOfList(t *testing.T) {
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "sallyport-test-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	way := strings.Repeat("d/../", 800) + "d"
	for i := range 20_000 {
		name := filepath.Join(dir, "many", fmt.Sprint(i%3), fmt.Sprint(i))
		link := filepath.Join(dir, "links", fmt.Sprint(i%3), fmt.Sprint(i))
		if i < 3 {
			if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(filepath.Dir(link), "d"), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		write(t, name, nil)
		if i < 5000 {
			if err := os.Symlink(way, link); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := open(t, dir)
	for name, most := range map[string]int{"many": 10_000, "many/1": 6667, "links": 5000} {
		got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories/"+name))
		note := fmt.Sprintf("\n[The list is not complete: /memories/%s holds too much. View the directories in it.]", name)
		if n := strings.Count(got.Content, "\n"); n > most+3 || strings.HasSuffix(got.Content, note) != (name != "many/1") {
			t.Errorf("%s: %d lines, the last %s", name, n, got.Content[strings.LastIndex(got.Content, "\n")+1:])
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := tool.Run(ctx, f, input(t, "view", "path", "/memories/many")); !got.IsError {
		t.Errorf("broken off: %.200s", got.Content)
	}
}

func TestSizes(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	for size, want := range map[int64]string{
		0: "0B", 1: "1B", 1023: "1023B", 1024: "1K", 1280: "1.3K", 1536: "1.5K", 10239: "10.0K", 1<<20 - 1: "1024.0K", 1 << 20: "1M", 5 << 28: "1.3G", 1 << 40: "1T",
	} {
		name := fmt.Sprint(size)
		write(t, filepath.Join(dir, name), nil)
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Fatal(err)
		}
		got := tool.Run(t.Context(), f, input(t, "view", "path", "/memories"))
		if !bytes.Contains([]byte(got.Content), []byte("\n"+want+"\t/memories/"+name)) {
			t.Errorf("%d: %s", size, got.Content)
		}
	}
}
