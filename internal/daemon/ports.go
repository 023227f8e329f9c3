package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/supervisor"
	"sallyport/internal/api"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
	"sallyport/sandbox/datapath"
)

// exposedOf is the sandbox of an ID, whether it runs or not.
func (d *daemon) exposedOf(id string) (sandbox.Info, error) {
	if d.sandboxes != nil {
		for _, i := range d.sandboxes.List() {
			if i.ID == id {
				return i, nil
			}
		}
	}
	return sandbox.Info{}, sandbox.ErrNotFound
}

// whose is who an exposed sandbox is.
func (d *daemon) whose(_ context.Context, id string) (policy.Sandbox, error) {
	i, err := d.exposedOf(id)
	return identity(i), err
}

// wake runs an exposed sandbox and says where it is.
func (d *daemon) wake(ctx context.Context, id string) (gateway.Identity, error) {
	i, err := d.exposedOf(id)
	if err == nil { // also one that runs: it is in use, and does not fall asleep just now
		i, err = d.sandboxes.Start(ctx, i.Name)
	}
	if err == nil && i.ID != id {
		err = sandbox.ErrNotFound // which another has the name of by now
	}
	return gateway.Identity{Sandbox: identity(i), Address: i.Address}, err
}

// reach begins to connect to a port of an exposed sandbox.
func (d *daemon) reach(id string, port uint16) (*os.File, error) {
	i, err := d.exposedOf(id)
	if err != nil {
		return nil, err
	}
	if !i.Address.IsValid() {
		return nil, fmt.Errorf("%w: %s does not run", sandbox.ErrNotFound, i.Name)
	}
	f, err := datapath.Connecting(netip.AddrPortFrom(i.Address, port))
	if err != nil {
		return nil, err
	}
	// Another has its address no sooner than its session has ended.
	if now, err := d.exposedOf(id); err != nil || now.Generation != i.Generation || now.Address != i.Address {
		return nil, errors.Join(fmt.Errorf("%w: %s has ended meanwhile", sandbox.ErrNotFound, i.Name), f.Close())
	}
	return f, nil
}

// inside connects to a port of an exposed sandbox as programs in it would.
func (d *daemon) inside(ctx context.Context, id string, port uint16) (supervisor.Stream, error) {
	i, err := d.exposedOf(id)
	if err != nil {
		return nil, err
	}
	c, err := d.sandboxes.Connect(ctx, i.Name, wire.HostLocal, port)
	switch {
	case errors.Is(err, sandbox.ErrNoPort):
		return nil, fmt.Errorf("%w: %w", inbound.ErrNoListener, err)
	case errors.Is(err, channel.ErrBusy):
		return nil, fmt.Errorf("%w: %w", inbound.ErrLoopbackBusy, err)
	case errors.Is(err, sandbox.ErrEarlier):
		return nil, fmt.Errorf("%w: %w", inbound.ErrLoopbackEarlier, err)
	case err != nil:
		return nil, err
	}
	// A sandbox keeps its name for as long as it is there: if it is now, it was the
	// one that was connected to.
	if _, err := d.exposedOf(id); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// exposures are the exposed ports as the API sees them, with an event for each
// change.
type exposures struct{ d *daemon }

// Expose records the exposure before it is one.
func (x exposures) Expose(ctx context.Context, i sandbox.Info, port uint16, lasts time.Duration) (client.Exposed, error) {
	d := x.d
	if d.cfg.Inbound.Listen == "" {
		return client.Exposed{}, fmt.Errorf("%w: inbound.listen is not set: an operator can set it, as in inbound: {listen: \"127.0.0.1:7080\"}", api.ErrNotExposable)
	}
	if !d.rules.Policy().Exposable(identity(i), port) {
		return client.Exposed{}, fmt.Errorf("%w: no expose rule allows port %d of %s: an operator can add one", api.ErrNotExposable, port, i.Name)
	}
	if err := x.say(ctx, i, port, "exposed", fmt.Sprintf("for %v", lasts)); err != nil {
		return client.Exposed{}, err
	}
	e, token, err := d.exposed.Add(i.Name, i.ID, i.Spec.Owner, port, lasts)
	if err != nil {
		return client.Exposed{}, errors.Join(err, x.say(context.WithoutCancel(ctx), i, port, "unexposed", "it could not be exposed"))
	}
	if _, err := d.exposedOf(i.ID); err != nil { // removed meanwhile
		return client.Exposed{}, errors.Join(err, d.exposed.Forget(i.ID))
	}
	d.supervisor.Ports()
	shown := x.shown(e)
	return client.Exposed{Exposure: shown, Token: token, Visit: shown.URL + "?token=" + token}, nil
}

func (x exposures) Unexpose(ctx context.Context, i sandbox.Info, port uint16) error {
	if err := x.d.exposed.Remove(i.ID, port); err != nil {
		return fmt.Errorf("port %d of %s: %w", port, i.Name, err)
	}
	x.d.supervisor.Ports()
	return x.say(context.WithoutCancel(ctx), i, port, "unexposed", "asked to")
}

func (x exposures) List(i sandbox.Info) (list []client.Exposure) {
	for _, e := range x.d.exposed.List() {
		if e.SandboxID == i.ID {
			list = append(list, x.shown(e))
		}
	}
	return list
}

func (x exposures) shown(e access.Port) client.Exposure {
	_, port, _ := net.SplitHostPort(x.d.cfg.Inbound.Listen)
	return client.Exposure{
		Sandbox: e.Sandbox, Port: e.Port, URL: "http://" + net.JoinHostPort(e.Host(), port) + "/", Created: e.Created, Expires: e.Expires,
	}
}

func (x exposures) say(ctx context.Context, i sandbox.Info, port uint16, state, detail string) error {
	e := x.d.changed("sandbox/"+i.Name, "port "+strconv.Itoa(int(port))+" of sandbox "+i.Name, state)
	e.Detail, e.Entity.UID = detail, i.ID
	s := &e.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Tags, s.Owner = i.Name, i.ID, i.Session, i.Spec.Tags, i.Spec.Owner
	return x.d.auditLog.Append(ctx, e)
}
