package main

import (
	"context"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// load is what the programs take with a number of sandboxes.
type load struct {
	attached int
	talking  int                  // of them
	took     map[string][]float64 // by program and round: nanoseconds a run
}

// time runs a round at a time with the kernel's statistics of programs on.
func (h *host) time(rounds int, took map[string][]float64, round func() error) error {
	off, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return err
	}
	defer off.Close()
	for range rounds {
		before, err := tallies()
		if err != nil {
			return err
		}
		if err := round(); err != nil {
			return err
		}
		after, err := tallies()
		if err != nil {
			return err
		}
		each, err := perRun(before, after)
		if err != nil {
			return err
		}
		for name, d := range each {
			took[name] = append(took[name], float64(d.Nanoseconds()))
		}
	}
	return nil
}

// crowd times the programs while sandboxes exchange small messages with the
// gateway, one or many of them over as many connections, in turn.
func (h *host) crowd(ctx context.Context, o options) ([]load, error) {
	if err := h.enter(modes[0]); err != nil {
		return nil, err
	}
	for _, b := range h.boxes {
		if err := h.guard.Detach(b.end.Generation); err != nil {
			return nil, err
		}
	}
	var boxes []*box
	for range o.sandboxes {
		b, err := h.add()
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
	}
	var loads []load
	for _, n := range [][2]int{{1, 1}, {o.sandboxes, 1}, {o.sandboxes, o.sandboxes}} {
		loads = append(loads, load{n[0], n[1], map[string][]float64{}})
	}
	for round := range o.rounds + 1 { // the first warms up
		for i := range loads {
			l := loads[(i+round)%len(loads)]
			took := l.took
			if round == 0 {
				took = map[string][]float64{}
			}
			if err := h.attach(boxes, l.attached); err != nil {
				return nil, err
			}
			if err := h.time(1, took, func() error { return chat(ctx, o, boxes, l.talking) }); err != nil {
				return nil, err
			}
		}
	}
	return loads, nil
}

// attach has the first n of the boxes attached, and the others not.
func (h *host) attach(boxes []*box, n int) error {
	for i, b := range boxes {
		if i < n {
			if err := h.guard.Attach(b.end); err != nil {
				return err
			}
		} else if err := h.guard.Detach(b.end.Generation); err != nil {
			return err
		}
	}
	return nil
}

// chat exchanges messages for one round between the gateway and the first n of
// the boxes, over as many connections as there are boxes.
func chat(ctx context.Context, o options, boxes []*box, n int) error {
	var connections []net.Conn
	for i := range boxes {
		var c net.Conn
		err := boxes[i%n].do(func() (err error) {
			c, err = net.DialTimeout("tcp4", net.JoinHostPort(target, echoPort), 5*time.Second)
			return err
		})
		if err != nil {
			return err
		}
		defer c.Close()
		connections = append(connections, c)
	}
	end := time.Now().Add(o.duration)
	var group errgroup.Group
	for _, c := range connections {
		group.Go(func() error {
			b := make([]byte, 64)
			for time.Now().Before(end) && ctx.Err() == nil {
				if _, err := c.Write(b); err != nil {
					return err
				}
				if _, err := c.Read(b); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}
