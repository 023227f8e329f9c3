package docker

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"sallyport/sandbox"
)

// Exit codes of a shell for what it cannot run (POSIX.1-2017, Shell Command
// Language, 2.8.2).
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// startFailure is what the engine writes among the command's output when the
// command could not be started.
var startFailure = []byte("OCI runtime exec failed: ")

// startWatch passes a command's output on, but for output that looks like the
// engine's own report of a failed start: that is held until it is known whether
// there was a process.
type startWatch struct {
	to   io.Writer
	held []byte
	open bool // it is the command's own
}

// maxHeld is longer than a report, in bytes.
const maxHeld = 4 << 10

func (w *startWatch) Write(p []byte) (int, error) {
	if w.open {
		return w.to.Write(p)
	}
	w.held = append(w.held, p...)
	n := min(len(w.held), len(startFailure))
	if bytes.Equal(w.held[:n], startFailure[:n]) && len(w.held) <= maxHeld {
		return len(p), nil
	}
	return len(p), w.release()
}

func (w *startWatch) release() error {
	w.open = true
	_, err := w.to.Write(w.held)
	w.held = nil
	return err
}

// settle gives what was held to whom it belongs. A command that never was a
// process ends as in a shell: with a word on its standard error and 126 or 127.
func (w *startWatch) settle(code, pid int, c sandbox.Command) (int, error) {
	if len(w.held) == 0 || pid != 0 {
		return code, w.release()
	}
	why := strings.TrimSpace(string(w.held[min(len(startFailure), len(w.held)):]))
	why = strings.TrimSuffix(why, ": unknown")
	code = codeNotExecutable
	if strings.Contains(why, "no such file or directory") || strings.Contains(why, "not found") {
		code, why = codeNotFound, "no such program in the sandbox"
	}
	_, err := fmt.Fprintf(writer(c.Stderr), "sallyport: cannot run %q: %s\n", c.Args[0], why)
	return code, err
}
