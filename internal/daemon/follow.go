package daemon

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/internal/config"
	"sallyport/internal/daemon/metrics"
	"sallyport/policy"
)

// How often files are looked at: looking takes at most a hundredth of the time.
// A changed file is loaded when it has looked the same twice.
const (
	lookEvery = 250 * time.Millisecond
	lookShare = 100
)

// followFiles loads the configuration again when its files change. They are
// looked at rather than watched by inotify(7): a file that an editor puts another
// in the place of, a link that is turned, as Kubernetes turns those of a
// ConfigMap, and a folder on a network are all the same to it, and nothing is
// missed.
func (d *daemon) followFiles(ctx context.Context) error {
	return follow(ctx, func() (now config.Print, due, ok bool) {
		if w := d.inForce.Load().Policy.Watch; w != nil && !*w {
			return now, false, false
		}
		d.reloading.Lock()
		cfg := d.attempted
		loaded, retry := d.printed, d.retry
		d.reloading.Unlock()
		now = d.print(cfg, d.inForce.Load())
		return now, now != loaded || !retry.IsZero() && time.Now().After(retry), true
	}, func() {
		_ = d.reload(ctx, byFiles, nil) // which has logged it
	})
}

// follow calls load when a look says that it is due and finds the files as the look before
// did. Looks that are not ok do not count.
func follow(ctx context.Context, look func() (now config.Print, due, ok bool), load func()) error {
	var last config.Print
	wait := lookEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		began := time.Now()
		now, due, ok := look()
		if !ok {
			continue
		}
		wait = max(lookEvery, lookShare*time.Since(began))
		if due && now == last {
			load()
		}
		last = now
	}
}

// maxBackoff is how many times the usual wait a server that fails is left alone.
const maxBackoff = 8

// followBundle asks the bundle's server for a new one, and raises the alarm when
// that has not worked for too long.
func (d *daemon) followBundle(ctx context.Context) error {
	const tick = time.Second
	due := time.Now().Add(time.Second) // openPolicy has just asked, perhaps in vain
	failures := 0
	for {
		b := d.inForce.Load().Policy.Bundle
		wait := time.Hour
		if b != nil && b.URL != "" {
			if !time.Now().Before(due) {
				failures++
				if d.askBundle(ctx, *b) {
					failures = 0
				}
				due = time.Now().Add(untilNext(b.Poll.Or(policy.DefaultPoll), failures))
			}
			d.growBundle(b.StaleAfter.Or(policy.DefaultStaleAfter))
			wait = min(tick, max(time.Until(due), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.nudge:
			due = time.Time{}
		case <-time.After(wait):
		}
	}
}

// untilNext spreads the questions of many daemons, and asks less often who fails.
func untilNext(poll time.Duration, failures int) time.Duration {
	wait := poll
	for range failures {
		wait = min(2*wait, max(poll, min(maxBackoff*poll, time.Hour)))
	}
	return wait + time.Duration((rand.Float64()-0.5)*0.2*float64(poll))
}

// askBundle tells whether the server has what is in force now.
func (d *daemon) askBundle(ctx context.Context, from policy.BundleSource) bool {
	d.telling.Lock()
	token := d.token
	d.telling.Unlock()
	c, err := d.keeper.Ask(ctx, from, token)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil:
		if errors.Is(err, policy.ErrBundle) {
			d.refuse(ctx, byBundle, err)
		} else {
			d.log.Warn("the policy bundle's server gave none", "url", from.URL, "error", err)
		}
		return false
	case c == nil:
		d.unchanged()
		return true
	}
	if err := d.reload(ctx, byBundle, c); err != nil {
		d.keeper.Failed(err)
		return false
	}
	return true
}

// growBundle records that the bundle has become stale, or fresh again.
func (d *daemon) growBundle(after time.Duration) {
	changed, s := d.keeper.Grow(after)
	if !changed {
		return
	}
	state, detail := "fresh", ""
	if s.Stale {
		state, detail = "stale", "no check of "+s.Source+" has succeeded for "+after.String()+": "+s.Failure
		d.log.Error("the policy bundle is stale and stays in force", "url", s.Source, "after", after, "error", s.Failure)
	}
	e := d.about(state, d.rules.Policy(), detail)
	e.Message = "policy bundle " + state
	if s.Stale {
		e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityHigh
	}
	d.record(e)
}

// loaderMetrics says how the policy in force is.
func (d *daemon) loaderMetrics() []prometheus.Collector {
	of := []prometheus.Collector{
		metrics.Gauge("policy_refused", "1 while what is on disk or at the bundle's server is not what is in force.", func() float64 { return metrics.Truth(d.loaded().Refused != nil) }),
		metrics.Gauge("policy_bundle_stale", "1 while no check of the policy bundle has succeeded for too long.", func() float64 { return metrics.Truth(d.keeper.Status().Stale) }),
		metrics.Gauge("policy_bundle_checked_timestamp_seconds", "Time of the policy bundle's last successful check, 0 without.", func() float64 { return metrics.Unix(d.keeper.Status().Checked) }),
	}
	for _, result := range []string{"loaded", "refused"} {
		of = append(of, metrics.Counter("policy_loads_total", "Loads of the policy by what came of them.", prometheus.Labels{"result": result}, func() uint64 { return d.counted()[result] }))
	}
	return of
}
