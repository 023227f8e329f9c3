// Package state keeps what a daemon must know of a sandbox after a crash: its record, the
// events that belong to the record's changes, and the counters of what is never given
// twice.
//
// A record on disk is whole, either as before a change or as after it. Each committed
// change has exactly one event in the audit log.
package state

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
	"sallyport/internal/image"
	"sallyport/sandbox"
)

// RecordFile is the record's name in the sandbox's folder.
const RecordFile = "record.json"

// The steps of a sandbox's sleep, in Record.Sleep. A step that a crash may cut short has
// a value of its own, and the manager's reconcile knows what to do after each.
const (
	Awake       = ""
	Paused      = "paused"
	Resuming    = "resuming"    // it is on record that it goes on
	Hibernating = "hibernating" // its memory is being written
	Hibernated  = "hibernated"  // its memory is sealed on disk
	Waking      = "waking"      // the same, and the container is being started with it
)

// Record is what survives the daemon: everything about a sandbox that the runtime cannot
// tell.
type Record struct {
	Name       string       `json:"name"`
	ID         string       `json:"id"`
	Spec       sandbox.Spec `json:"spec"`
	Address    netip.Addr   `json:"address"`
	MAC        string       `json:"mac"`
	Created    time.Time    `json:"created"`
	Session    string       `json:"session,omitempty"`    // of the run whose end has not been seen yet
	Generation uint32       `json:"generation,omitempty"` // of its last endpoint
	// Ready is false from before the container is asked for until it exists, so that a
	// crash in between is found and cleaned up.
	Ready bool `json:"ready"`
	// Made says that the creation of a sandbox that is not Ready may be on record.
	Made bool `json:"made,omitempty"`
	// Next is the spec of the next session, if it differs.
	Next *sandbox.Spec `json:"next,omitempty"`
	// Reason is why the sandbox cannot run, or "".
	Reason string `json:"reason,omitempty"`
	// Sleep is Awake, Paused, Resuming, Hibernating, Hibernated or Waking.
	Sleep string    `json:"sleep,omitempty"`
	Slept time.Time `json:"slept,omitzero"` // when the sleep began
	// Dozed says that a sandbox that is Hibernating was paused before.
	Dozed bool `json:"dozed,omitempty"`
	// Pending is the event of the last change: see Journal.
	Pending *audit.Event `json:"pending,omitempty"`
	// Flows are the connections that it sleeps with.
	Flows []sandbox.Flow `json:"flows,omitempty"`
	// Began is when the container whose memory is written was started. A container that
	// was started later has been awake since.
	Began time.Time `json:"began,omitzero"`
	Wakes int       `json:"wakes,omitempty"` // failed attempts to wake it
	// Boot is the host's boot ID (random(4)) at the time of Waking. A time of another boot
	// cannot be known.
	Boot string `json:"boot,omitempty"`
	// Lost is why the last session's memory is gone.
	Lost string `json:"lost,omitempty"`
	// Held is why the last session was ended to keep room for the host, or "".
	Held string `json:"held,omitempty"`
	// Agent is the public key of the session's agent, once it is known.
	Agent []byte `json:"agent,omitempty"`
	// Lineage is set for a fork.
	Lineage *sandbox.Lineage `json:"lineage,omitempty"`
	// Placeholders are as in sandbox.Info.
	Placeholders []sandbox.Placeholder `json:"placeholders,omitempty"`
	// ImageID and ImageDigest are as in sandbox.Info.
	ImageID     string `json:"imageID,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	// Pod is as in sandbox.Info.
	Pod *sandbox.Pod `json:"pod,omitempty"`
	// ProbePorts are as in sandbox.Endpoint.
	ProbePorts sandbox.ProbePorts `json:"probePorts,omitzero"`
	// Restoring is the snapshot that is being copied to its disk. The sandbox cannot run
	// until that is done.
	Restoring string `json:"restoring,omitempty"`
	// Aside is the snapshot that its present disk becomes first.
	Aside string `json:"aside,omitempty"`
}

// Read reads the record in a sandbox's folder.
func Read(dir string) (Record, error) {
	var r Record
	data, err := os.ReadFile(filepath.Join(dir, RecordFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", filepath.Join(dir, RecordFile), err)
	}
	return r, nil
}

// Write replaces the record in a sandbox's folder, durably.
func (r Record) Write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, RecordFile), append(data, '\n'), 0o600)
}

// Wake clears what a record says of a sandbox's sleep.
func (r *Record) Wake() {
	r.Sleep, r.Flows, r.Slept, r.Began, r.Wakes, r.Dozed, r.Boot = Awake, nil, time.Time{}, time.Time{}, 0, false, ""
}

// Root is the ID of the first sandbox of its lineage.
func (r Record) Root() string {
	if r.Lineage != nil {
		return r.Lineage.Root
	}
	return r.ID
}

// NextSpec is the spec of the next session.
func (r Record) NextSpec() sandbox.Spec {
	if r.Next != nil {
		return *r.Next
	}
	return r.Spec
}

// StrictestSpec is the spec of a fork: the next session's, but with the stricter of the
// present and the next value of each restriction.
func (r Record) StrictestSpec() sandbox.Spec {
	s := r.NextSpec()
	s.Offline = s.Offline || r.Spec.Offline
	s.CPUs, s.Memory, s.Pids = stricter(s.CPUs, r.Spec.CPUs), stricter(s.Memory, r.Spec.Memory), stricter(s.Pids, r.Spec.Pids)
	return s
}

// stricter returns the stricter of two limits; 0 is no limit.
func stricter[T int64 | float64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Expired reports whether the sandbox's lifetime has ended.
func (r Record) Expired(now time.Time) bool {
	return r.Spec.Lifetime != 0 && now.Sub(r.Created) >= time.Duration(r.Spec.Lifetime)
}

// CheckLifetime refuses to start or wake a sandbox whose lifetime has ended, with
// sandbox.ErrExpired.
func (r Record) CheckLifetime() error {
	if !r.Expired(time.Now()) {
		return nil
	}
	return fmt.Errorf("%w: it was %v from %s on: `sallyport sandbox set %s --lifetime` gives it more", sandbox.ErrExpired, r.Spec.Lifetime, r.Created.Format(time.RFC3339), r.Name)
}

// SetImage notes the image that the sandbox is made of.
func (r *Record) SetImage(i sandbox.Image) {
	r.ImageID, r.ImageDigest = i.ID, ""
	for _, d := range i.Digests {
		if r.ImageDigest == "" || repository(d) == repository(r.Spec.Image) {
			r.ImageDigest = d
		}
	}
}

// repository is an image's name without tag and digest.
func repository(text string) string {
	name, err := image.Parse(text)
	if err != nil {
		return ""
	}
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}
