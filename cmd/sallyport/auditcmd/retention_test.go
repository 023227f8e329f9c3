package auditcmd

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/clitest"
)

func TestHoldAndDelete(t *testing.T) {
	var asked []string
	file := clitest.FakeDaemon(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, strings.TrimSpace(string(body))))
		const hold = `{"name":"case-7","reason":"a \u001b[2Jcourt","by":"anna","since":"2026-12-01T00:00:00Z"}`
		switch r.Method + " " + r.URL.Path {
		case "GET /v1/audit/holds":
			fmt.Fprintf(w, "[%s]", hold)
		case "PUT /v1/audit/holds/case-7":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, hold)
		case "POST /v1/audit/holds/case-7/release":
			w.WriteHeader(http.StatusNoContent)
		case "POST /v1/audit/deletions":
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"first":1,"last":900,"segments":2,"bytes":2048}`)
		}
	}))
	for _, tt := range []struct {
		args   string
		status int
		prints string
		asks   string
	}{
		{"hold add case-7 --reason court", 0, "case-7 holds all records", `PUT /v1/audit/holds/case-7 {"reason":"court"}`},
		{"hold ls", 0, "case-7  ", "GET /v1/audit/holds"},
		{"hold rm case-7 --reason over", 0, "case-7 is removed", `POST /v1/audit/holds/case-7/release {"reason":"over"}`},
		{"hold add case-7", 2, "--reason", ""},
		{"hold rm case-7", 2, "--reason", ""},
		{"delete --before 2026-12-01T00:00:00Z", 0, "records 1 to 900 are being deleted: 2 segments, 2KiB", `POST /v1/audit/deletions {"before":"2026-12-01T00:00:00Z"}`},
		{"delete --before 2026-12-01T00:00:00Z --force", 0, "records 1 to 900", `"force":true`},
		{"delete --before 90d", 0, "records 1 to 900", time.Now().Add(-90 * 24 * time.Hour).UTC().Format("2006-01")},
		{"delete", 2, "--before", ""},
		{"delete --before soon", 2, "--before", ""},
		{"delete --force", 2, "--before", ""},
	} {
		asked = nil
		out, status, err := clitest.Run(t, cli.Root("test", Command), "", append([]string{"--config", file, "audit"}, strings.Fields(tt.args)...)...)
		if err != nil {
			out += err.Error()
		}
		if got := strings.Join(asked, "\n"); status != tt.status || !strings.Contains(out, tt.prints) || strings.Contains(out, "\x1b") || !strings.Contains(got, tt.asks) || tt.asks == "" && got != "" {
			t.Errorf("%s: %d, %q; asked %q", tt.args, status, out, got)
		}
	}
}
