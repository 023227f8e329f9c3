// Command policy measures what a policy costs: one decision, by how many rules and
// sandboxes there are; a reload, and what it does to the decisions that are made
// meanwhile; memory. No answer is kept from one decision for the next.
//
// A run is bounded in count and time, reaches nothing, and leaves nothing behind
// but its report.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"sallyport/policy"
	"sallyport/policy/engine"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench/policy: ")
	out := flag.String("o", "", "Markdown file for the report")
	resident := flag.Int("resident", -1, "compile so many rules and print what that takes of memory (set by bench itself)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := run(ctx, *out, *resident); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out string, resident int) error {
	if resident >= 0 {
		return printResident(ctx, resident)
	}
	var report bytes.Buffer
	text := io.MultiWriter(os.Stdout, &report)
	fmt.Fprint(&report, intro)
	if err := decisions(ctx, text); err != nil {
		return err
	}
	if err := reloads(ctx, text); err != nil {
		return err
	}
	if err := memory(ctx, text); err != nil {
		return err
	}
	fmt.Fprint(&report, "```\n")
	if out == "" {
		return nil
	}
	return os.WriteFile(out, report.Bytes(), 0o644)
}

const intro = "# What a policy costs\n\n`make bench` wrote this. Each rule is an egressAuth rule with methods and paths; each question is a request with\n" +
	"its method, path and headers, for another rule than the last. Where all of many rules are asked about in turn, what a\n" +
	"decision needs is in no cache of the processor's, which is most of what such a decision costs more; work it is the same.\n" +
	"No answer is kept from one decision for the next. The team's Rego denies by size and asks for approval by method and tag.\n\n```\n"

// set is a policy and questions about it.
type set struct {
	rules, sandboxes int
	team             bool
	asked            int // rules that the questions are about, one after the other

	policy *engine.Policy
	inputs []policy.Input
	took   sample
}

// document has rules of as many hosts, each for one of the sandboxes.
func document(rules, sandboxes int) policy.Document {
	doc := policy.Document{Credentials: []policy.Credential{{Name: "key"}}, Policy: policy.Source{Cache: new(0)}}
	for i := range rules {
		r := policy.EgressAuthRule{
			Destination: fmt.Sprintf("api-%d.example.com", i), AuthRef: "key",
			Methods: []string{"GET", "POST"}, Paths: []string{fmt.Sprintf("/v%d/**", i)},
		}
		if sandboxes > 1 {
			r.Sandboxes.Names = []string{fmt.Sprint("sandbox-", i%sandboxes)}
		}
		doc.EgressAuth = append(doc.EgressAuth, r)
	}
	return doc
}

const team = `package sallyport.team.uploads

deny contains "uploads of more than 10 MiB are not allowed" if input.request.size > 10485760

approve contains "deletions need a person" if {
	input.request.method == "DELETE"
	input.sandbox.tags.team == "support"
}
`

func (s *set) compile(ctx context.Context) error {
	doc := document(s.rules, s.sandboxes)
	if s.team {
		dir, err := os.MkdirTemp("", "sallyport-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "team.rego"), []byte(team), 0o600); err != nil {
			return err
		}
		doc.Policy.Dir = dir
	}
	var err error
	if s.policy, err = engine.Compile(ctx, doc, engine.Options{}); err != nil {
		return err
	}
	for n := range s.asked {
		i := n * (s.rules / s.asked)
		s.inputs = append(s.inputs, policy.Input{
			Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS,
			Sandbox:     policy.Sandbox{Name: fmt.Sprint("sandbox-", i%s.sandboxes), ID: "1", Session: "s", Tags: map[string]string{"team": "support"}},
			Destination: policy.Destination{Host: fmt.Sprintf("api-%d.example.com", i), Port: 443},
			Request: &policy.Request{
				Method: "POST", Scheme: "https", Path: fmt.Sprintf("/v%d/chat/completions", i),
				Headers: []string{"Accept", "Content-Type", "User-Agent"}, Size: 1024,
			},
		})
	}
	s.decide(ctx, len(s.inputs)) // compiles each pattern
	s.took = nil
	return nil
}

// decide asks n times.
func (s *set) decide(ctx context.Context, n int) {
	for range n {
		in := s.inputs[len(s.took)%len(s.inputs)]
		began := time.Now()
		d := s.policy.Decide(ctx, in)
		s.took = append(s.took, time.Since(began))
		if d.Action != policy.Allow || len(d.Inject) != 1 {
			log.Fatalf("%+v: %+v", in, d)
		}
	}
}

