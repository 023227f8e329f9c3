package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/policy/approval"
)

// Text from a gateway's process that was taken over is fit for a terminal however it is
// listed.
func TestListingsOfHostileText(t *testing.T) {
	const text = "\x1b[2J\u009b2J\u202e\x7f\u200b"
	var limit api.Limit
	limit.Name, limit.Subject, limit.Per, limit.Sandbox = text, text, text, text
	list := api.ApprovalList{
		Requests: []approval.Request{{ID: "1", Reason: text, Subject: approval.Subject{
			Sandbox: text, Host: text, Method: text, Path: text, Protocol: text, Rule: text, QueryKeys: []string{text}, Credentials: []string{text},
		}}},
		Grants: []approval.Grant{{ID: "1", Span: approval.Period, Note: text, Operator: approval.Operator{Name: text},
			Pattern: approval.Pattern{Method: text, Path: text}, Subject: approval.Subject{Sandbox: text, Host: text, Method: text}}},
	}
	var out bytes.Buffer
	printLimits(&out, []api.Limit{limit}, time.Now())
	printApprovals(&out, list)
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	g := &cli.Globals{Output: "json"}
	for _, v := range []any{list, []api.Limit{limit}} {
		must.OK(t, g.Print(cmd, v, nil))
	}
	if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
		t.Errorf("got %q", out.String())
	}
}
