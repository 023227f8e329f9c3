// Command sandbox measures what a sandbox's life costs beside plain Docker. It
// needs root and what make setup makes, and works in network and mount namespaces
// of its own.
//
// One daemon with an engine of its own is started. Sallyport and the docker command take
// turns on the same engine, with the same runtime and image; medians of the turns are compared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"sallyport/internal/test/env"
	"sallyport/internal/test/testnet"
)

// options of a run.
type options struct {
	out   string // Markdown file for the table
	turns int    // of each kind
	crowd int    // sandboxes that hibernate
	only  string // kinds, separated by commas; empty: all
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	var o options
	flag.StringVar(&o.out, "o", "", "Markdown `file` for the table")
	flag.IntVar(&o.turns, "turns", 15, "turns of each kind, 3 at least")
	flag.IntVar(&o.crowd, "crowd", 100, "sandboxes that hibernate")
	flag.StringVar(&o.only, "only", "", "`kinds` to measure: creation, commands, sleep, forks, crowd")
	flag.Parse()
	if flag.NArg() > 0 || o.turns < 3 || o.crowd < 1 || o.crowd > 200 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

// run measures everything and prints it.
func run(o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces")
	}
	// Built before, where the network still is what it was.
	tools, err := env.Build("", ".")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tools.Remove()) }()
	if tools.Runsc == "" || tools.Image == "" {
		return errors.New("bin/runsc or bin/base.tar is missing: run make setup")
	}
	if err := testnet.Isolate(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	h, err := newHost(tools)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	var r report
	for _, kind := range []struct {
		name    string
		measure func(context.Context, options, *report) error
	}{
		{"creation", h.creation}, {"commands", h.commands}, {"sleep", h.sleep}, {"forks", h.forks}, {"crowd", h.crowd},
	} {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), kind.name) {
			continue
		}
		if err := kind.measure(ctx, o, &r); err != nil {
			return fmt.Errorf("%w\nthe daemon's log ends:\n%s", err, h.daemon.Log())
		}
	}
	text := r.text(o)
	if _, err := os.Stdout.WriteString(text); err != nil || o.out == "" {
		return err
	}
	return os.WriteFile(o.out, []byte(text), 0o644)
}
