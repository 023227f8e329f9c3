package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/policy"
)

func newPolicy(g *globals) *cobra.Command {
	return group("policy", "Check and explain the policy", newPolicyCheck(g), newPolicyExplain(g))
}

func newPolicyExplain(g *globals) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:     "explain METHOD URL",
		Short:   "Say what would become of a request, and why",
		Example: "  sallyport policy explain --sandbox demo POST https://api.github.com/repos/x/y/issues",
		Args:    exactly("METHOD", "URL"),
	}
	c.Flags().StringVar(&name, "sandbox", "", "the sandbox that asks")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		in, err := explainInput(name, args[0], args[1])
		if err != nil {
			return err
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		e, err := d.Explain(cmd.Context(), in)
		if err != nil {
			return err
		}
		return g.print(cmd, e, func(w io.Writer) { explain(w, e) })
	}
	return c
}

// explainInput is the request-phase input that the gateway would make.
func explainInput(sandbox, method, raw string) (policy.Input, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return policy.Input{}, usageError{fmt.Errorf("%q is not a URL: write https://host/path", raw)}
	}
	port := uint16(443)
	protocol := policy.ProtocolTLS
	if u.Scheme == "http" {
		port, protocol = 80, policy.ProtocolHTTP
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return policy.Input{}, usageError{fmt.Errorf("port %q: use 1 to 65535", p)}
		}
		port = uint16(n)
	}
	path, err := policy.NormalizePath(u.EscapedPath())
	if err != nil {
		return policy.Input{}, err
	}
	var keys []string
	for k := range u.Query() {
		keys = append(keys, k)
	}
	return policy.Input{
		Phase:       policy.PhaseRequest,
		Sandbox:     policy.Sandbox{Name: sandbox},
		Destination: policy.Destination{Host: strings.ToLower(u.Hostname()), Port: port},
		Protocol:    protocol,
		Request: &policy.Request{
			Method: strings.ToUpper(method), Scheme: u.Scheme, Path: path, QueryKeys: keys, Size: -1,
		},
	}, nil
}

// explain writes an explanation as a person reads it.
func explain(w io.Writer, e policy.Explanation) {
	d := e.Decision
	fmt.Fprintf(w, "%s: %s\n", strings.ToUpper(string(d.Action)), d.Reason)
	if d.Rule != "" {
		fmt.Fprintf(w, "  rule      %s (%s)\n", d.Rule, d.RuleType)
	}
	for _, c := range e.Credentials {
		fmt.Fprintf(w, "  injects   %s\n", c)
	}
	fmt.Fprintf(w, "  policy    %.12s\n", d.Revision)
	if len(e.Near) == 0 {
		return
	}
	fmt.Fprintln(w, "rules that were considered:")
	for _, n := range e.Near {
		verdict := "fits"
		if len(n.Failed) > 0 {
			verdict = "fails on " + strings.Join(n.Failed, ", ")
		}
		fmt.Fprintf(w, "  %s  %s %s → %s: %s\n", n.Position, n.RuleType, n.Rule, n.Action, verdict)
	}
}
