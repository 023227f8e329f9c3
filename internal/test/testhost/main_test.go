package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func TestMain(m *testing.M) {
	if os.Getenv("TESTHOST_RUN") != "" {
		main()
		os.Exit(0)
	}
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// run is the command itself: the test binary as testhost.
func run(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TESTHOST_RUN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "host.json")
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestServes(t *testing.T) {
	testnet.Privileged(t)
	files := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(files, "hello"), []byte("hi"), 0o600))
	config := writeConfig(t, fmt.Sprintf(`{"api.example.test": {"kind": "api"},
		"files.example.test": {"kind": "files", "root": %q, "requireKey": true}}`, files))
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	key := testnet.KeyOf("the key")
	cmd := run("-address", "198.51.100.10/24", "-config", config, "-ca", caFile, "-key-sha256", hex.EncodeToString(key[:]))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("said %q, %v", line, err)
	}
	pem, err := os.ReadFile(caFile)
	must.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, "198.51.100.10:53")
	}}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DialContext: (&net.Dialer{Resolver: resolver}).DialContext}
	defer tr.CloseIdleConnections()
	get := func(url string) *http.Response {
		req, _ := http.NewRequest("GET", url, nil)
		req.Header.Set("Authorization", "Bearer the key")
		resp, err := tr.RoundTrip(req)
		must.OK(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	var answer testnet.APIAnswer
	if err := json.NewDecoder(get("https://api.example.test/x").Body).Decode(&answer); err != nil || !answer.SawKey {
		t.Errorf("answer = %+v, %v, want saw_key", answer, err)
	}
	if resp := get("https://files.example.test/hello"); resp.StatusCode != 200 {
		t.Errorf("files: %s", resp.Status)
	}
	must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if links, _ := net.Interfaces(); len(links) != 1 {
		t.Errorf("devices left behind: %v", links)
	}
}

func TestRefuses(t *testing.T) {
	testnet.Privileged(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	tests := []struct {
		name, config string
		args         []string
		code         int
		want         string
	}{
		{"no configuration", "", nil, 2, "Usage"},
		{"unknown kind", `{"a.test": {"kind": "ftp"}}`, nil, 1, "want api, git or files"},
		{"unknown key", `{"a.test": {"knd": "api"}}`, nil, 1, "knd"},
		{"two objects", `{"a.test": {"kind": "api"}} {}`, nil, 1, "follows"},
		{"no folder", `{"a.test": {"kind": "files", "root": "/none/here"}}`, nil, 1, "not a folder"},
		{"bad address", `{"a.test": {"kind": "api"}}`, []string{"-address", "198.51.100.10"}, 1, "-address"},
		{"bad key", `{"a.test": {"kind": "api"}}`, []string{"-key-sha256", "abcd"}, 1, "64 hexadecimal digits"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.config != "" {
				args = append(args, "-config", writeConfig(t, tt.config), "-ca", ca)
			}
			cmd := run(args...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.code || !strings.Contains(string(out), tt.want) {
				t.Errorf("exit %d, want %d with %q:\n%s", got, tt.code, tt.want, out)
			}
		})
	}
	if _, err := os.Stat(ca); err == nil {
		t.Error("a host that did not start left its certificate")
	}
}
