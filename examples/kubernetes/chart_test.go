package kubernetes

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
)

// render returns the chart with the values of a file. Its error has what the program said.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	program, err := exec.Command("render/build.sh").Output()
	must.OK(t, err)
	out, err := exec.Command(strings.TrimSpace(string(program)), "-chart", "chart", "-values", values).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(string(exit.Stderr))
	}
	return string(out), err
}

// The plain file is what the chart says.
func TestPlainFileIsTheChart(t *testing.T) {
	text, err := os.ReadFile("sallyport.yaml")
	must.OK(t, err)
	_, got, _ := strings.Cut(string(text), "\n") // without the comment
	want, err := render(t, "plain.yaml")
	must.OK(t, err)
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("sallyport.yaml is not what the chart says: go generate ./examples/kubernetes (got - want +)\n%s", diff)
	}
}

// A router's port is that of a Service of the daemons.
func TestRouter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	must.OK(t, os.WriteFile(file, []byte("router: {port: 7443}"), 0o644))
	got, err := render(t, file)
	must.OK(t, err)
	if !strings.Contains(got, "name: sallyport-router\n") || !strings.Contains(got, "targetPort: 7443") {
		t.Errorf("no Service of that port:\n%s", got)
	}
}

// A value that nothing reads is an error.
func TestUnknownValues(t *testing.T) {
	for _, values := range []string{"images: x", "ca: {secrets: x}", "ca: {certManager: {issuer: x}}", "trust: {root: x}", "gateway: gateway.example.com", "policy: {team: x}", "router: {listen: x}"} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		must.OK(t, os.WriteFile(file, []byte(values), 0o644))
		if _, err := render(t, file); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: got %v, want an error of the schema", values, err)
		}
	}
}
