package deptest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are the fragments of a document's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		plain := dropped.ReplaceAllString(strings.ToLower(linked.ReplaceAllString(h[1], "$1")), "")
		found[strings.ReplaceAll(strings.TrimSpace(plain), " ", "-")] = true
	}
	return found
}

// Each link between documents leads to a file and a heading that are there, and the index of
// docs/ has each page.
func TestDocumentLinks(t *testing.T) {
	const root = "../../.."
	files, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%v, %v", files, err)
	}
	files = append(files, filepath.Join(root, "docs/kubernetes.md"))
	index := filepath.Join(root, "docs/README.md")
	listed := map[string]bool{}
	for _, file := range append(files, index, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], ":") {
				continue // of the web
			}
			path, fragment, _ := strings.Cut(m[1], "#")
			to := file
			if path != "" {
				to = filepath.Join(filepath.Dir(file), path)
			}
			if file == index {
				listed[to] = true
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", file, m[1])
			} else if fragment != "" {
				target, err := os.ReadFile(to)
				if err != nil || !anchors(string(target))[fragment] {
					t.Errorf("%s: %s: no such heading (%v)", file, m[1], err)
				}
			}
		}
	}
	for _, file := range files {
		if !listed[file] {
			t.Errorf("docs/README.md does not list %s", file)
		}
	}
}
