package daemon

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"sallyport/internal/api"
	"sallyport/sandbox/client"
)

// notify tells systemd, where it has started us, what the daemon's state is
// (sd_notify(3)); elsewhere it does nothing.
func (d *daemon) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		d.log.Warn("systemd cannot be told", "state", state, "error", err)
	}
}

// watchdog tells systemd that the daemon lives until ctx is done, where the unit
// has WatchdogSec: as long as it answers on its own socket, which shows that its
// locks are free and not only that a timer runs.
func (d *daemon) watchdog(ctx context.Context) error {
	within, err := systemd.SdWatchdogEnabled(true)
	if err != nil || within == 0 {
		return err
	}
	c := client.Unix(d.cfg.Socket())
	tick := time.NewTicker(within / 3)
	defer tick.Stop()
	for {
		asked, cancel := context.WithTimeout(ctx, within/3)
		_, err := api.GetStatus.Do(asked, c, client.None{})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			d.log.Error("the daemon does not answer itself, and will be restarted if that goes on", "error", err)
		default:
			d.notify(systemd.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
