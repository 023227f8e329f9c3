package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	dialers = 32               // connections being opened at once
	opening = 20 * time.Second // for all of them: a slow proxy gets fewer
	settle  = 2 * time.Second  // until a proxy has done what a request leaves to do
	spare   = 1 << 10          // descriptors for all else
)

// idle opens connections, has one request on each, and leaves them open.
func (c *client) idle(ctx context.Context) (result, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return result{}, err
	}
	n := int64(min(uint64(c.connections), limit.Cur-min(limit.Cur, spare)))
	conf := c.config()
	var next atomic.Int64
	var mu sync.Mutex // of held
	var group errgroup.Group
	until := time.Now().Add(opening)
	for range dialers {
		group.Go(func() error {
			for time.Now().Before(until) && ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= n {
					break
				}
				t, err := c.tunnel(ctx, int(i), conf)
				if err != nil {
					return fmt.Errorf("connection %d: %w", i, err)
				}
				if err := t.get(c.target, documentPath, int64(len(document))); err != nil {
					return fmt.Errorf("connection %d: %w", i, err)
				}
				if err := t.SetDeadline(time.Time{}); err != nil {
					return err
				}
				mu.Lock()
				c.held = append(c.held, t.Conn)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	time.Sleep(settle)
	return result{Requests: len(c.held), Open: len(c.held)}, nil
}

// widen lets the processes that this one starts have as many open files as the
// idle connections take, which may be two for each, or all that it may.
func widen() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	const want = 2*idleConnections + spare
	raised := unix.Rlimit{Cur: want, Max: max(want, limit.Max)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil {
		return nil
	}
	// Beyond its own limit only root may go. Other processes inherit the limit that is set
	// here,
	// unlike what Go's runtime raises for itself.
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	return nil
}
