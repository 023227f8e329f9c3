package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/clitest"
	"sallyport/policy/approval"
)

// An approval without an ID says which request waits, and answers none.
func TestApproveWithoutID(t *testing.T) {
	waiting := []approval.Request{
		{ID: "first", Subject: approval.Subject{Sandbox: "demo", Method: "POST", Host: "api.example.com", Port: 443, Path: "/pay"}},
		{ID: "second", Subject: approval.Subject{Sandbox: "demo", Method: "GET", Host: "api.example.com", Port: 443, Path: "/x"}},
	}
	count := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/approvals", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(api.ApprovalList{Requests: waiting[:count]})
	})
	mux.HandleFunc("POST /", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was asked for", r.URL) })
	file := clitest.FakeDaemon(t, mux)
	for verb, wants := range map[string][]string{
		"approve": {"no request waits", "POST api.example.com:443/pay for demo: write `sallyport approvals approve first`", "2 requests wait: `sallyport approvals ls`"},
		"deny":    {"no request waits", "write `sallyport approvals deny first`", "2 requests wait"},
	} {
		for i, want := range wants {
			count = i
			if _, status, err := run(t, "", "--config", file, "approvals", verb); status != 2 || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s with %d: %d %q, want %q", verb, i, status, err, want)
			}
		}
	}
}
