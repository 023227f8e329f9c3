// Package kubernetes runs a cluster for tests on one machine: etcd, an API server, a
// controller manager and a scheduler as processes of the test, and nodes with containerd, a
// kubelet and gVisor. `make test-kubernetes` builds them from Go modules.
//
// The test process must be in a network of its own, with testnet.Isolate. A bridge in
// it, at 192.0.2.1, is the switch that all nodes are plugged into and the router to the hosts
// of package testnet; it is connected to nothing else, so that no packet of a node leaves
// the test.
//
// A node is a process that is PID 1 of its own PID, mount, network, UTS and IPC namespaces. It
// shares the machine's files, but for /etc, /opt, /var and /run, of which it has copies that
// it may write to, and it has a BPF file system of its own. Its cgroups are below one cgroup
// of the machine's. The end of PID 1 is a power cut: all processes, devices and pinned BPF
// objects are gone, and what was written to disk stays.
//
// Whatever a test leaves goes with the test's process, kill -9 included: the kernel ends
// its children (PR_SET_PDEATHSIG), and with PID 1 a node's processes, mounts and devices.
// Files and cgroups that are left are taken away by the next Start on the machine.
//
// It is not a cluster in these regards: nodes share a kernel and its clock, a Service's
// address leads nowhere (there is no kube-proxy), and there is no cluster DNS.
package kubernetes
