package tool_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/memory/tool"
)

// sequence is commands that are played in a folder, and the answers.
type sequence struct {
	Base    string            `json:"base"`
	Inputs  []json.RawMessage `json:"inputs"`
	answers []tool.Answer
}

// play plays sequences through the npm package at a path.
func play(t *testing.T, installed string, sequences []sequence) {
	t.Helper()
	var in, out, complaint bytes.Buffer
	for _, s := range sequences {
		if err := json.NewEncoder(&in).Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("node", "testdata/reference.mjs", installed)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, complaint.Bytes())
	}
	for i, answers := 0, json.NewDecoder(&out); i < len(sequences); i++ {
		if err := answers.Decode(&sequences[i].answers); err != nil {
			t.Fatal(err)
		}
	}
}

// npmPackage is where `make setup` has installed it.
func npmPackage(t *testing.T) string {
	t.Helper()
	var files []byte
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data...)
	}
	cache, err := os.UserCacheDir()
	sum := fmt.Sprintf("%x", sha256.Sum256(files))
	installed := filepath.Join(cache, "sallyport", "memory-tool-"+sum[:16], "node_modules/@anthropic-ai/sdk")
	if err == nil {
		_, err = os.Stat(installed)
	}
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err != nil {
		must.Lack(t, "no npm package @anthropic-ai/sdk: make test installs it: %v", err)
	}
	return installed
}

// system is how errors begin that Node passes on from the system, with paths of the host.
var system = regexp.MustCompile(`^E[A-Z]+: |^The argument '`)

// A thousand sequences of random commands have the same answers from the npm package and
// from ours, and leave the same files.
func TestReference(t *testing.T) {
	installed := npmPackage(t)
	dir := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "sallyport-test-"); err == nil { // where fsync(2) takes no time
		t.Cleanup(func() { os.RemoveAll(shm) })
		dir = shm
	}
	var ours, theirs []sequence
	seen := map[string]int{}
	for seed := range 1000 {
		base := filepath.Join(dir, fmt.Sprint(seed))
		theirs = append(theirs, sequence{Base: filepath.Join(base, "theirs")})
		ours = append(ours, sequence{Base: filepath.Join(base, "ours")})
		plant(t, theirs[seed].Base, seed%4 == 0)
		plant(t, ours[seed].Base, seed%4 == 0)
		g := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 17)), root: filepath.Join(ours[seed].Base, "memories")}
		f := open(t, g.root)
		for range 12 {
			input := g.command()
			theirs[seed].Inputs = append(theirs[seed].Inputs, input)
			answer := tool.Run(t.Context(), f, input)
			ours[seed].answers = append(ours[seed].answers, answer)
			if g.edits && !answer.IsError {
				seen["an edit through a link"]++
			}
		}
	}
	play(t, installed, theirs)
	for seed, their := range theirs {
		for i, want := range their.answers {
			got := ours[seed].answers[i]
			got.Path, got.Shown = "", false // which a model is not told
			if want.IsError && system.MatchString(want.Content) {
				if strings.Contains(got.Content, dir) {
					t.Errorf("an error tells of the host: %s", got.Content)
				}
				seen["system"]++
				want.Content = got.Content
			}
			if got != want {
				t.Fatalf("sequence %d: %s:\n%s", seed, their.Inputs[i], cmp.Diff(got, want))
			}
			seen[kind(want)]++
		}
		if d := cmp.Diff(tree(t, ours[seed].Base), tree(t, their.Base)); d != "" {
			t.Fatalf("sequence %d leaves other files: %s", seed, d)
		}
	}
	for _, k := range append(kinds, "an edit through a link") {
		if seen[k] < 20 {
			t.Errorf("only %d answers %q", seen[k], k)
		}
	}
	t.Log(seen)
}

// kinds are how answers begin, all of which the sequences meet.
var kinds = []string{
	"system", "The destination", "Path must start", "would escape /memories directory\n", "would escape /memories directory via symlink",
	"Here're the files", "Here's the content", "Please provide a valid path", "Unsupported file type",
	"File created", "already exists\n", "has been edited. Here is", "did not appear verbatim", "Multiple occurrences", "is not a file.",
	"has been edited.\n", "Invalid `insert_line`", "Successfully deleted", "does not exist\n", "Cannot delete",
	"Successfully renamed", "Cannot rename",
}

func kind(a tool.Answer) string {
	i := slices.IndexFunc(kinds, func(k string) bool { return strings.Contains(a.Content+"\n", k) })
	if i < 0 {
		return "other"
	}
	return kinds[i]
}

