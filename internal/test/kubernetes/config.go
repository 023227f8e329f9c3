package kubernetes

// The configuration of nodes. Names and defaults are those of containerd's docs/cri/config.md
// and of Kubernetes' KubeletConfiguration (v1beta1).

// containerdConfig has the names of the image that pods' sandboxes have.
//
// restrict_oom_score_adj is for a root without CAP_SYS_RESOURCE. Network namespaces are
// mounted below /run/containerd, which is the node's own.
const containerdConfig = `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
`

// handlerConfig is the handler of the RuntimeClass: gVisor, and a network of its own.
const handlerConfig = `version = 3

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.sallyport]
  runtime_type = "io.containerd.runsc.v1"
  cni_conf_dir = "/etc/cni/sallyport.d"
`

// podsNetwork is that of all other pods. It has the node's number.
const podsNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

// kubeletConfig has the authority's certificate, the kubelet's own pair of certificate and key, and its
// cgroup. Disk and images are the machine's, so that no pressure of theirs is the node's.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %q}}
authorization: {mode: Webhook}
tlsCertFile: %s.crt
tlsPrivateKeyFile: %s.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: [pods]
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%}
imageGCHighThresholdPercent: 100
resolvConf: /etc/resolv.conf
`
