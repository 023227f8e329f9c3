package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/recorded"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/replay"
)

// replayKind is the name of what follows among the kinds of load, though nothing
// is loaded by it.
const replayKind = "replay"

// recordedDecisions is how many there are in the log that is replayed.
const recordedDecisions = 1_000_000

// replays is what policy replay took for a log.
type replays struct {
	options
	events int
	bytes  int64
	rows   []replayRow
}

type replayRow struct {
	name   string
	took   time.Duration
	cpu    time.Duration
	replay replay.Report
}

// replayTeam is a team's Rego that looks at every path and header, so that few
// answers are another's too.
const replayTeam = `package sallyport.team.bench

deny contains "no" if {
	endswith(input.request.path, "/never")
	"X-Never" in input.request.headers
}
`

func (r *replays) run(ctx context.Context) error {
	dir := filepath.Join(r.dir, "replay")
	team := filepath.Join(r.dir, "replay-team")
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(team, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(team, "bench.rego"), []byte(replayTeam), 0o600); err != nil {
		return err
	}
	if err := r.record(ctx, dir); err != nil {
		return err
	}
	for _, row := range []struct{ name, team string }{{"rules alone", ""}, {"and a team's Rego about paths", team}} {
		doc := replayDocument(r.rules, true)
		doc.Policy = policy.Source{Dir: row.team, Cache: new(1 << 17)}
		p, err := engine.Compile(ctx, doc, engine.Options{Timeout: time.Second})
		if err != nil {
			return err
		}
		began, used := time.Now(), processorTime()
		got, err := replay.Run(ctx, p, recorded.Read(ctx, dir, auditlog.Query{}))
		if err != nil {
			return err
		}
		if got.Decisions != recordedDecisions || got.Same == 0 || got.Changed == 0 || got.Undecided > 0 || len(got.Unfit) > 0 {
			return fmt.Errorf("replay: %d decisions, %d the same, %d changed, %d undecided, %v unfit",
				got.Decisions, got.Same, got.Changed, got.Undecided, got.Unfit)
		}
		got.Groups = nil
		r.rows = append(r.rows, replayRow{row.name, time.Since(began), processorTime() - used, got})
	}
	return nil
}

// replayDocument has rules for the hosts of the log; the candidate lacks one in
// fifty of them.
func replayDocument(rules int, candidate bool) policy.Document {
	doc := policy.Document{Credentials: []policy.Credential{{Name: "key"}}}
	for i := range rules {
		host := fmt.Sprintf("api-%d.example.test", i)
		paths := []string{"/v1/**"}
		switch {
		case candidate && i%50 == 0:
			paths = []string{"/v2/**"}
			fallthrough
		case i%2 == 0:
			doc.Egress = append(doc.Egress, policy.EgressRule{Destination: host, Methods: []string{"GET", "POST"}, Paths: paths})
		default:
			doc.EgressAuth = append(doc.EgressAuth, policy.EgressAuthRule{Destination: host, AuthRef: "key", Paths: paths})
		}
	}
	return doc
}

