package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"sallyport/internal/test/env"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

func TestInside(t *testing.T) {
	// As in a run, but small.
	testnet.Privileged(t)
	programs, err := env.Build("", "../..")
	must.OK(t, err)
	t.Cleanup(func() { _ = programs.Remove() })
	programs.Need(t)
	if why := lacking(options{bin: programs.Dir}); why != "" {
		must.Lack(t, "%s", why) // with cgo
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	i, err := measureInside(ctx, options{dir: t.TempDir(), bin: programs.Dir, listen: "127.0.0.1", rounds: 1, rules: 10, duration: 50 * time.Millisecond})
	must.OK(t, err)
	var b bytes.Buffer
	must.OK(t, i.print(&b))
	t.Log("\n" + b.String())
	got := rows(b.String())
	for _, name := range insideKinds {
		k, _ := kindOf(name)
		single := name == "h2" || name == "grpc" // which goproxy does not speak
		for _, f := range k.figures {
			row := got[f.name]
			if len(row) < 4 || row[2] == "-" || (row[1] == "-") != single || (row[3] == "-") != single {
				t.Errorf("row of %q: got %q, want figures of both, without goproxy: %t", f.name, row, single)
			}
		}
		if did := i.found.Did[name]; did.Requests == 0 || did.Syncs == 0 || did.Recalled != 0 || did.Rules != 10 {
			t.Errorf("%s: the daemon counted %+v", name, did)
		}
	}
	if n := len(i.found.Rest); n != 2 || i.found.Rest[0].Rules != 0 || i.found.Rest[1].Rules != 10 {
		t.Fatalf("at rest it was weighed %d times: %+v", n, i.found.Rest)
	}
	for _, r := range i.found.Rest {
		if sum := r.Daemon.Proportional + r.Gateway.Proportional; r.Gateway.Proportional <= 0 || r.Total.Proportional > r.Total.Resident || sum <= 0 {
			t.Errorf("with %d rules: %+v", r.Rules, r)
		}
	}
}

func TestInsideIsNotThere(t *testing.T) {
	i, err := measureInside(t.Context(), options{dir: t.TempDir(), bin: t.TempDir()})
	if err != nil || i.absent == "" {
		t.Fatalf("got %q, %v, want a reason", i.absent, err)
	}
	var b bytes.Buffer
	if err := i.print(&b); err != nil || b.String() != "not measured: "+i.absent+"\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}
