package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"sallyport/internal/test/env"
	"sallyport/internal/test/testnet"
)

// The addresses of the part's hosts; documentation addresses (RFC 5737).
var (
	outsideHost = netip.MustParsePrefix("198.51.100.10/24") // the upstreams'
	plainHost   = netip.MustParsePrefix("203.0.113.10/24")  // of the sandbox without Sallyport
	plainSide   = netip.MustParseAddr("203.0.113.1")        // goproxy's
)

const (
	insideMetrics  = "127.0.0.1:9464" // of a network namespace of its own
	insideGathered = time.Second / 5  // the daemon's metrics are older at no time
)

// yard is where the role measures: a network of its own.
type yard struct {
	options
	daemon *env.Daemon
	plain  *plain // goproxy's client
	proxy  *process
	closes []func() error // in the order in which they were made
}

// insideRole measures in network and mount namespaces of its own.
func insideRole(ctx context.Context, o options) (err error) {
	if err := testnet.Isolate(); err != nil {
		return err
	}
	y := &yard{options: o}
	defer func() {
		for _, end := range slices.Backward(y.closes) {
			err = errors.Join(err, end())
		}
	}()
	if err := y.build(ctx); err != nil {
		return err
	}
	f := findings{Rounds: map[string]map[string][]result{}, Did: map[string]stats{}}
	if f.Rest, err = y.rests(ctx); err != nil {
		return err
	}
	for _, kind := range insideKinds {
		if err := y.measure(ctx, kind, &f); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// build makes the upstreams, goproxy with its sandbox, and the daemon, which is
// not started.
func (y *yard) build(ctx context.Context) error {
	outside, err := testnet.Start(testnet.Config{Name: "upstream", Address: outsideHost})
	if err != nil {
		return err
	}
	y.closes = append(y.closes, outside.Close)
	if _, err := outside.DNS(map[string][]netip.Addr{upstreamName: {outsideHost.Addr()}}); err != nil {
		return err
	}
	o := y.options
	o.listen = outsideHost.Addr().String()
	var upstream *process
	if err := outside.Do(func() (err error) { upstream, err = startUpstream(ctx, &o); return err }); err != nil {
		return err
	}
	y.closes = append(y.closes, func() error { return upstream.stop(nil) })
	y.upstreams = o.upstreams

	far, err := testnet.Start(testnet.Config{Name: "sandbox", Address: plainHost, HostSide: plainSide})
	if err != nil {
		return err
	}
	y.closes = append(y.closes, far.Close)
	o.listen = plainSide.String()
	if y.proxy, err = start(ctx, o, baseline); err != nil {
		return err
	}
	y.closes = append(y.closes, func() error { return y.proxy.stop(nil) })
	if y.plain, err = startPlain(y.options, far); err != nil {
		return err
	}
	y.closes = append(y.closes, y.plain.close)

	programs, err := env.Existing(y.bin)
	if err != nil {
		return err
	}
	y.daemon = env.NewDaemon(programs, filepath.Join(y.dir, "daemon"))
	return os.Mkdir(y.daemon.Dir, 0o711)
}

// configure writes the daemon's configuration with so many rules, or with none.
// No answer is kept, as in the other tables.
func (y *yard) configure(rules int) error {
	dir, p := y.daemon.Dir, y.daemon.Programs
	var b strings.Builder
	fmt.Fprintf(&b, `dataDir: %[1]s/data
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: spbench0, subnet: 10.233.0.0/24}
metrics: {listen: %[2]q}
engine: {runsc: %[3]s}
sandbox: {tarball: %[4]s}
policy: {cache: 0}
`, dir, insideMetrics, p.Runsc, p.Image)
	if rules > 0 {
		reach := fmt.Sprintf("upstream: {addresses: [%s], roots: %s, resolver: %q}",
			outsideHost.Addr(), filepath.Join(y.dir, "upstream.pem"), net.JoinHostPort(outsideHost.Addr().String(), "53"))
		fmt.Fprintf(&b, "credentials:\n- name: bench\negressAuth:\n")
		fmt.Fprintf(&b, "- {name: bench, destination: %q, authRef: bench, %s}\n", named(y.upstreams.secured), reach)
		fmt.Fprintf(&b, "- {name: bench-multiplexed, destination: %q, authRef: bench, %s}\n", named(y.upstreams.multiplexed), reach)
		fmt.Fprintf(&b, "egress:\n- {name: bench-open, destination: %q, action: allow, %s}\n", named(y.upstreams.open), reach)
		for i := range rules - 3 {
			fmt.Fprintf(&b, "- {name: rule-%[1]d, destination: host-%[1]d.example.test, paths: [\"/v1/**\"], action: allow}\n", i)
		}
	}
	return y.daemon.Write("sallyport.yaml", b.String())
}

// named is an upstream's address as a sandbox calls it.
func named(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort(upstreamName, port)
}

// sandboxName is the one sandbox's.
const sandboxName = "bench"

// program is where this one lies in a sandbox.
const program = "/root/bench"

// rests starts the daemon without rules and with all of them, and weighs it. It
// then runs, with a sandbox that has the load's program.
func (y *yard) rests(ctx context.Context) (all []rest, err error) {
	for _, rules := range []int{0, y.rules} {
		if err := y.configure(rules); err != nil {
			return nil, err
		}
		again := y.daemon.PID() != 0
		if again {
			if err := y.end(ctx); err != nil {
				return nil, err
			}
		} else {
			y.closes = append(y.closes, y.down)
		}
		if err := y.daemon.Start(); err != nil {
			return nil, fmt.Errorf("starting the daemon: %w\n%s", err, y.daemon.Log())
		}
		if !again {
			if err := y.command(ctx, nil, "sandbox", "create", sandboxName); err != nil {
				return nil, err
			}
		}
		if rules > 0 {
			if err := y.command(ctx, strings.NewReader(secret+"\n"), "secret", "set", "bench"); err != nil {
				return nil, err
			}
		}
		r, err := y.weigh()
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	return all, y.command(ctx, self, "run", sandboxName, "--", "sh", "-c", "cat >"+program+" && chmod +x "+program)
}

// weigh says what daemon and gateway take while nothing happens.
func (y *yard) weigh() (r rest, err error) {
	time.Sleep(settle)
	s, err := y.status()
	if err != nil {
		return rest{}, err
	}
	r.Rules = s.Rules
	for _, of := range []struct {
		to   *env.Memory
		pids []int
	}{{&r.Daemon, []int{s.PID}}, {&r.Gateway, []int{s.Gateway.PID}}, {&r.Total, []int{s.PID, s.Gateway.PID}}} {
		if *of.to, err = env.MemoryOf(of.pids...); err != nil {
			return rest{}, err
		}
	}
	return r, nil
}

// end stops the daemon; its sandbox waits for the next.
func (y *yard) end(ctx context.Context) error {
	if err := y.daemon.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if syscall.Kill(y.daemon.PID(), 0) != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}

// down ends the daemon, its sandbox and its engine.
func (y *yard) down() error {
	if err := y.daemon.Down(); err != nil {
		return fmt.Errorf("%w\n%s", err, y.daemon.Log())
	}
	return nil
}

// command runs the command line.
func (y *yard) command(ctx context.Context, in io.Reader, args ...string) error {
	c := y.daemon.Command(ctx, args...)
	c.Stdin = in
	if said, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("sallyport %s: %w: %s", args[0], err, said)
	}
	return nil
}

// status is what the daemon says of itself.
type status struct {
	PID, Rules    int
	Events, Syncs uint64
	Gateway       struct{ PID int }
}

func (y *yard) status() (s status, err error) {
	got, err := y.daemon.Run("", "status", "-o", "json")
	if err != nil || got.Code != 0 {
		return status{}, fmt.Errorf("status: %w %s", err, got)
	}
	return s, json.Unmarshal([]byte(got.Stdout), &s)
}

// did is what the daemon has done so far.
func (y *yard) did() (s stats, err error) {
	now, err := y.status()
	if err != nil {
		return stats{}, err
	}
	s = stats{Events: now.Events, Syncs: now.Syncs, Rules: now.Rules}
	time.Sleep(insideGathered)
	resp, err := http.Get("http://" + insideMetrics + "/metrics")
	if err != nil {
		return stats{}, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return stats{}, err
	}
	metrics := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return slices.Collect(maps.Values(families)), nil })
	return s, s.count(metrics)
}

