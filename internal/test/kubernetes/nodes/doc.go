// Package nodes plays what can fail around pods that are sandboxes, on real nodes: the daemon,
// the API server, Vault, power, configuration, admission, a whole node. A sniffer at the
// nodes' uplinks counts what their pods send. The daemon is a process of the node here;
// package guide has it as a DaemonSet.
package nodes
