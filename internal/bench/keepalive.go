package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// keepAlive is the kind of load that has a table of its own.
const keepAlive = "keep-alive"

// compare runs kept-alive connections through each proxy.
func compare(ctx context.Context, o options) (*comparison, error) {
	upstream, err := startUpstream(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer upstream.stop(nil)
	o.kind, o.target = keepAlive, o.upstreams.secured

	proxies := map[string]*process{}
	c := &comparison{options: o, rounds: map[string][]result{}, others: map[int]map[string][]result{}, peak: map[string]int64{}, stats: map[string]*stats{"sallyport": {}, "unsplit": {}, "kept": {}}}
	for _, n := range others {
		c.others[n] = map[string][]result{}
	}
	for _, name := range names {
		if proxies[name], err = start(ctx, o, name); err != nil {
			return nil, err
		}
		defer proxies[name].stop(nil)
	}
	for n := range o.rounds + 1 { // the first warms up
		for _, name := range names {
			load := o
			if n == 0 {
				load.duration = min(o.duration, time.Second)
			}
			r, err := round(ctx, load, name, proxies[name])
			if err != nil {
				return nil, err
			}
			if n > 0 {
				c.rounds[name] = append(c.rounds[name], r)
			}
		}
		if n%2 == 0 {
			continue
		}
		for _, connections := range others {
			for _, name := range names[:2] {
				load := o
				load.connections = connections
				r, err := round(ctx, load, name, proxies[name])
				if err != nil {
					return nil, err
				}
				c.others[connections][name] = append(c.others[connections][name], r)
			}
		}
	}
	for _, name := range names {
		if c.peak[name], err = proxies[name].peak(); err != nil {
			return nil, err
		}
	}
	for _, name := range names[1:] {
		if err := proxies[name].stop(c.stats[name]); err != nil {
			return nil, err
		}
	}
	return c, c.err()
}

// round loads one proxy for a while.
func round(ctx context.Context, load options, name string, proxy *process) (result, error) {
	load.proxy, load.roots = proxy.ready, filepath.Join(load.dir, name+".pem")
	r, err := measure(ctx, load, proxy, nil)
	if err != nil {
		return result{}, fmt.Errorf("loading %s: %w", name, err)
	}
	return r, nil
}
