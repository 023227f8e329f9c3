package policycmd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sallyport/internal/test/doctest"
	"sallyport/internal/test/must"
)

// opa is OPA's own command line, where it can be had.
func opa(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../../internal/setup/opa/build.sh").Output()
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("OPA cannot be built: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// prompt does what a document shows in the working directory, without a shell but for
// OPA.
type prompt struct {
	t   *testing.T
	opa string // "" for none
}

func (p prompt) Write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

// Run gives what a command prints on a terminal.
func (p prompt) Run(command string) (out string, err error) {
	args := strings.Fields(command)
	switch args[0] {
	case "sallyport":
		out, _, err := run(p.t, "", args[1:]...)
		if err != nil {
			out += "sallyport: " + err.Error()
		}
		return out, nil
	case "rm":
		return "", os.Remove(args[1])
	case "opa":
		if p.opa == "" {
			return "", errors.New("there is no OPA")
		}
		out, err := exec.Command("sh", "-c", p.opa+strings.TrimPrefix(command, "opa")).CombinedOutput()
		if failed := new(exec.ExitError); errors.As(err, &failed) {
			return string(out) + "opa: " + err.Error(), nil // as the page shows it, or not
		}
		return string(out), err
	}
	return "", errors.New("it is not known here")
}

// follow plays a document of docs/, of which ran commands at least are expected.
func (p prompt) follow(document string, ran int) {
	p.t.Helper()
	faults, _, got := doctest.Follow(document, p)
	for _, fault := range faults {
		if !errors.Is(fault, doctest.ErrUnused) {
			p.t.Error(fault)
		}
	}
	if got < ran {
		p.t.Errorf("%d commands were run", got)
	}
}

// TestPolicyDocuments runs what documents show.
func TestPolicyDocuments(t *testing.T) {
	tool := opa(t)
	checkout, err := filepath.Abs("../../../policy")
	must.OK(t, err)
	for document, ran := range map[string]int{"policy/check.md": 4, "policy/paths.md": 4, "policy/test.md": 5} {
		t.Run(document, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("../../../docs", document))
			must.OK(t, err)
			policies(t, nil)
			if document == "policy/check.md" {
				must.OK(t, os.Symlink(checkout, "policy"))
			}
			prompt{t, tool}.follow(string(text), ran)
		})
	}
}

var listing = regexp.MustCompile("(?ms)^```(yaml|rego).*?^```$")

// TestPolicyLibraryDocument runs what docs/policy/library.md shows.
func TestPolicyLibraryDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/policy/library.md")
	must.OK(t, err)
	t.Chdir("../../..")
	t.Setenv("SALLYPORT_CONFIG", "")
	// Its list is not written into the repository.
	prompt{t: t}.follow(listing.ReplaceAllString(string(text), ""), 3)
}
