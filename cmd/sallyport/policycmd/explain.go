package policycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/recorded"
	"sallyport/internal/terminal"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/engine"
	"sallyport/policy/urlpath"
	"sallyport/sandbox/client"
)

func newExplain(g *cli.Globals) *cobra.Command {
	x := explainer{Globals: g}
	c := &cobra.Command{
		Use:   "explain METHOD URL | --decision ID",
		Short: "Explain what the policy decides about a request, or about a recorded decision",
		Example: "  sallyport policy explain --sandbox demo POST https://api.github.com/repos/x/y/issues\n" +
			"  sallyport policy explain --sandbox demo --body call.json POST https://mcp.example.com/mcp\n" +
			"  sallyport policy explain --decision 0192f0c1-7a00-7000-8000-000000000004\n" +
			"  sallyport policy explain --offline --config candidate.yaml --tag team=support GET https://api.github.com/user",
	}
	c.Flags().StringVar(&x.sandbox, "sandbox", "", "the sandbox that asks")
	c.Flags().StringVar(&x.body, "body", "", "a file with the request's body, - for standard input; it is JSON unless --header says otherwise")
	c.Flags().StringArrayVar(&x.headers, "header", nil, "a header field of the request, 'Name: value'; policies see the names, and of bodies the type")
	c.Flags().StringVar(&x.decision, "decision", "", "the id of a recorded decision: a refusal's Sallyport-Decision, or the last word of a line of the audit")
	c.Flags().BoolVar(&x.offline, "offline", false, "by the configuration file rather than by the running daemon; so it is too where none runs")
	c.Flags().StringArrayVar(&x.tags, "tag", nil, "a tag of the sandbox, name=value, where no daemon knows them")
	c.Args = func(cmd *cobra.Command, args []string) error {
		if x.decision != "" {
			return cli.Exactly()(cmd, args)
		}
		return cli.Exactly("METHOD", "URL")(cmd, args)
	}
	c.RunE = x.run
	return c
}

type explainer struct {
	*cli.Globals
	sandbox, decision string
	offline           bool
	tags              []string
	body              string
	headers           []string
	asked             string // the file, where that is asked rather than the daemon
}

func (x *explainer) run(cmd *cobra.Command, args []string) error {
	if x.decision != "" {
		e, err := x.recorded(cmd)
		if err != nil {
			return err
		}
		who := "the policy in force"
		if x.asked != "" {
			who = "the policy of " + x.asked
		}
		return x.Print(cmd, e, func(w io.Writer) { explainRecorded(w, who, e) })
	}
	in, err := explainInput(x.sandbox, args[0], args[1])
	if err != nil {
		return err
	}
	if in.Sandbox.Tags, err = cli.Pairs(x.tags, "tag"); err != nil {
		return err
	}
	sent, err := x.sent(cmd.InOrStdin(), &in)
	if err != nil {
		return err
	}
	e, err := live(cmd, x, func(ctx context.Context, d *client.Client) (policy.Explanation, error) {
		return api.Explain.Do(ctx, d, api.Question{Input: in, Sent: sent})
	})
	if errors.Is(err, errOffline) {
		var p *engine.Policy
		if p, _, err = compiled(cmd.Context(), x.Globals); err == nil {
			e = p.Explain(cmd.Context(), p.Show(in, sent))
		}
	}
	if err != nil {
		return err
	}
	return x.Print(cmd, e, func(w io.Writer) {
		explain(w, e)
		if sent == nil && unseen(e) {
			fmt.Fprintln(w, "A rule decides by the request's body: give it with --body FILE, or - for standard input.")
		}
	})
}

// unseen tells whether a rule lacked a body.
func unseen(e policy.Explanation) bool {
	return slices.ContainsFunc(e.Near, func(n policy.Near) bool { return slices.Equal(n.Failed, []string{"body"}) })
}

