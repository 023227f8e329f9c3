package engine

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"sallyport/internal/test/must"
)

// TestSchema checks Rego as `opa check --strict --schema policy/schema/input.json` does.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile("../schema/input.json")
	must.OK(t, err)
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, util.MustUnmarshalJSON(text))
	check := func(text string) error {
		m, err := ast.ParseModule("check.rego", text)
		must.OK(t, err)
		c := ast.NewCompiler().WithStrict(true).WithSchemas(schemas)
		if c.Compile(map[string]*ast.Module{"check.rego": m}); c.Failed() {
			return c.Errors
		}
		return nil
	}
	own, err := os.ReadFile("decision.rego")
	must.OK(t, err)
	if err := check(string(own)); err != nil {
		t.Errorf("decision.rego: %v", err)
	}
	for _, tt := range []struct{ expression, wrong string }{
		{`input.request.method == "GET"`, ""},
		{`input.sandbox.tags.anything == "x"`, ""},
		{`input.request.body.json.whatever`, ""},
		{`input.request.methd == "GET"`, "methd"},
		{`input.reqest.method == "GET"`, "reqest"},
		{`input.destination.hostname == "x"`, "hostname"},
	} {
		err := check(fmt.Sprintf("package sallyport.team.x\ndeny contains \"x\" if %s\n", tt.expression))
		if tt.wrong == "" && err != nil {
			t.Errorf("%s: %v", tt.expression, err)
		}
		if tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: got %v, want an error about %s", tt.expression, err, tt.wrong)
		}
	}
}
