package gatehouse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/internal/cell"
	"sallyport/internal/link"
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
func (w *Warden) Prepare(ctx context.Context, doc policy.Document, revision string, took time.Duration) error {
	w.life.Lock()
	defer w.life.Unlock()
	if err := show(w.o.View, doc, revision); err != nil {
		return fmt.Errorf("showing the gateway its policy: %w", err)
	}
	w.mu.Lock()
	peer := w.peer
	w.mu.Unlock()
	var refused error
	if peer != nil {
		within, cancel := context.WithTimeout(ctx, w.patience+4*took)
		refused = peer.Call(within, callPrepare, useCall{revision}, &link.None{})
		cancel()
		if refused == nil {
			return nil
		}
	}
	err := ctx.Err()
	if err == nil {
		if peer != nil {
			// It could take the processors that the other needs, or make the
			// daemon slow. Nothing leaves meanwhile.
			resume := w.pause()
			defer resume()
		}
		err = w.try(ctx, revision)
	}
	if err != nil {
		if revision != w.revision {
			err = errors.Join(err, w.o.View.Remove(filepath.Dir(documentPath(revision))))
		}
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peer != nil {
		w.end(fmt.Errorf("preparing a policy that a new process takes: %w", refused))
	}
	return nil
}

// pause has the process stand still until the function that it returns is called.
func (w *Warden) pause() (resume func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peer == nil {
		return func() {}
	}
	w.cell.Pause()
	return w.cell.Resume
}

// try says whether a process that serves nobody can compile a policy.
func (w *Warden) try(ctx context.Context, revision string) error {
	here, there, err := link.Pair()
	if err != nil {
		return err
	}
	r, stderr, err := os.Pipe()
	if err != nil {
		return errors.Join(err, here.Close(), there.Close())
	}
	p := &process{warden: w, served: make(chan error, 1), heard: make(chan struct{})}
	p.cell, err = cell.Start(cell.Spec{
		Args: w.o.Args, Env: w.environment(), Files: []*os.File{there}, Stderr: stderr, Root: w.o.View.Dir(), IDs: w.o.IDs,
	})
	_, _ = there.Close(), stderr.Close() // so that both end with the process
	if err != nil {
		return errors.Join(err, here.Close(), r.Close())
	}
	go p.hear(r)
	p.peer = link.New(here, link.Options{Errors: known, MaxFrame: maxFrame, MaxIn: maxAsk})
	go func() { p.served <- p.peer.Serve() }()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	err = p.peer.Call(ctx, callPrepare, useCall{revision}, &link.None{})
	p.cell.Kill()
	if werr := p.wait(); errors.Is(err, link.ErrClosed) {
		err = werr // says more
	}
	return err
}
