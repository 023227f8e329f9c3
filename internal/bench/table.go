package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
)

func (s *survey) intro() string {
	return `## Further kinds of load

The proxies are set up as above, and, where they are installed, squid with ssl-bump, one process, mitmproxy with large
bodies streamed, and iron-proxy with its list of allowed hosts, its injection of secrets and its line of log for each
request. None of them but Sallyport has the decision on disk before anything leaves, or looks for the secret in what comes
back. The ratios are Sallyport's, above 1 where Sallyport does better; "-" is a proxy that does not speak the protocol to
its client, or is not there. Fresh connections and bodies are carried 16 and 4 at a time. Memory at rest is by the
processes' shares of what they have in common (PSS); sallyport's two run one program, whose pages the row below counts in
each (RSS).

The programs squid (of Debian's squid-openssl: its squid has no ssl-bump), mitmdump (of mitmproxy) and iron-proxy (of
github.com/ironsh/iron-proxy) are looked for on PATH, and get a row when one is there:

    apt-get install squid-openssl mitmproxy
    PATH=/where/iron-proxy/is:$PATH make bench

A squid that is not where it was built for has its helpers in the folder that SQUID_HELPERS names; a mitmproxy that is not
where Python looks needs PYTHONPATH.
`
}

func (s *survey) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "kind\tunit")
	for _, c := range s.all {
		fmt.Fprintf(t, "\t%s", c.name)
	}
	fmt.Fprintf(t, "\tratio to %s", baseline)
	for _, c := range s.others() {
		fmt.Fprintf(t, "\tto %s", c.name)
	}
	fmt.Fprintln(t)
	for _, k := range s.kinds {
		for _, f := range k.figures {
			fmt.Fprintf(t, "%s\t%s", f.name, f.unit)
			for _, c := range s.all {
				fmt.Fprintf(t, "\t%s", s.entries[k.name][c.name].text(f))
			}
			fmt.Fprintf(t, "\t%s", s.ratio(k, f, baseline))
			for _, c := range s.others() {
				fmt.Fprintf(t, "\t%s", s.ratio(k, f, c.name))
			}
			fmt.Fprintln(t)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	s.remarks(w)
	fmt.Fprintf(w, "\n%d rounds of %s each in turn, medians; %d CPUs shared with load and upstream\n\n",
		(s.rounds+2)/3, s.duration, runtime.NumCPU())

	fmt.Fprint(t, "\tsallyport's\tevents\tdata\trules\tnot\tCPU µs/request\tshares of the CPUs\tCPU µs/request\tshares of the CPUs\n")
	fmt.Fprint(t, "\trequests\twritten\tsyncs\tloaded\tevaluated\tof sallyport\tload, upstream, proxy\tof goproxy\tload, upstream, proxy\n")
	for _, k := range s.kinds {
		ours := s.entries[k.name]["sallyport"]
		theirs := s.entries[k.name][baseline]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", k.name, ours.stats.Requests, ours.stats.Events, ours.stats.Syncs,
			ours.stats.Rules, ours.stats.Unevaluated, ours.cost(), ours.shares(), theirs.cost(), theirs.shares())
	}
	return t.Flush()
}

// value is the median of a figure, and whether there is one.
func (e *entry) value(f figure) (float64, bool) {
	if !e.spoken() {
		return 0, false
	}
	return median(e.rounds, f.value), true
}

func (e *entry) text(f figure) string {
	v, ok := e.value(f)
	switch {
	case !ok:
		return "-"
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// others are the proxies beside goproxy that are there.
func (s *survey) others() []column {
	return slices.DeleteFunc(slices.Clone(s.found), func(c column) bool { return c.needed() })
}

func (s *survey) ratio(k kind, f figure, to string) string {
	return ratio(f, s.entries[k.name]["sallyport"], s.entries[k.name][to])
}

// ratio is above 1 where the first does better.
func ratio(f figure, our, their *entry) string {
	ours, ok := our.value(f)
	theirs, both := their.value(f)
	if f.less {
		ours, theirs = theirs, ours
	}
	if !ok || !both || theirs <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ours/theirs)
}

// remarks say what a figure in the table does not.
func (s *survey) remarks(w io.Writer) {
	fmt.Fprintln(w)
	for _, c := range s.all {
		if why := s.absent[c.name]; why != "" {
			fmt.Fprintf(w, "%s: %s\n", c.name, why)
		}
	}
	for _, k := range s.kinds {
		for _, c := range s.found {
			at := s.entries[k.name][c.name]
			if at.failed != nil {
				fmt.Fprintf(w, "%s: %s failed: %v\n", k.name, c.name, at.failed)
			}
			if len(at.rounds) == 0 {
				continue
			}
			last := at.rounds[len(at.rounds)-1]
			switch {
			case last.Unspoken:
				fmt.Fprintf(w, "%s: %s does not speak it\n", k.name, c.name)
			case last.Open > 0 && last.Open < k.connections:
				fmt.Fprintf(w, "%s: %s had %d connections, not %d, for want of time or descriptors\n", k.name, c.name, last.Open, k.connections)
			case last.Resumed > 0:
				fmt.Fprintf(w, "%s: %s resumed %d of %d sessions\n", k.name, c.name, last.Resumed, last.Requests)
			}
		}
	}
}

// spoken tells whether there is anything to say.
func (e *entry) spoken() bool { return e != nil && len(e.rounds) > 0 && !e.rounds[0].Unspoken }

// cost is the proxy's CPU time for a request, in microseconds. Other work of the machine is
// not in it.
func (e *entry) cost() string {
	if !e.spoken() {
		return "-"
	}
	return fmt.Sprintf("%.0f", median(e.rounds, perRequest))
}

func perRequest(r result) float64 { return micros(r.CPU) / float64(max(r.Requests, 1)) }

// shares are medians, in percent.
func (e *entry) shares() string {
	if !e.spoken() {
		return "-"
	}
	of := func(f func(shares) float64) float64 {
		return 100 * median(e.rounds, func(r result) float64 { return f(r.Shares) })
	}
	return fmt.Sprintf("%.0f %% %.0f %% %.0f %%",
		of(func(s shares) float64 { return s.load }),
		of(func(s shares) float64 { return s.upstream }),
		of(func(s shares) float64 { return s.proxy }))
}
