// Command bench measures the gateway beside goproxy as its documentation sets
// it up, in one run and in turn: explicit proxy, kept-alive connections, TLS on
// both legs, one header injected, 1 KB of JSON. Upstream, load, goproxy and
// gateway are a process each, on loopback. Sallyport's side has policy,
// injection and a durable audit on.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"
)

// options of a run; roles get the same.
type options struct {
	role        string
	dir         string
	target      string // of the load and the policy: host:port
	proxy       string // of the load: URL
	roots       string // of the load: PEM file
	profile     string // of the gateway: where its CPU profile goes
	rounds      int
	rules       int
	connections int
	duration    time.Duration
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	var o options
	flag.StringVar(&o.role, "role", "", "what this process plays (set by bench itself)")
	flag.StringVar(&o.dir, "dir", "", "folder for the audit log and keys (default: a temporary one, removed afterwards)")
	flag.StringVar(&o.target, "target", "", "host:port of the upstream (set by bench itself)")
	flag.StringVar(&o.proxy, "proxy", "", "URL of the proxy (set by bench itself)")
	flag.StringVar(&o.roots, "roots", "", "PEM file of roots (set by bench itself)")
	flag.StringVar(&o.profile, "cpuprofile", "", "file for the gateway's CPU profile")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each")
	flag.IntVar(&o.rules, "rules", 1000, "rules in the policy")
	flag.IntVar(&o.connections, "connections", 16, "connections under load")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "length of a round")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	roles := map[string]func(context.Context, options) error{
		"": compare, "upstream": upstreamRole, "goproxy": goproxyRole, "sallyport": sallyportRole, "load": loadRole,
	}
	run, ok := roles[o.role]
	if !ok || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(ctx, o); err != nil {
		log.Fatal(cmp.Or(o.role, "run"), ": ", err)
	}
}

// compare runs the whole and prints it.
func compare(ctx context.Context, o options) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "sallyport-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
	}
	upstream, err := start(ctx, o, "upstream")
	if err != nil {
		return err
	}
	defer upstream.stop(nil)
	o.target = upstream.ready

	names := []string{"goproxy", "sallyport"}
	proxies := map[string]*process{}
	results := map[string][]result{}
	for _, name := range names {
		if proxies[name], err = start(ctx, o, name); err != nil {
			return err
		}
		defer proxies[name].stop(nil)
	}
	for round := range o.rounds + 1 { // the first warms up
		for _, name := range names {
			load := o
			load.proxy, load.roots = proxies[name].ready, filepath.Join(o.dir, name+".pem")
			if round == 0 {
				load.duration = min(o.duration, time.Second)
			}
			r, err := measure(ctx, load)
			if err != nil {
				return fmt.Errorf("loading %s: %w", name, err)
			}
			if round > 0 {
				results[name] = append(results[name], r)
			}
		}
	}
	var s stats
	if err := proxies["sallyport"].stop(&s); err != nil {
		return err
	}
	if err := proxies["goproxy"].stop(nil); err != nil {
		return err
	}
	cpu := map[string]time.Duration{}
	for _, name := range names {
		state := proxies[name].cmd.ProcessState
		cpu[name] = state.UserTime() + state.SystemTime()
	}
	return report(os.Stdout, o, results, cpu, s)
}

func report(w io.Writer, o options, results map[string][]result, cpu map[string]time.Duration, s stats) error {
	rate := func(r result) float64 { return r.Rate }
	half := func(r result) float64 { return r.P50.Seconds() * 1000 }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\trequests/s\tp50 ms\tCPU µs/request\trounds\n")
	for _, name := range []string{"goproxy", "sallyport"} {
		var requests int
		for _, r := range results[name] {
			requests += r.Requests
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.0f\t", name, median(results[name], rate), median(results[name], half),
			float64(cpu[name].Microseconds())/float64(max(requests, 1)))
		for _, r := range results[name] {
			fmt.Fprintf(t, "%.0f ", r.Rate)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "ratio\t%.2f\n", median(results["sallyport"], rate)/median(results["goproxy"], rate))
	fmt.Fprintf(t, "\nof sallyport:\n")
	fmt.Fprintf(t, "requests carried\t%d\n", s.Requests)
	fmt.Fprintf(t, "events written\t%d\t%.2f a request\n", s.Events, float64(s.Events)/float64(max(s.Requests, 1)))
	fmt.Fprintf(t, "data syncs\t%d\n", s.Syncs)
	fmt.Fprintf(t, "rules loaded\t%d\n", s.Rules)
	fmt.Fprintf(t, "decisions not evaluated\t%d\n", s.Unevaluated)
	fmt.Fprintf(t, "\n%d connections, %d rounds of %s each in turn\n", o.connections, o.rounds, o.duration)
	if err := t.Flush(); err != nil {
		return err
	}
	switch {
	case s.Events != 2*s.Requests:
		return fmt.Errorf("%d events for %d requests: every request has a decision and a completion", s.Events, s.Requests)
	case s.Unevaluated != 0:
		return fmt.Errorf("%d decisions were not evaluated", s.Unevaluated)
	}
	return nil
}

func median(rs []result, of func(result) float64) float64 {
	if len(rs) == 0 {
		return 0
	}
	vs := make([]float64, len(rs))
	for i, r := range rs {
		vs[i] = of(r)
	}
	slices.Sort(vs)
	n := len(vs)
	return (vs[(n-1)/2] + vs[n/2]) / 2
}

// process is this program in a role.
type process struct {
	cmd   *exec.Cmd
	out   *bufio.Reader
	ready string // its first line
	ended bool
}

// start runs a role and waits until it says that it is ready.
func start(ctx context.Context, o options, role string) (*process, error) {
	p := &process{cmd: command(ctx, o, role)}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: no sign of life", role), p.stop(nil))
	}
	p.ready = line[:len(line)-1]
	return p, nil
}

func command(ctx context.Context, o options, role string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, self,
		"-role", role, "-dir", o.dir, "-target", o.target, "-proxy", o.proxy, "-roots", o.roots, "-cpuprofile", o.profile,
		"-rules", strconv.Itoa(o.rules), "-connections", strconv.Itoa(o.connections), "-duration", o.duration.String())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	return cmd
}

// stop ends a process and reads what it says last, if wanted.
func (p *process) stop(last any) error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	raw, err := io.ReadAll(p.out)
	if err := errors.Join(err, p.cmd.Wait()); err != nil {
		return err
	}
	if last == nil {
		return nil
	}
	return json.Unmarshal(raw, last)
}