// sent reads the request's body, and says of its header fields what a policy sees.
// It is nil where no body is given.
func (x *explainer) sent(stdin io.Reader, in *policy.Input) (*body.Raw, error) {
	header := http.Header{}
	for _, line := range x.headers {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return nil, cli.Usagef("--header %q: write 'Name: value'", line)
		}
		if name = http.CanonicalHeaderKey(name); name != "Content-Type" && name != "Content-Encoding" {
			value = "" // no policy sees it, and it may be a secret
		}
		header.Add(name, strings.TrimSpace(value))
	}
	defer func() { in.Request.Headers = slices.Sorted(maps.Keys(header)) }()
	if x.body == "" {
		return nil, nil
	}
	if x.body != "-" {
		f, err := os.Open(x.body)
		if err != nil {
			return nil, fmt.Errorf("--body: %w", err)
		}
		defer f.Close()
		stdin = f
	}
	text, err := io.ReadAll(io.LimitReader(stdin, policy.MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	more, err := io.Copy(io.Discard, stdin)
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	if header["Content-Type"] == nil {
		header.Set("Content-Type", "application/json")
	}
	in.Request.Size = int64(len(text)) + more
	return &body.Raw{Header: header, Text: text, Size: in.Request.Size}, nil
}

// recorded explains a decision from the audit.
func (x *explainer) recorded(cmd *cobra.Command) (recorded.Explanation, error) {
	if x.sandbox != "" || len(x.tags) > 0 || x.body != "" || len(x.headers) > 0 {
		return recorded.Explanation{}, cli.Usagef("a recorded decision has its own sandbox and request: leave --sandbox, --tag, --body and --header out")
	}
	e, err := live(cmd, x, func(ctx context.Context, d *client.Client) (recorded.Explanation, error) {
		return api.ExplainDecision.Do(ctx, d, client.None{}, x.decision)
	})
	if !errors.Is(err, errOffline) {
		return e, err
	}
	x.asked = x.Location.Path()
	p, cfg, err := compiled(cmd.Context(), x.Globals)
	if err != nil {
		return recorded.Explanation{}, err
	}
	return recorded.Explain(cmd.Context(), p, cfg.AuditDir(), x.decision)
}

// errOffline says that the configuration file is to be asked.
var errOffline = errors.New("the daemon is not asked")

// live asks the daemon, unless none is to be asked or is there.
func live[T any](cmd *cobra.Command, x *explainer, ask func(context.Context, *client.Client) (T, error)) (e T, err error) {
	if x.offline {
		return e, errOffline
	}
	d, err := x.Daemon()
	if err != nil {
		return e, err
	}
	e, err = ask(cmd.Context(), d)
	if errors.Is(err, client.ErrNoDaemon) && x.Location.Path() != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "sallyport: no daemon is running: this is by %s\n", x.Location.Path())
		return e, errOffline
	}
	if err == nil {
		x.Banner(cmd, d)
	}
	return e, err
}

// compiled returns the policy of the configuration file.
func compiled(ctx context.Context, g *cli.Globals) (*engine.Policy, *config.Config, error) {
	cfg, err := g.Config()
	if err != nil {
		return nil, nil, err
	}
	p, err := engine.Compile(ctx, cfg.Document, engine.Options{})
	return p, cfg, err
}

