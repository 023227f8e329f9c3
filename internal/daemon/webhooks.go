package daemon

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"sallyport/internal/secretfile"
	"sallyport/internal/webhook"
	"sallyport/internal/webhook/signature"
)

// tellWebhooks starts what tells servers of events. One that cannot go on takes
// nothing else with it.
func (d *daemon) tellWebhooks(ctx context.Context, g *errgroup.Group) error {
	for i, w := range d.cfg.Webhooks {
		text, err := secretfile.Read(w.SecretFile, maxSecretFile)
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %w", i, err)
		}
		secret, err := signature.ParseSecret(string(text))
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %s: %w", i, w.SecretFile, err)
		}
		s, err := webhook.New(webhook.Hook{URL: w.URL, Events: w.Events, Secret: secret, Addresses: w.Addresses}, webhook.Options{
			Dir: filepath.Join(d.cfg.IndexDir(), "webhooks"), Last: d.events.Last(ctx), Events: d.events.Read, Logger: d.log,
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
