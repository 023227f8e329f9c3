package daemon

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/internal/secretfile"
	"sallyport/internal/webhook"
)

// tellWebhooks starts what tells servers of events. One that cannot go on takes
// nothing else with it.
func (d *daemon) tellWebhooks(ctx context.Context, g *errgroup.Group) error {
	for i, w := range d.cfg.Webhooks {
		text, err := secretfile.Read(w.SecretFile, maxSecretFile)
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %w", i, err)
		}
		secret, err := webhook.ParseSecret(string(text))
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %s: %w", i, w.SecretFile, err)
		}
		s, err := webhook.New(webhook.Hook{URL: w.URL, Events: w.Events, Secret: secret, Addresses: w.Addresses}, webhook.Options{
			Dir: filepath.Join(d.cfg.IndexDir(), "webhooks"), Last: d.lastEvent(ctx), Logger: d.log,
			Events: func(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error] {
				return audit.Read(ctx, d.cfg.AuditDir(), audit.Query{From: from, Kind: audit.KindLifecycle, Follow: follow})
			},
		})
		if err != nil {
			return err
		}
		g.Go(func() error {
			if err := s.Run(ctx); err != nil {
				d.log.Error("a webhook ends", "url", w.URL, "error", err)
			}
			return nil
		})
	}
	return nil
}
