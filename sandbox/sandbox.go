// Package sandbox holds the nouns of sandboxes and the errors to branch on: what a user
// asks for (Spec), what a listing shows (Info), commands, files, snapshots and images.
//
// It does nothing. Package manager creates, runs and removes sandboxes, package docker
// runs their containers, package datapath checks their packets, and package client asks
// a daemon for all that over its API.
package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"time"
)

// State of a sandbox.
type State string

// The states of a sandbox.
const (
	Stopped State = "stopped"
	Running State = "running"
	Failed  State = "error" // cannot run; Info.Reason says why
	// Paused: its processes are frozen in RAM. Any use wakes it.
	Paused State = "paused"
	// Hibernated: its memory is on disk, sealed, and takes no RAM. Any use wakes it.
	Hibernated State = "hibernated"
)

// Asleep reports whether a sandbox has a session that does not run now.
func (s State) Asleep() bool { return s == Paused || s == Hibernated }

// Live reports whether a sandbox has a session.
func (s State) Live() bool { return s == Running || s.Asleep() }

// Info is what a listing shows of a sandbox.
type Info struct {
	Name       string     `json:"name"`
	ID         string     `json:"id"`
	State      State      `json:"state"`
	Reason     string     `json:"reason,omitempty"` // why it is Failed, or was stopped to keep room for the host
	Spec       Spec       `json:"spec"`
	Address    netip.Addr `json:"address"`
	Session    string     `json:"session,omitempty"`
	Generation uint32     `json:"generation"`
	Created    time.Time  `json:"created"`
	Memory     string     `json:"memory,omitempty"` // folder on the host
	// Slept is when a sandbox that is paused or hibernated began to sleep.
	Slept time.Time `json:"slept,omitzero"`
	// Lost says why a sandbox had to start from its disk, without the memory that
	// it slept with. It is shown until it sleeps again.
	Lost string `json:"lost,omitempty"`
	// Lineage says what a fork was made of; nil for a sandbox that is no fork.
	Lineage *Lineage `json:"lineage,omitempty"`
	Next    *Spec    `json:"next,omitempty"` // of the next session, where it differs
	Storage Storage  `json:"storage,omitzero"`
	// ImageID is the digest of the image that its container was made of. ImageDigest is
	// the image's name at registries, NAME@sha256:…; "" where that is not known, for
	// example because the image came from a file. A name can stand for another image later.
	ImageID     string `json:"imageID,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	// Placeholders are what its processes may hold in the place of credentials.
	Placeholders []Placeholder `json:"placeholders,omitempty"`
	// Pod is the pod that it is, on a node of Kubernetes; its name is NAMESPACE/NAME there,
	// and its owner the namespace.
	Pod *Pod `json:"pod,omitempty"`
	// Capped says why its disk takes no more for now, and why it cannot hibernate.
	Capped string `json:"capped,omitempty"`
}

// Storage is the host's disk space that a sandbox takes, in bytes as allocated. Each
// part is counted whole, also where the host's file system shares blocks between copies,
// since the next write ends the sharing.
type Storage struct {
	Disk      int64 `json:"disk"`
	Snapshots int64 `json:"snapshots"`
	Memory    int64 `json:"memory"`  // sealed on disk while it is hibernated
	History   int64 `json:"history"` // versions and index of /memory
}

// Total is the sum of the parts, in bytes.
func (s Storage) Total() int64 { return s.Disk + s.Snapshots + s.Memory + s.History }

// Placeholder is a variable that a sandbox's commands have, with a text in the place of a
// credential. The text is no secret.
type Placeholder struct {
	Variable   string `json:"variable"`
	Credential string `json:"credential"`
	// Of is the ID of the sandbox that the text was made for: of a sandbox that this is a
	// fork of, if that had it before.
	Of string `json:"of"`
}

// Pod names a pod of Kubernetes.
type Pod struct {
	Name string `json:"name"` // in the namespace that is the sandbox's owner
	UID  string `json:"uid"`
}

// Lineage says what a fork was made of.
type Lineage struct {
	Root     string `json:"root"`               // ID of the sandbox at the beginning of the chain
	Parent   string `json:"parent"`             // ID of the sandbox that was forked
	Name     string `json:"name"`               // the parent's name at that time
	Snapshot string `json:"snapshot,omitempty"` // the parent's snapshot, if one was forked
}

// Tags that a sandbox has because of its origin, besides those of its Spec. Policies
// select by them, and every event about the sandbox has them.
const (
	TagPrefix = "sallyport." // a Spec's own tags must not begin with it

	TagFork    = TagPrefix + "fork"    // "true"
	TagLineage = TagPrefix + "lineage" // Lineage.Root
	TagParent  = TagPrefix + "parent"  // Lineage.Parent

	TagNamespace = TagPrefix + "namespace" // of a pod
	TagPod       = TagPrefix + "pod"       // its name
)

// Tags returns all tags of a sandbox: those of its Spec and those of its lineage.
func (i Info) Tags() map[string]string {
	if i.Lineage == nil {
		return i.Spec.Tags
	}
	all := maps.Clone(i.Spec.Tags)
	if all == nil {
		all = map[string]string{}
	}
	all[TagFork], all[TagLineage], all[TagParent] = "true", i.Lineage.Root, i.Lineage.Parent
	return all
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName refuses a text that cannot be a sandbox's name: a name is a DNS label,
// because it is a folder, a container and a host name too. The error is ErrBadName.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%w: %q: use 1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit", ErrBadName, name)
	}
	return nil
}
