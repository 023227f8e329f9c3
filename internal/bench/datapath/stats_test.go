package main

import (
	"math"
	"testing"
)

func TestStudent(t *testing.T) {
	for degrees, want := range map[float64]float64{9: 2.2622, 19: 2.0930, 29: 2.0452, 99: 1.9842} {
		if got := student(degrees); math.Abs(got-want) > 0.001 {
			t.Errorf("of %v degrees of freedom got %.4f, want %.4f", degrees, got, want)
		}
	}
}

// Noise that both of a pair share is no noise of the ratio.
func TestRatio(t *testing.T) {
	var a, b []float64
	for i := range 20 {
		noise := 1 + float64(i%7)
		a = append(a, 3*noise)
		b = append(b, 2*noise)
	}
	got := ratio(a, b)
	for _, v := range []float64{got.value, got.low, got.high} {
		if math.Abs(v-1.5) > 1e-9 {
			t.Errorf("got %+v, want 1.5", got)
		}
	}
}
