// Package image reads the names of container images, before anything else of
// Sallyport does anything with them.
//
// It guarantees that what Parse returns is the name of an image and nothing else:
// letters, digits and the separators of names, in the one form that an engine looks
// up whole. It is no path, no query, and no part of an image's ID. It does not say
// whether there is such an image.
package image

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// ErrBadName is wrapped by all errors of this package.
var ErrBadName = errors.New("not the name of an image")

// maxLength of a name is 255 bytes of repository, 128 of tag and a digest's.
const maxLength = 512 // bytes

const hint = "write one as debian:bookworm, registry.example.com/team/name:tag, name@sha256:DIGEST, or an image's whole ID as sha256:DIGEST"

// Parse gives the whole name of an image: registry, repository and a tag, which is
// latest where none is given, or a digest. sha256: and 64 hexadecimal digits are an
// image's ID, which is returned as it is. The error says what to write.
func Parse(text string) (string, error) {
	name, err := parse(text)
	if err != nil {
		return "", err
	}
	return name.String(), nil
}

func parse(text string) (reference.Reference, error) {
	if len(text) > maxLength {
		return nil, fmt.Errorf("%w: it has %d bytes: %s", ErrBadName, len(text), hint)
	}
	if id.MatchString(text) {
		return reference.ParseAnyReference(text)
	}
	named, err := reference.ParseDockerRef(text)
	// A part of an ID would be a tag of a repository that nobody means.
	if err != nil || strings.HasPrefix(text, "sha256:") {
		return nil, fmt.Errorf("%w: %q: %s", ErrBadName, text, hint)
	}
	return named, nil
}

var id = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Patterns are names of images in which * stands for any run of characters but /,
// and ** for any run.
type Patterns []string

// Match tells whether one of the patterns is the name of an image, tag or digest
// included. Names of Docker Hub are short ones: debian:bookworm, and not
// docker.io/library/debian:bookworm. A text that is no name matches none, and neither does
// an ID.
func (p Patterns) Match(text string) bool {
	name, err := parse(text)
	if err != nil {
		return false
	}
	named, ok := name.(reference.Named)
	return ok && slices.ContainsFunc(p, func(pattern string) bool { return compile(pattern).MatchString(reference.FamiliarString(named)) })
}

func compile(pattern string) *regexp.Regexp {
	text := regexp.QuoteMeta(pattern)
	text = strings.ReplaceAll(text, `\*\*`, ".*")
	return regexp.MustCompile("^(?:" + strings.ReplaceAll(text, `\*`, "[^/]*") + ")$")
}

// CheckPattern refuses a pattern that no name matches.
func CheckPattern(pattern string) error {
	// A name that it could match, with one letter for each run of characters.
	example := strings.ReplaceAll(strings.ReplaceAll(pattern, "**", "a"), "*", "a")
	if strings.HasSuffix(pattern, "*") && !tagged(example) {
		example += ":a" // which the star can be, too
	}
	if strings.HasSuffix(example, "@sha256:a") {
		example += strings.Repeat("a", 63)
	}
	name, err := parse(example)
	switch {
	case err != nil || id.MatchString(example):
		return fmt.Errorf("%w: %q: write names in which * stands for any run of characters but /, and ** for any run, as registry.example.com/team/**", ErrBadName, pattern)
	case !tagged(example):
		return fmt.Errorf("%w: %q has no tag, and so is no image's whole name: write %s:* for any tag", ErrBadName, pattern, pattern)
	case reference.FamiliarString(name.(reference.Named)) != example:
		return fmt.Errorf("%w: %q is not how the name is matched: write it as in %s", ErrBadName, pattern, reference.FamiliarString(name.(reference.Named)))
	}
	return nil
}

// Registry is the host, and maybe the port, that a name's image is fetched from: docker.io
// for Docker Hub, and "" for an ID, which no registry is asked for.
func Registry(text string) string {
	name, err := parse(text)
	if named, ok := name.(reference.Named); err == nil && ok {
		return reference.Domain(named)
	}
	return ""
}

// CheckRegistry refuses what no name of an image begins with as its registry.
func CheckRegistry(host string) error {
	if Registry(host+"/name") != host || strings.Contains(host, "/") {
		return fmt.Errorf("%w: %q is no registry: write host or host:port as names of its images begin, and docker.io for Docker Hub", ErrBadName, host)
	}
	return nil
}

// tagged tells whether a name ends with a tag or a digest.
func tagged(name string) bool {
	return strings.ContainsAny(name[strings.LastIndexByte(name, '/')+1:], ":@")
}
