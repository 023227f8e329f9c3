package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/supervise"
	"sallyport/policy"
)

// The worker compiles a policy too, after the daemon and before it is in force
// anywhere. But the worker may have been taken over, and could refuse every policy
// to keep its destinations. So if it refuses, it is paused and another worker, which
// has read nothing but the policy, compiles it. If that one fails too, the policy is
// refused and the first worker goes on; else the first worker is ended.

// Prepare has the worker compile a policy, which took the daemon the given time. Use puts
// it into force. With any behaviour of the worker, a policy is refused only if a new worker
// refuses it, and the outcome is known within ten seconds, four times the daemon's time,
// and the new worker's time.
func (s *Supervisor) Prepare(ctx context.Context, doc policy.Document, revision string, took time.Duration) error {
	defer s.process.Hold()()
	if err := show(s.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	p := s.process.Process()
	var refused error
	if p != nil {
		within, cancel := context.WithTimeout(ctx, s.patience+4*took)
		refused = p.Peer.Call(within, workerapi.MethodPrepare, workerapi.PolicyRequest{Policy: revision}, &ipc.None{})
		cancel()
		if refused == nil {
			return nil
		}
	}
	err := ctx.Err()
	if err == nil {
		if p != nil {
			// It could take the processors that the other needs, or make the
			// daemon slow. Nothing leaves meanwhile.
			p.Pause()
			defer p.Resume()
		}
		err = s.tryPolicy(ctx, revision)
	}
	if err != nil {
		if revision != s.revision {
			err = errors.Join(err, s.o.View.Remove(filepath.Dir(workerapi.DocumentPath(revision))))
		}
		return err
	}
	if p != nil {
		p.End(fmt.Errorf("preparing a policy that a new process takes: %w", refused))
	}
	return nil
}

// tryPolicy reports whether a worker that serves nothing can compile a policy.
func (s *Supervisor) tryPolicy(ctx context.Context, revision string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	spec := jail.Spec{Args: s.o.Args, Env: s.environment(), Root: s.o.View.Dir(), IDs: s.o.IDs}
	return s.process.RunOnce(spec, ipc.Options{Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame, MaxIn: workerapi.MaxCall}, func(p *supervise.Process) error {
		return p.Peer.Call(ctx, workerapi.MethodPrepare, workerapi.PolicyRequest{Policy: revision}, &ipc.None{})
	})
}
