package ssh

import (
	"slices"
	"strings"
	"testing"

	"sallyport/policy"
	"sallyport/policy/urlpath"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]string{
		"git-upload-pack 'org/repo.git'":      "git-upload-pack /org/repo.git",
		"git-upload-pack '/org/repo.git'":     "git-upload-pack /org/repo.git",
		"git-upload-pack /org/repo.git/":      "git-upload-pack /org/repo.git",
		"git upload-pack 'org/repo'":          "git-upload-pack /org/repo",
		"git-receive-pack 'v3/org/a_b/r-1.x'": "git-receive-pack /v3/org/a_b/r-1.x",
		"git-upload-archive '/r.git'":         "git-upload-archive /r.git",
		"git-upload-pack '-x'":                "git-upload-pack /-x",
		"git-upload-packs x":                  "exec /",
		"ls -l":                               "exec /",
		"":                                    "exec /",
	} {
		r, command, err := parse(line)
		if got := r.Method + " " + r.Path; got != want || err != nil {
			t.Errorf("%q: %q %v, want %q", line, got, err, want)
		}
		if r.Method != policy.SSHExec && command != r.Method+" '"+r.Path+"'" {
			t.Errorf("%q is sent as %q", line, command)
		}
	}
	for _, line := range []string{
		"git-upload-pack", "git-upload-pack ", "git-upload-pack ''", "git-upload-pack '/'", "git-upload-pack 'a", "git-upload-pack a'", "git-upload-pack 'a' 'b'", "git-upload-pack  a",
		"git-upload-pack 'a'\\''b'", `git-upload-pack "a"`, "git-upload-pack --timeout=1 a", "git-upload-pack a b", "git-upload-pack '~/a'", "git-upload-pack '/~u/a'",
		"git-upload-pack '../a'", "git-upload-pack 'a/../b'", "git-upload-pack 'a/./b'", "git-upload-pack 'a//b'", "git-upload-pack '//a'", "git-upload-pack 'a%2Fb'", "git-upload-pack a;id",
		"git-upload-pack a\nid", "git-upload-pack 'a\x00'", "git-upload-pack '$HOME'", "git-upload-pack `id`", "git-upload-pack a*", "git-upload-pack 'é'", "git-upload-pack 'a b'",
		"git upload-pack 'a;b'", "git-receive-pack " + strings.Repeat("a/", 600) + "b",
	} {
		if r, command, err := parse(line); err == nil {
			t.Errorf("%q is %v, sent as %q", line, r, command)
		}
	}
}

// FuzzParse: what is sent for a repository is read back by a shell's rules as the one
// word that was decided, and is decided alike when it is asked for again.
func FuzzParse(f *testing.F) {
	for _, line := range []string{
		"git-upload-pack 'org/repo.git'", "git receive-pack /a/b/", "git-upload-archive a", "git-upload-pack 'a'\\''b'", "git-upload-pack '../a'", "ls; git-upload-pack a", "git-upload-pack '~/a'",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, command, err := parse(line)
		if err != nil {
			return
		}
		if !slices.Contains(policy.SSHMethods, r.Method) || urlpath.CheckNormalized(r.Path) != nil {
			t.Fatalf("%q is %v", line, r)
		}
		if r.Method == policy.SSHExec {
			if name, _, _ := strings.Cut(line, " "); slices.Contains(gitCommands, name) || command != line {
				t.Fatalf("%q is a command, sent as %q", line, command)
			}
			return
		}
		name, quoted, _ := strings.Cut(command, " ")
		path, opened := strings.CutPrefix(quoted, "'")
		path, closed := strings.CutSuffix(path, "'")
		if name != r.Method || !opened || !closed || path != r.Path || strings.ContainsAny(path, "'\\\"$`;&|<>~*?[]{}()!# \t\r\n\x00%") ||
			!strings.HasPrefix(path, "/") || strings.Contains(path, "//") || slices.Contains(strings.Split(path, "/"), "..") {
			t.Fatalf("%q is %v, sent as %q", line, r, command)
		}
		if again, same, err := parse(command); again != r || same != command || err != nil {
			t.Fatalf("%q is %v, and that %v, %v", line, r, again, err)
		}
	})
}
