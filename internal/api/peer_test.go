package api_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/lab"
	"sallyport/sandbox"
)

// Root in a container changes nothing, should the socket ever get there, and
// reads as everybody does.
func TestContainerChangesNothing(t *testing.T) {
	lab.Privileged(t)
	c, socket, _ := serve(t, true)
	must[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{}))
	call := func(route, body string, inside bool) (status string) {
		t.Helper()
		method, path, _ := strings.Cut(route, " ")
		cmd := exec.Command("curl", "-sS", "--max-time", "20", "-o", os.DevNull, "-w", "%{http_code}",
			"-X", method, "-d", body, "--unix-socket", socket, "http://sallyport"+path)
		if inside {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s %v", route, out, err)
		}
		return string(out)
	}
	for _, route := range []string{
		"POST /v1/reload", "POST /v1/shutdown",
		"PUT /v1/secrets/a", "DELETE /v1/secrets/a",
		"PUT /v1/clients/a", "DELETE /v1/clients/a",
		"PUT /v1/sandboxes/a", "DELETE /v1/sandboxes/demo",
		"POST /v1/sandboxes/demo/start", "POST /v1/sandboxes/demo/stop", "POST /v1/sandboxes/demo/exec",
		"POST /v1/approvals/a", "POST /v1/limits/a/reset",
		"PATCH /v1/nothing", // of a verb that there is not yet
	} {
		if got := call(route, "{}", true); got != "403" {
			t.Errorf("%s from a PID namespace of its own: %s", route, got)
		}
	}
	for _, route := range []string{"GET /v1/sandboxes", "GET /v1/limits", "POST /v1/policy/explain"} {
		if got := call(route, `{"phase": "dns", "destination": {"host": "docs.example.test"}}`, true); got != "200" {
			t.Errorf("%s: %s", route, got)
		}
	}
	if got := call("DELETE /v1/sandboxes/demo", "", false); got != "204" {
		t.Errorf("from the host: %s", got)
	}
}
