// Package memory lays out the file-backed memory of each sandbox: a folder on
// the host that the sandbox sees as /memory, with memories.md in it.
package memory
