//go:build tools

// Package shim pins the containerd shim of gVisor to the build of gVisor that sandboxes run on.
// It is a module of its own: gVisor's dependencies are older than Kubernetes'.
package shim

import _ "gvisor.dev/gvisor/shim"
