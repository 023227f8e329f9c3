package daemon

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/gateway/credential/file"
	"sallyport/internal/test/must"
)

// An exchange of the configuration gives the token alone, uses a login that was set at once,
// and keeps what comes in its place where a restart finds it.
func TestExchangeOfConfiguration(t *testing.T) {
	var mu sync.Mutex
	valid, asked := "login-1", 0
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.PostFormValue("refresh_token") != valid {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"invalid_grant"}`)
			return
		}
		asked++
		valid += "'"
		fmt.Fprintf(w, `{"access_token":"short-lived-token-%d","expires_in":3600,"refresh_token":%q}`, asked, valid)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "roots.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600))
	text := `
egressAuth: [{destination: api.example.com, authRef: agent}]
credentials:
- name: agent
  exchange: {oauth2: {tokenURL: "` + srv.URL + `", clientID: agent, grant: refreshToken, roots: roots.pem}}
`
	lease := func(d *daemon) (map[string]credential.Secret, error) {
		l, err := d.broker.Lease(t.Context(), "agent", credential.Binding{Host: "api.example.com", Port: 443, Verified: true})
		if err != nil {
			return nil, err
		}
		return l.Material().Fields, nil
	}
	want := func(d *daemon, token string) {
		t.Helper()
		if fields, err := lease(d); err != nil || len(fields) != 1 || fields["token"].Reveal() != token {
			t.Errorf("leased %d fields with token %q, %v, want %s", len(fields), fields["token"].Reveal(), err, token)
		}
	}

	d, cfg := sinkDaemon(t, dir, text)
	must.OK(t, d.openLeases(t.Context()))
	d.inForce.Store(cfg)
	set := func(login string) {
		t.Helper()
		must.OK(t, secrets{d}.Set(t.Context(), "agent", secretFields(map[string]string{"refreshToken": login})))
	}
	if _, err := lease(d); err == nil || !strings.Contains(err.Error(), "sallyport secret set agent") {
		t.Errorf("before there is a login: %v", err)
	}
	set("login-1")
	want(d, "short-lived-token-1")
	want(d, "short-lived-token-1")
	mu.Lock()
	valid = "login-2"
	mu.Unlock()
	set("login-2") // made anew by an operator
	want(d, "short-lived-token-2")
	list, err := secrets{d}.List()
	if err != nil || len(list) != 1 || list[0].Version != "4" || list[0].Error != "" {
		t.Errorf("listed %+v, %v", list, err)
	}
	// After a restart, or a crash, all that is left is the disk.
	if d.store, err = file.New(cfg.DataDir, d.key); err != nil {
		t.Fatal(err)
	}
	d.logins = exchange.NewKeeper(logins{d})
	sources, end, err := d.sources(cfg)
	must.OK(t, err)
	defer end()
	d.broker.Replace(sources, "")
	want(d, "short-lived-token-3")
	d.auditLog.Flush()
	events := ""
	must.OK(t, filepath.WalkDir(filepath.Join(dir, "data", "audit"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		events += string(text)
		return err
	}))
	if n := strings.Count(events, "secret agent set: a refresh token came in place of the last one"); n != 3 {
		t.Errorf("%d events of a new refresh token, want 3", n)
	}
	if strings.Contains(events, "login-") || strings.Contains(events, "short-lived-token") {
		t.Error("a secret is in the audit log")
	}
}
