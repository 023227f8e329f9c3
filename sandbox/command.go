package sandbox

import (
	"sallyport/sandbox/agent/channel"
	"sallyport/sandbox/agent/wire"
)

// CommandSpec is one process to run in a sandbox.
type CommandSpec struct {
	Args    []string          `json:"args"`              // looked up on the sandbox's PATH
	Env     map[string]string `json:"env,omitempty"`     // besides the sandbox's
	Workdir string            `json:"workdir,omitempty"` // default: the spec's
	User    string            `json:"user,omitempty"`    // name or uid, or user:group; default: the spec's, and then the image's
	TTY     bool              `json:"tty,omitempty"`     // with a terminal; all output is Stdout's then
	Size    Size              `json:"size,omitzero"`     // of the terminal at the start
	// TimeoutMs is the time limit in milliseconds; 0: none. After it the command gets
	// SIGTERM and, two seconds later, SIGKILL. Its exit code is 124 then.
	TimeoutMs int64 `json:"timeoutMs,omitempty"`
	Input     bool  `json:"input,omitempty"` // there will be input; Exec looks at Stdin instead
	// Keep and Overflow are for commands in the background.
	Keep     int64  `json:"keep,omitempty"`     // bytes kept of each stream, default 1 MiB, at most 64 MiB
	Overflow string `json:"overflow,omitempty"` // drop the oldest (default), or wait for a reader
}

// Streams are the live ends of a command's streams. Sizes and Signals count for a command
// with input or a terminal.
type Streams = wire.Streams

// CommandClient is the connection of a command's client, which speaks frames of package
// wire.
type CommandClient = channel.Client

// ErrGone: the client of a command went away before the command's end.
var ErrGone = channel.ErrGone

// CommandEnd is how a command ended, as the sandbox says.
type CommandEnd = wire.End

// CommandEvent is the state of an audit event that a command ran. It changes nothing of
// what the sandbox is.
const CommandEvent = "command"

// LoginShell are the arguments that start the best shell that an image has.
var LoginShell = []string{"sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi"}

// Size of a terminal, in characters.
type Size = wire.Size

// CommandInfo is the state of a command. The sandbox says all of it: escape its texts
// before a terminal shows them.
type CommandInfo = wire.Status

// OutputOptions select a part of a command's output.
type OutputOptions struct {
	Stream string // stdout (default) or stderr
	From   int64  // offset of the first byte wanted
	Follow bool   // read until the command has ended
}