// record writes what a policy decided, with completions, as the gateway does.
func (r *replays) record(ctx context.Context, dir string) error {
	p, err := engine.Compile(ctx, replayDocument(r.rules, false), engine.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	log, err := auditlog.Open(dir, auditlog.Options{})
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	batch := make([]*audit.Event, 0, 1000)
	for i := range recordedDecisions {
		x := new(audit.Exchange)
		batch = append(batch, decided(ctx, x, p, random, i%r.rules))
		if x.Decision.Action == audit.ActionAllowed {
			c := x.Complete(x.Decision.ActivityID)
			x.Response, x.Traffic = audit.HTTPResponse{Code: 200, Length: 1024}, audit.Traffic{BytesIn: 1024, BytesOut: 300}
			c.HTTPResponse, c.Traffic = &x.Response, &x.Traffic
			batch = append(batch, c)
		}
		if len(batch) >= 998 || i == recordedDecisions-1 {
			r.events += len(batch)
			if err := log.Append(ctx, batch...); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if err := log.Close(); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if i, err := f.Info(); err == nil {
			r.bytes += i.Size()
		}
	}
	return err
}

// decided is one of the decisions: of 200 sandboxes, about 10,000 paths, one in
// ten refused.
func decided(ctx context.Context, x *audit.Exchange, p *engine.Policy, random *rand.Rand, rule int) *audit.Event {
	who := random.IntN(200)
	in := policy.Input{
		Phase:       policy.PhaseRequest,
		Sandbox:     policy.Sandbox{Name: fmt.Sprintf("sandbox-%d", who), ID: fmt.Sprintf("0192f0c1-0000-7000-8000-%012d", who), Session: fmt.Sprintf("0192f0c2-0000-7000-8000-%012d", who), Tags: map[string]string{"team": "support"}},
		Destination: policy.Destination{Host: fmt.Sprintf("api-%d.example.test", rule), Port: 443},
		Protocol:    policy.ProtocolTLS,
		Request: &policy.Request{
			Method: []string{"GET", "POST"}[random.IntN(2)], Scheme: "https", Path: fmt.Sprintf("/v1/items/%d", random.IntN(10)),
			Headers: []string{"Accept", "Accept-Encoding", "Content-Type", "User-Agent"}, QueryKeys: []string{"page"}, Size: 0,
		},
	}
	if random.IntN(10) == 0 {
		in.Request.Path = fmt.Sprintf("/admin/%d", random.IntN(1000))
	}
	d := p.Decide(ctx, in)
	e := x.Decide(audit.ClassHTTP, audit.HTTPActivity(in.Request.Method))
	e.Source, e.Destination = &audit.Endpoint{IP: "10.231.0.7", Port: 40000}, &x.Destination
	x.Destination = audit.Endpoint{Hostname: in.Destination.Host, Port: 443}
	x.URL = audit.URL{Scheme: "https", Hostname: in.Destination.Host, Port: 443, Path: in.Request.Path}
	x.Request = audit.HTTPRequest{Method: in.Request.Method, Version: "HTTP/1.1", URL: &x.URL}
	x.TLS, x.Policy = audit.TLS{SNI: in.Destination.Host}, audit.Policy{Version: d.Revision}
	e.HTTPRequest, e.TLS, e.Policy = &x.Request, &x.TLS, &x.Policy
	if d.Rule != "" {
		x.Rule = audit.Rule{Name: d.Rule, Type: d.RuleType}
		e.Rule = &x.Rule
	}
	e.Action, e.Disposition = audit.ActionAllowed, audit.DispositionAllowed
	if d.Action != policy.Allow {
		e.Action, e.Disposition, e.StatusID = audit.ActionDenied, audit.DispositionBlocked, audit.StatusFailure
	}
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Tags = in.Sandbox.Name, in.Sandbox.ID, in.Sandbox.Session, in.Sandbox.Tags
	s.Phase, s.Decision, s.Reason = string(in.Phase), string(d.Action), d.Reason
	s.HeaderNames, s.QueryKeys = in.Request.Headers, in.Request.QueryKeys
	for _, i := range d.Inject {
		s.Credentials = append(s.Credentials, audit.CredentialUse{Name: i.Credential})
	}
	return e
}

func (*replays) intro() string {
	return `## Replay

` + "`sallyport policy replay`" + ` decides a log of a million decisions again by a candidate policy, which changes some of them: reading the
log, with its completions, included.
`
}

func (r *replays) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\tseconds\tdecisions/s\tCPU seconds\tchanged\tfrom an equal input's answer\n")
	for _, row := range r.rows {
		n := float64(row.replay.Decisions)
		fmt.Fprintf(t, "%s\t%.1f\t%.0f\t%.1f\t%d\t%.0f %%\n", row.name, row.took.Seconds(), n/row.took.Seconds(), row.cpu.Seconds(),
			row.replay.Changed, 100*float64(row.replay.FromCache)/n)
	}
	fmt.Fprintf(t, "\n%d decisions, %d events, %d MB of log, %d rules; %d CPUs\n", recordedDecisions, r.events, r.bytes>>20, r.rules, runtime.NumCPU())
	return t.Flush()
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
