package audit

import (
	"cmp"
	"strings"
)

// Change returns an event about a part of the installation that is in another state now.
// The subject is KIND/NAME, as sandbox/demo and key/ci, or the KIND of what there is one
// of; the state is a word of the past. Both are in [Extension], for who selects by them.
//
// OCSF has three classes for these events:
//   - Entity Management for sandboxes and images
//   - API Activity for what operators administer, and for approvals
//   - Application Lifecycle for the daemon and its parts
//
// Those of API Activity are the daemon's own until [Attribute] names an operator.
func Change(subject, state string) *Event {
	kind, name, _ := strings.Cut(subject, "/")
	class := classOf(kind, state)
	activity, ok := activities[class][state]
	if !ok {
		activity = ActivityOther
	}
	e := New(KindLifecycle, class, activity)
	if !ok {
		e.ActivityName = state
	}
	e.StatusID = StatusSuccess
	x := &e.Unmapped.Sallyport
	x.Subject, x.State = subject, state
	name = cmp.Or(name, kind) // there is one API; and a name may be what was wrong
	switch class {
	case ClassEntity:
		e.Entity = &Entity{Name: name, Type: kind, TypeID: typeOther}
	case ClassAPI:
		e.API = &API{Operation: kind + "." + state}
		e.Actor, e.Source = daemon, local
		e.Resources = []Resource{{Name: name, Type: kind}}
		if kind == daemonSubject {
			e.Resources[0] = Resource{Name: PolicyName, Type: "policy"}
		}
	case ClassLifecycle:
		e.App = &Product{Name: subject, VendorName: product}
	}
	return e
}

// Subject is what a lifecycle event is about.
func (e *Event) Subject() string {
	if s := e.Unmapped.Sallyport.Subject; s != "" || e.App == nil {
		return s
	}
	return e.App.Name // as logs have it that were written when all were Application Lifecycle
}

// daemonSubject is the daemon, and its policy.
const daemonSubject = "sallyport"

// PolicyName is what events call the policy; its revision tells one from another.
const PolicyName = "sallyport"

// Revision is the policy of a revision.
func Revision(revision string) *Policy { return &Policy{Name: PolicyName, Version: revision} }

// Actors that are no operators, and where they act from.
var (
	daemon = &Actor{AppName: product}
	local  = &Endpoint{Name: "localhost"}
)

// typeOther says of a type that it is none of OCSF's.
const typeOther = 99

func classOf(kind, state string) Class {
	switch kind {
	case "sandbox", "image", "memory":
		return ClassEntity
	case "key", "secret", "client", "limit", "approval", "hold", "api":
		return ClassAPI
	case daemonSubject:
		if _, ok := activities[ClassAPI][state]; ok {
			return ClassAPI
		}
	}
	return ClassLifecycle
}

// activities are the activity_id of states. For others that is 99, and activity_name the
// state.
var activities = map[Class]map[string]int{
	ClassEntity: {
		"created": 1, "pulled": 1, "loaded": 1,
		"changed": 3, "restored": 3,
		"removed": 4,
		"started": 10, "stopped": 11,
		"paused": 12, "hibernated": 12,
		"resumed": 13, "woken": 13,
	},
	ClassAPI: {
		"created": 1, "added": 1, "asked": 1,
		"read": 2,
		"set":  3, "reset": 3, "approved": 3, "denied": 3, "expired": 3, "withdrawn": 3, "revoked": 3,
		"reloaded": 3, "selected": 3, "stale": 3, "fresh": 3, "observe-begun": 3, "observing": 3, "observe-ended": 3, "refused": 3,
		"removed": 4,
	},
	ClassLifecycle: {"started": LifecycleStart, "stopped": LifecycleStop, "ended": LifecycleStop},
}

// Entity is what an event of Entity Management is about.
type Entity struct {
	Data   *EntityData `json:"data,omitempty"`
	Name   string      `json:"name,omitempty"`
	Type   string      `json:"type,omitempty"` // sandbox, image, memory
	TypeID int         `json:"type_id"`
	UID    string      `json:"uid,omitempty"`
}

// EntityData is what a sandbox is made of, and from.
type EntityData struct {
	Image       string `json:"image,omitempty"`
	ImageDigest string `json:"image_digest,omitempty"`
	Parent      string `json:"parent,omitempty"`   // ID of the sandbox that it is a fork of
	Root        string `json:"root,omitempty"`     // ID of the first of its lineage
	Runtime     string `json:"runtime,omitempty"`  // gvisor, runc
	Snapshot    string `json:"snapshot,omitempty"` // that a fork began from
}

// API is the operation of an event of API Activity.
type API struct {
	Operation string `json:"operation"` // KIND.STATE
}

// Resource is what an event is about.
type Resource struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type,omitempty"`
	UID  string `json:"uid,omitempty"`
}
