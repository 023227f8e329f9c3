package daemon

import (
	"context"
	"errors"

	"sallyport/gateway/access"
)

// clients are the users of the explicit proxy as the API sees them, with an
// event for each change.
type clients struct{ d *daemon }

func (c clients) Add(ctx context.Context, name string, tags map[string]string) (access.Client, string, error) {
	added, token, err := c.d.clients.Add(name, tags)
	if err != nil {
		return access.Client{}, "", err
	}
	if err := c.say(ctx, added, "added"); err != nil {
		return access.Client{}, "", errors.Join(err, c.d.clients.Remove(name)) // its token was never shown
	}
	c.d.supervisor.Clients()
	return added, token, nil
}

func (c clients) Remove(ctx context.Context, name string) error {
	var removed access.Client
	for _, have := range c.d.clients.List() {
		if have.Name == name {
			removed = have
		}
	}
	if err := c.d.clients.Remove(name); err != nil {
		return err
	}
	c.d.supervisor.Clients()
	return c.say(context.WithoutCancel(ctx), removed, "removed")
}

func (c clients) List() []access.Client { return c.d.clients.List() }

func (c clients) say(ctx context.Context, who access.Client, state string) error {
	e := c.d.changed("client/"+who.Name, "client "+who.Name, state)
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID, x.Tags = who.Name, who.ID, who.Tags
	return c.d.auditLog.Append(ctx, e)
}
