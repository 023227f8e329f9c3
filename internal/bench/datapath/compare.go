package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"sallyport/internal/test/env"
)

// programs of the datapath, in the order in which a packet and its answer meet
// them.
var programs = []string{"port_in", "bridge_in", "port_out"}

// comparison is what one kind of sender moved.
type comparison struct {
	sender string
	rates  [][]float64 // by mode and round: bytes a second
	costs  [][]float64 // by mode and round: bytes a second of processor time
	// by program: nanoseconds a run, by round, while it sends
	took map[string][]float64
	size []float64 // by round: bytes to a run of port_in
}

// kinds of sender.
var kinds = []struct {
	name  string
	start func(ctx context.Context, o options, dir string, b *box) (*sender, error)
}{{"gVisor", startGVisor}, {"plain namespace", startPlain}}

// compare measures the bytes of every kind of sender in all modes.
func (h *host) compare(ctx context.Context, o options, dir string) ([]comparison, error) {
	var all []comparison
	for _, k := range kinds {
		b, err := h.add()
		if err != nil {
			return nil, err
		}
		s, err := k.start(ctx, o, dir, b)
		if err != nil {
			return nil, err
		}
		c, err := h.compareOne(ctx, o, s)
		if err != nil {
			return nil, fmt.Errorf("sending from %s: %w", k.name, err)
		}
		if err := s.stop(); err != nil {
			return nil, err
		}
		c.sender = k.name
		all = append(all, c)
	}
	return all, nil
}

func (h *host) compareOne(ctx context.Context, o options, s *sender) (comparison, error) {
	c := comparison{rates: make([][]float64, len(modes)), costs: make([][]float64, len(modes)), took: map[string][]float64{}}
	for round := range o.rounds + 1 { // the first warms up
		for i := range modes {
			// Each mode is first as often as any other.
			m := (i + round) % len(modes)
			if err := h.enter(modes[m]); err != nil {
				return c, fmt.Errorf("%s: %w", modes[m].name, err)
			}
			moved, err := h.measure(ctx, o, s)
			if err != nil {
				return c, fmt.Errorf("%s: %w", modes[m].name, err)
			}
			if round > 0 {
				c.rates[m] = append(c.rates[m], float64(moved.bytes)/moved.took.Seconds())
				c.costs[m] = append(c.costs[m], float64(moved.bytes)/moved.cpu.Seconds())
			}
		}
	}
	// The kernel's statistics take time themselves: in rounds of their own.
	if err := h.enter(modes[0]); err != nil {
		return c, err
	}
	return c, h.time(o.rounds, c.took, func() error {
		before, err := tallies()
		if err != nil {
			return err
		}
		moved, err := h.measure(ctx, o, s)
		if err != nil {
			return err
		}
		after, err := tallies()
		if err != nil {
			return err
		}
		c.size = append(c.size, float64(moved.bytes)/float64(after["port_in"].runs-before["port_in"].runs))
		return nil
	})
}

// moved is what arrived in one round.
type moved struct {
	bytes int64
	took  time.Duration
	cpu   time.Duration // of sender and sink
}

func (h *host) measure(ctx context.Context, o options, s *sender) (m moved, err error) {
	if ctx.Err() != nil {
		return m, ctx.Err()
	}
	// This process is the sink, and the sender is below it.
	used, err := cpu()
	if err != nil {
		return m, err
	}
	was, began := h.sink.total(), time.Now()
	if err := s.send(order{o.connections, o.duration}); err != nil {
		return m, err
	}
	if err := h.sink.drain(); err != nil {
		return m, err
	}
	m.bytes, m.took = h.sink.total()-was, time.Since(began)
	m.cpu, err = cpu()
	m.cpu -= used
	return m, err
}

// cpu is what this process and all below it have used so far, user and system. The
// work that a packet makes in the kernel is nearly all done for its sender.
func cpu() (time.Duration, error) {
	pids, err := env.Family(os.Getpid())
	if err != nil {
		return 0, err
	}
	return env.CPUOf(pids...)
}
