package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// tally is how often a program ran, and how long in all.
type tally struct {
	runs uint64
	took time.Duration
}

// tallies reads the kernel's statistics of the pinned programs, by name. They
// count while somebody has enabled them.
func tallies() (map[string]tally, error) {
	files, err := os.ReadDir(pins)
	if err != nil {
		return nil, err
	}
	all := map[string]tally{}
	for _, f := range files {
		l, err := link.LoadPinnedLink(filepath.Join(pins, f.Name()), nil)
		if err != nil {
			continue // a map
		}
		name, t, err := read(l)
		l.Close()
		if err != nil {
			return nil, err
		}
		all[name] = t // the ports share theirs
	}
	return all, nil
}

func read(l link.Link) (string, tally, error) {
	info, err := l.Info()
	if err != nil {
		return "", tally{}, err
	}
	program, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return "", tally{}, err
	}
	defer program.Close()
	about, err := program.Info()
	if err != nil {
		return "", tally{}, err
	}
	s, err := program.Stats()
	if err != nil {
		return "", tally{}, err
	}
	return about.Name, tally{s.RunCount, s.Runtime}, nil
}

// perRun is what one run took between two readings.
func perRun(before, after map[string]tally) (map[string]time.Duration, error) {
	took := map[string]time.Duration{}
	for _, name := range programs {
		n := after[name].runs - before[name].runs
		if n == 0 {
			return nil, fmt.Errorf("%s did not run", name)
		}
		took[name] = (after[name].took - before[name].took) / time.Duration(n)
	}
	return took, nil
}

// interval is an estimate with its 95 % confidence interval.
type interval struct{ value, low, high float64 }

// mean of a sample that is about normal.
func mean(xs []float64) interval {
	var sum, squares float64
	for _, x := range xs {
		sum += x
	}
	n := float64(len(xs))
	m := sum / n
	for _, x := range xs {
		squares += (x - m) * (x - m)
	}
	half := student(n-1) * math.Sqrt(squares/(n-1)/n)
	return interval{m, m - half, m + half}
}

// ratio is the geometric mean of pairs a[i]/b[i].
func ratio(a, b []float64) interval {
	logs := make([]float64, len(a))
	for i := range a {
		logs[i] = math.Log(a[i] / b[i])
	}
	m := mean(logs)
	return interval{math.Exp(m.value), math.Exp(m.low), math.Exp(m.high)}
}

// student is the two-sided 95 % quantile of Student's t, by the expansion of
// Abramowitz and Stegun, 26.7.5: to a thousandth from 9 degrees of freedom on.
func student(degrees float64) float64 {
	const z = 1.959964
	z3, z5, z7 := math.Pow(z, 3), math.Pow(z, 5), math.Pow(z, 7)
	return z + (z3+z)/(4*degrees) + (5*z5+16*z3+3*z)/(96*math.Pow(degrees, 2)) +
		(3*z7+19*z5+17*z3-15*z)/(384*math.Pow(degrees, 3))
}