// explainInput is the request-phase input that the gateway would make.
func explainInput(sandbox, method, raw string) (policy.Input, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return policy.Input{}, cli.Usagef("%q is not a URL: write https://host/path", raw)
	}
	port := uint16(443)
	protocol := policy.ProtocolTLS
	if u.Scheme == "http" {
		port, protocol = 80, policy.ProtocolHTTP
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return policy.Input{}, cli.Usagef("port %q: use 1 to 65535", p)
		}
		port = uint16(n)
	}
	path, err := urlpath.Normalize(cmp.Or(u.EscapedPath(), "/"))
	if err != nil {
		return policy.Input{}, err
	}
	return policy.Input{
		Phase:       policy.PhaseRequest,
		Sandbox:     policy.Sandbox{Name: sandbox},
		Destination: policy.Destination{Host: strings.ToLower(u.Hostname()), Port: port},
		Protocol:    protocol,
		Request: &policy.Request{
			Method: strings.ToUpper(method), Scheme: u.Scheme, Path: path, QueryKeys: policy.QueryKeys(u.RawQuery), Size: -1,
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
	if o := d.Observed; o != nil {
		fmt.Fprintf(w, "  OBSERVE MODE lifts: %s: %s\n", strings.ToUpper(string(o.Action)), o.Reason)
	}
	for _, c := range e.Credentials {
		fmt.Fprintf(w, "  injects   %s\n", c)
	}
	for _, l := range d.Limits {
		fmt.Fprintf(w, "  limited   %s (per %s)\n", l.Name, l.Per)
	}
	fmt.Fprintf(w, "  policy    %.12s\n", d.Revision)
	if len(e.Variants) > 0 {
		fmt.Fprintln(w, "servers read the path differently, and every reading of it is decided about:")
	}
	for _, r := range e.Variants {
		fmt.Fprintf(w, "  %s  %s: %s\n", terminal.Word(r.Path), strings.ToUpper(string(r.Action)), r.Reason)
	}
	if len(e.Contributions) > 0 {
		fmt.Fprintln(w, "the team's Rego says:")
	}
	for _, s := range e.Contributions {
		fmt.Fprintf(w, "  %s\n", strings.TrimRight(strings.Join([]string{s.Set, s.By, s.Reason}, "  "), " "))
	}
	if len(e.Near) == 0 {
		return
	}
	fmt.Fprintln(w, "rules that were considered:")
	for _, n := range e.Near {
		verdict := "fits"
		var failed []string
		for i, part := range n.Failed {
			if i < len(n.Wants) && n.Wants[i] != "" {
				part += " (wants " + n.Wants[i] + ")"
			}
			failed = append(failed, part)
		}
		if len(failed) > 0 {
			verdict = "fails on " + strings.Join(failed, ", ")
		}
		fmt.Fprintf(w, "  %s  %s %s → %s: %s\n", n.Position, n.RuleType, n.Rule, n.Action, verdict)
	}
}

// explainRecorded writes what was decided once and what would be today.
func explainRecorded(w io.Writer, who string, e recorded.Explanation) {
	r := e.Recorded
	fmt.Fprintf(w, "decision %s of %s\n", terminal.Word(r.ID), r.At.Format(time.RFC3339))
	fmt.Fprintf(w, "  asked     %s\n", asked(r.Input))
	fmt.Fprintf(w, "  sandbox   %s\n", terminal.Word(r.Input.Sandbox.Name))
	fmt.Fprintf(w, "  recorded  %s: %s\n", strings.ToUpper(string(r.Action)), terminal.Escape(r.Reason))
	if r.Observed {
		fmt.Fprintln(w, "  observed  observe mode let it pass")
	}
	if r.Rule != "" {
		fmt.Fprintf(w, "  rule      %s (%s)\n", terminal.Word(r.Rule), terminal.Word(r.RuleType))
	}
	for _, c := range r.Credentials {
		fmt.Fprintf(w, "  injected  %s\n", terminal.Word(c))
	}
	if r.Revision != "" {
		fmt.Fprintf(w, "  policy    %.12s\n", r.Revision)
	}
	switch {
	case r.Unfit != "":
		fmt.Fprintf(w, "it cannot be made again: %s\n", unfitReasons[r.Unfit])
	case len(e.Differs) > 0:
		fmt.Fprintf(w, "%s answers otherwise (%s):\n", who, strings.Join(e.Differs, ", "))
	case r.Revision != e.Decision.Revision:
		fmt.Fprintf(w, "%s is another, and answers the same:\n", who)
	default:
		fmt.Fprintf(w, "%s is the one that decided:\n", who)
	}
	if e.Decision.Revision != "" {
		explain(w, e.Explanation)
	}
}

// asked is what a decision was about.
func asked(in policy.Input) string {
	to := in.Destination.Host
	if in.Destination.Port != 0 {
		to += ":" + strconv.Itoa(int(in.Destination.Port))
	}
	switch {
	case in.Request != nil:
		return terminal.Word(in.Request.Method) + " " + terminal.Word(in.Request.Scheme+"://"+to+in.Request.Path)
	case in.Phase == policy.PhaseDNS:
		return "the name " + terminal.Word(to)
	default:
		return "a connection (" + terminal.Word(string(in.Protocol)) + ") to " + terminal.Word(to)
	}
}

// unfitReasons say why a decision cannot be made again.
var unfitReasons = map[policy.Unfit]string{
	policy.UnfitClipped:    "the log has not all of what it was made on",
	policy.UnfitFloor:      "the gateway refuses it whatever a policy says",
	policy.UnfitLimit:      "a limit decided, and its counters are not what they were",
	policy.UnfitFolded:     "it stands for several that are not recorded apart",
	policy.UnfitBody:       "the policy reads the request's body, which is not recorded",
	policy.UnfitIncomplete: "its event lacks what a decision needs: an older version wrote it",
}