// insideDuration is a round's at most: shorter than elsewhere, since a sandbox is
// waited for between them.
const insideDuration = time.Second

// insideRounds is how many each kind and contender has.
func insideRounds(o options) int { return min(3, (o.rounds+2)/3) }

// measure runs rounds of a kind from both sandboxes in turn.
func (y *yard) measure(ctx context.Context, name string, f *findings) error {
	k, _ := kindOf(name)
	o := y.options
	o.kind, o.connections, o.duration = name, k.connections, min(o.duration, insideDuration)
	before, err := y.did()
	if err != nil {
		return err
	}
	rounds := map[string][]result{}
	for n := range insideRounds(o) + 1 { // the first warms up
		for _, contender := range []string{baseline, "sallyport"} {
			if got := rounds[contender]; len(got) > 0 && got[0].Unspoken {
				continue
			}
			load := o
			if n == 0 {
				load.duration = min(o.duration, 300*time.Millisecond)
				load.connections = min(o.connections, 16)
			}
			r, err := y.round(ctx, contender, load, k.target(y.upstreams))
			if err != nil {
				return fmt.Errorf("loading %s: %w", contender, err)
			}
			if n > 0 || r.Unspoken {
				rounds[contender] = append(rounds[contender], r)
			}
		}
	}
	f.Rounds[name] = rounds
	f.Did[name], err = y.since(before)
	return err
}

