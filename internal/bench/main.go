// Command bench measures the gateway beside goproxy as its documentation sets
// it up, in one run and in turn: explicit proxy, TLS on both legs, one header
// injected. Upstream, load, goproxy and gateway are a process each, on loopback.
// Sallyport's side has policy, injection and a durable audit on. It is measured
// as the daemon runs it, the gateway in a process without privileges, and, with
// kept-alive connections and 1 KB of JSON, in one process too. Further kinds of
// load (see kinds) have a row each, with squid, mitmproxy and iron-proxy where
// they are installed. As root, after make setup, the whole daemon is measured
// too, from a gVisor sandbox (see inside).
//
// A run is bounded in count and time, and leaves nothing behind but its report.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/gateway/worker"
)

// options of a run; roles get the same.
type options struct {
	role        string
	dir         string
	upstreams   upstreams
	target      string // of the load: host:port
	kind        string // of the load
	proxy       string // of the load: URL, or several with a space between
	roots       string // of the load: PEM file
	copies      string // folder for copies of this program
	program     string // that plays a role: this one, or a copy
	once        bool   // the load ends when it has said what came of it
	listen      string // address of goproxy and of the upstreams
	bin         string // folder of the daemon, the agent, gVisor and the base image
	profile     string // of the gateway: folder for its profiles
	out         string // Markdown file for the report
	only        string // kinds, with a comma between
	rounds      int
	rules       int
	connections int
	duration    time.Duration
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if len(os.Args) == 2 && os.Args[1] == "gateway" { // started by sallyport's role
		if err := worker.Run(); err != nil {
			log.Fatal("gateway: ", err)
		}
		return
	}
	var o options
	flag.StringVar(&o.role, "role", "", "what this process plays (set by bench itself)")
	flag.StringVar(&o.dir, "dir", "", "folder for the audit log and keys (default: a temporary one, removed afterwards)")
	flag.StringVar(&o.target, "target", "", "host:port that the load is for (set by bench itself)")
	flag.TextVar(&o.upstreams, "upstreams", upstreams{}, "host:port of each upstream (set by bench itself)")
	flag.StringVar(&o.kind, "kind", keepAlive, "kind of load (set by bench itself)")
	flag.StringVar(&o.proxy, "proxy", "", "URLs of the proxy (set by bench itself)")
	flag.StringVar(&o.roots, "roots", "", "PEM file of roots (set by bench itself)")
	flag.BoolVar(&o.once, "once", false, "end when the load is over (set by bench itself)")
	flag.StringVar(&o.listen, "listen", "127.0.0.1", "address to listen on (set by bench itself)")
	flag.StringVar(&o.bin, "bin", "bin", "folder of what make setup and make build have made")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU and allocation profiles of the gateway in one process")
	flag.StringVar(&o.out, "o", "", "Markdown file for the report")
	flag.StringVar(&o.only, "only", "", "kinds of load to measure: "+strings.Join(kindNames(), ", ")+" (default: all)")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds of each; of a further kind a third as many")
	flag.IntVar(&o.rules, "rules", 1000, "rules in the policy")
	flag.IntVar(&o.connections, "connections", 128, "connections under load")
	flag.DurationVar(&o.duration, "duration", 1200*time.Millisecond, "length of a round")
	flag.Parse()

	roles := map[string]func(context.Context, options) error{
		"": whole, "upstream": upstreamRole, "load": loadRole,
		"goproxy": goproxyRole, "sallyport": sallyportRole, "unsplit": unsplitRole, "kept": sallyportRole,
		"inside": insideRole, "wait": waitRole,
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run, ok := roles[o.role]
	if !ok || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(ctx, o); err != nil {
		log.Fatal(cmp.Or(o.role, "run"), ": ", err)
	}
}

// longest is how long all of it may take.
const longest = 15 * time.Minute

// whole runs everything that is asked for, and reports it.
func whole(ctx context.Context, o options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	only, err := chosen(o.only)
	if err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "sallyport-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
		// squid's helpers, which are nobody, have to reach theirs; what is secret
		// has a mode of its own.
		if err := os.Chmod(o.dir, 0o711); err != nil {
			return err
		}
	}
	o.copies = filepath.Join(o.dir, "copies")
	if err := os.Mkdir(o.copies, 0o711); err != nil {
		return err
	}
	if err := widen(); err != nil {
		return err
	}
	var parts []part
	if slices.Contains(only, keepAlive) {
		c := newComparison(o)
		if err := c.run(ctx); err != nil {
			return err
		}
		parts = append(parts, c)
	}
	if s := further(o, only); len(s.kinds) > 0 {
		if err := s.run(ctx); err != nil {
			return err
		}
		parts = append(parts, s)
	}
	if slices.Contains(only, sandboxed) {
		i, err := measureInside(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", sandboxed, err)
		}
		parts = append(parts, i)
	}
	if slices.Contains(only, replayKind) {
		r := &replays{options: o}
		if err := r.run(ctx); err != nil {
			return err
		}
		parts = append(parts, r)
	}
	return report(o.out, parts)
}
