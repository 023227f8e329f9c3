//go:build tools

// Package gvisor pins the build of gVisor that sandboxes run on: a memory
// checkpoint restores only on the build that wrote it. It is a module of its
// own, so that gVisor's dependencies are not Sallyport's.
package gvisor

import _ "gvisor.dev/gvisor/runsc"
