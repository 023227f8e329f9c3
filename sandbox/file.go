package sandbox

import (
	"io"

	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/manifest"
)

// File is what the sandbox says of a file. Escape its name before a terminal shows it.
type File = wire.File

// FileEvent is a change of a file that is watched: see the constants of package wire.
type FileEvent = wire.Event

// Packed counts what was read or written of an archive.
type Packed = wire.Packed

// WriteOptions say how a file is written.
type WriteOptions struct {
	Mode    wire.Mode // 0: that of the file before it, or 0644
	Parents bool      // make missing parent folders
}

// WatchOptions say what to watch.
type WatchOptions struct {
	Recursive bool // also the folders below, up to wire.MaxWatches
}

// Change is one difference of a sandbox's files. Its path may hold any bytes.
type Change = manifest.Change

// Conn is a connection to a port in a sandbox. The sandbox decides what comes from it;
// no more of that is held than the kernel's buffers.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error // ends the direction to the sandbox
}
