package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// kind is a kind of load: a row of the table for each of its figures.
type kind struct {
	name        string
	target      func(upstreams) string
	connections int
	load        func(*client, context.Context) (result, error) // a round of it, in a process of its own
	share       int                                            // it has one in so many of the rounds that are asked for
	most        int                                            // rounds; 0 is as many as that
	of          []string                                       // columns; nil is all
	figures     []figure
}

// figure is what a round says of a proxy.
type figure struct {
	name  string // of its row
	unit  string
	value func(result) float64
	less  bool // is better
}

// idleConnections is how many are opened to be left alone.
const idleConnections = 10_000

// keepAlive is the kind of load that has a table of its own.
const keepAlive = "keep-alive"

// kinds are the kinds of load beside keepAlive. There are many, so that each has a third of
// the rounds.
var kinds = []kind{
	{
		name: "steady", target: secured, connections: 128, load: (*client).documentsInTurn,
		figures: []figure{{name: "kept-alive connections, 128", unit: "requests/s", value: rate}},
	},
	{
		name: "steady-few", target: secured, connections: 16, load: (*client).documentsInTurn,
		figures: []figure{{name: "kept-alive connections, 16", unit: "requests/s", value: rate}},
	},
	{
		name: "fresh", target: secured, connections: 16, load: (*client).freshResumed,
		figures: []figure{{name: "fresh connection each, sessions kept", unit: "requests/s", value: rate}},
	},
	{
		name: "fresh-whole", target: secured, connections: 16, load: (*client).freshWhole,
		figures: []figure{{name: "fresh connection each, no session kept", unit: "requests/s", value: rate}},
	},
	{
		name: "bodies", target: open, connections: 4, load: (*client).bodies,
		figures: []figure{{name: "bodies of 64 MiB, nothing injected", unit: "MB/s", value: throughput}},
	},
	{
		name: "bodies-scrubbed", target: secured, connections: 4, load: (*client).bodies,
		figures: []figure{{name: "bodies of 64 MiB, injected (and scrubbed)", unit: "MB/s", value: throughput}},
	},
	{
		name: "latency", target: secured, connections: 1, load: (*client).documentsInTurn,
		figures: []figure{
			{name: "one request at a time, p50", unit: "µs", value: func(r result) float64 { return micros(r.P50) }, less: true},
			{name: "one request at a time, p99", unit: "µs", value: func(r result) float64 { return micros(r.P99) }, less: true},
		},
	},
	{
		name: "h2", target: multiplexed, connections: 100, load: (*client).documents,
		figures: []figure{{name: "HTTP/2, 100 streams of one connection", unit: "requests/s", value: rate}},
	},
	{
		name: "grpc", target: multiplexed, connections: 100, load: (*client).unary,
		figures: []figure{{name: "gRPC unary, 100 calls on one connection", unit: "calls/s", value: rate}},
	},
	{
		name: "idle", target: secured, connections: idleConnections, load: (*client).idle, most: 1,
		figures: []figure{
			{name: "idle connections, memory of each", unit: "KB", value: func(r result) float64 {
				return float64(r.Grown) / 1024 / float64(max(r.Open, 1))
			}, less: true},
			{name: "at rest, memory", unit: "MB", value: func(r result) float64 { return float64(r.Rest.Proportional) / 1e6 }, less: true},
			{name: "at rest, shared pages in each process", unit: "MB", value: func(r result) float64 { return float64(r.Rest.Resident) / 1e6 }, less: true},
		},
	},
}

func secured(u upstreams) string     { return u.secured }
func open(u upstreams) string        { return u.open }
func multiplexed(u upstreams) string { return u.multiplexed }

func rate(r result) float64          { return r.Rate }
func throughput(r result) float64    { return r.Bytes / 1e6 }
func micros(d time.Duration) float64 { return d.Seconds() * 1e6 }

func kindOf(name string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

func kindNames() []string {
	names := []string{keepAlive}
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return append(names, sandboxed, replayKind)
}

// chosen are the names in a list, all of them when it is empty.
func chosen(list string) ([]string, error) {
	if list == "" {
		return kindNames(), nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(kindNames(), name) {
			return nil, fmt.Errorf("-only: no kind of load is called %q: there are %s", name, strings.Join(kindNames(), ", "))
		}
	}
	return names, nil
}
