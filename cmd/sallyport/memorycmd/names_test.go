package memorycmd

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/must"
)

// Each operation of the API has its name on the command line and in the Go client.
func TestNames(t *testing.T) {
	document, err := os.ReadFile("../../../internal/api/openapi.yaml")
	must.OK(t, err)
	client, err := os.ReadFile("../../../memory/client/client.go")
	must.OK(t, err)
	commands := New(&cli.Globals{}).Commands()
	operations := regexp.MustCompile(`/v1/sandboxes/\{name\}/memory/(\w+):`).FindAllSubmatch(document, -1)
	if len(operations) < 20 {
		t.Fatalf("%d operations in the document", len(operations))
	}
	for _, m := range operations {
		name := string(m[1])
		if !slices.ContainsFunc(commands, func(c *cobra.Command) bool { return c.Name() == name }) {
			t.Errorf("`sallyport memory %s` is not there", name)
		}
		camel := ""
		for word := range strings.SplitSeq(name, "_") {
			camel += strings.ToUpper(word[:1]) + word[1:]
		}
		if !regexp.MustCompile(`(?m)^(func |\t)` + camel + `\b[^\n]*[ (]`).Match(client) {
			t.Errorf("the client has no %s", camel)
		}
	}
}
