package api_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/testnet"
	"sallyport/policy/approval"
	"sallyport/sandbox/client"
)

// serveApprovals runs the routes of approvals, with what tells who is calling.
func serveApprovals(t *testing.T, network string, who func(context.Context, net.Conn) context.Context) (*approval.Store, net.Addr) {
	t.Helper()
	store := need[*approval.Store](t)(approval.Open(approval.Options{Path: filepath.Join(t.TempDir(), "approvals.json")}))
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l := need[net.Listener](t)(net.Listen(network, address))
	s := httptest.NewUnstartedServer(checked(t, api.NewHandler(api.Options{Approvals: store, Recorder: &host{}})))
	s.Listener.Close()
	s.Listener, s.Config.ConnContext = l, who
	s.Start()
	t.Cleanup(s.Close)
	return store, l.Addr()
}

func ask(t *testing.T, s *approval.Store, path string) string {
	t.Helper()
	return need[approval.Verdict](t)(s.Ask(approval.Question{Timeout: time.Minute, Subject: approval.Subject{
		Sandbox: "demo", SandboxID: "sb-1", Session: "s-1", Protocol: "tls", Host: "api.example.test", Port: 443, Method: "GET", Path: path, Body: "b",
	}})).ID
}

// The operator on record is the caller that the kernel names, and nothing in the request.
func TestOperator(t *testing.T) {
	store, addr := serveApprovals(t, "unix", api.PeerContext)
	c := client.Unix(addr.String())
	id := ask(t, store, "/a")
	r := need[approval.Request](t)(api.AnswerApproval.Do(t.Context(), c, approval.Answer{Approve: true, Span: approval.Session}, id))
	if r.ID != id || r.State != approval.Approved {
		t.Errorf("%+v", r)
	}
	l := need[api.ApprovalList](t)(api.ListApprovals.Do(t.Context(), c, client.None{}))
	if len(l.Grants) != 1 || l.Grants[0].Operator.UID != strconv.Itoa(os.Getuid()) || l.Grants[0].Operator.Name == "" {
		t.Errorf("%+v", l)
	}
	var p *api.Problem
	for name, want := range map[string]int{"x": http.StatusNotFound, id: http.StatusConflict} {
		if _, err := api.AnswerApproval.Do(t.Context(), c, approval.Answer{Approve: true}, name); !errors.As(err, &p) || p.Status != want {
			t.Errorf("%s: %v, want %d", name, err, want)
		}
	}
	if _, err := api.AnswerApproval.Do(t.Context(), c, approval.Answer{Approve: true, Span: "ever"}, ask(t, store, "/b")); !errors.As(err, &p) || p.Status != http.StatusBadRequest {
		t.Errorf("a bad answer: %v", err)
	}
}

// Where nothing says who is calling, nobody is an operator.
func TestNobodyIsAnOperator(t *testing.T) {
	for name, who := range map[string]func(context.Context, net.Conn) context.Context{"nothing known": nil, "not a unix socket": api.PeerContext} {
		t.Run(name, func(t *testing.T) {
			store, addr := serveApprovals(t, "tcp", who)
			id := ask(t, store, "/a")
			for _, body := range []string{`{"approve": true}`, `{"approve": true, "operator": {"name": "root"}}`} {
				resp := need[*http.Response](t)(http.Post("http://"+addr.String()+"/v1/approvals/"+id, "application/json", strings.NewReader(body)))
				resp.Body.Close()
				if resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s: %s", body, resp.Status)
				}
			}
			http.DefaultClient.CloseIdleConnections()
			if list, grants, _ := store.List(); len(list) != 1 || len(grants) != 0 {
				t.Errorf("%v, %v", list, grants)
			}
		})
	}
}

func TestWatch(t *testing.T) {
	store, addr := serveApprovals(t, "unix", api.PeerContext)
	c := client.Unix(addr.String())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	enough := errors.New("enough")
	var seen []int
	err := api.WatchApprovals(ctx, c, func(l api.ApprovalList) error {
		seen = append(seen, len(l.Requests))
		if len(seen) == 1 {
			ask(t, store, "/a")
			return nil
		}
		if len(l.Requests) == 1 {
			_, err := api.AnswerApproval.Do(ctx, c, approval.Answer{}, l.Requests[0].ID)
			return err
		}
		return enough
	})
	if !errors.Is(err, enough) || len(seen) != 3 {
		t.Errorf("saw %v, %v", seen, err)
	}
}

// Root in a container is no operator, should the socket ever get there.
func TestContainerIsNoOperator(t *testing.T) {
	testnet.Privileged(t)
	store, addr := serveApprovals(t, "unix", api.PeerContext)
	for _, inside := range []bool{true, false} {
		id := ask(t, store, "/"+strconv.FormatBool(inside))
		cmd := exec.Command("curl", "-sS", "-o", os.DevNull, "-w", "%{http_code}", "-d", "{}", "--unix-socket", addr.String(), "http://sallyport/v1/approvals/"+id)
		want := "200"
		if inside {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			want = "403"
		}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("in a PID namespace of its own %v: %s %v, want %s", inside, out, err, want)
		}
	}
}
