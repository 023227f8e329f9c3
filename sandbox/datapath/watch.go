package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch guards interfaces as they join the bridge, those that exist first. A port reaches
// no other port before it is attached, and a port that is never attached never does.
func (d *Datapath) watch() error {
	done := make(chan struct{})
	updates, err := d.subscribe(done)
	if err != nil {
		return fmt.Errorf("watching interfaces: %w", err)
	}
	d.stop = sync.OnceFunc(func() { close(done) })
	d.watching.Go(func() {
		for {
			for u := range updates {
				if err := d.joined(u); err != nil {
					d.config.Logger.Error("guarding a port", "interface", u.Attrs().Name, "error", err)
				}
			}
			// The kernel had more messages than the socket holds: ask for all again.
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			if updates, err = d.subscribe(done); err != nil {
				d.config.Logger.Error("watching interfaces", "error", err)
			}
		}
	})
	return nil
}

// subscribe returns a channel of the interfaces that exist and of changes. With an error,
// the channel is closed.
func (d *Datapath) subscribe(done chan struct{}) (chan netlink.LinkUpdate, error) {
	updates := make(chan netlink.LinkUpdate)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ListExisting: true,
		ErrorCallback: func(err error) {
			select {
			case <-done: // its socket was closed
			default:
				d.config.Logger.Warn("watching interfaces", "error", err)
			}
		},
	})
	if err != nil {
		closed := make(chan netlink.LinkUpdate)
		close(closed)
		return closed, err
	}
	return updates, nil
}

// joined guards an interface that is a port of the bridge, and removes the links of a
// deleted one.
func (d *Datapath) joined(u netlink.LinkUpdate) error {
	port := u.Attrs()
	d.mu.Lock()
	defer d.mu.Unlock()
	// A bridge reports ports that leave with a message of its own family.
	if u.Header.Type == unix.RTM_DELLINK {
		if u.IfInfomsg.Family == unix.AF_BRIDGE {
			return nil
		}
		return d.forget(port.Index)
	}
	if port.MasterIndex != d.bridge || d.guarded(port.Index) {
		return nil
	}
	if err := d.guard(u.Link); err != nil {
		if _, gone := d.port(port.Index); gone != nil {
			return nil // it has left again
		}
		return err
	}
	return nil
}

// forget removes what is left of a deleted interface.
func (d *Datapath) forget(ifindex int) error {
	if d.guarded(ifindex) {
		return nil // another has its index already
	}
	errs := []error{d.disown(ifindex)}
	for _, hook := range []string{hookIn, hookOut} {
		path := portPin(d.config.Pins, hook, ifindex)
		if live(path, ifindex) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
