package main

import (
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"text/tabwriter"
	"time"

	"sallyport/internal/test/env"
)

// sandboxed is the kind of load that comes from a gVisor sandbox. It has a table
// of its own.
const sandboxed = "sandbox"

// insideKinds are the kinds that a sandbox tries.
var insideKinds = []string{"steady", "fresh", "bodies", "bodies-scrubbed", "latency", "h2", "grpc"}

// inside is what the whole daemon does, measured from one of its sandboxes: the
// load is in gVisor, and goes by a name of the daemon's resolver, a synthetic
// address, the datapath and the transparent listener. Beside it is goproxy, with
// the same load in a gVisor sandbox that has a cable to it and nothing else.
type inside struct {
	options
	absent string // why it was not measured
	found  findings
}

// findings are what the role says.
type findings struct {
	Rounds map[string]map[string][]result // by kind and contender
	Did    map[string]stats               // the daemon, by kind
	Rest   []rest
}

// rest is what the daemon takes while nothing happens.
type rest struct {
	Rules                  int
	Daemon, Gateway, Total env.Memory
}

// measureInside runs the role, unless something that it needs is not there.
func measureInside(ctx context.Context, o options) (*inside, error) {
	i := &inside{options: o}
	if i.absent = lacking(o); i.absent != "" {
		return i, nil
	}
	o.dir = filepath.Join(o.dir, sandboxed)
	if err := os.Mkdir(o.dir, 0o711); err != nil {
		return nil, err
	}
	cmd := command(ctx, o, "inside")
	cmd.WaitDelay = time.Minute // it has an engine and sandboxes to end
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return i, json.Unmarshal(out, &i.found)
}

// lacking says what is missing for a daemon with sandboxes.
func lacking(o options) string {
	if os.Geteuid() != 0 {
		return "it needs root"
	}
	for _, name := range []string{"sallyport", "sallyport-agent", "runsc", "base.tar"} {
		if _, err := os.Stat(filepath.Join(o.bin, name)); err != nil {
			return fmt.Sprintf("%s is missing: run make setup build", filepath.Join(o.bin, name))
		}
	}
	// In a sandbox there are no libraries of this host's.
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err.Error()
	}
	defer self.Close()
	if libraries, err := self.ImportedLibraries(); err != nil || len(libraries) > 0 {
		return fmt.Sprintf("this program needs %q: build it with CGO_ENABLED=0", libraries)
	}
	return ""
}

func (*inside) intro() string {
	return `## From a gVisor sandbox

The whole daemon, with its engine: the load is a process in a sandbox of its, looks the upstream's name up at the daemon's
resolver for each connection, gets a synthetic address, and what it sends there the datapath steers to the transparent
listener. The upstreams have a documentation address in a network namespace of their own. The policy is as above, no answer
of it is kept. Beside it is the same load in a gVisor sandbox without Sallyport, whose cable ends at the host, with goproxy
there as an explicit proxy, which it asks for the upstream's address. gVisor's own work is in both, and is most of it.
`
}

func (i *inside) print(w io.Writer) error {
	if i.absent != "" {
		_, err := fmt.Fprintf(w, "not measured: %s\n", i.absent)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "kind\tunit\t%s\tsallyport\tratio\trequests\tevents\tsyncs\trules\tfrom a cache\tCPU µs/request\tof %s\n", baseline, baseline)
	for _, name := range insideKinds {
		k, _ := kindOf(name)
		ours := &entry{rounds: i.found.Rounds[name]["sallyport"]}
		theirs := &entry{rounds: i.found.Rounds[name][baseline]}
		did := i.found.Did[name]
		for n, f := range k.figures {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s", f.name, f.unit, theirs.text(f), ours.text(f), ratio(f, ours, theirs))
			if n > 0 { // of the same rounds
				fmt.Fprint(t, "\t\t\t\t\t\t\t")
			} else {
				fmt.Fprintf(t, "\t%d\t%d\t%d\t%d\t%d\t%s\t%s", did.Requests, did.Events, did.Syncs, did.Rules, did.Recalled, ours.cost(), theirs.cost())
			}
			fmt.Fprintln(t)
		}
	}
	fmt.Fprintf(t, "\n%d rounds of %s each in turn, medians; %d CPUs shared with load and upstream\n",
		insideRounds(i.options), min(i.duration, insideDuration), runtime.NumCPU())
	fmt.Fprintf(t, "\nat rest, one sandbox, MB\tdaemon\tgateway\tboth\tshared pages in each process\n")
	for _, r := range i.found.Rest {
		mb := func(n int64) float64 { return float64(n) / 1e6 }
		fmt.Fprintf(t, "%d rules\t%.1f\t%.1f\t%.1f\t%.1f\n", r.Rules,
			mb(r.Daemon.Proportional), mb(r.Gateway.Proportional), mb(r.Total.Proportional), mb(r.Total.Resident))
	}
	fmt.Fprintf(t, "\nthe engine (dockerd, containerd and gVisor) is not in it\n")
	return t.Flush()
}
