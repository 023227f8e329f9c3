package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// row is one line of the table.
type row struct {
	what   string
	ours   time.Duration
	peer   string // what it is held against; empty: nothing
	theirs time.Duration
	ratio  float64       // wanted at most, 0: none
	bound  time.Duration // wanted at most, 0: none
}

// crowd is what sandboxes that hibernate hold.
type crowd struct {
	of        int
	processes int
	tmpfs     int64 // bytes
	daemon    int64 // bytes for each
}

// report is what was measured.
type report struct {
	rows  []row
	crowd crowd
}

// beside compares with what a peer took.
func (r *report) beside(what string, ours time.Duration, peer string, theirs time.Duration, ratio float64) {
	r.rows = append(r.rows, row{what: what, ours: ours, peer: peer, theirs: theirs, ratio: ratio})
}

// bounded compares with a time.
func (r *report) bounded(what string, ours time.Duration, peer string, theirs, bound time.Duration) {
	r.rows = append(r.rows, row{what: what, ours: ours, peer: peer, theirs: theirs, bound: bound})
}

// within says whether a row is as it is wanted.
func (r row) within() bool {
	if r.bound != 0 {
		return r.ours <= r.bound
	}
	return r.ratio == 0 || r.ours.Seconds()/r.theirs.Seconds() <= r.ratio
}

const preface = `# What a sandbox's life costs

` + "`make bench-sandbox`" + ` wrote this. Sallyport's daemon has an engine of its own, and plain ` + "`docker`" + ` works on the same one, with the
same runtime (gVisor) and image; the two take turns in one run, and the medians of the turns are here. Docker's containers have
none of what a sandbox has: no disk of its own, no identity at a gateway, no certificate authority, no agent, no record on disk.

`

func (r report) text(o options) string {
	var b strings.Builder
	b.WriteString(preface)
	b.WriteString("| | Sallyport | Docker | ratio | wanted | |\n|---|---|---|---|---|---|\n")
	for _, x := range r.rows {
		theirs, ratio, wanted, verdict := "", "", "", ""
		if x.peer != "" {
			theirs = fmt.Sprintf("%s: %s", x.peer, milliseconds(x.theirs))
			ratio = fmt.Sprintf("%.2f", x.ours.Seconds()/x.theirs.Seconds())
		}
		switch {
		case x.bound != 0:
			wanted = "≤ " + milliseconds(x.bound)
		case x.ratio != 0:
			wanted = fmt.Sprintf("≤ %.2f ×", x.ratio)
		}
		if !x.within() {
			verdict = "missed"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", x.what, milliseconds(x.ours), theirs, ratio, wanted, verdict)
	}
	if r.crowd.of > 0 {
		fmt.Fprintf(&b, "\n%d sandboxes that hibernate have %d processes and %d bytes in file systems that lie in memory; the daemon's own process\nhas %.0f KB more for each.\n",
			r.crowd.of, r.crowd.processes, r.crowd.tmpfs, float64(r.crowd.daemon)/1000)
	}
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	fmt.Fprintf(&b, "\n%d turns of each kind, ten times as many of commands and lists; %d CPUs; Linux %s.\n", o.turns, runtime.NumCPU(), kernel)
	return b.String()
}

func milliseconds(d time.Duration) string {
	ms := float64(d.Microseconds()) / 1000
	if ms < 10 {
		return fmt.Sprintf("%.2f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
