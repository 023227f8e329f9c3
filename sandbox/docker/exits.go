package docker

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/moby/moby/client"

	"sallyport/internal/periodic"
	"sallyport/sandbox/docker/apierror"
)

const reconnectPause = 500 * time.Millisecond

// Exits reports sandboxes that ended by themselves until ctx is done, when the
// channel is closed. While the engine is away nothing is lost: what ended
// meanwhile is reported when it is back.
func (r *Runtime) Exits(ctx context.Context) (<-chan string, error) {
	if _, err := r.reconcile(ctx); err != nil {
		return nil, apierror.Map(fmt.Errorf("listing containers: %w", err))
	}
	out := make(chan string)
	go func() {
		defer close(out)
		for ctx.Err() == nil {
			if err := r.follow(ctx, out); err != nil && ctx.Err() == nil {
				r.cfg.Log.Warn("lost the engine's events", "error", err)
			}
			periodic.Sleep(ctx, reconnectPause)
		}
	}()
	return out, nil
}

// reconcile notes the sandboxes that run, whoever started them, and returns
// those that ran when we last knew and no longer do.
func (r *Runtime) reconcile(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	before := maps.Clone(r.running)
	r.mu.Unlock()
	list, err := r.client.ContainerList(ctx, client.ContainerListOptions{
		Filters: client.Filters{}.Add("label", labelID).Add("status", "running", "paused"),
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]bool{}
	for _, c := range list.Items {
		id := c.Labels[labelID]
		now[id] = true
		if r.stopping[id] == 0 {
			r.running[id] = true
		}
	}
	var gone []string
	for id := range before {
		if !now[id] {
			gone = append(gone, id)
		}
	}
	return gone, nil
}

// follow reports until the stream of events breaks.
func (r *Runtime) follow(ctx context.Context, out chan<- string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := r.client.Events(ctx, client.EventsListOptions{
		Filters: client.Filters{}.Add("type", "container").Add("label", labelID).Add("event", "die"),
	})
	// Subscribed first, compared second: an end in between is seen twice and
	// reported once.
	gone, err := r.reconcile(ctx)
	if err != nil {
		return err
	}
	for _, id := range gone {
		r.report(ctx, id, out)
	}
	for {
		select {
		case err := <-stream.Err:
			return err
		case m := <-stream.Messages:
			r.report(ctx, m.Actor.Attributes[labelID], out)
		}
	}
}

// report sends the ID of a sandbox that ended, once, unless we ended it.
func (r *Runtime) report(ctx context.Context, id string, out chan<- string) {
	r.mu.Lock()
	watched := r.running[id]
	delete(r.running, id)
	r.mu.Unlock()
	if !watched {
		return
	}
	select {
	case out <- id:
	case <-ctx.Done():
	}
}