// plant makes a memory with files, links and a pipe, and something outside that links
// lead to.
func plant(t *testing.T, base string, links bool) {
	t.Helper()
	root := filepath.Join(base, "memories")
	if err := os.MkdirAll(filepath.Join(root, "a"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a/b": "one\ntwo\r\nthree", "c.md": "# C\n\né\n", "../outside": "secret\n", "\U0001F600": "", "\uff5e": ""} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if !links {
		return
	}
	for name, target := range map[string]string{
		"link-file": "a/b", "link-dir": "a", "link-self": ".", "a/link-up": "../c.md", "link-out": "../outside",
		"link-abs": "/etc", "link-none": "nothing", "link-loop": "link-loop", "link-chain": "link-dir/../link-file",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	mkfifo(t, filepath.Join(root, "pipe"))
}

// tree returns names and contents below a folder.
func tree(t *testing.T, base string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(base, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(base, name)
		switch all[rel] = e.Type().String(); e.Type() {
		case 0:
			data, err := os.ReadFile(name)
			all[rel] = string(data)
			return err
		case fs.ModeSymlink:
			all[rel], err = os.Readlink(name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// generator makes commands, mostly on what is in the folder.
type generator struct {
	*rand.Rand
	root  string
	edits bool // the last command edits what a link leads to
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) command() []byte {
	in := map[string]any{"command": pick(g, "view", "create", "str_replace", "insert", "delete", "rename", "view", "create", "insert", "str_replace")}
	name := g.path()
	in["path"] = name
	g.edits = false
	switch in["command"] {
	case "view":
		switch g.IntN(4) {
		case 0:
			in["view_range"] = []int{g.number(), g.number()}
		case 1:
			in["view_range"] = pick[any](g, nil, []int{}, []int{1}, []int{1, 2, 3})
		}
	case "create":
		in["file_text"] = g.text()
	case "str_replace", "insert":
		g.edits = g.isLink(name)
		in["insert_text"], in["new_str"], in["insert_line"] = g.text(), g.text(), g.number()
		in["old_str"] = pick(g, "one", "two", "é", "", "\r", "a", "three", "o", "\n", "世", "one\ntwo", g.text(), g.line(name), g.line(name))
	case "delete":
		if g.IntN(3) > 0 { // more is left for the others
			in["path"] = pick(g, name, "/memories", "/memories/none", "/memories/a/none")
		}
	case "rename":
		in["old_path"], in["new_path"] = name, g.path()
		if g.IntN(4) == 0 {
			in["new_path"] = name + pick(g, "", "/", "/x", "/x/y", "2")
		}
		// The package puts what it renames in the place of a link that leads nowhere.
		for g.isLink(in["new_path"].(string)) {
			in["new_path"] = g.path()
		}
	}
	input, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	return input
}

func (g *generator) name(name string) string {
	return filepath.Join(g.root, path.Clean("/"+strings.TrimPrefix(name, "/memories")))
}

func (g *generator) isLink(name string) bool {
	info, err := os.Lstat(g.name(name))
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// line is some of a file's text.
func (g *generator) line(name string) string {
	data, _ := os.ReadFile(g.existing(name))
	lines := strings.Split(string(data), "\n")
	return lines[g.IntN(len(lines))]
}

// existing keeps line from opening the pipe.
func (g *generator) existing(name string) string {
	if info, err := os.Stat(g.name(name)); err != nil || !info.Mode().IsRegular() {
		return "/dev/null"
	}
	return g.name(name)
}

func (g *generator) number() int {
	return pick(g, 0, 1, 2, 3, 4, 5, -1, -2, -5, 1_000_000_000, -1_000_000_000)
}

func (g *generator) text() string {
	var b strings.Builder
	for range g.IntN(5) {
		b.WriteString(pick(g, "one", "two two", "", "é", "世界", "👩‍💻", "\t", "\x00", "\ufeff", "$& $1", "`", "a\r", "\u2028"))
		b.WriteString(pick(g, "\n", "\r\n", "", "\n\n"))
	}
	return b.String()
}

func (g *generator) path() string {
	if g.IntN(2) == 0 { // what is there
		var all []string
		_ = filepath.WalkDir(g.root, func(name string, e fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(g.root, name)
			all = append(all, "/memories/"+rel)
			return err
		})
		return pick(g, all...) + pick(g, "", "", "", "/", "/new", "/.")
	}
	switch g.IntN(12) {
	case 0:
		return pick(g, "", "/", "/memories", "/memories/", "/memories/.", "/memories//", "/memoriesx", "/memories2/x", "memories/x", "/etc/passwd", "/Memories/x", "\\memories")
	case 1:
		return pick(g, "/memories/..", "/memories/../x", "/memories/../../etc/passwd", "/memories/a/../../x", "/memories/../memories/a", "/memories..", "/memories/%2e%2e/x",
			"/memories/a/../a/b", "/memories/..\\x", "/memories/link-dir/../c.md", "/memories/../../memories/x")
	case 2:
		return pick(g, "/memories/link-file", "/memories/link-dir/b", "/memories/link-dir", "/memories/link-out", "/memories/link-abs/passwd", "/memories/link-none", "/memories/link-none/x",
			"/memories/link-loop", "/memories/link-self/a/b", "/memories/link-chain", "/memories/pipe", "/memories/a/link-up", "/memories/link-self")
	case 3:
		return "/memories/" + pick(g, "a\x00b", strings.Repeat("n", 300), strings.Repeat("n", 255), strings.Repeat("d/", 60)+"e", "\xff")
	}
	b := "/memories"
	for range 1 + g.IntN(3) {
		b += pick(g, "/", "/", "/", "/", "//", "/./") + pick(g, "a", "b", "c.md", "d", "é", "世.md", "\U0001F600", "\uff5e", ".hidden", "node_modules", "A", "a b", "new\nline", "~", "-")
	}
	return b
}
