package manager

import (
	"errors"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sallyport/internal/hostname"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// FuzzName: a name that passes is one folder below its own, one part of a URL's path and
// of a host's name, written as it is, and none of the manager's own folders.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", "a-1", "..", ".", "a/b", "a/../b", "acme/box", "/a", "a/", "a//b", "-a", "a\x00", "a\n", "A", "ä", ".pool", "a%2e", strings.Repeat("a", 64)} {
		f.Add(s)
	}
	m := &Manager{opt: Options{Dir: "/data/sandboxes"}}
	f.Fuzz(func(t *testing.T, text string) {
		ctx, name, err := ByFullName(t.Context(), text)
		if err != nil {
			if !errors.Is(err, sandbox.ErrBadName) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		owner, _ := ctx.Value(fullKey{}).(string)
		if sandbox.FullName(owner, name) != text {
			t.Errorf("%q is %q of %q", text, name, owner)
		}
		for _, s := range []string{name, owner} {
			if s == "" {
				continue
			}
			if !hostname.Valid(s) || strings.Contains(s, ".") || url.PathEscape(s) != s || sandbox.CheckName(s) != nil {
				t.Errorf("%q passes", s)
			}
		}
		if dir := m.dir(name); filepath.Dir(dir) != m.opt.Dir || filepath.Base(dir) != name || dir == m.dir(poolDir) || dir == m.dir(linkDir) {
			t.Errorf("%q lies in %s", name, dir)
		}
		if dir := filepath.Join(m.snapshotsDir(name), name); filepath.Dir(dir) != m.snapshotsDir(name) || strings.HasSuffix(dir, partSuffix) || strings.HasSuffix(dir, goneSuffix) {
			t.Errorf("a snapshot %q lies in %s", name, dir)
		}
	})
}

// FuzzSpec: what a caller says of a sandbox and the engine is told is a path, a name or
// a user in one reading.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{"/srv", "/srv/", "/", "srv", "/a/../proc/self/fd/7", "/proc/self/fd/7", "//proc/1", "/proc", "/sys/fs", "/dev/fd/3", "/a//b", "/a\x00", "/a\nb", "/a\xff", "/./proc", "/procs", "/\u202e"} {
		f.Add(s, "A", "app:app")
	}
	for _, s := range []string{"A=B", "", "A\x00", "a.b", "_1", "1A", "Ä"} {
		f.Add("/srv", s, "0:0")
	}
	for _, s := range []string{"a b", "a:b:c", ":", "-1", "../a", "a\n", "root", "a\x00"} {
		f.Add("/srv", "A", s)
	}
	good := sandbox.Spec{Image: "sallyport/base:1", Runtime: sandbox.GVisor}
	must.OK(f, validate(good))
	f.Fuzz(func(t *testing.T, workdir, env, user string) {
		s := good
		s.Workdir, s.Env, s.User = workdir, map[string]string{env: ""}, user
		if err := validate(s); err != nil {
			if !errors.Is(err, sandbox.ErrBadSpec) {
				t.Errorf("%q, %q, %q: %v", workdir, env, user, err)
			}
			return
		}
		if workdir != "" {
			clean := path.Clean(workdir)
			if !path.IsAbs(workdir) || clean != workdir && clean+"/" != workdir || !utf8.ValidString(workdir) || strings.ContainsFunc(workdir, unicode.IsControl) {
				t.Errorf("workdir %q passes", workdir)
			}
			for _, kernels := range []string{"/proc", "/sys", "/dev"} {
				if clean == kernels || strings.HasPrefix(clean, kernels+"/") {
					t.Errorf("workdir %q passes", workdir)
				}
			}
		}
		if env == "" || strings.ContainsAny(env, "=\x00 \n") {
			t.Errorf("environment name %q passes", env)
		}
		if strings.Count(user, ":") > 1 || strings.ContainsFunc(user, unicode.IsControl) {
			t.Errorf("user %q passes", user)
		}
	})
}
