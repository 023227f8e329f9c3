package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sallyport/audit"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy/limit"
)

// Limits lists the counters as they are now.
func (s *Supervisor) Limits(ctx context.Context) ([]limit.Count, error) {
	l := s.o.Limits
	if l == nil {
		return nil, nil
	}
	peer := s.peer()
	if peer != nil {
		within, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		// One that has just ended is counted with the next one's start.
		if err := l.sync(within, peer); err != nil && !errors.Is(err, ipc.ErrClosed) {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prune()
	return l.list(), nil
}

// ResetLimit empties the counters of a limit, of one subject or of all (limit.Every),
// after it has appended the event to the log. It returns the number of counters.
func (s *Supervisor) ResetLimit(ctx context.Context, limit, subject string, e *audit.Event) (int, error) {
	l := s.o.Limits
	if l == nil {
		return 0, nil
	}
	defer s.process.Hold()() // no process begins meanwhile
	peer := s.peer()
	e.Unmapped.Sallyport.State = stateReset
	e.Unmapped.Sallyport.Limits = []audit.LimitUse{{Name: limit, Subject: subject}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.expect(e.ID()); err != nil {
		return 0, err
	}
	if err := s.o.AuditLog.Append(ctx, e); err != nil {
		return 0, err
	}
	if peer != nil {
		within, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		_ = l.pull(within, peer) // so that it is known how many there are
		if err := peer.Call(within, workerapi.MethodReset, workerapi.ResetRequest{Limit: limit, Subject: subject}, &ipc.None{}); err != nil && !errors.Is(err, ipc.ErrClosed) {
			return 0, err
		}
	}
	n := l.empty(limit, subject)
	l.resets = nil // done here, and no other is under way
	if peer != nil {
		within, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		_ = l.pull(within, peer) // the position is beyond the event then
	}
	return n, l.write()
}

func (s *Supervisor) limited() bool { return s.o.Limited == nil || s.o.Limited() }

// pullCounts pulls from the worker each second until ctx is done.
func (s *Supervisor) pullCounts(ctx context.Context) {
	tick := time.NewTicker(pullEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p := s.process.Process()
		if p == nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, s.patience)
		err := s.o.Limits.sync(within, p.Peer)
		cancel()
		switch {
		case err == nil, errors.Is(err, ipc.ErrClosed), ctx.Err() != nil:
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errCounts):
			p.End(fmt.Errorf("asking what it has counted: %w", err))
		default:
			s.o.Logger.Error("the counters of limits cannot be written down", "error", err)
		}
	}
}
