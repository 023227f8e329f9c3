package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/internal/config"
	"sallyport/internal/jail"
	"sallyport/internal/ssh"
	"sallyport/internal/ssh/key"
	"sallyport/policy"
	"sallyport/sandbox/datapath"
)

// openSSH takes the address of SSH, if one is configured.
func (d *daemon) openSSH(context.Context) error {
	c := d.cfg.SSH
	if c.Listen == "" || d.host == nil {
		return nil
	}
	host, err := ssh.OpenHostKey(filepath.Join(d.cfg.DataDir, "ssh.key"), d.key)
	if err != nil {
		return err
	}
	view, err := jail.OpenView(filepath.Join(d.cfg.RunDir, "ssh"), d.log)
	if err != nil {
		return err
	}
	sandboxes := d.host.manager
	d.ssh, err = ssh.Open(ssh.Options{
		Listen: c.Listen, Idle: time.Duration(c.Idle), Keys: sshKeys(d.cfg), HostKey: host, View: view,
		Sandboxes: sandboxes, Dial: datapath.Dial,
		Decide:   func(ctx context.Context, in policy.Input) policy.Decision { return d.rules.Decide(ctx, in) },
		Identity: identity, Recorder: d.auditLog, Logger: d.log, Crowded: d.crowded("ssh"),
	})
	if err != nil {
		return fmt.Errorf("ssh: %w: set ssh.listen", err)
	}
	d.onClose(func() error { return d.ssh.Stop(0) }) // of no effect after end
	return nil
}

// sshKeys are a configuration's, which has been checked.
func sshKeys(cfg *config.Config) (keys []ssh.Key) {
	for _, k := range cfg.SSH.Keys {
		if public, err := key.Parse(k.Key); err == nil {
			keys = append(keys, ssh.Key{Name: k.Name, Key: public, Sandboxes: k.Sandboxes, Tenant: k.Tenant, Allow: k.Allow})
		}
	}
	return keys
}

func (d *daemon) serveSSH(ctx context.Context, g *errgroup.Group) error {
	if d.ssh == nil {
		return nil
	}
	if err := d.ssh.Start(ctx); err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	g.Go(func() error { return d.ssh.Watch(ctx) })
	return nil
}

func (d *daemon) stopSSH() error {
	if d.ssh == nil {
		return nil
	}
	return d.ssh.Stop(time.Duration(d.cfg.Gateway.Drain))
}
