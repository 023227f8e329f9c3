// Package admission tests the manifests of examples/kubernetes with a real API server: what
// is made of pods, which pods are refused, and what the daemon may do. No node is needed.
package admission
