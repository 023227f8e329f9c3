package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/sandbox"
	"sallyport/sandbox/disk"
)

// badDisks cannot attach, for as long as they are bad.
type badDisks struct {
	fakeDisks
	bad bool
}

func (d *badDisks) Attach(string) error {
	if d.bad {
		return fmt.Errorf("attaching it: %w", disk.ErrDamaged)
	}
	return nil
}

// Every reason for which a sandbox is in error, how it comes to be, and the way out.
func TestRecover(t *testing.T) {
	for name, tt := range map[string]struct {
		harm   func(t *testing.T, b *bed, i sandbox.Info)
		mend   func(b *bed)
		says   string
		events []string
	}{
		"the container of one that runs is gone": {
			func(t *testing.T, b *bed, i sandbox.Info) { delete(b.h.containers, i.ID) },
			func(*bed) {}, "its container is gone", []string{"a stopped", "a recovered", "a started"},
		},
		"the container of one that is paused is gone": {
			func(t *testing.T, b *bed, i sandbox.Info) {
				b.must(t)(b.Pause(t.Context(), "a"))
				delete(b.h.containers, i.ID)
			},
			func(*bed) {}, "its container is gone", []string{"a paused", "a stopped", "a recovered", "a started"},
		},
		"the container of one that is stopped is gone": {
			func(t *testing.T, b *bed, i sandbox.Info) {
				b.must(t)(b.Stop(t.Context(), "a"))
				delete(b.h.containers, i.ID)
			},
			func(*bed) {}, "its container is gone", []string{"a stopped", "a failed", "a recovered", "a started"},
		},
		"its disk cannot be mended": {
			func(t *testing.T, b *bed, i sandbox.Info) {
				b.must(t)(b.Stop(t.Context(), "a"))
				b.opt.Disks.(*badDisks).bad = true
				if _, err := b.Start(t.Context(), "a"); !errors.Is(err, disk.ErrDamaged) {
					t.Errorf("a start from a bad disk: %v", err)
				}
			},
			func(b *bed) { b.opt.Disks.(*badDisks).bad = false },
			disk.ErrDamaged.Error(), []string{"a stopped", "a started", "a stopped", "a recovered", "a started"},
		},
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, daemon restarted %v", name, again), func(t *testing.T) {
				b := newBed(t)
				disks := &badDisks{fakeDisks: fakeDisks{b.h}}
				b.opt.Disks = disks
				before := b.live(t, "a")
				b.h.events = nil
				tt.harm(t, b, before)
				for range 2 {
					if again {
						b.open(t)
						b.opt.Disks = disks
					} else if _, err := b.reconcile(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				i := b.must(t)(b.Get("a"))
				if i.State != sandbox.Failed || !strings.Contains(i.Reason, tt.says) || !strings.Contains(i.Reason, "sandbox recover a") {
					t.Fatalf("it is %s: %q", i.State, i.Reason)
				}
				// No use gets it out, and none changes what it says.
				if _, err := b.Start(t.Context(), "a"); !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("a start: %v", err)
				}
				if disks.bad {
					if _, err := b.Recover(t.Context(), "a"); !errors.Is(err, disk.ErrDamaged) || b.must(t)(b.Get("a")).State != sandbox.Failed {
						t.Errorf("recovering too early: %v", err)
					}
				}
				tt.mend(b)
				for range 2 { // the second finds that nothing is to be done
					if i = b.must(t)(b.Recover(t.Context(), "a")); i.State != sandbox.Stopped || i.Reason != "" || i.ID != before.ID || i.Address != before.Address {
						t.Errorf("recovered it is %+v", i)
					}
				}
				b.must(t)(b.Start(t.Context(), "a"))
				if !slices.Equal(b.h.events, tt.events) {
					t.Errorf("events %v, want %v", b.h.events, tt.events)
				}
				if len(b.h.endpoints) != 1 || !b.h.containers[i.ID] {
					t.Errorf("endpoints %v, containers %v", b.h.endpoints, b.h.containers)
				}
			})
		}
	}
}
