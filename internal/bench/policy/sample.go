package main

import (
	"slices"
	"time"
)

// sample is how long some things took.
type sample []time.Duration

// micros is a percentile in microseconds.
func (s sample) micros(percent int) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return float64(sorted[min(len(sorted)*percent/100, len(sorted)-1)]) / float64(time.Microsecond)
}

// over counts what took longer.
func (s sample) over(d time.Duration) (n int) {
	for _, t := range s {
		if t > d {
			n++
		}
	}
	return n
}
