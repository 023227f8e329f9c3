package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// report is what a run measured.
type report struct {
	options
	senders []comparison
	walks   [][]float64 // by mode and round: nanoseconds a packet
	loads   []load
}

func (r *report) print(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "## A packet's way\n\n| steered by | ns of processor time a packet | 95 %% | programs ÷ this | 95 %% |\n|---|---|---|---|---|\n")
	for i, m := range modes {
		fmt.Fprintf(&b, "| %s |", m.name)
		cells(&b, mean(r.walks[i]), "%.0f")
		versus(&b, r.walks, i)
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "\n## Bytes\n\n| sender | steered by | MB/s | programs ÷ this | 95 %% | MB for a second of processor time | programs ÷ this | 95 %% |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range r.senders {
		for i, m := range modes {
			fmt.Fprintf(&b, "| %s | %s |", c.sender, m.name)
			for _, by := range [][][]float64{c.rates, c.costs} {
				fmt.Fprintf(&b, " %.0f |", mean(by[i]).value/1e6)
				versus(&b, by, i)
			}
			fmt.Fprintln(&b)
		}
	}
	fmt.Fprintf(&b, "\n## The programs' own run time\n\n| ns a packet |")
	for _, name := range programs {
		fmt.Fprintf(&b, " %s | 95 %% |", name)
	}
	fmt.Fprintf(&b, "\n|---|---|---|---|---|---|---|\n")
	for _, c := range r.senders {
		row(&b, fmt.Sprintf("bytes from %s, %.0f KB a packet", c.sender, mean(c.size).value/1e3), c.took)
	}
	for _, l := range r.loads {
		row(&b, fmt.Sprintf("small messages, %s", l), l.took)
	}
	for _, l := range r.loads[1:] {
		fmt.Fprintf(&b, "| %s ÷ %s |", l, r.loads[0])
		for _, name := range programs {
			cells(&b, ratio(l.took[name], r.loads[0].took[name]), "%.3f")
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "\n%d rounds of each kind in turn, %s long or %d packets; %d connections for bytes, %d for small messages; %d CPUs, shared by sender and sink; %s\n",
		r.rounds, r.duration, burst, r.connections, r.sandboxes, runtime.NumCPU(), kernel())
	_, err := b.WriteTo(w)
	return err
}

func (l load) String() string {
	if l.attached == 1 {
		return "one sandbox"
	}
	return fmt.Sprintf("%d of %d sandboxes", l.talking, l.attached)
}

// cells are an estimate and its interval.
func cells(w io.Writer, v interval, format string) {
	fmt.Fprintf(w, " "+format+" | "+format+" to "+format+" |", v.value, v.low, v.high)
}

// versus puts the programs, which are the first, beside another mode, round by
// round.
func versus(w io.Writer, by [][]float64, mode int) {
	if mode == 0 {
		fmt.Fprint(w, " | |")
		return
	}
	cells(w, ratio(by[0], by[mode]), "%.3f")
}

// kernel says which one this is.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "an unknown kernel"
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return "Linux " + release
}

func row(w io.Writer, name string, took map[string][]float64) {
	fmt.Fprintf(w, "| %s |", name)
	for _, p := range programs {
		cells(w, mean(took[p]), "%.0f")
	}
	fmt.Fprintln(w)
}

const intro = "# What the datapath costs\n\n" +
	"`make bench-datapath` wrote this. The same bridge, cables, routes and listener are steered in turn by the datapath's\n" +
	"programs and by an nftables TPROXY rule, which judges nothing: who sends, what, and to whom. The kernel's documentation\n" +
	"has that rule alone and behind a rule for packets of open connections, so both are here. Intervals are of 95 %; ratios\n" +
	"are geometric means of rounds that followed each other.\n\n" +
	"*A packet's way* is that of an acknowledgement from the sandbox's cable to the gateway's socket, in processor time of the\n" +
	"thread that sends it and does all of it: what else the machine does has little part in it. *Bytes* are what one sandbox\n" +
	"moves as fast as it can, against the clock and against the processor time of sender and sink. *The programs' own run time*\n" +
	"is the kernel's statistic (bpf_stats_enabled), which takes time itself and is off while the others are measured.\n\n"

// write puts the tables into a Markdown file.
func (r *report) write(path string) error {
	b := bytes.NewBufferString(intro)
	if err := r.print(b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
