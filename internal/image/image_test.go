package image_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/image"
)

var digest = strings.Repeat("0123456789abcdef", 4)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"debian":                              "docker.io/library/debian:latest",
		"debian:bookworm":                     "docker.io/library/debian:bookworm",
		"sallyport/base:bookworm-1":           "docker.io/sallyport/base:bookworm-1",
		"registry.example.com:5000/team/name": "registry.example.com:5000/team/name:latest",
		"localhost/name:a..b":                 "localhost/name:a..b",
		"name@sha256:" + digest:               "docker.io/library/name@sha256:" + digest,
		"name:tag@sha256:" + digest:           "docker.io/library/name@sha256:" + digest, // as the engine reads it
		"sha256:" + digest:                    "sha256:" + digest,
		"a":                                   "docker.io/library/a:latest", // and no ID that begins so
		"deadbeef":                            "docker.io/library/deadbeef:latest",
	} {
		if got, err := image.Parse(text); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "..", "/", "../containers/x", "../distribution/203.0.113.1:80/x", "a/../b", "a/./b", "a//b", "/a", "a/", "a?b=c", "a#b", "a%2fb",
		"a b", " a", "a\n", "a\x00", "a\\b", "UPPER", "аpple", "a‮b", "a:b:c", "a:" + strings.Repeat("b", 129), strings.Repeat("a", 600), "a@sha256:" + digest[:12],
		"sha256:" + digest + "0", "sha256:" + digest[:12], "sha256:" + strings.ToUpper(digest), digest, "a@b", "http://registry.example.com/a", "user@registry.example.com/a",
	} {
		if got, err := image.Parse(text); !errors.Is(err, image.ErrBadName) || got != "" {
			t.Errorf("%q: got %q, %v, want %v", text, got, err, image.ErrBadName)
		}
	}
}

func TestPatterns(t *testing.T) {
	p := image.Patterns{"sallyport/base:*", "registry.example.com/team/**", "debian:bookworm", "registry.example.com/one@sha256:" + digest, "pinned/*@sha256:*"}
	for _, pattern := range p {
		if err := image.CheckPattern(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	for text, want := range map[string]bool{
		"sallyport/base:bookworm-1":                       true,
		"docker.io/sallyport/base":                        true,
		"sallyport/base@sha256:" + digest:                 false,
		"sallyport/baseline:1":                            false,
		"registry.example.com/team/a:1":                   true,
		"registry.example.com/team/a/b@sha256:" + digest:  true,
		"registry.example.com/teams/a:1":                  false,
		"registry.example.com/one@sha256:" + digest:       true,
		"registry.example.com/one:tag@sha256:" + digest:   true,
		"registry.example.com/one:tag":                    false,
		"evil.example.com/registry.example.com/team/a:1":  false,
		"debian:bookworm":                                 true,
		"debian":                                          false,
		"pinned/a@sha256:" + digest:                       true,
		"pinned/a:1":                                      false,
		"debian:bookworm-slim":                            false,
		"sha256:" + digest:                                false,
		"debian:bookworm/../../containers/x":              false,
		"registry.example.com/team/../containers/x":       false,
		"registry.example.com/team/../../distribution/a:": false,
	} {
		if got := p.Match(text); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	if all := (image.Patterns{"**"}); !all.Match("registry.example.com/a/b:c") || all.Match("sha256:"+digest) || all.Match("../a") || image.CheckPattern("**") != nil {
		t.Error("** is not every name, and names alone")
	}
	for _, pattern := range []string{"", "debian", "../**", "a b:*", "UPPER:*", "docker.io/library/debian:*", "sha256:" + digest, "registry.example.com/team/name"} {
		if err := image.CheckPattern(pattern); !errors.Is(err, image.ErrBadName) {
			t.Errorf("%q: got %v, want %v", pattern, err, image.ErrBadName)
		}
	}
}

// Whatever is parsed is a name that a URL's path carries unchanged, and that means
// the same when it is parsed again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"debian", "a/b:c", "a@sha256:" + digest, "sha256:" + digest, "[2001:db8::1]:5000/a", "../containers/x", "a%2e", "a?b", "x:y@z"} {
		f.Add(text)
	}
	plain := regexp.MustCompile(`^[A-Za-z0-9._:@+/\[\]-]+$`)
	f.Fuzz(func(t *testing.T, text string) {
		name, err := image.Parse(text)
		if err != nil {
			if !errors.Is(err, image.ErrBadName) || name != "" {
				t.Fatalf("%q: %q, %v", text, name, err)
			}
			return
		}
		if !plain.MatchString(name) || len(name) > 2*512 {
			t.Errorf("%q became %q", text, name)
		}
		for part := range strings.SplitSeq(name, "/") {
			if part == "" || part == "." || part == ".." {
				t.Errorf("%q became %q, a path", text, name)
			}
		}
		if !strings.HasPrefix(name, "sha256:") && !strings.Contains(name, "/") {
			t.Errorf("%q became %q, which could be part of an ID", text, name)
		}
		if again, err := image.Parse(name); err != nil || again != name {
			t.Errorf("%q became %q, and that %q, %v", text, name, again, err)
		}
	})
}