// since is what the daemon has done since, when the last of its requests is in
// the log. Beside the events of requests there may be others.
func (y *yard) since(before stats) (did stats, err error) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := y.did()
		if err != nil {
			return stats{}, err
		}
		did = stats{
			Requests: now.Requests - before.Requests, Events: now.Events - before.Events, Syncs: now.Syncs - before.Syncs,
			Rules: now.Rules, Unevaluated: now.Unevaluated - before.Unevaluated, Recalled: now.Recalled - before.Recalled,
		}
		if did.Events >= 2*did.Requests && did.Unevaluated == 0 {
			return did, nil
		}
	}
	return stats{}, fmt.Errorf("the daemon counted %+v: every request has a decision and a completion", did)
}

// round is one of a load in a contender's sandbox.
func (y *yard) round(ctx context.Context, contender string, load options, target string) (r result, err error) {
	load.target = target
	var cmd *exec.Cmd
	cpu := y.proxy.cpu
	if contender == baseline {
		load.proxy, load.roots = y.proxy.ready, plainRoots
		cmd = y.plain.command(ctx, loadArgs(load)...)
	} else {
		s, err := y.status()
		if err != nil {
			return result{}, err
		}
		cpu = func() (time.Duration, error) { return env.CPUOf(s.PID, s.Gateway.PID) }
		load.target = named(target)
		cmd = y.daemon.Command(ctx, append([]string{"run", sandboxName, "--", program}, loadArgs(load)...)...)
	}
	before, err := cpu()
	if err != nil {
		return result{}, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("%w: %s", err, said.Bytes())
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return result{}, err
	}
	after, err := cpu()
	r.CPU = after - before
	return r, err
}

// loadArgs are those of the load in a sandbox, which is over when it has said
// what came of it.
func loadArgs(o options) []string {
	return []string{"-role", "load", "-once", "-kind", o.kind, "-target", o.target, "-proxy", o.proxy, "-roots", o.roots,
		"-connections", strconv.Itoa(o.connections), "-duration", o.duration.String()}
}
