package auditcmd_test

import (
	"strings"
	"testing"

	"sallyport/cmd/sallyport/auditcmd"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// `audit sink add` prints a configuration, for each type.
func TestSinkAdd(t *testing.T) {
	for _, kind := range config.SinkTypes() {
		var out strings.Builder
		root := cli.Root("test", auditcmd.Command)
		root.SetOut(&out)
		root.SetArgs([]string{"audit", "sink", "add", kind, "--name", "one"})
		must.OK(t, root.Execute())
		c, err := config.Parse("sallyport.yaml", []byte(out.String()))
		if err != nil || len(c.Audit.Sinks) != 1 || c.Audit.Sinks[0].Name != "one" || c.Audit.Sinks[0].Type != kind {
			t.Errorf("%s: %v\n%s", kind, err, out.String())
		}
	}
}
