// Package guide follows docs/kubernetes.md on a cluster, from nothing to the first decided
// request and on: the daemon is a DaemonSet of the image that `make image` writes.
package guide
