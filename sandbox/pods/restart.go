package pods

import (
	"context"
	"errors"
	"path/filepath"

	"sallyport/sandbox/state"
)

func (p *Pods) dir(name string) string { return filepath.Join(p.opt.Dir, name) }

// read reads the records. One that cannot be read is left alone: nothing vouches for its
// pod, and the other pods go on.
func (p *Pods) read() error {
	files, err := filepath.Glob(filepath.Join(p.opt.Dir, "*", "*", state.RecordFile))
	if err != nil {
		return err
	}
	for _, f := range files {
		dir := filepath.Dir(f)
		rec, err := state.Read(dir)
		if err == nil && (p.dir(rec.Name) != dir || rec.Pod == nil) {
			err = errors.New("the record is not this pod's")
		}
		if err != nil {
			p.opt.Logger.Error("the record of a pod cannot be read; the pod is cut off: delete the pod and the record", "file", f, "error", err)
			continue
		}
		p.entries[rec.Name] = &entry{Stored: state.Stored{Rec: rec, Old: true}}
	}
	return nil
}

// adopt keeps the sessions that the network vouches for and ends the others: their interface
// is gone, or the daemon ended before it had attached them, and then the container runtime
// has not run them. It detaches interfaces that no session has.
func (p *Pods) adopt(ctx context.Context) error {
	there, err := p.endpoints()
	if err != nil {
		return err
	}
	for _, e := range p.entries {
		if err := p.journal.Deliver(ctx, &e.Stored); err != nil {
			return err
		}
		ep, ok := there[e.Rec.Generation]
		if e.Rec.Session == "" {
			continue
		}
		delete(there, e.Rec.Generation)
		why := "it was not attached when the daemon started"
		if ok {
			e.live = true
			p.publish(e)
			want := endpoint(e, ep.Link)
			if ep == want {
				continue
			}
			err := p.opt.Network.Attach(want) // the daemon ended as it changed
			if err == nil {
				continue
			}
			why = "it could not be attached: " + err.Error()
		}
		if err := p.end(ctx, e, why); err != nil {
			return err
		}
	}
	for generation := range there {
		if err := p.opt.Network.Detach(generation); err != nil {
			return err
		}
	}
	return nil
}
