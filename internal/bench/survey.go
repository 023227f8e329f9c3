package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// survey is what a run measured of further kinds of load.
type survey struct {
	options
	kinds   []kind
	all     []column // which have a column each
	found   []column
	absent  map[string]string // why a contender is not there
	entries map[string]map[string]*entry
}

// entry is what came of a kind for a contender.
type entry struct {
	rounds []result
	failed error // nothing more is asked of it
	stats  *stats
	peak   int64 // resident memory, in bytes
}

func newSurvey(o options, all []column, kinds []kind) *survey {
	s := &survey{options: o, all: all, kinds: kinds, absent: map[string]string{}, entries: map[string]map[string]*entry{}}
	for _, k := range kinds {
		s.entries[k.name] = map[string]*entry{}
	}
	return s
}

// further are the kinds beside keepAlive that are asked for.
func further(o options, only []string) *survey {
	all := columns
	if o.profile != "" { // which are those of the gateway in one process
		all = append(slices.Clone(all), column{name: "unsplit", ours: true})
	}
	return newSurvey(o, all, slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !slices.Contains(only, k.name) }))
}

// run measures one kind after the other, each through fresh processes.
func (s *survey) run(ctx context.Context) error {
	for _, c := range s.all {
		if c.program != nil {
			if err := c.program.Find(ctx); err != nil {
				s.absent[c.name] = err.Error()
				continue
			}
		}
		s.found = append(s.found, c)
	}
	for _, k := range s.kinds {
		if err := s.measure(ctx, k); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

// turns is how many rounds of a kind each column has.
func (s *survey) turns(k kind) int {
	share := cmp.Or(k.share, 3)
	n := (s.rounds + share - 1) / share
	if k.most > 0 {
		n = min(n, k.most)
	}
	return n
}

// slow is how long a round may take until it is the column's last of its kind.
const slow = 5 * time.Second

// measure runs rounds of a kind through the columns in turn.
func (s *survey) measure(ctx context.Context, k kind) error {
	o := s.options
	o.kind, o.connections = k.name, k.connections
	o.dir = filepath.Join(s.dir, k.name)
	if err := os.Mkdir(o.dir, 0o711); err != nil {
		return err
	}
	if o.profile != "" {
		o.profile = filepath.Join(s.profile, k.name)
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
	}
	upstream, err := startUpstream(ctx, &o)
	if err != nil {
		return err
	}
	defer upstream.stop(nil)
	o.target = k.target(o.upstreams)

	found := slices.DeleteFunc(slices.Clone(s.found), func(c column) bool { return k.of != nil && !slices.Contains(k.of, c.name) })
	proxies := map[string]*process{}
	for _, c := range found {
		at := &entry{}
		s.entries[k.name][c.name] = at
		p, err := c.begin(ctx, o)
		if err != nil {
			if at.failed = err; c.needed() {
				return err
			}
			continue
		}
		defer p.stop(nil)
		proxies[c.name] = p
	}
	for n := range s.turns(k) + 1 { // the first warms up
		for _, c := range found {
			at := s.entries[k.name][c.name]
			if at.failed != nil || at.over() {
				continue
			}
			load := o
			load.target = c.address(o.target)
			load.proxy, load.roots = proxies[c.name].ready, filepath.Join(o.dir, c.name+".pem")
			if n == 0 {
				load.duration = min(o.duration, 300*time.Millisecond)
				if k.load != nil { // else it is keepAlive, whose connections are all opened before
					load.connections = min(o.connections, 16)
				}
			}
			began := time.Now()
			r, err := measure(ctx, load, proxies[c.name], upstream)
			if err != nil {
				if at.failed = err; c.needed() || ctx.Err() != nil {
					return fmt.Errorf("loading %s: %w", c.name, err)
				}
				continue
			}
			if n > 0 || r.Unspoken {
				r.Took = time.Since(began)
				at.rounds = append(at.rounds, r)
			}
		}
	}
	for _, c := range found {
		at := s.entries[k.name][c.name]
		if c.needed() {
			if at.peak, err = proxies[c.name].peak(); err != nil {
				return err
			}
		}
		if c.ours {
			at.stats = &stats{}
			if err := errors.Join(proxies[c.name].stop(at.stats), at.stats.err()); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

// needed tells whether there is no comparison without it.
func (c column) needed() bool { return c.ours || c.name == baseline }

// over tells whether a contender has no more rounds of a kind to go.
func (e *entry) over() bool {
	if len(e.rounds) == 0 {
		return false
	}
	last := e.rounds[len(e.rounds)-1]
	return last.Unspoken || last.Took > slow
}
