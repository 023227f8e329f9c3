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

// A policy that the daemon compiled is compiled by the process too, before it is
// in force anywhere. But the process may have been taken over, and its word that
// it cannot would keep the operator from taking a destination away. So then
// another process is asked, which has read nothing but the policy, while the first
// one is stopped: if that cannot either, the policy stays out and the first one
// goes on; if it can, the process that could not is ended.

// Prepare has a policy made ready, which took the daemon some time to compile
// itself. Use puts it into force. Whatever the process does, a policy is refused
// only where a new process would refuse it, and that is known within ten seconds
// and four times as long as the daemon took, and what the new process takes.
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

// tryPolicy says whether a process that serves nobody can compile a policy.
func (s *Supervisor) tryPolicy(ctx context.Context, revision string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	spec := jail.Spec{Args: s.o.Args, Env: s.environment(), Root: s.o.View.Dir(), IDs: s.o.IDs}
	return s.process.RunOnce(spec, ipc.Options{Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame, MaxIn: workerapi.MaxCall}, func(p *supervise.Process) error {
		return p.Peer.Call(ctx, workerapi.MethodPrepare, workerapi.PolicyRequest{Policy: revision}, &ipc.None{})
	})
}
