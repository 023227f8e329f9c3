package pods

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// The record of a pod goes when its session has ended and Kubernetes no longer has it, in
// whichever order, and not while another pod of its Sandbox is there.
func TestForget(t *testing.T) {
	for _, order := range []string{"detach gone", "gone detach", "detach restart synced", "restart gone detach"} {
		t.Run(order, func(t *testing.T) {
			b := newBed(t)
			follower{t.Context(), b.Pods}.Synced()
			p := b.pod("ns", "a", owned("web"))
			b.follow(p)
			a := b.plug(p, "s1", 7)
			b.attach(a)
			id := get(b.Get("ns/web")).ID
			for _, what := range strings.Fields(order) {
				if len(b.forgot) > 0 {
					t.Error("it is forgotten before " + what)
				}
				switch what {
				case "detach":
					must.OK(t, b.Detach(t.Context(), "s1"))
					b.unplug(a)
				case "gone":
					b.gone(p)
					if order == "restart gone detach" {
						follower{t.Context(), b.Pods}.Synced()
					}
				case "restart":
					b.restart()
				case "synced":
					follower{t.Context(), b.Pods}.Synced()
				}
			}
			if len(b.forgot) != 1 || b.forgot[0] != id || len(b.List()) > 0 {
				t.Errorf("forgot %v, want %s, and %d are listed", b.forgot, id, len(b.List()))
			}
			if left, err := filepath.Glob(filepath.Join(b.opt.Dir, "[^.]*")); err != nil || len(left) > 0 {
				t.Errorf("%q are left on disk, %v", left, err)
			}
			b.restart()
			if len(b.List()) > 0 {
				t.Error("its record is still there")
			}
		})
	}
}

// A session whose DEL found no daemon, while the next one took it for one that goes on, ends when
// Kubernetes says that some pod is gone: its address, and what was leased for it, are nobody's.
func TestLostEnd(t *testing.T) {
	for _, kept := range []bool{false, true} { // as Kubernetes keeps a pod that has run to its end
		t.Run(fmt.Sprint("the pod is kept: ", kept), func(t *testing.T) {
			b := newBed(t)
			p, other, stays := b.pod("ns", "a"), b.pod("ns", "b"), b.pod("ns", "c")
			a := b.plug(p, "s1", 7)
			b.attach(a)
			b.attach(b.plug(stays, "s3", 9))
			b.restart()
			b.unplug(a)
			for _, p := range []*Pod{p, other, stays} {
				b.follow(p)
			}
			follower := follower{t.Context(), b.Pods}
			if !kept {
				delete(b.cluster.pods, "ns/a")
				delete(b.seen, p.UID)
			}
			follower.Synced()
			if _, known := b.known[a.Address]; known || b.history("ns/a") != "started stopped" {
				t.Errorf("the gateway knows the pod: %v, and recorded is %q", known, b.history("ns/a"))
			}
			if _, err := b.Get("ns/a"); (err == nil) != kept || len(b.forgot) > 0 == kept {
				t.Errorf("got %v, and forgot %v", err, b.forgot)
			}
			if got := b.vouched(); got != "ns/c+" {
				t.Errorf("vouched for %q, want the pod that is there", got)
			}
		})
	}
}

// The end of a session that could not be recorded is recorded before its pod is forgotten.
func TestForgetOnRecord(t *testing.T) {
	b := newBed(t)
	follower{t.Context(), b.Pods}.Synced()
	p := b.pod("ns", "a")
	b.follow(p)
	a := b.plug(p, "s1", 7)
	b.attach(a)
	b.broken = errors.New("disk full")
	if err := b.Detach(t.Context(), "s1"); !errors.Is(err, b.broken) {
		t.Errorf("detached while the log is full: %v", err)
	}
	b.unplug(a)
	b.gone(p)
	if len(b.List()) != 1 || len(b.forgot) > 0 {
		t.Errorf("%d are listed, and forgot %v, while the log is full", len(b.List()), b.forgot)
	}
	b.broken = nil
	follower{t.Context(), b.Pods}.Synced()
	if got := b.history("ns/a"); got != "started stopped" || len(b.List()) > 0 {
		t.Errorf("recorded %q, and %d are listed", got, len(b.List()))
	}
}

// The next pod of a Sandbox has nothing of the one before, also if the watch has not told yet that
// that one is gone; another session of the same pod has what the pod has.
func TestForgetFormer(t *testing.T) {
	for _, end := range []string{"detached", "its end was lost", "the daemon restarts"} {
		t.Run(end, func(t *testing.T) {
			b := newBed(t)
			follower{t.Context(), b.Pods}.Synced()
			p, next := b.pod("ns", "web-x", owned("web")), b.pod("ns", "web-y", owned("web"))
			b.follow(p)
			a := b.plug(p, "s1", 7)
			b.attach(a)
			must.OK(t, b.Detach(t.Context(), "s1"))
			again, last := b.plug(p, "s2", 8), b.plug(next, "s3", 9)
			b.attach(again)
			if len(b.forgot) > 0 {
				t.Errorf("another session of the pod: forgot %v", b.forgot)
			}
			if end != "its end was lost" {
				must.OK(t, b.Detach(t.Context(), "s2"))
			}
			b.unplug(again)
			if end == "the daemon restarts" {
				b.restart()
			}
			b.trace = ""
			b.attach(last)
			id := get(b.Get("ns/web")).ID
			if len(b.forgot) != 1 || b.forgot[0] != id || !strings.Contains(b.trace, "forget root ") {
				t.Errorf("forgot %v by %q, want %s before its authority is made", b.forgot, b.trace, id)
			}
			b.gone(p)
			if i := get(b.Get("ns/web")); i.Session != "s3" || len(b.forgot) != 1 {
				t.Errorf("told that the first is gone: %+v, and forgot %v", i, b.forgot)
			}
		})
	}
}
