package main

import (
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

func TestReport(t *testing.T) {
	const events = `{"Action":"output","Package":"a","Test":"TestGood","Output":"all is well\n"}
{"Action":"pass","Package":"a","Test":"TestGood","Elapsed":2}
{"Action":"output","Package":"a","Test":"TestBad/part","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"a","Test":"TestBad/part","Elapsed":6}
{"Action":"fail","Package":"a","Test":"TestBad","Elapsed":7}
{"Action":"output","Package":"a","Test":"TestPanics","Output":"panic: here\n"}
{"Action":"fail","Package":"a","Elapsed":9.5}
not an event
`
	const more = `{"Action":"output","Package":"c","Test":"TestNot","Output":"needs root\n"}
{"Action":"skip","Package":"c","Test":"TestNot","Elapsed":0}
{"Action":"pass","Package":"c","Elapsed":0.1}
`
	var out strings.Builder
	p := &report{out: &out}
	must.OK(t, p.read("a", strings.NewReader(events)))
	must.OK(t, p.read("c", strings.NewReader(more)))
	p.table()
	const want = `got 1, want 2
panic: here
FAIL     9.5 s  a
not an event
ok       0.1 s  c

The slowest tests:
      7.0 s  a TestBad
      2.0 s  a TestGood
      0.0 s  c TestNot

Skipped:
c: TestNot
needs root
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if !p.failed {
		t.Error("a failed test did not make the report failed")
	}
}
