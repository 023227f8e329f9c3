package pods

import (
	"maps"
	"strings"

	"sallyport/sandbox"
)

// maxLabels bounds the keys and values of a pod's labels together, in bytes, which Kubernetes
// does not. Each event about the pod has them, and the gateway's process gets those of all
// pods at once when it starts.
const maxLabels = 4 << 10

func labelsFit(labels map[string]string) bool {
	n := 0
	for k, v := range labels {
		n += len(k) + len(v)
	}
	return n <= maxLabels
}

// tags returns a pod's tags, and whether it is offline. A pod that gets too many labels while
// it runs has none of them as tags, and is offline.
func (p *Pods) tags(pod *Pod) (tags map[string]string, offline bool) {
	if !labelsFit(pod.Labels) {
		return map[string]string{sandbox.TagNamespace: pod.Namespace, sandbox.TagPod: pod.Name}, true
	}
	tags = maps.Clone(pod.Labels)
	maps.DeleteFunc(tags, func(k, _ string) bool { return strings.HasPrefix(k, sandbox.TagPrefix) })
	if tags == nil {
		tags = map[string]string{}
	}
	tags[sandbox.TagNamespace], tags[sandbox.TagPod] = pod.Namespace, pod.Name
	_, pooled := pod.Labels[WarmPool]
	return tags, pooled
}
