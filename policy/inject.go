package policy

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// teamInject reads the inject of a team's injection, by the rules that
// sallyport.yaml's is read by.
func teamInject(v ast.Value) (Inject, error) {
	plain, err := ast.JSON(v)
	if err != nil {
		return Inject{}, err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return Inject{}, err
	}
	var in Inject
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return Inject{}, fmt.Errorf("reading an inject: %w", err)
	}
	check := validator{}
	check.inject("inject", &in)
	return in, join(check.findings)
}
