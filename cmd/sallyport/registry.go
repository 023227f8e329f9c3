package main

import (
	"context"

	"sallyport/sandbox"
)

// registryLogin is that of a registry of images, of the configuration in force.
func (d *daemon) registryLogin(ctx context.Context, registry string) (sandbox.Login, error) {
	for _, r := range d.inForce.Load().Registries {
		if r.Host != registry {
			continue
		}
		l, err := d.broker.RegistryLogin(ctx, r.AuthRef, registry)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	return nil, nil
}
