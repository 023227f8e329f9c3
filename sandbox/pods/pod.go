package pods

import (
	"strings"
	"time"
)

// Pod is a pod of Kubernetes, with the fields of its API (core/v1) that are read here. The
// API's own Go types and client would make the daemon and the gateway's process 5 MB larger.
type Pod struct {
	Metadata `json:"metadata"`
	Spec     PodSpec   `json:"spec"`
	Status   PodStatus `json:"status"`
}

// PodStatus is that of a pod.
type PodStatus struct {
	HostIP string `json:"hostIP"` // of its node
	Phase  string `json:"phase"`
}

// Ended reports whether no container of the pod will run again. Kubernetes still has its
// address, which another pod may have by now.
func (p *Pod) Ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// Metadata is that of a pod.
type Metadata struct {
	Namespace         string            `json:"namespace"`
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	Labels            map[string]string `json:"labels"`
	CreationTimestamp time.Time         `json:"creationTimestamp"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	OwnerReferences   []OwnerReference  `json:"ownerReferences,omitempty"`
}

// OwnerReference is an object that a pod says it belongs to.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// PodSpec is that of a pod.
type PodSpec struct {
	NodeName         string      `json:"nodeName"`
	RuntimeClassName string      `json:"runtimeClassName"`
	Containers       []Container `json:"containers"`
	InitContainers   []Container `json:"initContainers,omitempty"`
}

// sandbox returns agent-sandbox's Sandbox that controls the pod, as the pod says, or nil.
func (p *Pod) sandbox() *OwnerReference {
	for _, o := range p.OwnerReferences {
		if o.Controller && o.Kind == "Sandbox" && strings.HasPrefix(o.APIVersion, "agents.x-k8s.io/") {
			return &o
		}
	}
	return nil
}

// SandboxName is the name, without its namespace, of the sandbox that the pod is.
func (p *Pod) SandboxName() string {
	if o := p.sandbox(); o != nil {
		return o.Name // the pod's author may have invented it
	}
	return p.Name
}

// newer reports whether the resourceVersion a is later than b: they are decimal numbers
// without leading zeros, to be compared as such. If one is not a number, a counts as later.
func newer(a, b string) bool {
	if strings.Trim(a+b, "0123456789") != "" {
		return true
	}
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}