// decisions measures all sets in turn, so that what else the machine does meets
// them alike.
func decisions(ctx context.Context, w io.Writer) error {
	sets := []*set{
		{rules: 10, sandboxes: 1, asked: 10}, {rules: 1000, sandboxes: 1, asked: 10}, {rules: 10_000, sandboxes: 1, asked: 10},
		{rules: 10_000, sandboxes: 10, asked: 10}, {rules: 10_000, sandboxes: 1000, asked: 10},
		{rules: 1000, sandboxes: 1, asked: 1000}, {rules: 10_000, sandboxes: 1, asked: 10_000}, {rules: 10_000, sandboxes: 1000, asked: 10_000},
		{rules: 10, sandboxes: 1, asked: 10, team: true}, {rules: 10_000, sandboxes: 1, asked: 10, team: true}, {rules: 10_000, sandboxes: 1000, asked: 10, team: true},
	}
	for _, s := range sets {
		if err := s.compile(ctx); err != nil {
			return err
		}
	}
	const turns, each = 50, 2000
	for range turns {
		for _, s := range sets {
			s.decide(ctx, each)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "decision\trules\tsandboxes\tasked about\tp50 µs\tp99 µs\tp50, of that with few")
	first := map[bool]*set{}
	for _, s := range sets {
		if first[s.team] == nil {
			first[s.team] = s
		}
		name := "YAML alone"
		if s.team {
			name = "with a team's Rego"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.1f\t%.1f\t%.2f\n", name, s.rules, s.sandboxes, s.asked, s.took.micros(50), s.took.micros(99),
			s.took.micros(50)/first[s.team].took.micros(50))
	}
	fmt.Fprintf(t, "\n%d decisions of each, in turn\n\n", turns*each)
	return t.Flush()
}

// reloads measures how long 10,000 rules take to become a policy, and how long a
// decision takes at worst meanwhile.
func reloads(ctx context.Context, w io.Writer) error {
	const rules, times = 10_000, 5
	asking := &set{rules: rules, sandboxes: 1, asked: 10}
	if err := asking.compile(ctx); err != nil {
		return err
	}
	var compiled sample
	quiet := asking.during(ctx, func() { time.Sleep(time.Second) })
	var loaded sample
	for range times {
		loaded = append(loaded, asking.during(ctx, func() {
			next := &set{rules: rules, sandboxes: 1, asked: 10}
			began := time.Now()
			// The daemon checks it, and then the gateway's process compiles it.
			for range 2 {
				p, err := engine.Compile(ctx, document(next.rules, next.sandboxes), engine.Options{})
				if err != nil {
					log.Fatal(err)
				}
				next.policy = p
			}
			compiled = append(compiled, time.Since(began))
		})...)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "reload of %d rules: the daemon's check and the gateway's compilation\t%.2f s\tof %d, median\n", rules, compiled.micros(50)/1e6, times)
	fmt.Fprintln(t, "decisions meanwhile\tp50 µs\tp99 µs\tworst ms\tover 5 ms")
	for _, row := range []struct {
		name string
		sample
	}{{"none", quiet}, {"reloads", loaded}} {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.2f\t%d of %d\n", row.name, row.micros(50), row.micros(99), row.micros(100)/1e3, row.over(5*time.Millisecond), len(row.sample))
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// during decides one request after the other, with a pause between as requests
// have, while f runs, and returns what each took. The pause is none of it.
func (s *set) during(ctx context.Context, f func()) sample {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	s.took = nil
	for {
		select {
		case <-done:
			return s.took
		default:
			s.decide(ctx, 1)
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// memory measures a process that holds a policy and nothing else.
func memory(ctx context.Context, w io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "memory of a process with a policy\theap MB\tresident MB")
	for _, rules := range []int{0, 10, 10_000} {
		out, err := exec.CommandContext(ctx, self, "-resident", strconv.Itoa(rules)).Output()
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%d rules\t%s\n", rules, strings.TrimSpace(string(out)))
	}
	return t.Flush()
}

func printResident(ctx context.Context, rules int) error {
	p, err := engine.Compile(ctx, document(rules, 1), engine.Options{})
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var size, pages int
	if _, err := fmt.Sscan(string(status), &size, &pages); err != nil {
		return err
	}
	fmt.Printf("%.1f\t%.1f\n", float64(m.HeapAlloc)/1e6, float64(pages*os.Getpagesize())/1e6)
	runtime.KeepAlive(p)
	return nil
}
