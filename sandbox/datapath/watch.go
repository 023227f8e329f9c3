package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch guards ports as they join the bridge, so that what runs behind one is
// cut off from the other ports before anybody has vouched for it, and a
// stranger's for good. The first to be told of are those that exist already.
func (d *Datapath) watch() error {
	updates := make(chan netlink.LinkUpdate)
	done := make(chan struct{})
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ListExisting: true,
		ErrorCallback: func(err error) {
			select {
			case <-done: // its socket was closed
			default:
				d.config.Logger.Warn("watching interfaces", "err", err)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching interfaces: %w", err)
	}
	d.stop = sync.OnceFunc(func() { close(done) })
	d.watching.Go(func() {
		for u := range updates {
			if err := d.joined(u); err != nil {
				d.config.Logger.Error("guarding a port", "interface", u.Attrs().Name, "err", err)
			}
		}
	})
	return nil
}

// joined guards an interface that is a port of the bridge, and forgets the
// links of one that has been deleted.
func (d *Datapath) joined(u netlink.LinkUpdate) error {
	port := u.Attrs()
	d.mu.Lock()
	defer d.mu.Unlock()
	// A bridge tells of its ports' leaving with a message of its own family.
	if u.Header.Type == unix.RTM_DELLINK {
		if u.IfInfomsg.Family == unix.AF_BRIDGE {
			return nil
		}
		var errs []error
		for _, hook := range []string{hookIn, hookOut} {
			path := portPin(d.config.Pins, hook, port.Index)
			if live(path, port.Index) {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	if port.MasterIndex != d.bridge || live(portPin(d.config.Pins, hookOut, port.Index), port.Index) {
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
