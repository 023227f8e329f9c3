package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// slot is an entry of a small table that the programs read before the maps.
type slot struct {
	table *ebpf.Map
	index uint32
}

func (s slot) read() (n guardNear, err error) {
	if err := s.table.Lookup(s.index, &n); err != nil {
		return n, fmt.Errorf("reading slot %d of %v: %w", s.index, s.table, err)
	}
	return n, nil
}

func (s slot) write(n guardNear) error {
	if err := s.table.Put(s.index, n); err != nil {
		return fmt.Errorf("writing slot %d of %v: %w", s.index, s.table, err)
	}
	return nil
}

// slots are the slots of an endpoint.
func (d *Datapath) slots(generation, link uint32) []slot {
	links, generations := d.objs.NearLinks, d.objs.NearGenerations
	return []slot{{links, link % links.MaxEntries()}, {generations, generation % generations.MaxEntries()}}
}

// bringNear puts an endpoint into its slots, unless another endpoint has them.
func (d *Datapath) bringNear(generation uint32, v guardEndpoint) error {
	for _, s := range d.slots(generation, v.Face.Link) {
		n, err := s.read()
		if err != nil {
			return err
		}
		if n.Generation != 0 && n.Generation != generation {
			continue
		}
		// A program may read while the slot is written: the number that makes it valid
		// comes last.
		n = guardNear{Face: v.Face}
		if err := s.write(n); err != nil {
			return err
		}
		n.Generation = generation
		if err := s.write(n); err != nil {
			return err
		}
	}
	return nil
}

// takeAway frees the slots of an endpoint.
func (d *Datapath) takeAway(generation, link uint32) error {
	for _, s := range d.slots(generation, link) {
		n, err := s.read()
		if err != nil {
			return err
		}
		if n.Generation != generation {
			continue
		}
		n.Generation = 0
		if err := s.write(n); err != nil {
			return err
		}
	}
	return nil
}

// align makes the tables agree with the maps. They differ if a build without the tables
// had the datapath open.
func (d *Datapath) align() error {
	for _, table := range []*ebpf.Map{d.objs.NearLinks, d.objs.NearGenerations} {
		all, err := everySlot(table)
		if err != nil {
			return fmt.Errorf("reading %v: %w", table, err)
		}
		for i, n := range all {
			if n.Generation == 0 || d.speaks(n) {
				continue
			}
			if err := (slot{table, uint32(i)}).write(guardNear{}); err != nil {
				return err
			}
		}
	}
	var (
		generation uint32
		v          guardEndpoint
	)
	entries := d.objs.Endpoints.Iterate()
	for entries.Next(&generation, &v) {
		if !d.speaks(guardNear{Face: v.Face, Generation: generation}) {
			continue
		}
		if err := d.bringNear(generation, v); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("listing endpoints: %w", err)
	}
	return nil
}

// speaks reports whether the maps agree with a slot.
func (d *Datapath) speaks(n guardNear) bool {
	var (
		v          guardEndpoint
		generation uint32
	)
	return d.objs.Endpoints.Lookup(n.Generation, &v) == nil && v.Face == n.Face &&
		d.objs.Ports.Lookup(n.Face.Link, &generation) == nil && generation == n.Generation
}

// everySlot reads a table at once.
func everySlot(table *ebpf.Map) ([]guardNear, error) {
	keys, all := make([]uint32, table.MaxEntries()), make([]guardNear, table.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := table.BatchLookup(&cursor, keys, all, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, err
	}
	if n != len(all) {
		return nil, fmt.Errorf("got %d of %d slots", n, len(all))
	}
	return all, nil
}
