package pods

import (
	"fmt"
	"slices"

	"sallyport/sandbox"
)

// Container is one of a pod's.
type Container struct {
	Image string `json:"image"`
	Ports []struct {
		Name          string `json:"name"`
		ContainerPort uint16 `json:"containerPort"`
	} `json:"ports,omitempty"`
	StartupProbe   *handler   `json:"startupProbe,omitempty"`
	ReadinessProbe *handler   `json:"readinessProbe,omitempty"`
	LivenessProbe  *handler   `json:"livenessProbe,omitempty"`
	Lifecycle      *lifecycle `json:"lifecycle,omitempty"`
}

// lifecycle has a container's hooks.
type lifecycle struct {
	PostStart *handler `json:"postStart,omitempty"`
	PreStop   *handler `json:"preStop,omitempty"`
}

// handler is a probe or a hook, by what the kubelet connects to.
type handler struct {
	HTTPGet   *target `json:"httpGet,omitempty"`
	TCPSocket *target `json:"tcpSocket,omitempty"` // of a probe: the kubelet has no such hook
	GRPC      *target `json:"grpc,omitempty"`
}

type target struct {
	Port any `json:"port"` // number, or name of one of the container's ports
}

// probePorts are the ports that the kubelet connects to, in order. An init container that is
// no sidecar has no probes, and an ephemeral container neither probes nor hooks.
func (s PodSpec) probePorts() (ports sandbox.ProbePorts, err error) {
	var all []uint16
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		for _, probe := range []*handler{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if probe != nil {
				all = append(all, c.port(probe.HTTPGet), c.port(probe.TCPSocket), c.port(probe.GRPC))
			}
		}
		if l := c.Lifecycle; l != nil {
			for _, hook := range []*handler{l.PostStart, l.PreStop} {
				if hook != nil {
					all = append(all, c.port(hook.HTTPGet))
				}
			}
		}
	}
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(p uint16) bool { return p == 0 })
	if copy(ports[:], all) < len(all) {
		return sandbox.ProbePorts{}, fmt.Errorf("its probes and hooks have %d ports, and %d is the most", len(all), len(ports))
	}
	return ports, nil
}

// port resolves a port as the kubelet does (ResolveContainerPort in its pkg/probe). Without
// one it is 0.
func (c Container) port(t *target) uint16 {
	if t == nil {
		return 0
	}
	switch p := t.Port.(type) {
	case float64:
		if p > 0 && p <= 65535 {
			return uint16(p)
		}
	case string:
		for _, port := range c.Ports {
			if port.Name == p {
				return port.ContainerPort
			}
		}
	}
	return 0
}
