// Command bench measures the gateway beside goproxy as its documentation sets
// it up, in one run and in turn: explicit proxy, kept-alive connections, TLS on
// both legs, one header injected, 1 KB of JSON. Upstream, load, goproxy and
// gateway are a process each, on loopback. Sallyport's side has policy,
// injection and a durable audit on. It is measured as the daemon runs it, the
// gateway in a process without privileges, and in one process.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/gateway/gatehouse"
)

// options of a run; roles get the same.
type options struct {
	role        string
	dir         string
	target      string // of the load and the policy: host:port
	proxy       string // of the load: URL
	roots       string // of the load: PEM file
	profile     string // of the gateway: folder for its profiles
	out         string // Markdown file for the table
	rounds      int
	rules       int
	connections int
	duration    time.Duration
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if len(os.Args) == 2 && os.Args[1] == "gateway" { // started by sallyport's role
		if err := gatehouse.Run(); err != nil {
			log.Fatal("gateway: ", err)
		}
		return
	}
	var o options
	flag.StringVar(&o.role, "role", "", "what this process plays (set by bench itself)")
	flag.StringVar(&o.dir, "dir", "", "folder for the audit log and keys (default: a temporary one, removed afterwards)")
	flag.StringVar(&o.target, "target", "", "host:port of the upstream (set by bench itself)")
	flag.StringVar(&o.proxy, "proxy", "", "URL of the proxy (set by bench itself)")
	flag.StringVar(&o.roots, "roots", "", "PEM file of roots (set by bench itself)")
	flag.StringVar(&o.profile, "profile", "", "folder for the gateway's CPU and allocation profiles")
	flag.StringVar(&o.out, "o", "", "Markdown file for the table")
	flag.IntVar(&o.rounds, "rounds", 9, "rounds of each")
	flag.IntVar(&o.rules, "rules", 1000, "rules in the policy")
	flag.IntVar(&o.connections, "connections", 64, "connections under load")
	flag.DurationVar(&o.duration, "duration", 1500*time.Millisecond, "length of a round")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	roles := map[string]func(context.Context, options) error{
		"": compare, "upstream": upstreamRole, "goproxy": goproxyRole, "sallyport": sallyportRole, "unsplit": unsplitRole, "load": loadRole,
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

	proxies := map[string]*process{}
	c := comparison{options: o, rounds: map[string][]result{}, others: map[int]map[string][]result{}, peak: map[string]int64{}, stats: map[string]*stats{"sallyport": {}, "unsplit": {}}}
	for _, n := range others {
		c.others[n] = map[string][]result{}
	}
	for _, name := range names {
		if proxies[name], err = start(ctx, o, name); err != nil {
			return err
		}
		defer proxies[name].stop(nil)
	}
	for n := range o.rounds + 1 { // the first warms up
		for _, name := range names {
			load := o
			if n == 0 {
				load.duration = min(o.duration, time.Second)
			}
			r, err := round(ctx, load, name, proxies[name])
			if err != nil {
				return err
			}
			if n > 0 {
				c.rounds[name] = append(c.rounds[name], r)
			}
		}
		if n%2 == 0 {
			continue
		}
		for _, connections := range others {
			for _, name := range names[:2] {
				load := o
				load.connections = connections
				r, err := round(ctx, load, name, proxies[name])
				if err != nil {
					return err
				}
				c.others[connections][name] = append(c.others[connections][name], r)
			}
		}
	}
	for _, name := range names {
		if c.peak[name], err = proxies[name].peak(); err != nil {
			return err
		}
	}
	for _, name := range names[1:] {
		if err := proxies[name].stop(c.stats[name]); err != nil {
			return err
		}
	}
	if err := c.print(os.Stdout); err != nil {
		return err
	}
	if err := c.err(); err != nil || o.out == "" {
		return err
	}
	return c.write(o.out)
}

// round loads one proxy for a while.
func round(ctx context.Context, load options, name string, proxy *process) (result, error) {
	load.proxy, load.roots = proxy.ready, filepath.Join(load.dir, name+".pem")
	r, err := measure(ctx, load, proxy)
	if err != nil {
		return result{}, fmt.Errorf("loading %s: %w", name, err)
	}
	return r, nil
}
