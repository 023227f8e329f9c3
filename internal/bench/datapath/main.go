// Command datapath measures the guard of the sandboxes' network. It needs root,
// nft(8) and runsc, and works in network and mount namespaces of its own.
//
// One bridge is guarded by our programs and has an nftables TPROXY rule instead,
// in turn. Measured are the way of a single packet to the gateway's listener, in
// processor time, and how many bytes a sandbox moves there, from gVisor and from
// a plain network namespace, whose sender is the faster one. Then, what the
// programs take for a packet while one sandbox, and while many, exchange small
// messages with the gateway.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/internal/test/testnet"
)

// options of a run.
type options struct {
	role        string
	runsc       string // gVisor
	out         string // Markdown file for the tables
	rounds      int    // of each kind
	duration    time.Duration
	connections int // of one sender
	sandboxes   int // where there are many
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	var o options
	flag.StringVar(&o.role, "role", "", "what this process plays (set by bench itself)")
	flag.StringVar(&o.runsc, "runsc", "bin/runsc", "gVisor's `program`")
	flag.StringVar(&o.out, "o", "", "Markdown `file` for the tables")
	flag.IntVar(&o.rounds, "rounds", 30, "rounds of each kind, 10 at least")
	flag.IntVar(&o.connections, "connections", 4, "connections of one sender")
	flag.IntVar(&o.sandboxes, "sandboxes", 100, "sandboxes, where there are many")
	flag.DurationVar(&o.duration, "duration", 300*time.Millisecond, "length of a round")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 10 || o.connections < 1 || o.sandboxes < 2 || o.sandboxes > 200 {
		flag.Usage()
		os.Exit(2)
	}
	roles := map[string]func(options) error{"": run, "send": sendRole}
	play, ok := roles[o.role]
	if !ok {
		flag.Usage()
		os.Exit(2)
	}
	if err := play(o); err != nil {
		log.Fatal(cmp.Or(o.role, "run"), ": ", err)
	}
}

// run measures everything and prints it.
func run(o options) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces")
	}
	if err := testnet.Isolate(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h, err := newHost()
	if err != nil {
		return err
	}
	defer h.close()
	var r report
	if r.walks, err = h.walk(ctx, o); err != nil {
		return err
	}
	if r.senders, err = h.compare(ctx, o, dir); err != nil {
		return err
	}
	if r.loads, err = h.crowd(ctx, o); err != nil {
		return err
	}
	r.options = o
	if err := r.print(os.Stdout); err != nil || o.out == "" {
		return err
	}
	return r.write(filepath.Clean(o.out))
}
