package auditcmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

func newSink(g *cli.Globals) *cobra.Command {
	return cli.Group("sink", "Receivers outside that get each record", newSinkAdd(), newSinkList(g), newSinkTest(g))
}

func newSinkList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List sinks, and how far they are", Args: cli.Exactly()}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]api.Sink, error) {
		s, err := api.GetStatus.Do(ctx, d, client.None{})
		return s.Sinks, err
	}, "SINK\tTYPE\tENCODING\tRECEIVER\tRECORD\tWAITING\tSTATE", func(s api.Sink) string {
		state, _ := s.State()
		return strings.Join([]string{
			s.Name, s.Type, s.Encoding, terminal.Word(s.Receiver), strconv.FormatUint(s.Cursor, 10), strconv.FormatUint(s.Waiting, 10), terminal.Text(state),
		}, "\t")
	})
}

func newSinkTest(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "test NAME",
		Short: "Send one record to a sink, and show what its receiver answered",
		Long:  "Send one record to a sink, and show what its receiver answered. The record is one of the log, about this test.\n\nThe status is 1 if the receiver did not take it.",
		Args:  cli.Exactly("NAME"),
	}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		t, err := api.TestSink.Do(cmd.Context(), d, client.None{}, args[0])
		if err != nil {
			return err
		}
		err = g.Print(cmd, t, func(w io.Writer) {
			fmt.Fprintf(w, "record %d, %s\n%s\n", t.Sequence, t.UID, terminal.Text(cmp.Or(t.Error, t.Answer)))
		})
		if err == nil && t.Error != "" {
			return cli.ExitCode(1)
		}
		return err
	})
}

// examples are what `audit sink add` prints, below "audit:".
var examples = map[string]string{
	"file": `
    path: /var/log/sallyport/audit.jsonl
    maxSize: 100MiB
    keep: 10`,
	"syslog": `
    address: siem.example.com:6514     # RFC 5424 over TLS
    # tls: {caFile: siem-ca.pem}       # default: the system's authorities
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
	"splunk": `
    url: https://splunk.example.com:8088
    credential: NAME                   # sallyport secret set NAME token=…
    # index: sallyport
    # tls: {caFile: siem-ca.pem}
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
	"otlp": `
    url: https://otel.example.com:4318/v1/logs
    # credential: NAME                 # sallyport secret set NAME token=…, a bearer's
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
	"elasticsearch": `
    url: https://search.example.com:9200
    index: sallyport-audit
    credential: NAME                   # sallyport secret set NAME apiKey=…, or username=… password=…
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
	"kafka": `
    brokers: ["kafka.example.com:9093"]
    topic: sallyport-audit
    sasl: scram-sha-512
    credential: NAME                   # sallyport secret set NAME username=… password=…
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
	"s3": `
    url: https://s3.eu-central-1.amazonaws.com
    region: eu-central-1
    bucket: audit
    prefix: sallyport/
    credential: NAME                   # sallyport secret set NAME accessKeyID=… secretAccessKey=…`,
	"https": `
    url: https://siem.example.com/sallyport
    credential: NAME                   # sallyport secret set NAME secret=whsec_…, which requests are signed with
    # addresses: [10.20.0.0/16]        # what is not public has to be named`,
}

func newSinkAdd() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:     "add TYPE",
		Short:   "Print what to write into the configuration for a sink",
		Long:    "Print what to write into sallyport.yaml for a sink. The daemon takes it without a restart.\n\nThe types are " + strings.Join(config.SinkTypes(), ", ") + ".",
		Example: "  sallyport audit sink add syslog --name siem",
		Args:    cli.Exactly("TYPE"),
	}
	c.Flags().StringVar(&name, "name", "", "the sink's name (default its type)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		example, ok := examples[args[0]]
		if !ok {
			return cli.Usagef("%q is no type of sinks: use %s", args[0], strings.Join(config.SinkTypes(), ", "))
		}
		name := cmp.Or(name, args[0])
		fmt.Fprintf(cmd.OutOrStdout(), "audit:\n  sinks:\n  - name: %s\n    type: %s%s\n", name, args[0], strings.ReplaceAll(example, "NAME", name))
		if strings.Contains(example, "\n    credential:") {
			fmt.Fprintf(cmd.OutOrStdout(), "credentials:\n- name: %s\n", name)
		}
		return nil
	}
	return c
}
