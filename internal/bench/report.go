package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// comparison is what a run measured of kept-alive connections.
type comparison struct{ *survey }

// names of its columns: sallyport as the daemon runs it but that no answer of
// the policy is kept, the same in one process, and with answers kept.
var names = []string{"goproxy", "sallyport", "unsplit", "kept"}

// others are numbers of connections that get some rounds too: with few the wait
// for the disk is part of each request's time, with many they share it.
var others = []int{16, 64}

func newComparison(o options) comparison {
	var all []column
	for _, name := range names {
		all = append(all, column{name: name, ours: name != baseline})
	}
	kinds := []kind{{name: keepAlive, target: secured, connections: o.connections, share: 1}}
	for _, n := range others {
		kinds = append(kinds, kind{name: fmt.Sprint(keepAlive, "-", n), target: secured, connections: n, share: 2, of: names[:2]})
	}
	return comparison{newSurvey(o, all, kinds)}
}

func (c comparison) print(w io.Writer) error {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\trequests/s\tp50 ms\tp99 ms\tCPU µs/request\tMB at most\trequests/s by round\n")
	rates := map[string]float64{}
	for _, name := range names {
		at := c.entries[keepAlive][name]
		rs := at.rounds
		rates[name] = median(rs, rate)
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.0f\t%d\t", name, rates[name],
			median(rs, func(r result) float64 { return ms(r.P50) }),
			median(rs, func(r result) float64 { return ms(r.P99) }),
			median(rs, perRequest),
			at.peak>>20)
		for _, r := range rs {
			fmt.Fprintf(t, "%.0f ", r.Rate)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "sallyport/goproxy\t%.2f\n", rates["sallyport"]/rates["goproxy"])
	fmt.Fprintf(t, "sallyport/unsplit\t%.2f\n", rates["sallyport"]/rates["unsplit"])
	fmt.Fprintf(t, "kept/goproxy\t%.2f\n", rates["kept"]/rates["goproxy"])
	for _, k := range c.kinds[1:] {
		ours, theirs := median(c.entries[k.name]["sallyport"].rounds, rate), median(c.entries[k.name][baseline].rounds, rate)
		fmt.Fprintf(t, "with %d connections\t%.2f\t\t\t\t\t%.0f of %.0f\n", k.connections, ours/theirs, ours, theirs)
	}
	s := c.entries[keepAlive]["sallyport"].stats
	fmt.Fprintf(t, "\nof sallyport:\n")
	fmt.Fprintf(t, "requests carried\t%d\n", s.Requests)
	fmt.Fprintf(t, "events written\t%d\t%.2f a request\n", s.Events, float64(s.Events)/float64(max(s.Requests, 1)))
	fmt.Fprintf(t, "data syncs\t%d\t%.1f events each\n", s.Syncs, float64(s.Events)/float64(max(s.Syncs, 1)))
	fmt.Fprintf(t, "rules loaded\t%d\n", s.Rules)
	fmt.Fprintf(t, "decisions not evaluated\t%d\n", s.Unevaluated)
	fmt.Fprintf(t, "decisions from a cache\t%d\tof kept: %d\n", s.Recalled, c.entries[keepAlive]["kept"].stats.Recalled)
	fmt.Fprintf(t, "\n%d connections, %d rounds of %s each in turn, medians; %d CPUs shared with load and upstream\n",
		c.connections, c.rounds, c.duration, runtime.NumCPU())
	return t.Flush()
}

func (comparison) intro() string {
	return `## Kept-alive connections

The same requests go through goproxy, as its documentation sets it up, and through Sallyport, in one run and in turn:
explicit proxy, kept-alive connections, TLS on both legs, 1 KB of JSON, one header injected. Sallyport also decides on
each request by its policy (no answer is kept), has the decision on disk (fdatasync) before anything leaves, scrubs the
response, writes a second event when it has ended and keeps the log's tree. Upstream, load and the proxies are a process each, on loopback;
sallyport is two, as the daemon runs it: the gateway without privileges, and what it asks for each credential. "unsplit"
is the same gateway in one process: the ratio is what the split costs. "kept" is sallyport with answers of the policy kept
for the same input, which is the default.
`
}

// part is a table of the report.
type part interface {
	intro() string
	print(io.Writer) error
}

// report prints the tables, and puts them into a Markdown file, if there is to
// be one.
func report(path string, parts []part) error {
	var b bytes.Buffer
	b.WriteString("# Throughput\n\n`make bench` wrote this.\n")
	for i, p := range parts {
		if i > 0 {
			fmt.Println()
		}
		b.WriteString("\n" + p.intro() + "\n```\n")
		if err := p.print(io.MultiWriter(os.Stdout, &b)); err != nil {
			return err
		}
		b.WriteString("```\n")
	}
	if path == "" {
		return nil
	}
	// The tables' cells are padded; a document has no space at the end of a line.
	lines := bytes.Split(b.Bytes(), []byte("\n"))
	for i := range lines {
		lines[i] = bytes.TrimRight(lines[i], " ")
	}
	return os.WriteFile(path, bytes.Join(lines, []byte("\n")), 0o644)
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
