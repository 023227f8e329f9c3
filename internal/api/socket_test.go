package api_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/policy/approval"
	"sallyport/sandbox"
)

// Users of the host may do on the socket what the configuration gives them, and
// nobody else may do anything.
func TestUsers(t *testing.T) {
	testnet.Privileged(t)
	dir := need[string](t)(os.MkdirTemp("", "users"))
	defer os.RemoveAll(dir)
	must.OK(t, os.Chmod(dir, 0o755))
	socket := filepath.Join(dir, "s")
	l := need[net.Listener](t)(net.Listen("unix", socket))
	must.OK(t, os.Chmod(socket, 0o666))
	store := need[*approval.Store](t)(approval.Open(approval.Options{Path: filepath.Join(dir, "approvals.json")}))
	h := &host{}
	s := &http.Server{ConnContext: api.PeerContext, Handler: checked(t, api.NewHandler(api.Options{
		Approvals: store, Recorder: h, Logger: slog.New(slog.DiscardHandler),
		Users: map[uint32][]api.Scope{65001: {api.ScopeApprove}, 65002: {api.ScopeRead}},
	}))}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	defer func() { _ = s.Close(); <-served }()
	for uid, want := range map[uint32][2]string{65001: {"403", "200"}, 65002: {"200", "403"}, 65003: {"403", "403"}, 0: {"200", "200"}} {
		id := ask(t, store, fmt.Sprint("/", uid))
		for i, args := range [][]string{{"http://sallyport/v1/approvals"}, {"-d", `{"approve": false}`, "http://sallyport/v1/approvals/" + id}} {
			cmd := exec.Command("curl", append([]string{"-sS", "--max-time", "20", "-o", os.DevNull, "-w", "%{http_code}", "--unix-socket", socket}, args...)...)
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != want[i] {
				t.Errorf("%d, %v: %s %v, want %s", uid, args, out, err, want[i])
			}
		}
	}
	if said := h.said(); !slices.Contains(said, "API call refused by uid 65003") {
		t.Errorf("%q", said)
	}
}

// Root in a container changes nothing, should the socket ever get there, and
// reads as everybody does.
func TestContainerChangesNothing(t *testing.T) {
	testnet.Privileged(t)
	c, socket, _ := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "demo", sandbox.Spec{}))
	call := func(route, body string, inside bool) (status string) {
		t.Helper()
		method, path, _ := strings.Cut(route, " ")
		args := []string{"-sS", "--max-time", "20", "-o", os.DevNull, "-w", "%{http_code}", "-X", method, "--unix-socket", socket, "http://sallyport" + path}
		if body != "" && method != "GET" {
			args = append(args, "-d", body)
		}
		cmd := exec.Command("curl", args...)
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
		"POST /v1/approvals/a", "POST /v1/limits/a/reset", "POST /v1/audit/sinks/a/test",
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
